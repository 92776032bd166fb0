package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
)

var _ reconcile.Store = (*Store)(nil)

// State implements reconcile.Store.
func (s *Store) State(ctx context.Context) (reconcile.State, error) {
	var out reconcile.State
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if out.Ledger, err = readLedger(ctx, tx); err != nil {
			return err
		}
		if out.Owned, err = readClaims(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, "SELECT resource, unit, verb FROM unit_action ORDER BY resource, unit, verb")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var a reconcile.UnitAction
			if err := rows.Scan(&a.Resource, &a.Unit, &a.Verb); err != nil {
				return err
			}
			out.Units = append(out.Units, a)
		}
		return rows.Err()
	})
	return out, err
}

func readLedger(ctx context.Context, tx *sql.Tx) ([]reconcile.Entry, error) {
	rows, err := tx.QueryContext(ctx, "SELECT resource, status, reason, detail, output, generation, want, at, writing, before, before_want FROM ledger ORDER BY resource")
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	defer rows.Close()
	var out []reconcile.Entry
	for rows.Next() {
		var e reconcile.Entry
		var at string
		if err := rows.Scan(&e.Resource, &e.Status, &e.Reason, &e.Detail, &e.Output, &e.Generation, &e.Want, &at, &e.Writing, &e.Before, &e.BeforeWant); err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		if e.At, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		out = append(out, e)
	}
	return out, rows.Err()
}

func readOwned(ctx context.Context, tx *sql.Tx) ([]mesh.Owned, error) {
	rows, err := tx.QueryContext(ctx, "SELECT resource, made, generation, wrote, undo, partial FROM owned ORDER BY resource")
	if err != nil {
		return nil, fmt.Errorf("read what is owned: %w", err)
	}
	defer rows.Close()
	var out []mesh.Owned
	for rows.Next() {
		var o mesh.Owned
		var wrote, undo []byte
		if err := rows.Scan(&o.Resource, &o.Made, &o.Generation, &wrote, &undo, &o.Partial); err != nil {
			return nil, fmt.Errorf("read what is owned: %w", err)
		}
		o.Wrote, o.Undo = wrote, undo
		out = append(out, o)
	}
	return out, rows.Err()
}

// readClaims reads what is owned without what is needed to undo it, which may
// be large.
func readClaims(ctx context.Context, tx *sql.Tx) ([]mesh.Owned, error) {
	rows, err := tx.QueryContext(ctx, "SELECT resource, made, generation, wrote, partial FROM owned ORDER BY resource")
	if err != nil {
		return nil, fmt.Errorf("read what is owned: %w", err)
	}
	defer rows.Close()
	var out []mesh.Owned
	for rows.Next() {
		var o mesh.Owned
		var wrote []byte
		if err := rows.Scan(&o.Resource, &o.Made, &o.Generation, &wrote, &o.Partial); err != nil {
			return nil, fmt.Errorf("read what is owned: %w", err)
		}
		o.Wrote = wrote
		out = append(out, o)
	}
	return out, rows.Err()
}

// Owned implements reconcile.Store.
func (s *Store) Owned(ctx context.Context, id mesh.ResourceID) (mesh.Owned, error) {
	o := mesh.Owned{Resource: id}
	var wrote, undo []byte
	err := s.db.QueryRowContext(ctx, "SELECT made, generation, wrote, undo, partial FROM owned WHERE resource = ?", id).
		Scan(&o.Made, &o.Generation, &wrote, &undo, &o.Partial)
	if err != nil {
		return mesh.Owned{}, classify(fmt.Errorf("read what is owned of %s: %w", id, err))
	}
	o.Wrote, o.Undo = wrote, undo
	return o, nil
}

