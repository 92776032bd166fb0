package link

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheIdentityIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	first, err := LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}

	second, err := LoadOrCreateKey(dir)

	if err != nil || !bytes.Equal(first.PublicKey().Marshal(), second.PublicKey().Marshal()) {
		t.Errorf("the second start has another identity (%v)", err)
	}
	info, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (%v), want 0600", info, err)
	}
}

func TestADamagedIdentityIsNotReplacedAndSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, keyFile)
	if err := os.WriteFile(path, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := LoadOrCreateKey(dir)

	kept, readErr := os.ReadFile(path)
	if err == nil || readErr != nil || string(kept) != "half a key" || !strings.Contains(err.Error(), "enrol again") {
		t.Errorf("a damaged identity gives %v, and the file holds %q (%v)", err, kept, readErr)
	}
}
