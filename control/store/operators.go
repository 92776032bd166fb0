package store

import (
	"context"
	"fmt"

	"github.com/meshctl/mesh/control"
)

// Operators returns those who are registered, by name.
func (s *Store) Operators(ctx context.Context) ([]control.OperatorRecord, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT name, key, role, declarations, packages, added_at, added_by FROM operators ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("query operators: %w", err)
	}
	return collect(rows, func(o *control.OperatorRecord) []any {
		return []any{&o.Name, &o.Key, &o.Role, asJSON(&o.Limits.Declarations), asJSON(&o.Limits.Packages), into(&o.Added), &o.By}
	})
}

// AddOperator stores an operator whose name and key nobody has.
func (s *Store) AddOperator(ctx context.Context, o control.OperatorRecord, entry control.AuditEntry) error {
	declarations, err := encode(o.Limits.Declarations)
	if err != nil {
		return err
	}
	packages, err := encode(o.Limits.Packages)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		err := w.exec(`INSERT INTO operators (name, key, role, declarations, packages, added_at, added_by) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			o.Name, o.Key, string(o.Role), declarations, packages, micros(o.Added), o.By)
		if err != nil {
			return fmt.Errorf("insert operator: %w", err)
		}
		return w.audit(entry)
	})
}

// RemoveOperator forgets an operator; control.ErrNotFound when there is none.
func (s *Store) RemoveOperator(ctx context.Context, name string, entry control.AuditEntry) error {
	return s.write(ctx, func(w *writer) error {
		result, err := w.result(`DELETE FROM operators WHERE name = ?`, name)
		if err != nil {
			return fmt.Errorf("delete operator: %w", err)
		}
		if gone, err := result.RowsAffected(); err != nil || gone == 0 {
			if err == nil {
				err = control.ErrNotFound
			}
			return fmt.Errorf("delete operator %s: %w", name, err)
		}
		return w.audit(entry)
	})
}
