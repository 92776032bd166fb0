package control_test

import (
	"context"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/grant"
)

// withReaders makes the repository of a plane readable by nodes alone.
func (p *plane) withReaders() {
	p.t.Helper()
	r, err := grant.Open(p.dir, func() []string { return []string{"http://control.example:7080"} })
	if err != nil {
		p.t.Fatal(err)
	}
	p.readers = r
	p.restart()
}

// credential reads what the node was given to read the repository with.
func credential(t *testing.T, d *mesh.Declaration) control.Credential {
	t.Helper()
	if d != nil {
		for _, r := range d.Resources {
			if r.Name != grant.AptFile {
				continue
			}
			return inAptFile(t, string(r.File.Content))
		}
	}
	t.Fatalf("no credential is in what is pushed: %s", ids(d))
	return control.Credential{}
}

func inAptFile(t *testing.T, text string) control.Credential {
	t.Helper()
	_, line, _ := strings.Cut(text, "\nmachine ")
	fields := strings.Fields(line)
	if len(fields) < 5 {
		t.Fatalf("there is no credential in %q", text)
	}
	return control.Credential{User: fields[2], Secret: fields[4]}
}

func wantReads(t *testing.T, p *plane, c control.Credential, want bool, when string) {
	t.Helper()
	err := p.AdmitReader(context.Background(), c)
	if (err == nil) != want || (err != nil && mesh.CodeOf(err) != mesh.CodeDenied) {
		t.Errorf("%s the repository answers %s with %v; readable should be %v", when, c.User, err, want)
	}
}

func aptMachine(p *plane, name string) *host {
	h := machine(p, name)
	h.e.Profile.PackageManager = "apt"
	return h
}

// Shows: M31
func TestANodeIsGivenItsOwnCredentialAndItEndsWithTheNode(t *testing.T) {
	p := newPlane(t)
	p.withReaders()
	web, db := aptMachine(p, "web-1"), aptMachine(p, "db-1")
	for _, h := range []*host{web, db} {
		if _, err := h.enrol(control.TokenRequest{}); err != nil {
			t.Fatal(err)
		}
		h.connect()
	}
	first, other := credential(t, web.apply()), credential(t, db.apply())
	wantReads(t, p, first, true, "with its credential")
	wantReads(t, p, control.Credential{}, false, "without one")
	wantReads(t, p, control.Credential{User: "web-1", Secret: other.Secret}, false, "with another node's secret")

	p.restart()
	wantReads(t, p, first, true, "after a restart")
	web.connect()
	if d := web.pending(); d != nil {
		t.Errorf("a restart alone changes what the node gets: %s", ids(d))
	}

	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	wantReads(t, p, first, false, "after the revocation")
	wantReads(t, p, other, true, "after the revocation of another node")
	p.restart()
	wantReads(t, p, first, false, "after the revocation and a restart")
}

func TestAMachineThatTakesANodesPlaceHasAnotherCredential(t *testing.T) {
	p := newPlane(t)
	p.withReaders()
	old := aptMachine(p, "web-1")
	if _, err := old.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	old.connect()
	former := credential(t, old.apply())
	next := aptMachine(p, "new")
	if _, err := next.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil {
		t.Fatal(err)
	}
	next.connect()

	wantReads(t, p, credential(t, next.pending()), true, "with the new credential")
	wantReads(t, p, former, false, "with that of the former machine")
}

func TestATokenReadsUntilItExpiresOrItsMachineLeaves(t *testing.T) {
	p := newPlane(t)
	p.withReaders()
	issue := func() (control.Credential, string) {
		issued, err := p.IssueToken(context.Background(), root, control.TokenRequest{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		token, err := mesh.ParseToken(issued.Token)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(issued.Reading["apt"][0].Content, token.SecretText()) {
			t.Error("the secret of the token would travel over plain HTTP")
		}
		return inAptFile(t, issued.Reading["apt"][0].Content), mesh.SecretHash(token.SecretText())
	}
	unused, _ := issue()
	used, hash := issue()
	leaked, leakedHash := issue()
	wantReads(t, p, leaked, true, "with a fresh token")
	if err := p.RevokeToken(context.Background(), root, control.TokenRecord{Hash: leakedHash}.ID()); err != nil {
		t.Fatal(err)
	}
	wantReads(t, p, leaked, false, "with a token that was revoked")
	wantReads(t, p, unused, true, "with a fresh token")
	if _, err := aptMachine(p, "web-1").enrolWith(hash); err != nil {
		t.Fatal(err)
	}
	wantReads(t, p, used, true, "with a token that was just used")
	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	wantReads(t, p, used, false, "with the token of a machine that was revoked")
	p.later(time.Hour)
	wantReads(t, p, unused, false, "with a token that expired")
}

func TestClosingAndOpeningTheRepositoryReachesTheNodesAtTheNextStart(t *testing.T) {
	p := newPlane(t)
	h := aptMachine(p, "web-1")
	if _, err := h.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	h.connect()
	p.declare(doc("web", "", file("/a", "x")))
	h.apply()

	p.withReaders()
	h.connect()
	if got, want := ids(h.apply()), "g2 [file:/a file:"+grant.AptFile+"] released []"; got != want {
		t.Errorf("after the repository was closed the node gets %s, want %s", got, want)
	}

	p.readers = nil
	p.restart()
	h.connect()
	wantPending(t, h, "g3 [file:/a] released [file:"+grant.AptFile+"]")
	wantReads(t, p, control.Credential{}, true, "when it is open again, without a credential,")
}
