package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

var (
	_ control.Store = (*Store)(nil)
	_ control.Blobs = (*Blobs)(nil)
)

func encode(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("marshal: %w", err)
	}
	return string(data), nil
}

// column scans JSON into a value.
type column[T any] struct{ to *T }

func (c column[T]) Scan(src any) error {
	var data []byte
	switch v := src.(type) {
	case string:
		data = []byte(v)
	case []byte:
		data = v
	default:
		return fmt.Errorf("a column with JSON holds %T", src)
	}
	return json.Unmarshal(data, c.to)
}

func asJSON[T any](to *T) column[T] { return column[T]{to} }

// moment scans microseconds into a time.
func (t *moment) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("a column with a time holds %T", src)
	}
	t.Time = at(n)
	return nil
}

// Nodes returns every node that ever was.
func (s *Store) Nodes(ctx context.Context) ([]control.NodeRecord, error) {
	rows, err := s.db.QueryContext(ctx, `
		SELECT n.name, n.state, n.labels, n.machine, n.host_version, n.enrolled_at, n.profile, n.profile_digest, n.inventory_digest, n.briefing,
			n.store_id, n.floor, n.held, n.ahead, n.unheard, n.retiring, n.refused, n.refused_why, n.reported, n.reported_state, n.applied, n.kept, n.last_contact, n.drift,
			coalesce(c.generation, 0), coalesce(c.digest, ''), coalesce(c.released, 'null')
		FROM nodes n LEFT JOIN compiled c ON c.node = n.id AND c.generation = (SELECT max(generation) FROM compiled WHERE node = n.id)
		ORDER BY n.name`)
	if err != nil {
		return nil, fmt.Errorf("query nodes: %w", err)
	}
	return collect(rows, func(r *control.NodeRecord) []any {
		return []any{&r.Name, &r.State, asJSON(&r.Labels), &r.Machine, &r.HostVersion, into(&r.Enrolled), asJSON(&r.Profile), &r.ProfileDigest, &r.InventoryDigest, asJSON(&r.Briefing),
			&r.StoreID, &r.Floor, &r.Held, &r.Ahead, &r.Unheard, &r.Retiring, &r.Refused, &r.RefusedWhy, &r.Reported, &r.ReportedState, &r.Applied, asJSON(&r.Kept), into(&r.LastContact), &r.Drift,
			&r.Declared, &r.Digest, asJSON(&r.Released)}
	})
}

// Identities returns every key that was ever taken.
func (s *Store) Identities(ctx context.Context) ([]control.IdentityRecord, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT i.key, n.name, i.machine, i.revoked_at FROM identities i JOIN nodes n ON n.id = i.node ORDER BY i.enrolled_at, i.key`)
	if err != nil {
		return nil, fmt.Errorf("query identities: %w", err)
	}
	return collect(rows, func(r *control.IdentityRecord) []any {
		return []any{&r.Key, &r.Node, &r.Machine, into(&r.Revoked)}
	})
}

// IssueToken stores a token that nobody used.
func (s *Store) IssueToken(ctx context.Context, t control.TokenRecord, entry control.AuditEntry) error {
	labels, err := encode(t.Labels)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		err := w.exec(`INSERT INTO tokens (hash, name, labels, replaces, issued_at, expires_at, used_at, used_by, node) VALUES (?, ?, ?, ?, ?, ?, 0, '', '')`,
			t.Hash, t.Name, labels, t.Replaces, micros(t.Issued), micros(t.Expires))
		if err != nil {
			return fmt.Errorf("insert token: %w", err)
		}
		return w.audit(entry)
	})
}

// Token returns control.ErrNotFound when no token has the hash.
func (s *Store) Token(ctx context.Context, hash string) (control.TokenRecord, error) {
	return s.oneToken(ctx, `WHERE hash = ?`, hash)
}

// TokenNamed returns control.ErrNotFound when no token's hash begins so.
func (s *Store) TokenNamed(ctx context.Context, prefix string) (control.TokenRecord, error) {
	return s.oneToken(ctx, `WHERE substr(hash, 1, length(?1)) = ?1 ORDER BY hash LIMIT 1`, prefix)
}

func (s *Store) oneToken(ctx context.Context, where string, args ...any) (control.TokenRecord, error) {
	tokens, err := s.tokens(ctx, where, args...)
	if err != nil {
		return control.TokenRecord{}, err
	}
	if len(tokens) == 0 {
		return control.TokenRecord{}, control.ErrNotFound
	}
	return tokens[0], nil
}

// Tokens returns the newest tokens first, at most limit.
func (s *Store) Tokens(ctx context.Context, limit int) ([]control.TokenRecord, error) {
	return s.tokens(ctx, `ORDER BY issued_at DESC, hash LIMIT ?`, limit)
}

func (s *Store) tokens(ctx context.Context, where string, args ...any) ([]control.TokenRecord, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT hash, name, labels, replaces, issued_at, expires_at, used_at, used_by, node FROM tokens `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("query tokens: %w", err)
	}
	return collect(rows, func(t *control.TokenRecord) []any {
		return []any{&t.Hash, &t.Name, asJSON(&t.Labels), &t.Replaces, into(&t.Issued), into(&t.Expires), into(&t.Used), &t.UsedBy, &t.Node}
	})
}

