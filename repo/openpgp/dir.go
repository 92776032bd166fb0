package openpgp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Names of the files in a key directory.
const (
	mainKeyFile = "repository.key"      // the private key that signs everything
	nextKeyFile = "repository-next.key" // a second signer while a rotation is under way; absent otherwise
)

const defaultIdentity = "mesh repository"

// Options are what Open needs beside the directory.
type Options struct {
	// Identity is the user id of a key that has to be made. Empty means "mesh repository".
	Identity string
	// Bits is the size of a key that has to be made. Zero means DefaultBits.
	Bits int
	// Now is the clock for new keys and signatures. Nil means the system's.
	Now func() time.Time
}

// Open reads the keyring of dir, and makes dir and a key at the first start. A
// key that is there and cannot be used is an error, never replaced: machines
// trust it. Private files that others can read are refused.
func Open(dir string, o Options) (*Keyring, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Identity == "" {
		o.Identity = defaultIdentity
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make key directory: %w", err)
	}
	main, err := readKeyFile(dir, mainKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if main, err = Generate(o.Identity, o.Bits, o.Now()); err != nil {
			return nil, err
		}
		err = createKeyFile(dir, mainKeyFile, main)
	}
	if err != nil {
		return nil, err
	}
	keys := [][]byte{main}
	next, err := readKeyFile(dir, nextKeyFile)
	switch {
	case err == nil:
		keys = append(keys, next)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return NewKeyring(o.Now, keys...)
}

func readKeyFile(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open signing key: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open signing key: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("signing key %s can be read by others (mode %04o); make it 0600", path, st.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	return b, nil
}

// createKeyFile writes a key that is not there yet, durably, and refuses to
// replace one that appeared meanwhile.
func createKeyFile(dir, name string, b []byte) error {
	tmp, err := os.CreateTemp(dir, name+".tmp*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("write signing key: %w", err)
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(b); err != nil {
		tmp.Close()
		return fmt.Errorf("write signing key: %w", err)
	}
	if err := tmp.Sync(); err != nil {
		tmp.Close()
		return fmt.Errorf("sync signing key: %w", err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("write signing key: %w", err)
	}
	// A link, not a rename: it fails when another process made the key first.
	if err := os.Link(tmp.Name(), filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("put signing key in place: %w", err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync key directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync key directory: %w", err)
	}
	return nil
}