// BeginPass implements reconcile.Store.
func (s *Store) BeginPass(ctx context.Context, begin []mesh.Result, drop []mesh.ResourceID) (uint64, error) {
	var pass uint64
	if len(begin)+len(drop) > 0 {
		s.untold.Store(true)
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		last, err := metaNumber(ctx, tx, metaPass)
		if err != nil {
			return err
		}
		pass = last + 1
		if err := setMeta(ctx, tx, metaPass, fmt.Sprint(pass)); err != nil {
			return err
		}
		for _, id := range drop {
			// That a write of what is owned was cut off must be known when it is declared
			// again; nothing else of it is left.
			if _, err := tx.ExecContext(ctx, `UPDATE ledger SET status = '', reason = '', detail = '', output = '', want = '', before = '', before_want = ''
				WHERE resource = ? AND writing AND resource IN (SELECT resource FROM owned)`, id); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM ledger WHERE resource = ? AND status <> ''", id); err != nil {
				return err
			}
		}
		for _, r := range begin {
			// What was decided before stays readable until it is decided anew.
			_, err := tx.ExecContext(ctx, `INSERT INTO ledger (resource, status, reason, detail, output, generation, want, at)
				VALUES (?, ?, '', '', '', ?, ?, ?)
				ON CONFLICT (resource) DO UPDATE SET
					before = CASE WHEN status = 'pending' THEN before ELSE status END,
					before_want = CASE WHEN status = 'pending' THEN before_want ELSE want END,
					status = excluded.status, reason = '', detail = '', output = '',
					generation = excluded.generation, want = excluded.want, at = excluded.at`,
				r.Resource, r.Status, r.Generation, r.Want, stamp(r.At))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return pass, err
}

// Intend implements reconcile.Store.
func (s *Store) Intend(ctx context.Context, intents []reconcile.Intent) error {
	s.untold.Store(true)
	err := s.tx(ctx, func(tx *sql.Tx) error {
		for _, in := range intents {
			_, err := tx.ExecContext(ctx, `UPDATE ledger SET writing = 1,
					before = CASE WHEN status = 'pending' THEN before ELSE status END,
					before_want = CASE WHEN status = 'pending' THEN before_want ELSE want END,
					status = 'pending', reason = '', detail = '', output = ''
				WHERE resource = ?`, in.Resource)
			if err != nil {
				return err
			}
			if in.Owned != nil {
				if err := putOwned(ctx, tx, *in.Owned); err != nil {
					return err
				}
			}
			if in.Event != nil {
				if err := s.put(ctx, tx, mesh.FrameEvent, *in.Event); err != nil {
					return err
				}
			}
		}
		return nil
	})
	s.signal()
	return err
}

func putOwned(ctx context.Context, tx *sql.Tx, o mesh.Owned) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO owned (resource, made, generation, wrote, undo, partial) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (resource) DO UPDATE SET made = excluded.made, generation = excluded.generation, wrote = excluded.wrote, undo = excluded.undo, partial = excluded.partial`,
		o.Resource, o.Made, o.Generation, []byte(o.Wrote), []byte(o.Undo), o.Partial)
	return err
}

// Record implements reconcile.Store.
func (s *Store) Record(ctx context.Context, records []reconcile.Record) error {
	s.untold.Store(true)
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, r := range records {
			if err := record(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

func record(ctx context.Context, tx *sql.Tx, r reconcile.Record) error {
	if r.Forget {
		for _, table := range []string{"ledger", "owned", "unit_action"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE resource = ?", r.Result.Resource); err != nil {
				return err
			}
		}
		return putUnits(ctx, tx, r.Units)
	}
	res := r.Result
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (resource, status, reason, detail, output, generation, want, at, writing)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (resource) DO UPDATE SET status = excluded.status, reason = excluded.reason, detail = excluded.detail,
			output = excluded.output, generation = excluded.generation, want = excluded.want, at = excluded.at, writing = excluded.writing`,
		res.Resource, res.Status, res.Reason, res.Detail, res.Output, res.Generation, res.Want, stamp(res.At), r.Unfinished)
	if err != nil {
		return err
	}
	if r.Owned != nil {
		if err := putOwned(ctx, tx, *r.Owned); err != nil {
			return err
		}
	}
	if r.Disown {
		if _, err := tx.ExecContext(ctx, "DELETE FROM owned WHERE resource = ?", res.Resource); err != nil {
			return err
		}
	}
	return putUnits(ctx, tx, r.Units)
}

func putUnits(ctx context.Context, tx *sql.Tx, units []reconcile.UnitAction) error {
	for _, a := range units {
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO unit_action (resource, unit, verb) VALUES (?, ?, ?)", a.Resource, a.Unit, a.Verb); err != nil {
			return err
		}
	}
	return nil
}

// UnitDone implements reconcile.Store.
func (s *Store) UnitDone(ctx context.Context, a reconcile.UnitAction) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM unit_action WHERE resource = ? AND unit = ? AND verb = ?", a.Resource, a.Unit, a.Verb)
		return err
	})
}

// EndPass implements reconcile.Store. A pass that changed nothing of what the
// control plane was told sends nothing. The first report of a store is a full
// one: what the control plane holds of an earlier store is not known here.
func (s *Store) EndPass(ctx context.Context, end reconcile.End) error {
	untold := s.untold.Swap(false)
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var before lastPass
		if err := metaJSON(ctx, tx, metaLast, &before); err != nil {
			return err
		}
		last := lastPass{Generation: end.Generation, Pass: end.Pass, Trigger: end.Trigger, State: end.State, Started: end.Started, Ended: s.now().UTC(), Kept: end.Kept}
		if last.Ended.Before(last.Started) {
			// The clock was set back meanwhile; no pass took less than no time.
			last.Ended = last.Started
		}
		data, err := json.Marshal(last)
		if err != nil {
			return err
		}
		if err := setMeta(ctx, tx, metaLast, string(data)); err != nil {
			return err
		}
		if end.State == mesh.GenerationApplied {
			if err := setMeta(ctx, tx, metaApplied, fmt.Sprint(uint64(end.Generation))); err != nil {
				return err
			}
		}
		changed := before.Generation != last.Generation || before.State != last.State || fmt.Sprint(before.Kept) != fmt.Sprint(last.Kept)
		if !untold && !changed && len(end.Removed) == 0 && before.Pass != 0 {
			return nil
		}
		if err := s.putOwnedChange(ctx, tx, onlyChanges); err != nil {
			return err
		}
		extent := onlyChanges
		if before.Pass == 0 {
			extent = everything
		}
		return s.putReport(ctx, tx, last, end.Removed, extent, changed)
	})
	if err != nil {
		s.untold.Store(true)
	}
	s.signal()
	return err
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
