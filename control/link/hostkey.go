package link

import (
	"crypto/sha256"

	"golang.org/x/crypto/ssh"

	"github.com/meshctl/mesh/internal/sshkey"
)

// hostKeyFile is the name of the control plane's key in its directory.
const hostKeyFile = "link_ed25519"

// LoadOrCreateHostKey returns the key that tokens pin, from dir, and makes it
// when there is none. It is on disk, durably, before this returns. A key that
// is there and cannot be used is an error, never replaced: every host refuses
// a control plane with another key.
func LoadOrCreateHostKey(dir string) (ssh.Signer, error) {
	return sshkey.LoadOrCreate(sshkey.Kept{
		Dir: dir, File: hostKeyFile, Comment: "mesh-control",
		Lost: "restore it from the backup, because hosts refuse another one",
	})
}

// AuthorizedKey writes a key as a line of authorized_keys without a comment:
// the form in which a Policy knows keys.
func AuthorizedKey(key ssh.PublicKey) string { return sshkey.Authorized(key) }

// Fingerprint is the SHA-256 of a key in wire form, as tokens pin it.
func Fingerprint(key ssh.PublicKey) [sha256.Size]byte { return sshkey.Fingerprint(key) }
