package openpgp_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"

	"github.com/meshctl/mesh/repo/openpgp"
)

var made = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var keys = sync.OnceValues(func() ([2][]byte, error) {
	var k [2][]byte
	var err error
	for i := range k {
		if k[i], err = openpgp.Generate("mesh test", openpgp.MinBits, made); err != nil {
			return k, err
		}
	}
	return k, nil
})

func ring(t *testing.T, n int) *openpgp.Keyring {
	t.Helper()
	all, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	k, err := openpgp.NewKeyring(nil, all[:n]...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this test runs the real %s, which is not on this machine; install it", tool)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func file(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// dearmored returns the form of a .gpg keyring file, which gpgv wants.
func dearmored(t *testing.T, b []byte) []byte {
	t.Helper()
	block := must[*armor.Block](t)(armor.Decode(bytes.NewReader(b)))
	return must[[]byte](t)(io.ReadAll(block.Body))
}

const text = "Origin: mesh\nSHA256:\n 00 0 x\n"

func TestTheRealGpgvAcceptsBothKindsOfSignatureFromOneKeyAndFromTwo(t *testing.T) {
	need(t, "gpgv")
	for n := 1; n <= 2; n++ {
		k := ring(t, n)
		public := file(t, "key.gpg", dearmored(t, must[[]byte](t)(k.PublicArmored())))
		clear := file(t, "InRelease", must[[]byte](t)(k.ClearSign([]byte(text))))
		detached := file(t, "Release.gpg", must[[]byte](t)(k.DetachSign([]byte(text))))
		plain := file(t, "Release", []byte(text))

		for _, args := range [][]string{{"--keyring", public, clear}, {"--keyring", public, detached, plain}} {
			if out, err := exec.Command("gpgv", args...).CombinedOutput(); err != nil {
				t.Errorf("gpgv %v with %d keys: %v\n%s", args[2:], n, err, out)
			}
		}
	}
}

func TestAClientThatTrustsOnlyOneOfTwoKeysAcceptsTheirDoubleSignature(t *testing.T) {
	both := ring(t, 2)
	signed := must[[]byte](t)(both.ClearSign([]byte(text)))
	detached := must[[]byte](t)(both.DetachSign([]byte(text)))
	all, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		one := must[*openpgp.Keyring](t)(openpgp.NewKeyring(nil, all[i]))

		_, errClear := one.VerifyClear(signed)
		errDetached := one.VerifyDetached([]byte(text), detached)

		if errClear != nil || errDetached != nil {
			t.Errorf("key %d alone: clear %v, detached %v", i, errClear, errDetached)
		}
	}
}

func TestAChangedTextDoesNotVerify(t *testing.T) {
	k := ring(t, 1)
	signed := string(must[[]byte](t)(k.ClearSign([]byte(text))))
	detached := must[[]byte](t)(k.DetachSign([]byte(text)))
	binary := must[[]byte](t)(k.SignBinary([]byte(text)))

	_, errClear := k.VerifyClear([]byte(strings.Replace(signed, "mesh", "evil", 1)))
	_, errAfter := k.VerifyClear([]byte(signed + "Origin: evil\n"))

	for what, err := range map[string]error{
		"clear": errClear, "text after the signature": errAfter, "not signed": func() error { _, err := k.VerifyClear([]byte(text)); return err }(),
		"detached": k.VerifyDetached([]byte("other"), detached), "binary": k.VerifyBinary([]byte("other"), binary), "no signature": k.VerifyBinary([]byte(text), nil),
	} {
		if !errors.Is(err, openpgp.ErrBadSignature) {
			t.Errorf("%s: got %v, want ErrBadSignature", what, err)
		}
	}
}

func TestTheRealRpmImportsThePublicKey(t *testing.T) {
	need(t, "rpm")
	public := file(t, "mesh.asc", must[[]byte](t)(ring(t, 2).PublicArmored()))
	db := t.TempDir()

	out, err := exec.Command("rpm", "--dbpath", db, "--import", public).CombinedOutput()
	if err != nil {
		t.Fatalf("rpm --import: %v\n%s", err, out)
	}
	list, err := exec.Command("rpm", "--dbpath", db, "-qa", "gpg-pubkey*").CombinedOutput()

	if err != nil || strings.Count(string(list), "gpg-pubkey") != 2 {
		t.Errorf("rpm holds %q (error %v), want two keys", list, err)
	}
}

func TestTheKeyIsMadeOnceAndReadableByItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	options := openpgp.Options{Bits: openpgp.MinBits}
	first := must[*openpgp.Keyring](t)(openpgp.Open(dir, options))

	second := must[*openpgp.Keyring](t)(openpgp.Open(dir, options))

	st, err := os.Stat(filepath.Join(dir, "repository.key"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file has the mode %v (error %v), want 0600", st.Mode().Perm(), err)
	}
	if first.Fingerprints()[0] != second.Fingerprints()[0] {
		t.Errorf("opened again, the key is %s, want %s", second.Fingerprints()[0], first.Fingerprints()[0])
	}
}

func TestAKeyThatOthersCanReadOrThatIsDamagedIsAnErrorAndStaysAsItIs(t *testing.T) {
	all, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body []byte
		mode os.FileMode
		says string
	}{
		"readable by others": {all[0], 0o644, "read by others"},
		"damaged":            {[]byte("-----BEGIN PGP PRIVATE KEY BLOCK-----\nnonsense"), 0o600, "read private key"},
		"empty":              {nil, 0o600, "read private key"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "repository.key")
			if err := os.WriteFile(path, c.body, c.mode); err != nil {
				t.Fatal(err)
			}

			_, err := openpgp.Open(dir, openpgp.Options{})

			left, errRead := os.ReadFile(path)
			if err == nil || !strings.Contains(err.Error(), c.says) || errRead != nil || string(left) != string(c.body) {
				t.Errorf("got %v and a file of %d bytes, want an error that says %q and the file of %d bytes", err, len(left), c.says, len(c.body))
			}
		})
	}
}

func TestARotationToTheKeyInUseIsRefusedAndNoneIsUnderWay(t *testing.T) {
	keys := must[*openpgp.Keys](t)(openpgp.OpenKeys(t.TempDir(), openpgp.Options{Bits: openpgp.MinBits}))
	own := must[[]byte](t)(keys.Export())

	err := keys.Begin(own)

	if !errors.Is(err, openpgp.ErrSameKey) || errors.Is(err, openpgp.ErrRotating) || keys.Rotating() {
		t.Errorf("got %v, and two keys sign: %t; want ErrSameKey and one key", err, keys.Rotating())
	}
}

func TestAWeakKeyIsNotMade(t *testing.T) {
	_, err := openpgp.Generate("weak", 1024, made)

	if !errors.Is(err, openpgp.ErrWeakKey) {
		t.Errorf("got %v, want ErrWeakKey", err)
	}
}
