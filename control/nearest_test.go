package control_test

import (
	"context"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func TestAMistypedNameIsAnsweredWithTheNearestOneThereIs(t *testing.T) {
	p := newPlane(t)
	ctx := context.Background()
	for _, name := range []string{"web-1", "web-9", "db-master", "edge.example.org"} {
		join(p, name, nil)
	}
	p.declare(doc("webserver", "", file("/etc/motd", "x")))
	if _, err := p.AddOperator(ctx, root, control.OperatorRequest{Name: "anna", Role: control.RoleReader, Key: newPublicKey(t)}); err != nil {
		t.Fatal(err)
	}
	node := func(name string) error { _, err := p.Node(ctx, name); return err }
	declaration := func(name string) error { _, err := p.History(ctx, name); return err }
	for _, ask := range []struct {
		what string
		err  error
		want string
	}{
		{"two letters exchanged", node("wbe-9"), "did you mean web-9?"},
		{"a letter too much", node("db-masterr"), "did you mean db-master?"},
		{"as near to two", node("web-5"), "did you mean web-1?"},
		{"without its domain", node("edge"), "did you mean edge.example.org?"},
		{"with a domain", node("web-1.example.org"), "did you mean web-1?"},
		{"nothing is near", node("mail"), ""},
		{"far too long", node(strings.Repeat("web-1", 100)), ""},
		{"a node to be revoked", p.Revoke(ctx, root, "web9"), "did you mean web-9?"},
		{"a declaration", declaration("websrver"), "did you mean webserver?"},
		{"an operator", p.RemoveOperator(ctx, root, "ana"), "did you mean anna?"},
	} {
		wantCode(t, ask.what, ask.err, mesh.CodeNotFound, ask.want)
		if ask.want == "" && strings.Contains(ask.err.Error(), "did you mean") {
			t.Errorf("%s: %v", ask.what, ask.err)
		}
	}
}
