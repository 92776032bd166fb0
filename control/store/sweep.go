package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// storesKept is how many former stores of a host are remembered with the number
// of their last message.
const storesKept = 8

// Crowded is signalled when a sweep is due before its time.
func (s *Store) Crowded() <-chan struct{} { return s.writer.crowded }

// ForgetAudit forgets the oldest entries as far as they are from before a time.
func (s *Store) ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	// Entries stand in the order in which they came, so that no more than the
	// oldest are looked at.
	return s.forget(ctx, `DELETE FROM audit WHERE id IN (SELECT id FROM (SELECT id, at FROM audit ORDER BY id LIMIT ?) WHERE at < ?)`, limit, micros(before))
}

// ForgetTokens forgets tokens that expired before a time.
func (s *Store) ForgetTokens(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.forget(ctx, `DELETE FROM tokens WHERE hash IN (SELECT hash FROM tokens WHERE expires_at < ? LIMIT ?)`, micros(before), limit)
}

// forget runs one statement that deletes, and counts what it deleted.
func (s *Store) forget(ctx context.Context, query string, args ...any) (int, error) {
	var n int64
	err := s.write(ctx, func(w *writer) error {
		result, err := w.result(query, args...)
		if err == nil {
			n, err = result.RowsAffected()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget what is old: %w", err)
	}
	return int(n), nil
}

// oldRevisions says which revisions may go: never the newest of a name.
const oldRevisions = `r.revision < newest.revision AND (r.revision <= newest.revision - ?1 OR (newest.removed AND newest.at < ?2))`

// ForgetRevisions forgets revisions beyond the newest keep of their name, and all
// but the newest of a name that was removed before a time.
func (s *Store) ForgetRevisions(ctx context.Context, keep int, removed time.Time, limit int) (int, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT r.id FROM (SELECT name, max(revision) AS revision, removed, at FROM revisions GROUP BY name) newest
		JOIN revisions r ON r.name = newest.name WHERE `+oldRevisions+` LIMIT ?3`, keep, micros(removed), limit)
	if err != nil {
		return 0, fmt.Errorf("find old revisions: %w", err)
	}
	old, err := collect(rows, func(id *int64) []any { return []any{id} })
	if err != nil || len(old) == 0 {
		return 0, err
	}
	n := 0
	err = s.write(ctx, func(w *writer) error {
		for _, id := range old {
			// A declaration that was written again since keeps its revisions.
			var still bool
			err := w.row(`SELECT EXISTS (SELECT 1 FROM revisions r JOIN
				(SELECT name, revision, removed, at FROM revisions WHERE name = (SELECT name FROM revisions WHERE id = ?3) ORDER BY revision DESC LIMIT 1) newest
				ON r.name = newest.name WHERE r.id = ?3 AND `+oldRevisions+`)`, []any{keep, micros(removed), id}, &still)
			if err != nil {
				return fmt.Errorf("look at a revision once more: %w", err)
			}
			if !still {
				continue
			}
			if err := w.exec(`UPDATE compiled SET cause = NULL WHERE cause = ?`, id); err != nil {
				return fmt.Errorf("forget what a revision caused: %w", err)
			}
			if err := w.exec(`DELETE FROM revisions WHERE id = ?`, id); err != nil {
				return fmt.Errorf("forget a revision: %w", err)
			}
			n++
		}
		return nil
	})
	return n, err
}

// ForgetSequences forgets the former stores of hosts beyond the newest of each
// node. The one that the node has now stays.
func (s *Store) ForgetSequences(ctx context.Context, limit int) (int, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT node FROM sequences GROUP BY node HAVING count(*) > ?`, storesKept+1)
	if err != nil {
		return 0, fmt.Errorf("find former stores: %w", err)
	}
	nodes, err := collect(rows, func(id *int64) []any { return []any{id} })
	if err != nil || len(nodes) == 0 {
		return 0, err
	}
	return s.forget(ctx, `DELETE FROM sequences WHERE node = ?1 AND store IN (SELECT q.store FROM sequences q JOIN nodes n ON n.id = q.node
		WHERE q.node = ?1 AND q.store <> n.store_id ORDER BY q.began DESC, q.store LIMIT ?2 OFFSET ?3)`, nodes[0], limit, storesKept)
}

// Left returns nodes that left before a time and of which more is kept than
// that they did.
func (s *Store) Left(ctx context.Context, before time.Time) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT n.name FROM nodes n WHERE n.state <> ? AND n.forgotten = 0
		AND coalesce((SELECT max(revoked_at) FROM identities WHERE node = n.id), 0) < ? ORDER BY n.name`, mesh.NodeEnrolled, micros(before))
	if err != nil {
		return nil, fmt.Errorf("find nodes that left: %w", err)
	}
	return collect(rows, func(name *string) []any { return []any{name} })
}

// ForgetNode forgets of a node that left what it reported and was given. Its
// name, how it ended, the number of its last generation and its keys stay, so
// that a key which was revoked is refused for ever.
func (s *Store) ForgetNode(ctx context.Context, name string, limit int) (int, error) {
	n := 0
	err := s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(name)
		if err != nil {
			return err
		}
		var left bool
		if err := w.row(`SELECT state <> ? FROM nodes WHERE id = ?`, []any{mesh.NodeEnrolled, node}, &left); err != nil {
			return fmt.Errorf("look whether %s left: %w", name, err)
		}
		if !left {
			return mesh.Errorf(mesh.CodeConflict, "node %s has not left; nothing of it is forgotten", name)
		}
		bodies, err := w.bodiesOf(node)
		if err != nil {
			return err
		}
		for _, table := range []struct{ name, key string }{
			{"results", "resource"}, {"owned", "resource"}, {"reports", "id"}, {"events", "id"}, {"sequences", "store"}, {"inventories", "node"}, {"compiled", "generation"},
		} {
			result, err := w.result(`DELETE FROM `+table.name+` WHERE node = ?1 AND `+table.key+` IN (SELECT `+table.key+` FROM `+table.name+` WHERE node = ?1 LIMIT ?2)`, node, limit-n)
			if err != nil {
				return fmt.Errorf("forget %s: %w", table.name, err)
			}
			gone, err := result.RowsAffected()
			if err != nil {
				return err
			}
			if n += int(gone); n >= limit {
				break
			}
		}
		for _, id := range bodies {
			if err := w.exec(`DELETE FROM bodies WHERE id = ? AND NOT EXISTS (SELECT 1 FROM compiled WHERE body = bodies.id)`, id); err != nil {
				return fmt.Errorf("forget what no node gets: %w", err)
			}
		}
		if n >= limit {
			return nil
		}
		return w.exec(`UPDATE nodes SET forgotten = 1, profile = '{}', briefing = '{}', kept = 'null', refused = 0, refused_why = '' WHERE id = ?`, node)
	})
	return n, err
}

// bodiesOf lists what a node gets, in all its generations.
func (w *writer) bodiesOf(node int64) ([]int64, error) {
	stmt, err := w.stmt(`SELECT DISTINCT body FROM compiled WHERE node = ?`)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(context.Background(), node)
	if err != nil {
		return nil, fmt.Errorf("find what a node gets: %w", err)
	}
	return collect(rows, func(id *int64) []any { return []any{id} })
}

// ForgetNames forgets names of resources that nothing refers to any more.
func (s *Store) ForgetNames(ctx context.Context, limit int) (n int, err error) {
	// From here on the writer notes which names are used. What is not used by
	// what can be read after that, and not noted, is used by nothing.
	due := false
	if err := s.write(ctx, func(w *writer) error {
		if due = w.made >= namesWorth; due {
			w.used = make(map[int64]struct{})
		}
		return nil
	}); err != nil || !due {
		return 0, err
	}
	defer func() {
		end := s.write(context.WithoutCancel(ctx), func(w *writer) error {
			w.used = nil
			if err == nil {
				w.made = 0
			}
			return nil
		})
		err = errors.Join(err, end)
	}()
	unused, err := s.unusedNames(ctx)
	if err != nil {
		return 0, err
	}
	for ids := range slices.Chunk(unused, limit) {
		gone, err := s.dropNames(ctx, ids)
		if err != nil {
			return n, err
		}
		n += gone
	}
	return n, nil
}

// dropNames forgets those names that nobody has used since the writer notes it.
//
// SQLite would look through all results of all nodes for each name, since what
// refers to a name has no index for that: it would cost room and time with every
// report. That nothing refers to these names is known, so it does not look.
func (s *Store) dropNames(ctx context.Context, ids []int64) (n int, err error) {
	err = s.writeAlone(ctx, func(w *writer) (err error) {
		if err := w.exec(`PRAGMA foreign_keys = OFF`); err != nil {
			return fmt.Errorf("forget names: %w", err)
		}
		defer func() { err = errors.Join(err, w.exec(`PRAGMA foreign_keys = ON`)) }()
		if err := w.exec(`BEGIN IMMEDIATE`); err != nil {
			return fmt.Errorf("forget names: %w", err)
		}
		clear(w.resources)
		for _, id := range ids {
			if _, used := w.used[id]; used {
				continue
			}
			if err := w.exec(`DELETE FROM resources WHERE id = ?`, id); err != nil {
				return errors.Join(fmt.Errorf("forget the name of a resource: %w", err), w.undo())
			}
			n++
		}
		if err := w.exec(`COMMIT`); err != nil {
			return errors.Join(fmt.Errorf("forget names: %w", err), w.undo())
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// unusedNames lists the names that no result and no entry of a recovery copy has,
// at one moment.
func (s *Store) unusedNames(ctx context.Context) ([]int64, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id FROM resources WHERE id NOT IN (SELECT resource FROM results UNION SELECT resource FROM owned)`)
	if err != nil {
		return nil, fmt.Errorf("find names that nothing has: %w", err)
	}
	return collect(rows, func(id *int64) []any { return []any{id} })
}

// Named returns those of the digests that a revision, or what some node gets,
// refers to.
func (s *Store) Named(ctx context.Context, sums []string) (named map[string]bool, err error) {
	stmt, err := s.db.PrepareContext(ctx, `SELECT EXISTS (SELECT 1 FROM revision_blobs WHERE sum = ?1) OR EXISTS (SELECT 1 FROM body_blobs WHERE sum = ?1)`)
	if err != nil {
		return nil, fmt.Errorf("query who names a blob: %w", err)
	}
	defer func() { err = errors.Join(err, stmt.Close()) }()
	named = make(map[string]bool)
	for _, sum := range sums {
		raw, err := hex.DecodeString(sum)
		if err != nil {
			return nil, fmt.Errorf("name of a blob: %w", err)
		}
		var found bool
		if err := stmt.QueryRowContext(ctx, raw).Scan(&found); err != nil {
			return nil, fmt.Errorf("query who names a blob: %w", err)
		}
		if found {
			named[strings.Clone(sum)] = true
		}
	}
	return named, nil
}

var _ control.SweepStore = (*Store)(nil)
