package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// publicKey writes the public half of a key as authorized_keys has it.
func publicKey(t *testing.T, key any) string {
	t.Helper()
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)))
}

func newPublicKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return publicKey(t, public)
}

func (p *plane) addOperator(req control.OperatorRequest) control.OperatorAdded {
	p.t.Helper()
	added, err := p.AddOperator(context.Background(), root, req)
	if err != nil {
		p.t.Fatal(err)
	}
	return added
}

func TestAnOperatorIsKnownByTheKeyAndSurvivesARestart(t *testing.T) {
	p, key := newPlane(t), newPublicKey(t)
	added := p.addOperator(control.OperatorRequest{Name: "ci-web", Key: key + " ci@build\n", Role: control.RolePublisher, Limits: control.Limits{Declarations: []string{"web"}, Packages: []string{"web-*"}}})
	if !added.Changed || !strings.HasPrefix(added.Key, "SHA256:") || added.Fingerprint == "" || len(added.Addresses) == 0 {
		t.Errorf("the answer is %+v, want the fingerprints of both keys and an address", added)
	}
	p.restart()

	caller, _, err := p.OperatorByKey(context.Background(), key)

	if err != nil || caller.Name != "ci-web" || caller.Door != control.DoorSSH || caller.Key != added.Key || caller.MayDeclare("web") != nil || caller.MayDeclare("db") == nil || caller.MayPublish("web-app") != nil || caller.MayPublish("db") == nil {
		t.Errorf("the key belongs to %+v, %v", caller, err)
	}
	_, _, err = p.OperatorByKey(context.Background(), newPublicKey(t))
	wantCode(t, "a key that nobody registered", err, mesh.CodeDenied, "meshctl operator add")
}

func TestAddingTheSameOperatorAgainChangesNothingAndAnotherIsRefused(t *testing.T) {
	p, key := newPlane(t), newPublicKey(t)
	anna := control.OperatorRequest{Name: "anna", Key: key, Role: control.RoleAdmin}
	p.addOperator(anna)

	if again := p.addOperator(anna); again.Changed {
		t.Errorf("the same again is said to have changed something: %+v", again)
	}
	for what, req := range map[string]control.OperatorRequest{
		"the name with another key":  {Name: "anna", Key: newPublicKey(t), Role: control.RoleAdmin},
		"the name with another role": {Name: "anna", Key: key, Role: control.RoleReader},
		"the key with another name":  {Name: "bert", Key: key, Role: control.RoleAdmin},
	} {
		_, err := p.AddOperator(context.Background(), root, req)
		wantCode(t, what, err, mesh.CodeConflict, "anna")
	}
	if log, err := p.Audit(context.Background(), 10); err != nil || len(log) != 1 || log[0].What != "operator added" || !strings.Contains(log[0].Detail, "anna as admin with key SHA256:") {
		t.Errorf("the audit log is %+v, %v; want one entry", log, err)
	}
}

func TestWhatCannotBeAnOperatorIsRefusedWithEveryFinding(t *testing.T) {
	p := newPlane(t)
	join(p, "web-1", nil)
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	good := newPublicKey(t)
	for what, c := range map[string]struct {
		req  control.OperatorRequest
		says []string
	}{
		"nothing":                {control.OperatorRequest{}, []string{"name", "role", "key"}},
		"a name with a space":    {control.OperatorRequest{Name: "uid 0", Key: good, Role: control.RoleAdmin}, []string{`"uid 0"`}},
		"root":                   {control.OperatorRequest{Name: "root", Key: good, Role: control.RoleAdmin}, []string{"socket"}},
		"a private key":          {control.OperatorRequest{Name: "a", Key: "-----BEGIN OPENSSH PRIVATE KEY-----", Role: control.RoleAdmin}, []string{"private key"}},
		"two keys":               {control.OperatorRequest{Name: "a", Key: good + "\n" + newPublicKey(t), Role: control.RoleAdmin}, []string{"one key"}},
		"options":                {control.OperatorRequest{Name: "a", Key: `command="true" ` + good, Role: control.RoleAdmin}, []string{"without options"}},
		"a short RSA key":        {control.OperatorRequest{Name: "a", Key: publicKey(t, &short.PublicKey), Role: control.RoleAdmin}, []string{"2048"}},
		"a limited admin":        {control.OperatorRequest{Name: "a", Key: good, Role: control.RoleAdmin, Limits: control.Limits{Declarations: []string{"web"}}}, []string{"only a publisher"}},
		"limits that are none":   {control.OperatorRequest{Name: "a", Key: good, Role: control.RolePublisher, Limits: control.Limits{Declarations: []string{"We b"}, Packages: []string{"[a"}}}, []string{"declarations[0]", "packages[0]"}},
		"a key that is too long": {control.OperatorRequest{Name: "a", Key: good + " " + strings.Repeat("x", 20000), Role: control.RoleAdmin}, []string{"longer"}},
	} {
		_, err := p.AddOperator(context.Background(), root, c.req)
		wantCode(t, what, err, mesh.CodeInvalid, c.says...)
	}
	if list, err := p.Operators(context.Background()); err != nil || len(list) != 0 {
		t.Errorf("operators are %+v, %v; want none", list, err)
	}
}

func TestKeysOfEveryGoodTypeAreTaken(t *testing.T) {
	p := newPlane(t)
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]string{"ed": newPublicKey(t), "rsa": publicKey(t, &long.PublicKey), "ec": publicKey(t, &curve.PublicKey)} {
		p.addOperator(control.OperatorRequest{Name: name, Key: key, Role: control.RoleReader})
	}
	if list, err := p.Operators(context.Background()); err != nil || len(list) != 3 {
		t.Errorf("operators are %+v, %v; want all three", list, err)
	}
}

func TestARemovedOperatorIsRefusedAndWhoeverHoldsAConnectionIsTold(t *testing.T) {
	p, key := newPlane(t), newPublicKey(t)
	p.addOperator(control.OperatorRequest{Name: "anna", Key: key, Role: control.RoleAdmin})
	caller, gone, err := p.OperatorByKey(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.RemoveOperator(context.Background(), caller, "anna"); err != nil {
		t.Fatal(err)
	}

	select {
	case <-gone:
	default:
		t.Error("the channel that says it is not closed")
	}
	_, _, err = p.OperatorByKey(context.Background(), key)
	wantCode(t, "the key of a removed operator", err, mesh.CodeDenied)
	wantCode(t, "removing again", p.RemoveOperator(context.Background(), root, "anna"), mesh.CodeNotFound, "anna")
	log, err := p.Audit(context.Background(), 1)
	if err != nil || log[0].Who != "anna" || log[0].Door != control.DoorSSH || log[0].Key != caller.Key || log[0].What != "operator removed" {
		t.Errorf("the audit log says %+v, %v; want who, the door and the key", log, err)
	}
	p.restart()
	_, _, err = p.OperatorByKey(context.Background(), key)
	wantCode(t, "the key of a removed operator after a restart", err, mesh.CodeDenied)
}
