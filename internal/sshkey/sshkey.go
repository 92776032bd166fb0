// Package sshkey holds what both ends of an SSH connection do with keys: keep
// one of their own, and write down those of others.
//
// It makes no connection and trusts no key: who compares a fingerprint decides.
package sshkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/meshctl/mesh/internal/keyfile"
)

// Kept describes a key that a program makes once and keeps. All fields must be
// set.
type Kept struct {
	// Dir and File say where it is.
	Dir, File string
	// Comment is written into it.
	Comment string
	// Lost is what to do when the file is damaged, as the end of a sentence.
	Lost string
}

// LoadOrCreate returns the key, and makes it when there is none. It is on disk,
// durably, before this returns. A key that is there and cannot be used is an
// error, never replaced: whoever knows this end knows it by this key.
func LoadOrCreate(k Kept) (ssh.Signer, error) {
	path := filepath.Join(k.Dir, k.File)
	data, err := keyfile.LoadOrCreate(k.Dir, k.File, func() ([]byte, error) { return create(k.Comment) })
	if errors.Is(err, keyfile.ErrUnusable) {
		return nil, fmt.Errorf("%w; %s", err, k.Lost)
	}
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("the key %s is damaged; %s: %w", path, k.Lost, err)
	}
	if kind := signer.PublicKey().Type(); kind != ssh.KeyAlgoED25519 {
		return nil, fmt.Errorf("the key %s is of type %s and has to be of type %s; %s", path, kind, ssh.KeyAlgoED25519, k.Lost)
	}
	return signer, nil
}

func create(comment string) ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(block), nil
}

// Authorized writes a key as a line of authorized_keys without a comment.
func Authorized(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// Fingerprint is the SHA-256 of a key in wire form.
func Fingerprint(key ssh.PublicKey) [sha256.Size]byte { return sha256.Sum256(key.Marshal()) }
