// Package store keeps what the control plane knows in one SQLite file, and the
// content of large files in a directory beside it.
//
// It decides nothing: what is written, and what follows from it, comes from
// package control whole.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/meshctl/mesh/internal/sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// What is kept of things that only grow.
const (
	generationsKept = 8
	reportsKept     = 20
	eventsKept      = 200
	// outputKept is how many bytes are kept of what tools wrote on one node.
	outputKept = 32 << 20
	// readers bounds the connections that read.
	readers = 8
)

// Store is a control.Store in one SQLite file.
type Store struct {
	db     *sql.DB
	writer *writer
	bodies bodyCache
}

// Open opens or creates the database file. See sqlite.Open for its errors.
func Open(ctx context.Context, file string) (*Store, error) {
	scripts, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	db, err := sqlite.Open(ctx, file, scripts)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(readers + 1)
	db.SetMaxIdleConns(readers + 1)
	// Each holds pages of the file in memory.
	db.SetConnMaxIdleTime(time.Minute)
	w, err := newWriter(ctx, db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{db: db, writer: w}, nil
}

// Close waits for the writes that were begun and closes the file. Writes that
// come later fail.
func (s *Store) Close() error {
	return errors.Join(s.writer.close(), s.db.Close())
}

// micros and at turn times into what is stored and back.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func at(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
