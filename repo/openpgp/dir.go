package openpgp

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/meshctl/mesh/internal/keyfile"
)

// Names of the files in a key directory.
const (
	mainKeyFile = "repository.key"      // the private key that signs everything
	nextKeyFile = "repository-next.key" // a second signer while a rotation is under way; absent otherwise
)

// Options are what Open needs beside the directory.
type Options struct {
	// Identity is the user id of a key that has to be made. Empty means "mesh repository".
	Identity string
	// Bits is the size of a key that has to be made. Zero means DefaultBits.
	Bits int
	// Now is the clock for new keys and signatures. Nil means the system's.
	Now func() time.Time
}

func (o Options) orDefaults() Options {
	if o.Identity == "" {
		o.Identity = "mesh repository"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Open reads the keyring of dir, and makes dir and a key at the first start. A
// key that is there and cannot be used is an error, never replaced: machines
// trust it. Private files that others can read are refused.
func Open(dir string, o Options) (*Keyring, error) {
	o = o.orDefaults()
	main, err := keyfile.LoadOrCreate(dir, mainKeyFile, func() ([]byte, error) { return Generate(o.Identity, o.Bits, o.Now()) })
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	keys := [][]byte{main}
	next, err := keyfile.Load(filepath.Join(dir, nextKeyFile))
	switch {
	case err == nil:
		keys = append(keys, next)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the next signing key: %w", err)
	}
	return NewKeyring(o.Now, keys...)
}
