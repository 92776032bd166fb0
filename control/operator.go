package control

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
)

const (
	// operatorsLimit bounds how many operators are registered.
	operatorsLimit = 1000
	// keyLimit bounds a public key as it is written down, in bytes.
	keyLimit = 16 << 10
	// rsaLeast is the least length of an RSA key, in bits.
	rsaLeast = 2048
)

var operatorName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?$`)

// operator is what is kept in memory of an operator. Nothing of it changes.
type operator struct {
	OperatorRecord
	// gone is closed when the operator was removed.
	gone chan struct{}
}

func (o *operator) caller() Caller {
	return Caller{Name: o.Name, Door: DoorSSH, Key: keyFingerprint(o.Key), Role: o.Role, Limits: o.Limits}
}

func (o *operator) view() OperatorView {
	return OperatorView{Name: o.Name, Role: o.Role, Limits: o.Limits, Key: keyFingerprint(o.Key), Added: o.Added, By: o.By}
}

func (c *Control) loadOperators(ctx context.Context) error {
	records, err := c.store.Operators(ctx)
	if err != nil {
		return fmt.Errorf("read operators: %w", err)
	}
	for _, r := range records {
		c.operators[r.Name] = &operator{OperatorRecord: r, gone: make(chan struct{})}
	}
	return nil
}

// OperatorByKey returns who the key belongs to, as whom they act, and a channel
// that is closed once they are an operator no more; mesh.CodeDenied when nobody
// is registered with it. The key is a line of an authorized_keys file without a
// comment, and was proved.
func (c *Control) OperatorByKey(_ context.Context, key string) (Caller, <-chan struct{}, error) {
	key = strings.TrimSpace(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.operators {
		if o.Key == key {
			return o.caller(), o.gone, nil
		}
	}
	return Caller{}, nil, mesh.Errorf(mesh.CodeDenied, "no operator is registered with the key %s; an admin adds one with meshctl operator add", keyFingerprint(key))
}

// AddOperator registers an operator. The same operator again is a success that
// changes nothing; another under the same name, or with the same key, is
// refused.
func (c *Control) AddOperator(ctx context.Context, caller Caller, req OperatorRequest) (OperatorAdded, error) {
	key, err := checkOperator(req)
	if err != nil {
		return OperatorAdded{}, err
	}
	if err := c.enter(ctx); err != nil {
		return OperatorAdded{}, err
	}
	defer c.leave()
	now := c.now()
	o := &operator{
		OperatorRecord: OperatorRecord{Name: req.Name, Key: key, Role: req.Role, Limits: req.Limits, Added: now, By: caller.Name},
		gone:           make(chan struct{}),
	}
	former, err := c.clash(o)
	if err != nil {
		return OperatorAdded{}, err
	}
	if former != nil {
		return c.added(former, false), nil
	}
	detail := fmt.Sprintf("%s as %s with key %s", o.Name, o.Role, keyFingerprint(key))
	if !o.Limits.None() {
		detail += fmt.Sprintf(", declarations: %s, packages: %s", named(o.Limits.Declarations), named(o.Limits.Packages))
	}
	if err := c.store.AddOperator(ctx, o.OperatorRecord, caller.entry(now, "operator added", bounded(detail, detailLimit))); err != nil {
		return OperatorAdded{}, fmt.Errorf("store operator %s: %w", o.Name, err)
	}
	c.mu.Lock()
	c.operators[o.Name] = o
	c.mu.Unlock()
	c.log.Info("operator added", "operator", o.Name, "role", o.Role, "by", caller.Name)
	return c.added(o, true), nil
}

func (c *Control) added(o *operator, changed bool) OperatorAdded {
	return OperatorAdded{OperatorView: o.view(), Changed: changed, Addresses: c.addresses, Fingerprint: mesh.FingerprintText(c.fingerprint)}
}

// clash returns the operator that is registered as o is already, and refuses an
// o that contradicts one.
func (c *Control) clash(o *operator) (*operator, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, known := c.keys[o.Key]; known {
		return nil, mesh.Errorf(mesh.CodeConflict, "the key %s is that of node %s; an operator has a key of their own", keyFingerprint(o.Key), id.Node)
	}
	if former := c.operators[o.Name]; former != nil {
		same := former.Key == o.Key && former.Role == o.Role &&
			slices.Equal(former.Limits.Declarations, o.Limits.Declarations) && slices.Equal(former.Limits.Packages, o.Limits.Packages)
		if same {
			return former, nil
		}
		return nil, mesh.Errorf(mesh.CodeConflict, "there is an operator %s already, as %s with key %s; remove it first: meshctl operator remove %s", o.Name, former.Role, keyFingerprint(former.Key), o.Name)
	}
	for _, other := range c.operators {
		if other.Key == o.Key {
			return nil, mesh.Errorf(mesh.CodeConflict, "the key %s is that of operator %s already", keyFingerprint(o.Key), other.Name)
		}
	}
	if len(c.operators) >= operatorsLimit {
		return nil, mesh.Errorf(mesh.CodeConflict, "there are %d operators already, which is the limit", operatorsLimit)
	}
	return nil, nil
}

// checkOperator finds what is wrong with a request, and returns its key in the
// form in which it is compared.
func checkOperator(req OperatorRequest) (string, error) {
	var ps mesh.Problems
	switch {
	case !operatorName.MatchString(req.Name):
		ps.Add("name", fmt.Sprintf("%q cannot be the name of an operator: use lower-case letters, digits and any of . _ @ -, at most 63, beginning and ending with a letter or digit", bounded(req.Name, 80)))
	case req.Name == "root":
		ps.Add("name", "root is who comes through the socket; take another name")
	}
	if !slices.Contains(Roles(), req.Role) {
		ps.Add("role", fmt.Sprintf("%q is no role; there are reader, publisher and admin", bounded(string(req.Role), 40)))
	}
	key, err := publicKey(req.Key)
	if err != nil {
		ps.Add("key", err.Error())
	}
	ps = append(ps, req.check(req.Role)...)
	if len(ps) > 0 {
		return "", &mesh.Error{Code: mesh.CodeInvalid, Message: "no operator was added", Details: ps}
	}
	return key, nil
}

// publicKey reads one line of an authorized_keys file and returns it without
// its comment.
func publicKey(line string) (string, error) {
	if len(line) > keyLimit {
		return "", fmt.Errorf("longer than the %d bytes that a public key may have", keyLimit)
	}
	if strings.Contains(line, "PRIVATE KEY") {
		return "", errors.New("this is a private key, which stays with its owner; give the public one, as a rule the file whose name ends in .pub")
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return "", errors.New("not a public SSH key, as in the file whose name ends in .pub")
	}
	if len(options) > 0 || strings.TrimSpace(string(rest)) != "" {
		return "", errors.New("one key on one line, without options, is wanted")
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
	case ssh.KeyAlgoRSA:
		if bits := rsaBits(key); bits < rsaLeast {
			return "", fmt.Errorf("an RSA key has to have at least %d bits, and this has %d; ssh-keygen -t ed25519 makes a good key", rsaLeast, bits)
		}
	default:
		return "", fmt.Errorf("a key of type %s is not taken; ssh-keygen -t ed25519 makes a good key", bounded(key.Type(), 40))
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}

// rsaBits is the length of an RSA key; zero for any other.
func rsaBits(key ssh.PublicKey) int {
	if holder, ok := key.(ssh.CryptoPublicKey); ok {
		if k, ok := holder.CryptoPublicKey().(*rsa.PublicKey); ok {
			return k.N.BitLen()
		}
	}
	return 0
}

// RemoveOperator ends an operator: the key is refused from now on, and what is
// open with it is closed.
func (c *Control) RemoveOperator(ctx context.Context, caller Caller, name string) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	c.mu.Lock()
	o := c.operators[name]
	hint := didYouMean(name, maps.Keys(c.operators))
	c.mu.Unlock()
	if o == nil {
		return mesh.Errorf(mesh.CodeNotFound, "there is no operator %q; %smeshctl operator list lists those there are", bounded(name, 80), hint)
	}
	detail := fmt.Sprintf("%s, who was %s with key %s", o.Name, o.Role, keyFingerprint(o.Key))
	if err := c.store.RemoveOperator(ctx, name, caller.entry(c.now(), "operator removed", detail)); err != nil {
		return fmt.Errorf("store the end of operator %s: %w", name, err)
	}
	c.mu.Lock()
	delete(c.operators, name)
	c.mu.Unlock()
	close(o.gone)
	c.log.Info("operator removed", "operator", name, "by", caller.Name)
	return nil
}

// Operators lists the registered operators by name.
func (c *Control) Operators(context.Context) ([]OperatorView, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	views := make([]OperatorView, 0, len(c.operators))
	for _, name := range slices.Sorted(maps.Keys(c.operators)) {
		views = append(views, c.operators[name].view())
	}
	return views, nil
}