// RevokeToken forgets a token that nobody used.
func (s *Store) RevokeToken(ctx context.Context, hash string, entry control.AuditEntry) error {
	return s.write(ctx, func(w *writer) error {
		gone, err := w.result(`DELETE FROM tokens WHERE hash = ? AND used_at = 0`, hash)
		if err != nil {
			return fmt.Errorf("delete token: %w", err)
		}
		if n, err := gone.RowsAffected(); err != nil || n != 1 {
			return errors.Join(fmt.Errorf("delete token: %w", control.ErrNotFound), err)
		}
		return w.audit(entry)
	})
}

// Enrol stores an enrolment whole.
func (s *Store) Enrol(ctx context.Context, tx control.EnrolTx) error {
	generation, err := prepareGenerations(tx.Generation)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		used, err := w.result(`UPDATE tokens SET used_at = ?, used_by = ?, node = ? WHERE hash = ? AND used_at = 0`, micros(tx.At), tx.Key, tx.Node.Name, tx.TokenHash)
		if err != nil {
			return fmt.Errorf("use token: %w", err)
		}
		if n, err := used.RowsAffected(); err != nil || n != 1 {
			return errors.Join(fmt.Errorf("use token: %w", control.ErrNotFound), err)
		}
		node, err := w.upsertNode(tx.Node)
		if err != nil {
			return err
		}
		for _, key := range tx.RevokeKeys {
			if err := w.exec(`UPDATE identities SET revoked_at = ? WHERE key = ? AND revoked_at = 0`, micros(tx.At), key); err != nil {
				return fmt.Errorf("revoke the former identity: %w", err)
			}
		}
		err = w.exec(`INSERT INTO identities (key, node, machine, enrolled_at, revoked_at) VALUES (?, ?, ?, ?, 0)
			ON CONFLICT (key) DO UPDATE SET machine = excluded.machine, enrolled_at = excluded.enrolled_at WHERE node = excluded.node AND revoked_at = 0`,
			tx.Key, node, tx.Node.Machine, micros(tx.At))
		if err != nil {
			return fmt.Errorf("insert identity: %w", err)
		}
		if err := w.inventory(node, tx.Inventory); err != nil {
			return err
		}
		for _, o := range tx.Owned {
			if err := w.own(node, o, control.OwnedAsSaid); err != nil {
				return err
			}
		}
		if err := w.boundedCopy(node, tx.Limit); err != nil {
			return err
		}
		var cause sql.NullInt64
		if tx.Bootstrap != nil {
			if cause.Int64, err = w.revision(*tx.Bootstrap); err != nil {
				return err
			}
			cause.Valid = true
		}
		if err := w.generations(generation, cause); err != nil {
			return err
		}
		for _, e := range tx.Events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		return w.audit(tx.Audit)
	})
}

