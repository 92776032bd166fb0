// Package openpgp holds the keys with which the mesh's repository is signed,
// and makes and checks the three kinds of signature that package managers
// read: the clear signature (InRelease), the armored detached signature
// (Release.gpg, repomd.xml.asc) and the binary one inside an rpm header.
//
// It is the only package that sees a private key. It does not know what a
// suite or a package is, does not decide what is signed, and makes no key but
// RSA of version 4: that is the one kind that every apt, gpgv, sqv and rpm in
// use reads.
package openpgp

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	pgp "github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// DefaultBits is the size of the RSA keys that are made when nothing else is asked.
const DefaultBits = 4096

// MinBits is the smallest RSA key that is accepted: weaker ones are warned
// about or refused by current apt and by sqv.
const MinBits = 3072

// maxKey bounds an armored key, in bytes; an RSA-8192 private key has about 10 KiB.
const maxKey = 64 << 10

// ErrBadSignature is in every error of a signature that does not verify.
var ErrBadSignature = errors.New("signature does not verify")

// ErrWeakKey is in the error of a key that some client refuses.
var ErrWeakKey = errors.New("key is not one that every client accepts")

// ErrUnreadableKey is in the error of a key file that holds no usable private key.
var ErrUnreadableKey = errors.New("not one armored private key without a passphrase")

// Keyring signs with one key, or with several while a rotation is under way,
// and verifies against the public parts of the same keys. It is safe for
// concurrent use: nothing in it changes after it was made.
type Keyring struct {
	signers []*pgp.Entity // the first one also signs rpm headers; never empty
	now     func() time.Time
}

// NewKeyring returns a keyring that signs with the given armored private keys.
// The first is the main key: an rpm header has room for one signature, and it
// is that key's. now is the clock that signatures are dated with; nil means
// the system's.
func NewKeyring(now func() time.Time, armoredPrivate ...[]byte) (*Keyring, error) {
	if now == nil {
		now = time.Now
	}
	if len(armoredPrivate) == 0 {
		return nil, errors.New("a keyring needs at least one private key")
	}
	k := &Keyring{now: now}
	for _, a := range armoredPrivate {
		e, err := readPrivate(a)
		if err != nil {
			return nil, err
		}
		k.signers = append(k.signers, e)
	}
	return k, nil
}

// Generate makes a new RSA signing key of version 4 that does not expire and
// returns its private part, armored. identity is its user id, for example
// "mesh repository". bits of zero means DefaultBits.
func Generate(identity string, bits int, now time.Time) ([]byte, error) {
	if bits == 0 {
		bits = DefaultBits
	}
	if bits < MinBits {
		return nil, fmt.Errorf("RSA of %d bits: %w", bits, ErrWeakKey)
	}
	cfg := &packet.Config{
		Algorithm:   packet.PubKeyAlgoRSA,
		RSABits:     bits,
		DefaultHash: crypto.SHA256,
		Time:        func() time.Time { return now },
	}
	e, err := pgp.NewEntity(identity, "", "", cfg)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	// One primary key that signs by itself: dnf5 looks for the key that is
	// named in the signature and does not find subkeys.
	e.Subkeys = nil
	var buf bytes.Buffer
	if err := armored(&buf, pgp.PrivateKeyType, func(w io.Writer) error {
		return e.SerializePrivateWithoutSigning(w, cfg)
	}); err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return buf.Bytes(), nil
}

func readPrivate(a []byte) (*pgp.Entity, error) {
	if len(a) > maxKey {
		return nil, errors.New("read private key: file is too large to be a key")
	}
	list, err := pgp.ReadArmoredKeyRing(bytes.NewReader(a))
	if err != nil {
		return nil, fmt.Errorf("read private key: %w: %w", ErrUnreadableKey, err)
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("read private key: %d keys in one file: %w", len(list), ErrUnreadableKey)
	}
	e := list[0]
	if e.PrivateKey == nil {
		return nil, fmt.Errorf("read private key: the file holds a public key only: %w", ErrUnreadableKey)
	}
	if e.PrivateKey.Encrypted {
		return nil, fmt.Errorf("read private key: it is protected by a passphrase: %w", ErrUnreadableKey)
	}
	if err := acceptable(e); err != nil {
		return nil, err
	}
	return e, nil
}

// acceptable refuses keys that some client in use cannot read or trust.
func acceptable(e *pgp.Entity) error {
	pk := e.PrimaryKey
	if pk.Version != 4 {
		return fmt.Errorf("key of version %d: %w", pk.Version, ErrWeakKey)
	}
	if pk.PubKeyAlgo != packet.PubKeyAlgoRSA {
		return fmt.Errorf("key of algorithm %d, want RSA: %w", pk.PubKeyAlgo, ErrWeakKey)
	}
	bits, err := pk.BitLength()
	if err != nil {
		return fmt.Errorf("read key size: %w", err)
	}
	if bits < MinBits {
		return fmt.Errorf("RSA of %d bits, want %d or more: %w", bits, MinBits, ErrWeakKey)
	}
	for _, id := range e.Identities {
		if id.SelfSignature == nil || weakHash(id.SelfSignature.Hash) {
			return fmt.Errorf("self-signature with a weak digest: %w", ErrWeakKey)
		}
	}
	return nil
}

