package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// StoreReport records a report once.
func (s *Store) StoreReport(ctx context.Context, tx control.ReportTx) (bool, error) {
	kept, err := encode(tx.Report.Kept)
	if err != nil {
		return false, err
	}
	fresh := false
	err = s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		if fresh, err = w.inOrder(node, tx.Sequence); err != nil || !fresh {
			return err
		}
		if err := w.results(node, tx.Report); err != nil {
			return err
		}
		r := tx.Report
		if !withinBounds(r, tx.Limit) {
			if err := w.boundedResults(node, tx.Limit); err != nil {
				return err
			}
		}
		err = w.exec(`INSERT INTO reports (node, generation, pass, cause, state, started, ended, received, results, ledger) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			node, uint(r.Generation), int64(r.Pass), r.Trigger, tx.State, micros(r.Started), micros(r.Ended), micros(tx.At), len(r.Results), r.Ledger)
		if err != nil {
			return fmt.Errorf("insert report: %w", err)
		}
		err = w.exec(`DELETE FROM reports WHERE node = ? AND id <= (SELECT id FROM reports WHERE node = ? ORDER BY id DESC LIMIT 1 OFFSET ?)`, node, node, reportsKept)
		if err != nil {
			return fmt.Errorf("forget old reports: %w", err)
		}
		applied := int64(0)
		if tx.State == mesh.GenerationApplied {
			applied = uint(r.Generation)
		}
		// Who reports a generation holds it.
		err = w.exec(`UPDATE nodes SET reported = ?, reported_state = ?, applied = max(applied, ?), held = max(held, ?), kept = ? WHERE id = ? AND reported <= ?`,
			uint(r.Generation), tx.State, applied, uint(r.Generation), kept, node, uint(r.Generation))
		if err != nil {
			return fmt.Errorf("store what was reported: %w", err)
		}
		return nil
	})
	return fresh, err
}

// results puts a report into the copy of the node's ledger: what was found first,
// then what the ledger no longer holds, so that a removal may be in both.
func (w *writer) results(node int64, r mesh.Report) error {
	if r.Full {
		if err := w.exec(`DELETE FROM results WHERE node = ?`, node); err != nil {
			return fmt.Errorf("clear results: %w", err)
		}
	}
	for _, result := range r.Results {
		resource, err := w.resourceID(string(result.Resource))
		if err != nil {
			return err
		}
		want, err := packDigest(result.Want)
		if err != nil {
			return err
		}
		err = w.exec(`INSERT INTO results (node, resource, status, bad, reason, detail, output, generation, want, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (node, resource) DO UPDATE SET status = excluded.status, bad = excluded.bad, reason = excluded.reason, detail = excluded.detail,
				output = excluded.output, generation = excluded.generation, want = excluded.want, at = excluded.at`,
			node, resource, result.Status, result.Status.Bad(), result.Reason, result.Detail, result.Output, uint(result.Generation), want, micros(result.At))
		if err != nil {
			return fmt.Errorf("store result: %w", err)
		}
	}
	for _, id := range r.Gone {
		resource, known, err := w.knownResource(string(id))
		if err != nil {
			return err
		}
		if !known {
			continue
		}
		if err := w.exec(`DELETE FROM results WHERE node = ? AND resource = ?`, node, resource); err != nil {
			return fmt.Errorf("delete result: %w", err)
		}
	}
	return nil
}

// packDigest keeps a digest in half the room. Empty stays empty.
func packDigest(text string) ([]byte, error) {
	if text == "" {
		return []byte{}, nil
	}
	if !mesh.ValidDigest(text) {
		return nil, &mesh.Error{Code: mesh.CodeInvalid, Message: "what a result says was wanted is not a digest"}
	}
	return hex.DecodeString(text)
}

// StoreOwned changes the recovery copy once.
func (s *Store) StoreOwned(ctx context.Context, tx control.OwnedTx) (bool, error) {
	fresh := false
	err := s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		if fresh, err = w.inOrder(node, tx.Sequence); err != nil || !fresh {
			return err
		}
		if tx.Mode == control.OwnedAsSaid {
			if tx.Change.Full {
				if err := w.exec(`DELETE FROM owned WHERE node = ?`, node); err != nil {
					return fmt.Errorf("clear recovery copy: %w", err)
				}
			}
			for _, id := range tx.Change.Gone {
				resource, known, err := w.knownResource(string(id))
				if err != nil {
					return err
				}
				if !known {
					continue
				}
				if err := w.exec(`DELETE FROM owned WHERE node = ? AND resource = ?`, node, resource); err != nil {
					return fmt.Errorf("delete from recovery copy: %w", err)
				}
			}
		}
		for _, o := range tx.Change.Owned {
			if err := w.own(node, o, tx.Mode); err != nil {
				return err
			}
		}
		return w.boundedCopy(node, tx.Limit)
	})
	return fresh, err
}

// withinBounds reports whether a report alone shows that its node's results are
// not too many: what is full is all there is.
func withinBounds(r mesh.Report, limit int) bool {
	if !r.Full || limit > 0 && len(r.Results) > limit {
		return false
	}
	output := 0
	for _, result := range r.Results {
		output += len(result.Output)
	}
	return output <= outputKept
}

// boundedResults refuses a write that leaves more results of one node than the
// limit (zero: any number), and drops what the tools wrote when it is too much:
// what failed, and why, stays.
func (w *writer) boundedResults(node int64, limit int) error {
	var n int
	var output int64
	if err := w.row(`SELECT count(*), coalesce(sum(octet_length(output)), 0) FROM results WHERE node = ?`, []any{node}, &n, &output); err != nil {
		return fmt.Errorf("count results: %w", err)
	}
	if limit > 0 && n > limit {
		return mesh.Errorf(mesh.CodeInvalid, "the results of one node would be %d; the limit is %d", n, limit)
	}
	if output <= outputKept {
		return nil
	}
	if err := w.exec(`UPDATE results SET output = '' WHERE node = ?`, node); err != nil {
		return fmt.Errorf("drop what tools wrote: %w", err)
	}
	return nil
}

// boundedCopy refuses a write that leaves more of a recovery copy than the limit.
func (w *writer) boundedCopy(node int64, limit control.CopyLimit) error {
	var n int
	var bytes int64
	if err := w.row(`SELECT count(*), coalesce(sum(octet_length(wrote) + octet_length(undo)), 0) FROM owned WHERE node = ?`, []any{node}, &n, &bytes); err != nil {
		return fmt.Errorf("count the recovery copy: %w", err)
	}
	switch {
	case limit.Entries > 0 && n > limit.Entries:
		return mesh.Errorf(mesh.CodeInvalid, "the recovery copy of one node would have %d entries; the limit is %d", n, limit.Entries)
	case limit.Bytes > 0 && bytes > limit.Bytes:
		return mesh.Errorf(mesh.CodeInvalid, "the recovery copy of one node would have %d bytes; the limit is %d", bytes, limit.Bytes)
	}
	return nil
}

func (w *writer) own(node int64, o mesh.Owned, mode control.OwnedMode) error {
	resource, err := w.resourceID(string(o.Resource))
	if err != nil {
		return err
	}
	conflict := `DO UPDATE SET made = excluded.made, generation = excluded.generation, wrote = excluded.wrote, undo = excluded.undo, partial = excluded.partial`
	if mode == control.OwnedOnlyAdd {
		conflict = `DO NOTHING`
	}
	err = w.exec(`INSERT INTO owned (node, resource, made, generation, wrote, undo, partial) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (node, resource) `+conflict,
		node, resource, o.Made, uint(o.Generation), string(o.Wrote), string(o.Undo), o.Partial)
	if err != nil {
		return fmt.Errorf("store recovery copy: %w", err)
	}
	return nil
}

// StoreEvent records an event once.
func (s *Store) StoreEvent(ctx context.Context, tx control.EventTx) (bool, error) {
	fresh := false
	err := s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Event.Node)
		if err != nil {
			return err
		}
		if fresh, err = w.inOrder(node, tx.Sequence); err != nil || !fresh {
			return err
		}
		return w.event(tx.Event)
	})
	return fresh, err
}

func (w *writer) event(e control.EventView) error {
	node, err := w.nodeID(e.Node)
	if err != nil {
		return err
	}
	err = w.exec(`INSERT INTO events (node, kind, resource, detail, at, received) VALUES (?, ?, ?, ?, ?, ?)`, node, e.Kind, e.Resource, e.Detail, micros(e.At), micros(e.Received))
	if err != nil {
		return fmt.Errorf("insert event: %w", err)
	}
	err = w.exec(`DELETE FROM events WHERE node = ? AND id <= (SELECT id FROM events WHERE node = ? ORDER BY id DESC LIMIT 1 OFFSET ?)`, node, node, eventsKept)
	if err != nil {
		return fmt.Errorf("forget old events: %w", err)
	}
	return nil
}

// Results returns what the node's ledger holds as far as it was reported.
func (s *Store) Results(ctx context.Context, node string) ([]mesh.Result, error) {
	byNode, err := s.selectResults(ctx, `x.output`, `n.name = ?`, node)
	return byNode[node], err
}

// BadResults returns the results whose status is Bad, by node, without what the
// tools wrote.
func (s *Store) BadResults(ctx context.Context, nodes []string) (map[string][]mesh.Result, error) {
	if nodes == nil {
		return s.selectResults(ctx, `''`, `x.bad = 1`)
	}
	list, err := encode(nodes)
	if err != nil {
		return nil, err
	}
	return s.selectResults(ctx, `''`, `x.bad = 1 AND n.name IN (SELECT value FROM json_each(?))`, list)
}

func (s *Store) selectResults(ctx context.Context, output, where string, args ...any) (map[string][]mesh.Result, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT n.name, r.name, x.status, x.reason, x.detail, `+output+`, x.generation, x.want, x.at
		FROM results x JOIN nodes n ON n.id = x.node JOIN resources r ON r.id = x.resource WHERE `+where+` ORDER BY n.name, r.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("query results: %w", err)
	}
	type row struct {
		node string
		mesh.Result
		want []byte
	}
	all, err := collect(rows, func(r *row) []any {
		return []any{&r.node, &r.Resource, &r.Status, &r.Reason, &r.Detail, &r.Output, &r.Generation, &r.want, into(&r.At)}
	})
	if err != nil {
		return nil, err
	}
	byNode := make(map[string][]mesh.Result)
	for _, r := range all {
		r.Want = hex.EncodeToString(r.want)
		byNode[r.node] = append(byNode[r.node], r.Result)
	}
	return byNode, nil
}

// Owned returns the recovery copy of a node.
func (s *Store) Owned(ctx context.Context, node string) ([]mesh.Owned, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT r.name, o.made, o.generation, o.wrote, o.undo, o.partial FROM owned o
		JOIN nodes n ON n.id = o.node JOIN resources r ON r.id = o.resource WHERE n.name = ? ORDER BY r.name`, node)
	if err != nil {
		return nil, fmt.Errorf("query recovery copy: %w", err)
	}
	return collect(rows, func(o *mesh.Owned) []any {
		return []any{&o.Resource, &o.Made, &o.Generation, raw{&o.Wrote}, raw{&o.Undo}, &o.Partial}
	})
}

// raw scans JSON that is kept as it came; empty text is none.
type raw struct{ to *json.RawMessage }

func (r raw) Scan(src any) error {
	var text string
	switch v := src.(type) {
	case string:
		text = v
	case []byte:
		text = string(v)
	default:
		return errors.New("a column with JSON holds something else")
	}
	if text != "" {
		*r.to = json.RawMessage(strings.Clone(text))
	}
	return nil
}

// OwnedIDs returns the resources in the recovery copies, by node.
func (s *Store) OwnedIDs(ctx context.Context, nodes []string) (map[string][]mesh.ResourceID, error) {
	list, err := encode(nodes)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, `SELECT n.name, r.name FROM json_each(?) j JOIN nodes n ON n.name = j.value
		JOIN owned o ON o.node = n.id JOIN resources r ON r.id = o.resource ORDER BY n.name, r.name`, list)
	if err != nil {
		return nil, fmt.Errorf("query recovery copies: %w", err)
	}
	type row struct {
		node string
		id   mesh.ResourceID
	}
	all, err := collect(rows, func(r *row) []any { return []any{&r.node, &r.id} })
	if err != nil {
		return nil, err
	}
	byNode := make(map[string][]mesh.ResourceID)
	for _, r := range all {
		byNode[r.node] = append(byNode[r.node], r.id)
	}
	return byNode, nil
}

