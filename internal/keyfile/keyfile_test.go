package keyfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/meshctl/mesh/internal/keyfile"
)

func TestAKeyIsNotWrittenOverAnotherOne(t *testing.T) {
	dir := t.TempDir()
	if err := keyfile.Create(dir, "key", []byte("first")); err != nil {
		t.Fatal(err)
	}

	err := keyfile.Create(dir, "key", []byte("second"))

	if data, readErr := keyfile.Load(filepath.Join(dir, "key")); string(data) != "first" || readErr != nil || !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second gives %v, and the file holds %q (%v)", err, data, readErr)
	}
	onlyFiles(t, dir, "key")
}

func TestOneKeyTakesThePlaceOfAnother(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"key", "next"} {
		if err := keyfile.Create(dir, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}

	if err := keyfile.Replace(dir, "key", "next"); err != nil {
		t.Fatal(err)
	}

	if data, err := keyfile.Load(filepath.Join(dir, "key")); string(data) != "next" || err != nil {
		t.Errorf("the file holds %q (%v)", data, err)
	}
	onlyFiles(t, dir, "key")
}

func TestNoKeyIsKeptThatCouldNotBeReadAgain(t *testing.T) {
	dir := t.TempDir()
	longest := make([]byte, 64<<10)

	err := keyfile.Create(dir, "key", append(longest, 0))

	if !errors.Is(err, keyfile.ErrUnusable) {
		t.Errorf("one byte too many gives %v", err)
	}
	onlyFiles(t, dir)
	if err := keyfile.Create(dir, "key", longest); err != nil {
		t.Fatal(err)
	}
	if data, err := keyfile.Load(filepath.Join(dir, "key")); len(data) != len(longest) || err != nil {
		t.Errorf("%d bytes came back (%v)", len(data), err)
	}
}

func TestAKeyIsDroppedAlsoWhenItIsGone(t *testing.T) {
	dir := t.TempDir()
	if err := keyfile.Create(dir, "key", []byte("one")); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		if err := keyfile.Remove(dir, "key"); err != nil {
			t.Error(err)
		}
	}

	onlyFiles(t, dir)
}

// onlyFiles checks that dir holds these files, which only their owner reads.
func onlyFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(names) {
		t.Errorf("the directory holds %v, want %q", entries, names)
		return
	}
	for i, e := range entries {
		if info, err := e.Info(); err != nil || e.Name() != names[i] || info.Mode() != 0o600 {
			t.Errorf("the directory holds %v (%v), want %q of mode 0600", e, err, names[i])
		}
	}
}