// upsertNode stores a node that enrols. One of the same name begins anew:
// what its former machine reported is gone, generations and recovery copy stay.
func (w *writer) upsertNode(n control.NodeRecord) (int64, error) {
	labels, err := encode(n.Labels)
	if err != nil {
		return 0, err
	}
	profile, err := encode(n.Profile)
	if err != nil {
		return 0, err
	}
	briefing, err := encode(n.Briefing)
	if err != nil {
		return 0, err
	}
	err = w.exec(`
		INSERT INTO nodes (name, state, labels, machine, host_version, enrolled_at, profile, profile_digest, inventory_digest, briefing, store_id,
			floor, held, ahead, refused, refused_why, reported, reported_state, applied, kept, last_contact, drift)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '', 0, '', 0, 'null', ?, 0)
		ON CONFLICT (name) DO UPDATE SET state = excluded.state, labels = excluded.labels, machine = excluded.machine, host_version = excluded.host_version,
			enrolled_at = excluded.enrolled_at, profile = excluded.profile, profile_digest = excluded.profile_digest, inventory_digest = excluded.inventory_digest,
			briefing = excluded.briefing, store_id = excluded.store_id, floor = excluded.floor, held = excluded.held, ahead = 0, unheard = 0, retiring = 0, forgotten = 0, refused = 0, refused_why = '',
			reported = 0, reported_state = '', applied = 0, kept = 'null', last_contact = excluded.last_contact, drift = 0`,
		n.Name, n.State, labels, n.Machine, n.HostVersion, micros(n.Enrolled), profile, n.ProfileDigest, n.InventoryDigest, briefing, n.StoreID,
		uint(n.Floor), uint(n.Held), micros(n.LastContact))
	if err != nil {
		return 0, fmt.Errorf("store node: %w", err)
	}
	id, err := w.nodeID(n.Name)
	if err != nil {
		return 0, err
	}
	for _, table := range []string{"results", "reports"} {
		if err := w.exec("DELETE FROM "+table+" WHERE node = ?", id); err != nil {
			return 0, fmt.Errorf("clear %s: %w", table, err)
		}
	}
	return id, nil
}

// Leave ends a node and its identities.
func (s *Store) Leave(ctx context.Context, tx control.LeaveTx) error {
	return s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		if err := w.exec(`UPDATE nodes SET state = ? WHERE id = ?`, tx.State, node); err != nil {
			return fmt.Errorf("end node: %w", err)
		}
		if err := w.exec(`UPDATE identities SET revoked_at = ? WHERE node = ? AND revoked_at = 0`, micros(tx.At), node); err != nil {
			return fmt.Errorf("revoke identities: %w", err)
		}
		if err := w.event(tx.Event); err != nil {
			return err
		}
		return w.audit(tx.Audit)
	})
}

// ChangeNode changes a node as far as it is set.
func (s *Store) ChangeNode(ctx context.Context, tx control.ChangeTx) error {
	generation, err := prepareGenerations(tx.Generation)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		if tx.Labels != nil {
			labels, err := encode(tx.Labels)
			if err != nil {
				return err
			}
			if err := w.exec(`UPDATE nodes SET labels = ? WHERE id = ?`, labels, node); err != nil {
				return fmt.Errorf("store labels: %w", err)
			}
		}
		for _, flag := range []struct {
			column string
			to     *bool
		}{{"retiring", tx.Retiring}, {"ahead", tx.Ahead}} {
			if flag.to == nil {
				continue
			}
			if err := w.exec(`UPDATE nodes SET `+flag.column+` = ? WHERE id = ?`, *flag.to, node); err != nil {
				return fmt.Errorf("store whether %s is %s: %w", tx.Node, flag.column, err)
			}
		}
		if err := w.generations(generation, sql.NullInt64{}); err != nil {
			return err
		}
		for _, e := range tx.Events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		return w.audit(tx.Audit)
	})
}

// StoreFacts replaces what is known of a node, as far as it is set.
func (s *Store) StoreFacts(ctx context.Context, tx control.FactsTx) error {
	generation, err := prepareGenerations(tx.Generation)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		if tx.Profile != nil {
			profile, err := encode(tx.Profile)
			if err != nil {
				return err
			}
			if err := w.exec(`UPDATE nodes SET profile = ?, profile_digest = ? WHERE id = ?`, profile, tx.ProfileDigest, node); err != nil {
				return fmt.Errorf("store profile: %w", err)
			}
		}
		if tx.Briefing != nil {
			briefing, err := encode(tx.Briefing)
			if err != nil {
				return err
			}
			if err := w.exec(`UPDATE nodes SET briefing = ? WHERE id = ?`, briefing, node); err != nil {
				return fmt.Errorf("store briefing: %w", err)
			}
		}
		if tx.Inventory != nil {
			if err := w.inventory(node, *tx.Inventory); err != nil {
				return err
			}
			if err := w.exec(`UPDATE nodes SET inventory_digest = ? WHERE id = ?`, tx.InventoryDigest, node); err != nil {
				return fmt.Errorf("store digest of inventory: %w", err)
			}
		}
		for _, e := range tx.Events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		return w.generations(generation, sql.NullInt64{})
	})
}