// Events returns the newest first.
func (s *Store) Events(ctx context.Context, node string, limit int) ([]control.EventView, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT n.name, e.kind, e.resource, e.detail, e.at, e.received FROM events e JOIN nodes n ON n.id = e.node
		WHERE n.name = ? OR ? = '' ORDER BY e.id DESC LIMIT ?`, node, node, limit)
	if err != nil {
		return nil, fmt.Errorf("query events: %w", err)
	}
	return collect(rows, func(e *control.EventView) []any {
		return []any{&e.Node, &e.Kind, &e.Resource, &e.Detail, into(&e.At), into(&e.Received)}
	})
}

func (w *writer) audit(e control.AuditEntry) error {
	if err := w.exec(`INSERT INTO audit (at, who, door, key, what, detail) VALUES (?, ?, ?, ?, ?, ?)`, micros(e.At), e.Who, e.Door, e.Key, e.What, e.Detail); err != nil {
		return fmt.Errorf("insert audit entry: %w", err)
	}
	return nil
}

// RecordAudit adds one entry.
func (s *Store) RecordAudit(ctx context.Context, e control.AuditEntry) error {
	return s.write(ctx, func(w *writer) error { return w.audit(e) })
}

// Audit returns the newest entries first.
func (s *Store) Audit(ctx context.Context, limit int) ([]control.AuditEntry, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT at, who, door, key, what, detail FROM audit ORDER BY id DESC LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("query audit log: %w", err)
	}
	return collect(rows, func(e *control.AuditEntry) []any {
		return []any{into(&e.At), &e.Who, &e.Door, &e.Key, &e.What, &e.Detail}
	})
}
