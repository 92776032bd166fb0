// Package sqlite opens SQLite files the one way that both stores need: WAL,
// synchronous=FULL, foreign keys and a busy timeout on every connection, and
// numbered migrations.
//
// It knows no schema.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

// ErrCorrupt: the file is not a database, or a damaged one.
var ErrCorrupt = errors.New("the database is damaged")

// NewerError: the file was written by a newer program.
type NewerError struct {
	File  string
	Have  int // migrations in the file
	Known int // migrations that this program knows
}

// Error says what the operator can do.
func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has schema %d and this program knows schemas up to %d; start the newer version that wrote it, or restore the backup made before it", e.File, e.Have, e.Known)
}

// Open opens or creates the database file and brings it to the newest
// migration. The migrations are files NNNN_name.sql at the top of fsys,
// numbered from 1 without gaps, each run in a transaction of its own. Before
// the first migration of a file that holds data already, a copy is made beside
// it as FILE.before-N.
func Open(ctx context.Context, file string, fsys fs.FS) (*sql.DB, error) {
	db, err := handle(file)
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, db, file, fsys); err != nil {
		return nil, errors.Join(Classify(err), db.Close())
	}
	return db, nil
}

// OpenAsIs opens a database file whatever its schema, and migrates nothing.
func OpenAsIs(ctx context.Context, file string) (*sql.DB, error) {
	db, err := handle(file)
	if err != nil {
		return nil, err
	}
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return nil, errors.Join(Classify(fmt.Errorf("read schema version of %s: %w", file, err)), db.Close())
	}
	return db, nil
}

func handle(file string) (*sql.DB, error) {
	q := url.Values{}
	q.Set("_journal_mode", "WAL")
	q.Set("_synchronous", "FULL")
	q.Set("_foreign_keys", "on")
	q.Set("_busy_timeout", "10000")
	q.Set("_txlock", "immediate")
	q.Set("_stmt_cache_size", "32")
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: file}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	return db, nil
}

// Classify marks an error that says that the file is damaged with ErrCorrupt.
func Classify(err error) error {
	var se sqlite3.Error
	if errors.As(err, &se) && (se.Code == sqlite3.ErrCorrupt || se.Code == sqlite3.ErrNotADB) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// Check reads the whole database, and returns ErrCorrupt when it is damaged.
func Check(ctx context.Context, db *sql.DB) error {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return Classify(fmt.Errorf("check the database: %w", err))
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", ErrCorrupt, verdict)
	}
	return nil
}

// IsFull reports whether err says that the disk is full.
func IsFull(err error) bool {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return true
	}
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return false
	}
	return se.Code == sqlite3.ErrFull || se.SystemErrno == syscall.ENOSPC || se.SystemErrno == syscall.EDQUOT
}

// CannotWrite reports whether err says that nothing can be written now, and that
// it may be possible later: the disk is full, cannot be written or fails, or
// another program holds the database.
func CannotWrite(err error) bool {
	if IsFull(err) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) {
		return true
	}
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return false
	}
	return slices.Contains([]sqlite3.ErrNo{sqlite3.ErrReadonly, sqlite3.ErrIoErr, sqlite3.ErrBusy, sqlite3.ErrCantOpen}, se.Code)
}

func prepare(ctx context.Context, db *sql.DB, file string, fsys fs.FS) error {
	migrations, err := list(fsys)
	if err != nil {
		return err
	}
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read schema version of %s: %w", file, err)
	}
	if have > len(migrations) {
		return &NewerError{File: file, Have: have, Known: len(migrations)}
	}
	if have > 0 && have < len(migrations) {
		if err := backup(ctx, db, file, have); err != nil {
			return err
		}
	}
	for i := have; i < len(migrations); i++ {
		if err := migrate(ctx, db, fsys, migrations[i], i+1); err != nil {
			return fmt.Errorf("migrate %s with %s: %w", file, migrations[i], err)
		}
	}
	return nil
}

// Copy writes a database as it is at one moment to the file to, which takes the
// place of any other, durable when Copy returns nil. The database may be in use
// by other processes; it is not migrated.
func Copy(ctx context.Context, file, to string) (err error) {
	q := url.Values{}
	q.Set("mode", "rw")
	q.Set("_busy_timeout", "10000")
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: file}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return Classify(copyTo(ctx, db, file, to))
}

func backup(ctx context.Context, db *sql.DB, file string, have int) error {
	return copyTo(ctx, db, file, file+".before-"+strconv.Itoa(have+1))
}

func copyTo(ctx context.Context, db *sql.DB, file, to string) error {
	aside := to + ".new"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear half a backup: %w", err)
	}
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", aside); err != nil {
		return fmt.Errorf("copy %s: %w", file, err)
	}
	if err := syncFile(aside); err != nil {
		return fmt.Errorf("sync backup: %w", err)
	}
	if err := os.Rename(aside, to); err != nil {
		return fmt.Errorf("name backup: %w", err)
	}
	if err := syncFile(filepath.Dir(to)); err != nil {
		return fmt.Errorf("sync directory of backup: %w", err)
	}
	return nil
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func list(fsys fs.FS) ([]string, error) {
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)
	for i, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s is out of order: number %d is expected", name, i+1)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("there are no migrations")
	}
	return names, nil
}

func migrate(ctx context.Context, db *sql.DB, fsys fs.FS, name string, number int) error {
	script, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, string(script)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if _, err := tx.ExecContext(ctx, "PRAGMA user_version = "+strconv.Itoa(number)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
