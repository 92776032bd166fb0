package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	mesh "github.com/meshctl/mesh"
)

const (
	// undoLimit is the length in bytes up to which what is needed to undo a
	// resource travels in the recovery copy.
	undoLimit = 4 << 20
	// partLimit is the length in bytes at which a message is cut in parts. It
	// leaves room for one more entry below the limit of a frame.
	partLimit = 4 << 20
	// copyLimit bounds a recovery copy that travels in one piece, in bytes of
	// what is needed to undo.
	copyLimit = 8 << 20
)

// extent says how much a message tells.
type extent string

const (
	everything  extent = "everything"
	onlyChanges extent = "only-changes"
)

// Next returns up to limit messages with a sequence number above after, in
// order. While the version that uses the store is not confirmed there are none:
// were it put back, the confirmed version would give its own messages the same
// numbers.
func (s *Store) Next(ctx context.Context, after uint64, limit int) ([]mesh.Frame, error) {
	if s.trial.Load() {
		return nil, nil
	}
	rows, err := s.db.QueryContext(ctx, "SELECT seq, type, body FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)
	if err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	defer rows.Close()
	var out []mesh.Frame
	for rows.Next() {
		var f mesh.Frame
		var body []byte
		if err := rows.Scan(&f.Seq, &f.Type, &body); err != nil {
			return nil, fmt.Errorf("read messages: %w", err)
		}
		f.Body = body
		out = append(out, f)
	}
	return out, rows.Err()
}

// Acked drops every message up to and including seq: the control plane has
// committed them.
func (s *Store) Acked(ctx context.Context, seq uint64) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM outbox WHERE seq <= ?", seq)
		return err
	})
}

// Changed is signalled when messages may have been added.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// AddEvent puts an event among the messages.
func (s *Store) AddEvent(ctx context.Context, e mesh.Event) error {
	err := s.tx(ctx, func(tx *sql.Tx) error { return s.put(ctx, tx, mesh.FrameEvent, e) })
	s.signal()
	return err
}

// AddEventOnce is AddEvent, unless the last event that was added so had the same
// key: whoever adds it then was cut off before it could write down that it had.
func (s *Store) AddEventOnce(ctx context.Context, key string, e mesh.Event) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		last, err := meta(ctx, tx, metaOnce)
		if err != nil || last == key {
			return err
		}
		if err := setMeta(ctx, tx, metaOnce, key); err != nil {
			return err
		}
		return s.put(ctx, tx, mesh.FrameEvent, e)
	})
	s.signal()
	return err
}

// AddGoodbye puts a goodbye among the messages, unless one waits there already.
func (s *Store) AddGoodbye(ctx context.Context, g mesh.Goodbye) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var waiting bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox WHERE type = ?)", mesh.FrameGoodbye).Scan(&waiting); err != nil || waiting {
			return err
		}
		return s.put(ctx, tx, mesh.FrameGoodbye, g)
	})
	s.signal()
	return err
}

// AddFullReport puts everything that the ledger holds among the messages.
func (s *Store) AddFullReport(ctx context.Context) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var last lastPass
		if err := metaJSON(ctx, tx, metaLast, &last); err != nil {
			return err
		}
		if last.Pass == 0 {
			// Nothing was ever decided here, so there is nothing to say.
			return nil
		}
		return s.putReport(ctx, tx, last, nil, everything, true)
	})
	s.signal()
	return err
}

// AddFullOwned puts everything that the host owns among the messages.
func (s *Store) AddFullOwned(ctx context.Context) error {
	err := s.tx(ctx, func(tx *sql.Tx) error { return s.putOwnedChange(ctx, tx, everything) })
	s.signal()
	return err
}

// RecoveryCopy returns what the host owns as it travels in one piece. What is
// too large to travel so is marked as partial.
func (s *Store) RecoveryCopy(ctx context.Context) ([]mesh.Owned, error) {
	var owned []mesh.Owned
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		owned, err = readOwned(ctx, tx)
		return err
	})
	size := 0
	for i := range owned {
		owned[i] = travelling(owned[i])
		if size += len(owned[i].Undo); size > copyLimit {
			size -= len(owned[i].Undo)
			owned[i].Undo, owned[i].Partial = nil, true
		}
	}
	return owned, err
}

// Recover takes over a recovery copy. What it names was owned before this
// store began, so it counts for more than what this store found by itself.
func (s *Store) Recover(ctx context.Context, copied []mesh.Owned) error {
	s.untold.Store(true)
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, o := range copied {
			if err := putOwned(ctx, tx, o); err != nil {
				return err
			}
		}
		return nil
	})
}

func travelling(o mesh.Owned) mesh.Owned {
	if len(o.Undo) > undoLimit {
		o.Undo = nil
		o.Partial = true
	}
	return o
}

func (s *Store) put(ctx context.Context, tx *sql.Tx, t mesh.FrameType, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode %s: %w", t, err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO outbox (type, body) VALUES (?, ?)", t, data)
	return err
}

