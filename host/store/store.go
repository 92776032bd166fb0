// Package store keeps what a host must not forget, in one SQLite file: the
// declaration it holds, the ledger, what it owns and how to undo it, and the
// messages that the control plane has not acknowledged. Content that does not
// travel inside a declaration lies beside it, in files named by their SHA-256.
//
// It decides nothing: the reconciler and the host say what is written.
package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/internal/sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	fileName = "store.db"
	blobsDir = "blobs"
)

// Keys of the table meta.
const (
	metaStoreID = "store-id"
	metaPass    = "pass"
	metaApplied = "applied"
	metaLast    = "last-pass"
	metaBundle  = "bundle"
	metaLeaving = "leaving"
	metaOnce    = "event-once"
)

// Store is the store of one host. All methods may be called from several
// goroutines; each is one transaction.
type Store struct {
	db  *sql.DB
	dir string
	id  string
	now func() time.Time
	// lock is held while the store is open.
	lock *os.File
	// untold: ledger or ownership may differ from what the control plane was told.
	untold atomic.Bool

	mu      sync.Mutex
	decoded *mesh.Declaration // guarded by mu; nil: not read yet
	// trial: this is the copy of a version that is not confirmed. Nothing leaves
	// it, and nothing that the confirmed version's store needs is dropped.
	trial atomic.Bool
	// changed has room for one signal: messages wait to be delivered.
	changed chan struct{}
}

// Lost says that an earlier store could not be used.
type Lost struct {
	// MovedTo is where the damaged files are kept. Empty: there was no file.
	MovedTo string
	Detail  string
}

// Open opens the store in dir, creating it when there is none. A damaged file
// is moved aside, never deleted, and a new store is begun; lost then says so.
// A store that was not there although expected is lost too. While another
// process has it open the error is *InUseError, and nothing is changed.
func Open(ctx context.Context, dir string, expected bool, now func() time.Time) (s *Store, lost *Lost, err error) {
	return openIn(ctx, dir, dir, expected, now)
}

// openIn opens the store of dir whose database lies in where.
func openIn(ctx context.Context, dir, where string, expected bool, now func() time.Time) (s *Store, lost *Lost, err error) {
	if err := os.MkdirAll(filepath.Join(dir, blobsDir), 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the state directory: %w", err)
	}
	held, err := lock(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, held.Close())
		}
	}()
	file := filepath.Join(where, fileName)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && expected {
		lost = &Lost{Detail: "the store was not there; a new one was begun"}
	}
	db, err := open(ctx, file)
	if errors.Is(err, sqlite.ErrCorrupt) {
		aside, moveErr := moveAside(where)
		if moveErr != nil {
			return nil, nil, fmt.Errorf("move the damaged store aside: %w", moveErr)
		}
		lost = &Lost{MovedTo: aside, Detail: "the store was damaged and is kept as " + aside + "; a new one was begun"}
		db, err = open(ctx, file)
	}
	if err != nil {
		return nil, nil, err
	}
	s = &Store{db: db, dir: dir, now: now, lock: held, changed: make(chan struct{}, 1)}
	s.untold.Store(true)
	if lost, err = s.identify(ctx, expected, lost); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	if err := s.sweep(); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	s.signal()
	return s, lost, nil
}

func open(ctx context.Context, file string) (*sql.DB, error) {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := sqlite.Open(ctx, file, sub)
	if err != nil {
		return nil, err
	}
	// One connection: every transaction is the only one.
	db.SetMaxOpenConns(1)
	if err := sqlite.Check(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func moveAside(dir string) (string, error) {
	for n := 1; ; n++ {
		aside := filepath.Join(dir, fileName+".damaged-"+strconv.Itoa(n))
		if _, err := os.Lstat(aside); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return "", err
			}
			continue
		}
		for _, suffix := range []string{"-wal", "-shm", ""} {
			err := os.Rename(filepath.Join(dir, fileName+suffix), aside+suffix)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		return aside, syncDir(dir)
	}
}

// Close closes the file. Closing again does nothing.
func (s *Store) Close() error {
	err := s.db.Close()
	if unlocked := s.lock.Close(); unlocked != nil && !errors.Is(unlocked, os.ErrClosed) {
		err = errors.Join(err, unlocked)
	}
	return err
}

// ID is random and made with the store; sequence numbers belong to it.
func (s *Store) ID() string { return s.id }

// identify gives a new store its id, and in the same transaction puts the event
// that an earlier one was lost among the messages.
func (s *Store) identify(ctx context.Context, expected bool, lost *Lost) (*Lost, error) {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if s.id, err = meta(ctx, tx, metaStoreID); err != nil || s.id != "" {
			return err
		}
		var raw [16]byte
		if _, err := rand.Read(raw[:]); err != nil {
			return err
		}
		s.id = hex.EncodeToString(raw[:])
		if err := setMeta(ctx, tx, metaStoreID, s.id); err != nil {
			return err
		}
		if expected && lost == nil {
			lost = &Lost{Detail: "the store was empty; a new one was begun"}
		}
		if lost == nil {
			return nil
		}
		return s.put(ctx, tx, mesh.FrameEvent, mesh.Event{Kind: mesh.EventStoreLost, Detail: lost.Detail, At: s.now()})
	})
	return lost, err
}