func weakHash(h crypto.Hash) bool {
	return h != crypto.SHA256 && h != crypto.SHA384 && h != crypto.SHA512
}

// config is made anew for each signature: it carries the time.
func (k *Keyring) config() *packet.Config {
	deterministic := false
	return &packet.Config{
		DefaultHash: crypto.SHA256,
		Time:        k.now,
		// The library adds a notation with a salt otherwise, which old rpm has
		// no reason to meet.
		NonDeterministicSignaturesViaNotation: &deterministic,
	}
}

// ClearSign returns text in the clear-signed form, signed by every key. The
// armor carries its checksum, without which gpgv refuses what apt accepts.
// text must be whole lines without trailing blanks.
func (k *Keyring) ClearSign(text []byte) ([]byte, error) {
	var keys []*packet.PrivateKey
	for _, e := range k.signers {
		keys = append(keys, e.PrivateKey)
	}
	var raw bytes.Buffer
	w, err := clearsign.EncodeMulti(&raw, keys, k.config())
	if err != nil {
		return nil, fmt.Errorf("clear-sign: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return nil, fmt.Errorf("clear-sign: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("clear-sign: %w", err)
	}
	const begin = "\n-----BEGIN PGP SIGNATURE-----"
	at := bytes.LastIndex(raw.Bytes(), []byte(begin))
	if at < 0 {
		return nil, errors.New("clear-sign: the library wrote no signature block")
	}
	head, sig := raw.Bytes()[:at+1], raw.Bytes()[at+1:]
	block, err := armor.Decode(bytes.NewReader(sig))
	if err != nil {
		return nil, fmt.Errorf("re-armor clear signature: %w", err)
	}
	out := bytes.NewBuffer(append([]byte(nil), head...))
	if err := armored(out, pgp.SignatureType, func(w io.Writer) error {
		_, err := io.Copy(w, block.Body)
		return err
	}); err != nil {
		return nil, fmt.Errorf("re-armor clear signature: %w", err)
	}
	return out.Bytes(), nil
}

// DetachSign returns the armored detached signatures of every key over data.
func (k *Keyring) DetachSign(data []byte) ([]byte, error) {
	var out bytes.Buffer
	err := armored(&out, pgp.SignatureType, func(w io.Writer) error {
		for _, e := range k.signers {
			if err := pgp.DetachSign(w, e, bytes.NewReader(data), k.config()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("detach-sign: %w", err)
	}
	return out.Bytes(), nil
}

// SignBinary returns one unarmored signature packet of the main key over data:
// the form that the header of an rpm holds.
func (k *Keyring) SignBinary(data []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := pgp.DetachSign(&out, k.signers[0], bytes.NewReader(data), k.config()); err != nil {
		return nil, fmt.Errorf("sign rpm header: %w", err)
	}
	return out.Bytes(), nil
}

// VerifyClear checks a clear-signed document against this keyring and returns
// the text that was signed. Anything after the signature is refused.
func (k *Keyring) VerifyClear(signed []byte) ([]byte, error) {
	block, rest := clearsign.Decode(signed)
	if block == nil {
		return nil, fmt.Errorf("not a clear-signed document: %w", ErrBadSignature)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("text after the signature: %w", ErrBadSignature)
	}
	if _, err := block.VerifySignature(pgp.EntityList(k.signers), k.config()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	return block.Plaintext, nil
}

// VerifyDetached checks an armored detached signature over data.
func (k *Keyring) VerifyDetached(data, armoredSig []byte) error {
	_, err := pgp.CheckArmoredDetachedSignature(pgp.EntityList(k.signers), bytes.NewReader(data), bytes.NewReader(armoredSig), k.config())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	return nil
}

// VerifyBinary checks an unarmored signature over data.
func (k *Keyring) VerifyBinary(data, sig []byte) error {
	_, err := pgp.CheckDetachedSignature(pgp.EntityList(k.signers), bytes.NewReader(data), bytes.NewReader(sig), k.config())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	return nil
}

// PublicArmored returns the public parts of all keys as one armored block with
// checksum: what apt's Signed-By and rpm --import read.
func (k *Keyring) PublicArmored() ([]byte, error) {
	var out bytes.Buffer
	err := armored(&out, pgp.PublicKeyType, func(w io.Writer) error {
		for _, e := range k.signers {
			if err := e.Serialize(w); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("export public key: %w", err)
	}
	return out.Bytes(), nil
}

// Fingerprints returns the keys' fingerprints in upper-case hexadecimal, the
// main key's first.
func (k *Keyring) Fingerprints() []string {
	var out []string
	for _, e := range k.signers {
		out = append(out, strings.ToUpper(fmt.Sprintf("%x", e.PrimaryKey.Fingerprint)))
	}
	return out
}

// armored writes what body writes as one armor block that ends with its checksum.
func armored(w io.Writer, kind string, body func(io.Writer) error) error {
	a, err := armor.EncodeWithChecksumOption(w, kind, nil, true)
	if err != nil {
		return err
	}
	if err := body(a); err != nil {
		return err
	}
	if err := a.Close(); err != nil {
		return err
	}
	_, err = w.Write([]byte("\n"))
	return err
}
