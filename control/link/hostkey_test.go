package link_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/link"
)

// The control plane's policy is one that a link server takes.
var _ link.Policy = (*control.Control)(nil)

func TestTheHostKeyIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := link.LoadOrCreateHostKey(dir)
	if err != nil {
		t.Fatal(err)
	}

	second, err := link.LoadOrCreateHostKey(dir)

	if err != nil || link.Fingerprint(first.PublicKey()) != link.Fingerprint(second.PublicKey()) {
		t.Errorf("the second start has key %v (%v), the first had %s", second, err, mesh.FingerprintText(link.Fingerprint(first.PublicKey())))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the directory of keys holds %v (%v), want the key alone", entries, err)
	}
	info, err := entries[0].Info()
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (%v), want 0600", info.Mode(), err)
	}
}

func TestTwoStartsAtOnceUseOneKey(t *testing.T) {
	dir := t.TempDir()
	const starts = 8
	sums := make([]string, starts)
	var running sync.WaitGroup
	for i := range starts {
		running.Go(func() {
			key, err := link.LoadOrCreateHostKey(dir)
			if err != nil {
				sums[i] = err.Error()
				return
			}
			sums[i] = mesh.FingerprintText(link.Fingerprint(key.PublicKey()))
		})
	}
	running.Wait()

	for _, sum := range sums {
		if sum != sums[0] || !strings.HasPrefix(sum, "SHA256:") {
			t.Fatalf("starts at the same time ended with %q", sums)
		}
	}
}

func TestAKeyThatCannotBeUsedIsNeverReplaced(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"empty":            func(path string) error { return os.Truncate(path, 0) },
		"damaged":          func(path string) error { return os.Truncate(path, 100) },
		"too long":         func(path string) error { return os.Truncate(path, 1<<20) },
		"open to everyone": func(path string) error { return os.Chmod(path, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := link.LoadOrCreateHostKey(dir); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "link_ed25519")
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			_, err = link.LoadOrCreateHostKey(dir)

			after, readErr := os.ReadFile(path)
			if err == nil || readErr != nil || string(after) != string(before) {
				t.Errorf("a key that is %s gives error %v, and the file changed: %v", name, err, string(after) != string(before))
			}
			if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("the error %q does not say which file", err)
			}
		})
	}
}
