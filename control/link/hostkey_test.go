package link_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/link"
)

// The control plane's policy is one that a link server takes.
var _ link.Policy = (*control.Control)(nil)

func TestADamagedHostKeyIsNotReplacedAndSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "link_ed25519")
	if err := os.WriteFile(path, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := link.LoadOrCreateHostKey(dir)

	kept, readErr := os.ReadFile(path)
	if err == nil || readErr != nil || string(kept) != "half a key" || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a damaged key gives %v, and the file holds %q (%v)", err, kept, readErr)
	}
}
