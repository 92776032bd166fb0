package link

import (
	"fmt"

	"golang.org/x/crypto/ssh"

	"github.com/meshctl/mesh/internal/keyfile"
	"github.com/meshctl/mesh/internal/sshkey"
)

// keyFile is the name of the key in its directory.
const keyFile = "node_ed25519"

// LoadOrCreateKey returns this machine's identity from dir, and makes it when
// there is none. It is on disk, durably, before this returns. A key that is
// there and cannot be used is an error, never replaced: another key is another
// node.
func LoadOrCreateKey(dir string) (ssh.Signer, error) {
	return sshkey.LoadOrCreate(sshkey.Kept{
		Dir: dir, File: keyFile, Comment: "mesh-host",
		Lost: "move it away and enrol again with a token that replaces the node",
	})
}

// ReplaceKey drops the identity in dir and makes a new one. Both are durable when
// it returns nil.
func ReplaceKey(dir string) (ssh.Signer, error) {
	if err := keyfile.Remove(dir, keyFile); err != nil {
		return nil, fmt.Errorf("drop this machine's key: %w", err)
	}
	return LoadOrCreateKey(dir)
}
