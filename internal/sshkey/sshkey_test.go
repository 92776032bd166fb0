package sshkey_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/meshctl/mesh/internal/sshkey"
)

func kept(dir string) sshkey.Kept {
	return sshkey.Kept{Dir: dir, File: "key_ed25519", Comment: "test", Lost: "restore it from the backup"}
}

func TestAKeyIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := sshkey.LoadOrCreate(kept(dir))
	if err != nil {
		t.Fatal(err)
	}

	second, err := sshkey.LoadOrCreate(kept(dir))

	if err != nil || sshkey.Authorized(first.PublicKey()) != sshkey.Authorized(second.PublicKey()) {
		t.Errorf("the second start has key %v (%v), not that of the first", second, err)
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
	keys := make([]string, 8)
	var running sync.WaitGroup
	for i := range keys {
		running.Go(func() {
			key, err := sshkey.LoadOrCreate(kept(dir))
			if err != nil {
				keys[i] = err.Error()
				return
			}
			keys[i] = sshkey.Authorized(key.PublicKey())
		})
	}
	running.Wait()

	for _, key := range keys {
		if key != keys[0] || !strings.HasPrefix(key, "ssh-ed25519 ") {
			t.Fatalf("starts at the same time ended with %q", keys)
		}
	}
}

func otherType(path string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}

func TestAKeyThatCannotBeUsedIsNeverReplacedAndSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		says  string
	}{
		"empty":            {func(path string) error { return os.Truncate(path, 0) }, "restore it"},
		"damaged":          {func(path string) error { return os.Truncate(path, 100) }, "restore it"},
		"too long":         {func(path string) error { return os.Truncate(path, 1<<20) }, "restore it"},
		"of another type":  {otherType, "restore it"},
		"open to everyone": {func(path string) error { return os.Chmod(path, 0o644) }, "chmod it to 0600"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := sshkey.LoadOrCreate(kept(dir)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "key_ed25519")
			if err := c.spoil(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			_, err = sshkey.LoadOrCreate(kept(dir))

			after, readErr := os.ReadFile(path)
			if err == nil || readErr != nil || string(after) != string(before) {
				t.Fatalf("a key that is %s gives error %v, and the file changed: %v", name, err, string(after) != string(before))
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error %q does not name %s and say %q", err, path, c.says)
			}
		})
	}
}
