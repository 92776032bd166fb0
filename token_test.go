package mesh_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

func someToken() mesh.Token {
	token := mesh.Token{Addresses: []string{"192.0.2.7:7022", "[2001:db8::7]:7022", "control.example.net:7022"}}
	token.Fingerprint = sha256.Sum256([]byte("key"))
	copy(token.Secret[:], "twenty bytes of luck")
	return token
}

// Shows: M24
func TestATokenCarriesAddressesFingerprintAndSecretInOneWord(t *testing.T) {
	token := someToken()

	text := token.String()

	got, err := mesh.ParseToken(" " + text + "\n")
	if err != nil || got.Fingerprint != token.Fingerprint || got.Secret != token.Secret || strings.Join(got.Addresses, " ") != strings.Join(token.Addresses, " ") {
		t.Errorf("%s was read as %+v, %v; want %+v", text, got, err, token)
	}
	if strings.ContainsAny(text, " \t\n'\"$&|;<>()\\`*?[]~#") {
		t.Errorf("%s has characters that a shell would take for its own", text)
	}
}

func TestATokenThatWasCutOrMistypedIsToldFromOneOfAnotherKind(t *testing.T) {
	text := someToken().String()
	for name, damaged := range map[string]string{
		"cut":           text[:len(text)-5],
		"only begun":    text[:8],
		"one letter":    text[:30] + flip(text[30]) + text[31:],
		"a space in it": text[:30] + " " + text[30:],
		"twice":         text + text,
		"endless":       "mesh1-" + strings.Repeat("A", 1<<20),
	} {
		_, err := mesh.ParseToken(damaged)
		if mesh.CodeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), "copy it again, whole") {
			t.Errorf("a token that is damaged (%s) is answered with %v", name, err)
		}
	}
	_, err := mesh.ParseToken("ghp_0123456789")
	if mesh.CodeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), "not a token") {
		t.Errorf("something else is answered with %v", err)
	}
}

func flip(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestAnyOneChangedLetterOfATokenIsNoticed(t *testing.T) {
	text := someToken().String()
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(len("mesh1-"), len(text)-2).Draw(t, "at")
		_, err := mesh.ParseToken(text[:at] + flip(text[at]) + text[at+1:])
		if err == nil {
			t.Fatalf("letter %d was changed and nobody noticed", at)
		}
	})
}

// Shows: M24
func TestOnlyAHashOfTheSecretIsForStoring(t *testing.T) {
	token := someToken()

	hash := mesh.SecretHash(token.SecretText())

	if strings.Contains(hash, token.SecretText()) || len(hash) != 64 || hash == mesh.SecretHash("") {
		t.Errorf("the hash of %s is %s", token.SecretText(), hash)
	}
}

func TestAFingerprintIsWrittenAsOpenSSHDoesAndReadBack(t *testing.T) {
	sum := sha256.Sum256([]byte("key"))

	got, err := mesh.ParseFingerprint(mesh.FingerprintText(sum))

	if err != nil || got != sum || !strings.HasPrefix(mesh.FingerprintText(sum), "SHA256:") {
		t.Errorf("%s was read as %x, %v", mesh.FingerprintText(sum), got, err)
	}
	for _, other := range []string{"", "SHA256:", "MD5:ab:cd", "SHA256:AAAA", mesh.FingerprintText(sum)[7:]} {
		if _, err := mesh.ParseFingerprint(other); err == nil {
			t.Errorf("%q was read as a fingerprint", other)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(someToken().String())
	f.Add("mesh1-")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := mesh.ParseToken(text)
		if err != nil {
			var known *mesh.Error
			if !errors.As(err, &known) {
				t.Fatalf("%q is answered with %v, which is no sentence for an operator", text, err)
			}
			return
		}
		again, err := mesh.ParseToken(token.String())
		if err != nil || again.Fingerprint != token.Fingerprint || again.Secret != token.Secret || strings.Join(again.Addresses, ",") != strings.Join(token.Addresses, ",") {
			t.Fatalf("%q was read as %+v, and what that writes as %+v, %v", text, token, again, err)
		}
	})
}