// sweep drops content that an earlier life of this host did not store whole.
func (s *Store) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.dir, blobsDir, unfinishedPrefix+"*"))
	if err != nil {
		return fmt.Errorf("list unfinished content: %w", err)
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("drop unfinished content: %w", err)
		}
	}
	return nil
}

// tx runs f in a transaction that is durable when tx returns nil.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return classify(fmt.Errorf("begin: %w", err))
	}
	if err := f(tx); err != nil {
		if back := tx.Rollback(); back != nil && !errors.Is(back, sql.ErrTxDone) {
			return classify(errors.Join(err, back))
		}
		return classify(err)
	}
	if err := tx.Commit(); err != nil {
		return classify(fmt.Errorf("commit: %w", err))
	}
	return nil
}

// classify marks what only opening the store anew can mend.
func classify(err error) error {
	if errors.Is(sqlite.Classify(err), sqlite.ErrCorrupt) {
		return fmt.Errorf("%w: %w", host.ErrStoreDamaged, err)
	}
	return err
}

func meta(ctx context.Context, tx *sql.Tx, key string) (string, error) {
	var value string
	err := tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

func setMeta(ctx context.Context, tx *sql.Tx, key, value string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return err
}

func metaNumber(ctx context.Context, tx *sql.Tx, key string) (uint64, error) {
	value, err := meta(ctx, tx, key)
	if err != nil || value == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	return n, nil
}

// lastPass is the last pass that ended, as status shows it.
type lastPass struct {
	Generation mesh.Generation      `json:"generation"`
	Pass       uint64               `json:"pass"`
	Trigger    mesh.Trigger         `json:"trigger"`
	State      mesh.GenerationState `json:"state"`
	Started    time.Time            `json:"started"`
	Ended      time.Time            `json:"ended"`
	Kept       []mesh.ResourceID    `json:"kept,omitempty"`
}

// Summary reads everything at one moment.
func (s *Store) Summary(ctx context.Context) (host.Summary, error) {
	out := host.Summary{StoreID: s.id}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(generation), 0) FROM declaration").Scan(&out.Held); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'outbox'").Scan(&out.Sequence); err != nil {
			return err
		}
		applied, err := metaNumber(ctx, tx, metaApplied)
		if err != nil {
			return err
		}
		out.Applied = mesh.Generation(applied)
		var last lastPass
		if err := metaJSON(ctx, tx, metaLast, &last); err != nil {
			return err
		}
		out.LastPass, out.LastGeneration, out.LastTrigger = last.Pass, last.Generation, last.Trigger
		out.LastState, out.LastEnded, out.Kept = last.State, last.Ended, last.Kept
		entries, err := readLedger(ctx, tx)
		if err != nil {
			return err
		}
		out.Ledger = results(entries)
		out.LedgerDigest = mesh.LedgerDigest(out.Ledger)
		owned, err := readClaims(ctx, tx)
		if err != nil {
			return err
		}
		out.OwnedDigest = mesh.OwnedDigest(owned)
		return tx.QueryRowContext(ctx, "SELECT count(*) FROM outbox").Scan(&out.Pending)
	})
	return out, err
}

func metaJSON(ctx context.Context, tx *sql.Tx, key string, into any) error {
	value, err := meta(ctx, tx, key)
	if err != nil || value == "" {
		return err
	}
	return json.Unmarshal([]byte(value), into)
}

// results leaves out what is not declared, and of which only a write that was
// cut off is remembered.
func results(entries []reconcile.Entry) []mesh.Result {
	out := make([]mesh.Result, 0, len(entries))
	for _, e := range entries {
		if e.Status != "" {
			out = append(out, e.Result)
		}
	}
	return out
}

// SetBundle remembers the document that a bundle declared, for enrolment.
func (s *Store) SetBundle(ctx context.Context, d mesh.Document) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error { return setMeta(ctx, tx, metaBundle, string(data)) })
}

// Bundle returns what SetBundle remembered; nil when there was no bundle.
func (s *Store) Bundle(ctx context.Context) (*mesh.Document, error) {
	var d *mesh.Document
	err := s.tx(ctx, func(tx *sql.Tx) error { return metaJSON(ctx, tx, metaBundle, &d) })
	return d, err
}
