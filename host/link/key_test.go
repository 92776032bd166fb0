package link

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
