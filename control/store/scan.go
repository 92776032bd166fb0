package store

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	mesh "github.com/meshctl/mesh"
)

type moment struct{ time.Time }

// into scans a time into t.
func into(t *time.Time) sql.Scanner { return momentOf{t} }

type momentOf struct{ to *time.Time }

func (m momentOf) Scan(src any) error {
	var t moment
	if err := t.Scan(src); err != nil {
		return err
	}
	*m.to = t.Time
	return nil
}

// uint is a generation as SQLite keeps it. Generations are counted, and what a
// node says of them is bounded, so they do not come near the sign.
func uint(g mesh.Generation) int64 { return int64(g) }

// collect reads all rows; fields gives where the columns of one row go.
func collect[T any](rows *sql.Rows, fields func(*T) []any) ([]T, error) {
	var all []T
	for rows.Next() {
		var one T
		if err := rows.Scan(fields(&one)...); err != nil {
			return nil, errors.Join(fmt.Errorf("read row: %w", err), rows.Close())
		}
		all = append(all, one)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}
