package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Leave forgets the declaration, the ledger, the messages and what was told: all
// of it belongs to a mesh that this host has left. What the host owns is not
// forgotten but refused: there must be nothing left of it.
func (s *Store) Leave(ctx context.Context) error {
	// Another mesh may give its first declaration the number of this one's last.
	s.mu.Lock()
	s.decoded = nil
	defer s.mu.Unlock()
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var owned int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM owned").Scan(&owned); err != nil {
			return err
		}
		if owned > 0 {
			return fmt.Errorf("%d resources are still owned", owned)
		}
		for _, table := range []string{"declaration", "ledger", "unit_action", "told", "outbox"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table); err != nil {
				return err
			}
		}
		for _, key := range []string{metaApplied, metaLast, metaBundle} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM meta WHERE key = ?", key); err != nil {
				return err
			}
		}
		return setMeta(ctx, tx, metaLeaving, "yes")
	})
	if err == nil {
		// Content that stays behind is dropped with the next declaration.
		_ = s.dropBlobs(nil)
	}
	return err
}

// Leaving reports whether Leave was called and Left was not.
func (s *Store) Leaving(ctx context.Context) (bool, error) {
	var value string
	err := s.tx(ctx, func(tx *sql.Tx) (err error) {
		value, err = meta(ctx, tx, metaLeaving)
		return err
	})
	return value != "", err
}

// Left says that nothing of the mesh is left on this host.
func (s *Store) Left(ctx context.Context) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM meta WHERE key = ?", metaLeaving)
		return err
	})
}
