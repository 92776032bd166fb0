package store

import (
	"context"
	"errors"
	"fmt"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/sqlite"
)

// Copy writes the database as it is at one moment to a new file, durable when it
// returns nil. The database may be in use by another process.
func Copy(ctx context.Context, file, to string) error { return sqlite.Copy(ctx, file, to) }

// Restored marks a database that was put back from a backup, before it is used.
// What its nodes hold now is not known, so that nothing is written for one
// before it has said so. Tokens that nobody had used are forgotten: they may
// have been used since.
func Restored(ctx context.Context, file string) (err error) {
	s, err := Open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := sqlite.Check(ctx, s.db); err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		if err := w.exec(`UPDATE nodes SET unheard = 1 WHERE state = ?`, mesh.NodeEnrolled); err != nil {
			return fmt.Errorf("mark nodes: %w", err)
		}
		if err := w.exec(`DELETE FROM tokens WHERE used_at = 0`); err != nil {
			return fmt.Errorf("forget tokens: %w", err)
		}
		return nil
	})
}
