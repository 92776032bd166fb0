package link

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

const (
	// keyFile is the name of the key in its directory.
	keyFile = "node_ed25519"
	// keyLimit bounds what is read of a key file.
	keyLimit = 16 << 10
)

// LoadOrCreateKey returns this machine's identity from dir, and makes it when
// there is none. It is on disk, durably, before this returns. A key that is
// there and cannot be used is an error, never replaced: another key is another
// node.
func LoadOrCreateKey(dir string) (ssh.Signer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of keys: %w", err)
	}
	path := filepath.Join(dir, keyFile)
	signer, err := loadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return signer, err
	}
	if err := createKey(dir, "mesh-host"); err != nil {
		return nil, err
	}
	return loadKey(path)
}

// ReplaceKey drops the identity in dir and makes a new one. Both are durable when
// it returns nil.
func ReplaceKey(dir string) (ssh.Signer, error) {
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("drop this machine's key: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	return LoadOrCreateKey(dir)
}

func loadKey(path string) (ssh.Signer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open this machine's key: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read this machine's key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the key %s can be read by others than its owner; chmod it to 0600 and start again", path)
	}
	if info.Size() > keyLimit {
		return nil, fmt.Errorf("%s is not a key: it is too long; move it away and enrol again with a token that replaces the node", path)
	}
	data := make([]byte, info.Size())
	if _, err := file.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("read this machine's key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("the key %s is damaged; move it away and enrol again with a token that replaces the node: %w", path, err)
	}
	if signer.PublicKey().Type() != ssh.KeyAlgoED25519 {
		return nil, fmt.Errorf("the key %s is of type %s and has to be of type %s", path, signer.PublicKey().Type(), ssh.KeyAlgoED25519)
	}
	return signer, nil
}

// createKey writes a new key beside its place and links it there, so that of
// two processes that start at once both use the key of the first.
func createKey(dir, comment string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	var data bytes.Buffer
	if err := pem.Encode(&data, block); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	temporary, err := os.CreateTemp(dir, "."+keyFile+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	defer func() { _ = temporary.Close() }()
	if _, err := temporary.Write(data.Bytes()); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	if err := temporary.Sync(); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	if err := os.Link(temporary.Name(), filepath.Join(dir, keyFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("put a key in its place: %w", err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the directory of keys: %w", err)
	}
	defer func() { _ = handle.Close() }()
	if err := handle.Sync(); err != nil {
		return fmt.Errorf("sync the directory of keys: %w", err)
	}
	return nil
}