// putReport puts a report among the messages: everything, or what differs from
// what was told. Without a difference it is put only when must says so.
func (s *Store) putReport(ctx context.Context, tx *sql.Tx, last lastPass, removed []mesh.Result, extent extent, must bool) error {
	full := extent == everything
	entries, err := readLedger(ctx, tx)
	if err != nil {
		return err
	}
	all := results(entries)
	now := make(map[mesh.ResourceID]string, len(all))
	for _, r := range all {
		now[r.Resource] = resultDigest(r)
	}
	changed, gone, err := tell(ctx, tx, "result", now)
	if err != nil {
		return err
	}
	report := mesh.Report{
		Generation: last.Generation, Pass: last.Pass, Trigger: last.Trigger, State: last.State,
		Started: last.Started, Ended: last.Ended, Full: full, Kept: last.Kept, Ledger: mesh.LedgerDigest(all),
	}
	for _, r := range all {
		if full || changed[r.Resource] {
			report.Results = append(report.Results, r)
		}
	}
	if !full {
		report.Results = append(report.Results, removed...)
		report.Gone = gone
		for _, r := range removed {
			// It may be gone before the control plane ever heard of it.
			if !slices.Contains(gone, r.Resource) {
				report.Gone = append(report.Gone, r.Resource)
			}
		}
	}
	if !must && len(report.Results) == 0 && len(report.Gone) == 0 {
		return nil
	}
	return s.putReportParts(ctx, tx, report)
}

// putReportParts keeps each message well below the limit of a frame. Only the
// last part says how the pass ended: before it, not everything has been said.
func (s *Store) putReportParts(ctx context.Context, tx *sql.Tx, all mesh.Report) error {
	part := all
	part.Results, part.Gone, part.State = nil, nil, mesh.GenerationOutstanding
	size := 0
	for _, r := range all.Results {
		data, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode a result: %w", err)
		}
		if size > 0 && size+len(data) > partLimit {
			if err := s.put(ctx, tx, mesh.FrameReport, part); err != nil {
				return err
			}
			part.Results, part.Full, size = nil, false, 0
		}
		part.Results = append(part.Results, r)
		size += len(data)
	}
	part.Gone, part.State = all.Gone, all.State
	return s.put(ctx, tx, mesh.FrameReport, part)
}

func (s *Store) putOwnedChange(ctx context.Context, tx *sql.Tx, extent extent) error {
	full := extent == everything
	owned, err := readOwned(ctx, tx)
	if err != nil {
		return err
	}
	now := make(map[mesh.ResourceID]string, len(owned))
	for _, o := range owned {
		now[o.Resource] = digest(o)
	}
	changed, gone, err := tell(ctx, tx, "owned", now)
	if err != nil {
		return err
	}
	out := mesh.OwnedChange{Full: full}
	if !full {
		out.Gone = gone
	}
	for _, o := range owned {
		if full || changed[o.Resource] {
			out.Owned = append(out.Owned, travelling(o))
		}
	}
	if !full && len(out.Owned) == 0 && len(out.Gone) == 0 {
		return nil
	}
	return s.putOwnedParts(ctx, tx, out)
}

// putOwnedParts keeps each message well below the limit of a frame.
func (s *Store) putOwnedParts(ctx context.Context, tx *sql.Tx, all mesh.OwnedChange) error {
	part := mesh.OwnedChange{Full: all.Full, Gone: all.Gone}
	size := 0
	for _, o := range all.Owned {
		if size > 0 && size+len(o.Undo) > partLimit {
			if err := s.put(ctx, tx, mesh.FrameOwned, part); err != nil {
				return err
			}
			part, size = mesh.OwnedChange{}, 0
		}
		part.Owned = append(part.Owned, o)
		size += len(o.Undo) + len(o.Wrote) + len(o.Resource)
	}
	return s.put(ctx, tx, mesh.FrameOwned, part)
}

// tell compares what is so now with what the control plane was told, returns
// the differences, and remembers them as told.
func tell(ctx context.Context, tx *sql.Tx, what string, now map[mesh.ResourceID]string) (changed map[mesh.ResourceID]bool, gone []mesh.ResourceID, err error) {
	told := make(map[mesh.ResourceID]string)
	rows, err := tx.QueryContext(ctx, "SELECT resource, digest FROM told WHERE what = ? ORDER BY resource", what)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id mesh.ResourceID
		var d string
		if err := rows.Scan(&id, &d); err != nil {
			return nil, nil, err
		}
		told[id] = d
		if _, still := now[id]; !still {
			gone = append(gone, id)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	changed = make(map[mesh.ResourceID]bool)
	for id, d := range now {
		if told[id] == d {
			continue
		}
		changed[id] = true
		if _, err := tx.ExecContext(ctx, "INSERT INTO told (resource, what, digest) VALUES (?, ?, ?) ON CONFLICT (resource, what) DO UPDATE SET digest = excluded.digest", id, what, d); err != nil {
			return nil, nil, err
		}
	}
	for _, id := range gone {
		if _, err := tx.ExecContext(ctx, "DELETE FROM told WHERE resource = ? AND what = ?", id, what); err != nil {
			return nil, nil, err
		}
	}
	return changed, gone, nil
}

func resultDigest(r mesh.Result) string {
	r.Generation, r.Output = 0, ""
	r.At = r.At.Truncate(0)
	return digest(struct {
		Resource mesh.ResourceID
		Status   mesh.Status
		Reason   mesh.Reason
		Detail   string
		Want     string
	}{r.Resource, r.Status, r.Reason, r.Detail, r.Want})
}

func digest(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		// Only our own plain types come here.
		panic(fmt.Sprintf("store: encode for digest: %v", err))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
