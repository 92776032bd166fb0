package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/mesh/internal/fault"
	"github.com/meshctl/mesh/internal/sqlite"
)

const (
	// trialDir holds the copy of a version that is not confirmed.
	trialDir = "trial"
	// unreadDir is where one is moved from which nothing could be taken.
	unreadDir = "trial-unread"
	// forFile names, in that directory, the version.
	forFile = "for"
)

// OpenTrial opens a copy of the store in dir for a version that is not
// confirmed, so that the confirmed one finds its own store as it left it. The
// copy is made by the first call for a version and used by the next ones, until
// Settle drops it or makes it the store. The confirmed version may still have
// its store where it was on trial itself; that becomes the store first. Of the
// copy of a third version what it wrote on the machine is kept, see keep. A store
// that is damaged is not copied: the version then works on the store itself, as
// Open does.
func OpenTrial(ctx context.Context, dir, version, confirmed string, expected bool, now func() time.Time) (*Store, *Lost, error) {
	trial := filepath.Join(dir, trialDir)
	if owner := trialFor(dir); owner != version {
		if owner != "" {
			if err := Settle(ctx, dir, confirmed); err != nil {
				return nil, nil, err
			}
		}
		err := makeTrial(ctx, dir, version)
		if errors.Is(err, sqlite.ErrCorrupt) {
			return Open(ctx, dir, expected, now)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("copy the store for a version that is not confirmed: %w", err)
		}
	}
	s, lost, err := openIn(ctx, dir, trial, expected, now)
	if err != nil {
		return nil, nil, err
	}
	s.trial.Store(true)
	return s, lost, nil
}

// trialFor returns the version that the trial copy belongs to; empty: there is
// none.
func trialFor(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, trialDir, forFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func makeTrial(ctx context.Context, dir, version string) error {
	trial := filepath.Join(dir, trialDir)
	aside := trial + ".new"
	for _, old := range []string{aside, trial} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, fileName)); err == nil {
		if err := copyDatabase(ctx, filepath.Join(dir, fileName), filepath.Join(aside, fileName)); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSynced(filepath.Join(aside, forFile), []byte(version+"\n")); err != nil {
		return err
	}
	if err := syncDir(aside); err != nil {
		return err
	}
	fault.Point("store.trial-before-rename")
	if err := os.Rename(aside, trial); err != nil {
		return err
	}
	return syncDir(dir)
}

// copyDatabase copies a database that nobody has open, in one state.
func copyDatabase(ctx context.Context, from, to string) error {
	db, err := sqlite.OpenAsIs(ctx, from)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	if err := errors.Join(sqlite.Classify(err), db.Close()); err != nil {
		return err
	}
	return syncFile(to)
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func writeSynced(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Settle is called before the store of the confirmed version is opened: its own
// trial copy becomes the store, and that of any other version is dropped when
// what it wrote on the machine is kept, see keep.
func Settle(ctx context.Context, dir, version string) error {
	trial := filepath.Join(dir, trialDir)
	if owner := trialFor(dir); owner != version {
		if owner != "" {
			err := keep(ctx, dir, trial)
			if sqlite.IsFull(err) || ctx.Err() != nil {
				return fmt.Errorf("keep what a version that was not confirmed wrote: %w", err)
			}
			if err != nil {
				return leaveUnread(dir, trial)
			}
		}
		if err := os.RemoveAll(trial); err != nil {
			return fmt.Errorf("drop the store of a version that was not confirmed: %w", err)
		}
		return nil
	}
	file := filepath.Join(trial, fileName)
	if _, err := os.Stat(file); err == nil {
		// Opening and closing it puts everything into the one file.
		db, err := sqlite.OpenAsIs(ctx, file)
		if err == nil {
			_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
			err = errors.Join(sqlite.Classify(err), db.Close())
		}
		if err != nil && !errors.Is(err, sqlite.ErrCorrupt) {
			return fmt.Errorf("close the trial copy of the store: %w", err)
		}
		for _, suffix := range []string{"-wal", "-shm"} {
			if err := os.Remove(filepath.Join(dir, fileName+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("make the trial copy the store: %w", err)
			}
		}
		if err := syncDir(dir); err != nil {
			return fmt.Errorf("make the trial copy the store: %w", err)
		}
		fault.Point("store.settle-before-rename")
		if err := os.Rename(file, filepath.Join(dir, fileName)); err != nil {
			return fmt.Errorf("make the trial copy the store: %w", err)
		}
		if err := errors.Join(syncDir(dir), syncDir(trial)); err != nil {
			return fmt.Errorf("make the trial copy the store: %w", err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the trial copy of the store: %w", err)
	}
	fault.Point("store.settle-after-rename")
	if err := os.RemoveAll(trial); err != nil {
		return fmt.Errorf("drop the emptied trial directory: %w", err)
	}
	return nil
}

// keep takes into the store of the confirmed version what the version on trial
// wrote on the machine and the confirmed one knows nothing of: what it came to
// own, with what stood there before, which nobody could find out any more; what
// it was about to write; and which units have to be told of it. Everything else
// is learned again. From a copy that cannot be read, or has a form that this
// version does not know, nothing can be taken, which is an error.
func keep(ctx context.Context, dir, trial string) error {
	from, to := filepath.Join(trial, fileName), filepath.Join(dir, fileName)
	for _, file := range []string{from, to} {
		if _, err := os.Stat(file); err != nil {
			return nil
		}
	}
	db, err := sqlite.OpenAsIs(ctx, to)
	if err == nil {
		err = errors.Join(keepFrom(ctx, db, from), db.Close())
	}
	return err
}

// UnreadTrial returns where the newest copy is from which nothing could be taken;
// empty: there is none. It may hold originals that nobody else has.
func UnreadTrial(dir string) string {
	aside := filepath.Join(dir, unreadDir)
	if _, err := os.Stat(aside); err != nil {
		return ""
	}
	return aside
}

func leaveUnread(dir, trial string) error {
	aside := filepath.Join(dir, unreadDir)
	if err := errors.Join(os.RemoveAll(aside), os.Rename(trial, aside), syncDir(dir)); err != nil {
		return fmt.Errorf("move aside the store of a version that was not confirmed: %w", err)
	}
	return nil
}

func keepFrom(ctx context.Context, db *sql.DB, from string) error {
	// What is attached belongs to the one connection.
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, "ATTACH ? AS trial", from); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, statement := range []string{
		`INSERT OR IGNORE INTO owned (resource, made, generation, wrote, undo, partial)
			SELECT resource, made, generation, wrote, undo, partial FROM trial.owned`,
		`INSERT INTO ledger (resource, status, reason, detail, output, generation, want, at, writing)
			SELECT resource, 'pending', '', '', '', generation, want, at, 1 FROM trial.ledger WHERE writing
			ON CONFLICT (resource) DO UPDATE SET writing = 1`,
		`INSERT OR IGNORE INTO unit_action (resource, unit, verb) SELECT resource, unit, verb FROM trial.unit_action`,
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

// Confirm says that the version that uses this store is confirmed: messages
// leave it from now on.
func (s *Store) Confirm() {
	if s.trial.CompareAndSwap(true, false) {
		s.signal()
	}
}

// CopyTo writes the store, as it is at one moment, to a file that must not be
// there, for another program to look at.
func (s *Store) CopyTo(ctx context.Context, file string) error {
	if _, err := s.db.ExecContext(ctx, "VACUUM INTO ?", file); err != nil {
		return classify(fmt.Errorf("copy the store: %w", err))
	}
	return nil
}
