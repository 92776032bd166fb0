package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/store"
	"github.com/meshctl/mesh/systemd"
)

func TestASecondControlPlaneInOneDirectoryIsRefusedBeforeItMakesAKey(t *testing.T) {
	dir := t.TempDir()
	c := defaults()
	c.stateDir, c.socket = filepath.Join(dir, "state"), filepath.Join(dir, "api.sock")
	c.linkListen, c.repositoryListen = "127.0.0.1:0", "127.0.0.1:0"
	if err := os.Mkdir(c.stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := lockState(c.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()

	err = serve(t.Context(), c, systemd.Notifier{}, slog.New(slog.DiscardHandler))

	if mesh.CodeOf(err) != mesh.CodeConflict {
		t.Errorf("the second one ended with %v", err)
	}
	entries, err := os.ReadDir(c.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != lockName {
			t.Errorf("the second one made %s", e.Name())
		}
	}
}

// trying is where a backup is written to while somebody wants the lock.
type trying struct {
	dir  string
	seen []error
}

func (w *trying) Write(p []byte) (int, error) {
	lock, err := store.LockContent(filepath.Join(w.dir, blobsName), false)
	if err == nil {
		err = lock.Close()
	}
	w.seen = append(w.seen, err)
	return len(p), nil
}

func TestABackupKeepsContentFromBeingRemovedFromItsBeginningToItsEnd(t *testing.T) {
	dir := stateWith(t, map[string]string{"keys/host": "secret", "blobs/ab/abcd": "content"})
	out := &trying{dir: dir}
	if err := writeBackup(t.Context(), dir, keptAlways, out); err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(out.seen, func(err error) bool { return !errors.Is(err, store.ErrLocked) }); i >= 0 || len(out.seen) == 0 {
		t.Errorf("of %d writes one could have lost content: %v", len(out.seen), out.seen)
	}
	lock, err := store.LockContent(filepath.Join(dir, blobsName), false)
	if err != nil {
		t.Fatalf("after the backup: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

func TestARestoreIsRefusedWhileABackupIsMade(t *testing.T) {
	from := stateWith(t, map[string]string{"keys/host": "secret"})
	var archive bytes.Buffer
	if err := writeBackup(t.Context(), from, keptAlways, &archive); err != nil {
		t.Fatal(err)
	}
	to := stateWith(t, map[string]string{"keys/host": "old"})
	backup, err := store.LockContent(filepath.Join(to, blobsName), true)
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Close()

	_, err = readBackup(t.Context(), to, true, &archive)

	if mesh.CodeOf(err) != mesh.CodeConflict {
		t.Errorf("it is answered with %v", err)
	}
	if key, err := os.ReadFile(filepath.Join(to, "keys/host")); err != nil || string(key) != "old" {
		t.Errorf("the key is %q, %v", key, err)
	}
}

func TestABackupThatCouldNotBeRestoredIsNotMade(t *testing.T) {
	dir := stateWith(t, map[string]string{"blobs/ab/abcd": "content"})
	var out bytes.Buffer
	err := writeBackup(t.Context(), dir, keptAlways, &out)
	if mesh.CodeOf(err) != mesh.CodeNotFound || out.Len() > 0 {
		t.Errorf("without keys a backup gave %v and %d bytes", err, out.Len())
	}
}

func TestABackupWaitsForARestoreThatIsUnderWay(t *testing.T) {
	dir := stateWith(t, map[string]string{"keys/host": "secret"})
	restore, err := store.LockContent(filepath.Join(dir, blobsName), false)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- writeBackup(t.Context(), dir, keptAlways, io.Discard) }()
	select {
	case err := <-ended:
		t.Fatalf("while a restore is under way a backup ended with %v", err)
	default:
	}
	if err := restore.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after the restore a backup ended with %v", err)
	}
}

func TestAStartClearsWhatWasNotFinishedAndNothingThatIsUnderWay(t *testing.T) {
	dir := stateWith(t, map[string]string{"uploads/1/x": "half", ".restore-1/control.db": "half", ".backup-1/control.db": "half", "aside-1/control.db": "old"})
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	backup, err := store.LockContent(filepath.Join(dir, blobsName), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clearLeftovers(dir); err != nil {
		t.Fatal(err)
	}
	if there("uploads/1") || there(".restore-1") || !there(".backup-1") || !there("aside-1") || !there("uploads") {
		t.Error("a start while a backup is made clears too much or too little")
	}
	if err := backup.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := clearLeftovers(dir); err != nil {
		t.Fatal(err)
	}
	if there(".backup-1") || !there("aside-1") {
		t.Error("a later start clears too much or too little")
	}
}

func TestOfTheCopiesBeforeAChangeOfTheDatabaseTheNewestStays(t *testing.T) {
	dir := stateWith(t, map[string]string{"control.db.before-2": "", "control.db.before-10": "", "control.db.before-3": "", "control.db.before-11.new": ""})
	if err := clearCopies(dir); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, databaseName+".before-*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if !slices.Equal(left, []string{"control.db.before-10", "control.db.before-11.new"}) {
		t.Errorf("left are %v", left)
	}
}
