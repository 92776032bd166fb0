package openpgp

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	pgp "github.com/ProtonMail/go-crypto/openpgp"

	"github.com/meshctl/mesh/internal/keyfile"
)

// ErrRotating is in the error of a rotation that begins while another is under way.
var ErrRotating = errors.New("a rotation of the key is under way")

// ErrSameKey is in the error of a rotation to the key that signs already.
var ErrSameKey = errors.New("this key signs the repository already")

// ErrNotRotating is in the error of a step of a rotation that was not begun.
var ErrNotRotating = errors.New("no rotation of the key is under way")

// Keys is the keyring of a directory, and how it moves from one key to the
// next: Begin adds the new key, from then on both sign; Prefer makes the new one
// the main key; Drop ends the old one for good. It signs and verifies as the
// Keyring that holds at the moment, and is safe for concurrent use.
type Keys struct {
	dir  string
	o    Options
	ring atomic.Pointer[Keyring]
	mu   sync.Mutex // held while the directory changes
}

// OpenKeys opens the keys of dir as Open does.
func OpenKeys(dir string, o Options) (*Keys, error) {
	k := &Keys{dir: dir, o: o.orDefaults()}
	return k, k.load()
}

func (k *Keys) load() error {
	ring, err := Open(k.dir, k.o)
	if err != nil {
		return err
	}
	k.ring.Store(ring)
	return nil
}

// Ring returns the keyring that holds now.
func (k *Keys) Ring() *Keyring { return k.ring.Load() }

// Rotating reports whether two keys sign.
func (k *Keys) Rotating() bool { return len(k.Ring().signers) > 1 }

// Begin adds a second key: the one given, an armored private key, or a new one
// when it is nil. It is durable on return. A key that some client refuses is
// refused with ErrWeakKey.
func (k *Keys) Begin(armoredPrivate []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Rotating() {
		return ErrRotating
	}
	if armoredPrivate == nil {
		var err error
		if armoredPrivate, err = Generate(k.o.Identity, k.o.Bits, k.o.Now()); err != nil {
			return err
		}
	}
	added, err := NewKeyring(k.o.Now, armoredPrivate)
	if err != nil {
		return err
	}
	if added.Fingerprints()[0] == k.Ring().Fingerprints()[0] {
		return fmt.Errorf("%s: %w", added.Fingerprints()[0], ErrSameKey)
	}
	if _, err := added.DetachSign([]byte("a test of the key")); err != nil {
		return fmt.Errorf("try the new key: %w", err)
	}
	if err := keyfile.Create(k.dir, nextKeyFile, armoredPrivate); err != nil {
		return err
	}
	return k.load()
}

// Prefer makes the new key the main one, which signs rpm headers, until the
// program ends. Both still sign.
func (k *Keys) Prefer() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ring := k.Ring()
	if !k.Rotating() {
		return ErrNotRotating
	}
	main, err := keyfile.Load(filepath.Join(k.dir, mainKeyFile))
	if err != nil {
		return err
	}
	first, err := readPrivate(main)
	if err != nil {
		return err
	}
	if first.PrimaryKey.KeyId != ring.signers[0].PrimaryKey.KeyId {
		return nil // preferred already
	}
	k.ring.Store(&Keyring{signers: []*pgp.Entity{ring.signers[1], ring.signers[0]}, now: ring.now})
	return nil
}

// Drop makes the new key the only one and removes the old private key.
func (k *Keys) Drop() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.Rotating() {
		return ErrNotRotating
	}
	if err := keyfile.Replace(k.dir, mainKeyFile, nextKeyFile); err != nil {
		return err
	}
	return k.load()
}

// Export returns the main private key, armored, without a passphrase.
func (k *Keys) Export() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return keyfile.Load(filepath.Join(k.dir, mainKeyFile))
}

// Info is what one key is.
type Info struct {
	Fingerprint string // upper-case hexadecimal
	Identity    string
	Bits        int
	Created     time.Time
	Expires     time.Time // zero: never
}

// List describes the keys that sign, the main key first.
func (k *Keyring) List() []Info {
	var out []Info
	for i, e := range k.signers {
		info := Info{Fingerprint: k.Fingerprints()[i], Created: e.PrimaryKey.CreationTime.UTC()}
		if bits, err := e.PrimaryKey.BitLength(); err == nil {
			info.Bits = int(bits)
		}
		if id := e.PrimaryIdentity(); id != nil {
			info.Identity = id.Name
			if s := id.SelfSignature; s != nil && s.KeyLifetimeSecs != nil && *s.KeyLifetimeSecs > 0 {
				info.Expires = info.Created.Add(time.Duration(*s.KeyLifetimeSecs) * time.Second)
			}
		}
		out = append(out, info)
	}
	return out
}

// ClearSign is Keyring.ClearSign.
func (k *Keys) ClearSign(text []byte) ([]byte, error) { return k.Ring().ClearSign(text) }

// DetachSign is Keyring.DetachSign.
func (k *Keys) DetachSign(data []byte) ([]byte, error) { return k.Ring().DetachSign(data) }

// SignBinary is Keyring.SignBinary.
func (k *Keys) SignBinary(data []byte) ([]byte, error) { return k.Ring().SignBinary(data) }

// VerifyClear is Keyring.VerifyClear.
func (k *Keys) VerifyClear(signed []byte) ([]byte, error) { return k.Ring().VerifyClear(signed) }

// VerifyDetached is Keyring.VerifyDetached.
func (k *Keys) VerifyDetached(data, armoredSig []byte) error {
	return k.Ring().VerifyDetached(data, armoredSig)
}

// VerifyBinary is Keyring.VerifyBinary.
func (k *Keys) VerifyBinary(data, sig []byte) error { return k.Ring().VerifyBinary(data, sig) }

// PublicArmored is Keyring.PublicArmored.
func (k *Keys) PublicArmored() ([]byte, error) { return k.Ring().PublicArmored() }

// Fingerprints is Keyring.Fingerprints.
func (k *Keys) Fingerprints() []string { return k.Ring().Fingerprints() }