func (w *writer) inventory(node int64, i mesh.Inventory) error {
	inventory, err := encode(i)
	if err != nil {
		return err
	}
	if err := w.exec(`INSERT INTO inventories (node, inventory) VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET inventory = excluded.inventory`, node, inventory); err != nil {
		return fmt.Errorf("store inventory: %w", err)
	}
	return nil
}

// Inventory returns the newest one; empty when there is none.
func (s *Store) Inventory(ctx context.Context, node string) (mesh.Inventory, error) {
	var i mesh.Inventory
	err := s.db.QueryRowContext(ctx, `SELECT i.inventory FROM inventories i JOIN nodes n ON n.id = i.node WHERE n.name = ?`, node).Scan(asJSON(&i))
	if errors.Is(err, sql.ErrNoRows) {
		return mesh.Inventory{}, nil
	}
	if err != nil {
		return mesh.Inventory{}, fmt.Errorf("query inventory: %w", err)
	}
	return i, nil
}

// StoreLink keeps what a node said when it connected, or when it received.
func (s *Store) StoreLink(ctx context.Context, tx control.LinkTx) error {
	return s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		err = w.exec(`UPDATE nodes SET host_version = ?, store_id = ?, floor = max(floor, ?), held = ?, ahead = ?, unheard = ?, refused = ?, refused_why = ? WHERE id = ?`,
			tx.HostVersion, tx.StoreID, uint(tx.Floor), uint(tx.Held), tx.Ahead, tx.Unheard, uint(tx.Refused), tx.RefusedWhy, node)
		if err != nil {
			return fmt.Errorf("store link: %w", err)
		}
		for _, e := range tx.Events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// Recorded returns the greatest number of a message that was recorded.
func (s *Store) Recorded(ctx context.Context, node, storeID string) (uint64, error) {
	var number int64
	err := s.db.QueryRowContext(ctx, `SELECT coalesce(max(q.number), 0) FROM sequences q JOIN nodes n ON n.id = q.node WHERE n.name = ? AND q.store = ?`, node, storeID).Scan(&number)
	if err != nil {
		return 0, fmt.Errorf("query the number of a message: %w", err)
	}
	return uint64(number), nil
}

// TakeBack forgets what a node reported that its store does not know.
func (s *Store) TakeBack(ctx context.Context, tx control.TakeBackTx) error {
	return s.write(ctx, func(w *writer) error {
		node, err := w.nodeID(tx.Node)
		if err != nil {
			return err
		}
		number := int64(tx.Sequence.Number)
		if err := w.exec(`UPDATE sequences SET number = ? WHERE node = ? AND store = ? AND number > ?`, number, node, tx.Sequence.StoreID, number); err != nil {
			return fmt.Errorf("take back the number of a message: %w", err)
		}
		if err := w.exec(`UPDATE nodes SET reported = 0, reported_state = '', applied = min(applied, ?) WHERE id = ?`, uint(tx.Applied), node); err != nil {
			return fmt.Errorf("take back what was reported: %w", err)
		}
		for _, e := range tx.Events {
			if err := w.event(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// StoreContacts keeps when nodes were last heard of, and what they held then.
func (s *Store) StoreContacts(ctx context.Context, contacts []control.Contact) error {
	return s.write(ctx, func(w *writer) error {
		for _, c := range contacts {
			if err := w.exec(`UPDATE nodes SET last_contact = max(last_contact, ?), held = ?, drift = ? WHERE name = ?`, micros(c.At), uint(c.Held), int64(c.Drift), c.Node); err != nil {
				return fmt.Errorf("store last contact: %w", err)
			}
		}
		return nil
	})
}
