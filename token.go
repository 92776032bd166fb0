package mesh

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	tokenPrefix  = "mesh1-"
	tokenVersion = 1
	// SecretSize is the length in bytes of a token's secret.
	SecretSize  = 20
	tokenSumLen = 4
)

// Token is what an operator carries by hand to a machine that is to join. It
// names the control plane, pins its key, and proves that the operator agreed.
type Token struct {
	// Addresses are host:port pairs of the control plane's link, tried in order.
	Addresses []string
	// Fingerprint is the SHA-256 of the control plane's SSH public key in wire
	// form.
	Fingerprint [sha256.Size]byte
	// Secret is random and used once. The control plane keeps only its hash.
	Secret [SecretSize]byte
}

// String writes the token as one word that can be typed or pasted.
func (t Token) String() string {
	raw := []byte{tokenVersion}
	raw = append(raw, t.Fingerprint[:]...)
	raw = append(raw, t.Secret[:]...)
	raw = append(raw, strings.Join(t.Addresses, ",")...)
	sum := sha256.Sum256(raw)
	raw = append(raw, sum[:tokenSumLen]...)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// ParseToken reads what String wrote. A token that was cut or mistyped is told
// from one of another kind.
func ParseToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	body, found := strings.CutPrefix(s, tokenPrefix)
	if !found {
		return Token{}, Errorf(CodeInvalid, "this is not a token: a token begins with %q", tokenPrefix)
	}
	damaged := Errorf(CodeInvalid, "the token is damaged: a part of it is missing or mistyped; copy it again, whole")
	if len(body) > 2048 {
		return Token{}, damaged
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	const fixed = 1 + sha256.Size + SecretSize
	if err != nil || len(raw) < fixed+tokenSumLen {
		return Token{}, damaged
	}
	content, sum := raw[:len(raw)-tokenSumLen], raw[len(raw)-tokenSumLen:]
	if want := sha256.Sum256(content); string(want[:tokenSumLen]) != string(sum) {
		return Token{}, damaged
	}
	if content[0] != tokenVersion {
		return Token{}, Errorf(CodeInvalid, "the token is of version %d and this host reads version %d; install a newer mesh-host", content[0], tokenVersion)
	}
	var t Token
	copy(t.Fingerprint[:], content[1:])
	copy(t.Secret[:], content[1+sha256.Size:])
	if list := string(content[fixed:]); list != "" {
		t.Addresses = strings.Split(list, ",")
	}
	if len(t.Addresses) == 0 {
		return Token{}, damaged
	}
	return t, nil
}

// SecretText is the secret as it travels as the password of user "enrol".
func (t Token) SecretText() string { return hex.EncodeToString(t.Secret[:]) }

// SecretHash is what a control plane stores of a secret: the SHA-256 of its
// text, in hexadecimal. The secret is random and long, so no salt is needed.
func SecretHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// FingerprintText writes a fingerprint as OpenSSH does.
func FingerprintText(sum [sha256.Size]byte) string {
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// ParseFingerprint reads what FingerprintText wrote.
func ParseFingerprint(s string) ([sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	body, found := strings.CutPrefix(s, "SHA256:")
	raw, err := base64.RawStdEncoding.DecodeString(body)
	if !found || err != nil || len(raw) != len(sum) {
		return sum, fmt.Errorf("%q is not a SHA256 fingerprint", s)
	}
	copy(sum[:], raw)
	return sum, nil
}
