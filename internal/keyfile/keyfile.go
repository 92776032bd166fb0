// Package keyfile keeps a secret that a program makes once: in a file that only
// its owner reads, made durably, and replaced only by another that is kept
// already.
//
// It does not know what the bytes mean; see sshkey for SSH keys.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// limit bounds a file, in bytes.
const limit = 64 << 10

// ErrUnusable marks a file that is there and cannot be what was kept.
var ErrUnusable = errors.New("not a key")

// LoadOrCreate returns what the file name in dir holds. When there is none it
// makes dir and the file, with what create returns; the file is on disk,
// durably, before this returns. Of two processes that start at once both get
// what the first made. A file that is there and cannot be used is an error,
// never replaced.
func LoadOrCreate(dir, name string, create func() ([]byte, error)) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of keys: %w", err)
	}
	path := filepath.Join(dir, name)
	data, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = create(); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if err := Create(dir, name, data); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return Load(path)
}

// Load reads a file of this kind. It is an error that anyone but the owner may
// read it.
func Load(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open key: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the key %s can be read by others than its owner; chmod it to 0600 and try again", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%s is too long: %w", path, ErrUnusable)
	}
	return data, nil
}

// Remove drops the file, durably. One that is not there is dropped already.
func Remove(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop a key: %w", err)
	}
	return syncDir(dir)
}

// Replace puts the file with into the place of the file name, durably, both in
// dir.
func Replace(dir, name, with string) error {
	if err := os.Rename(filepath.Join(dir, with), filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("replace a key: %w", err)
	}
	return syncDir(dir)
}

// Create makes the file name in dir, durably. When it is there already the error
// matches fs.ErrExist, and it stays as it is.
func Create(dir, name string, data []byte) error {
	if len(data) > limit {
		return fmt.Errorf("%d bytes are too long: %w", len(data), ErrUnusable)
	}
	temporary, err := os.CreateTemp(dir, "."+name+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	defer func() { _ = temporary.Close() }()
	if _, err := temporary.Write(data); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	if err := temporary.Sync(); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	// A link, not a rename: it fails when another process made the file first.
	if err := os.Link(temporary.Name(), filepath.Join(dir, name)); err != nil {
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
