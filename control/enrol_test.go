package control_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Shows: M24
func TestATokenIsStoredOnlyAsAHashAndIsShownOnce(t *testing.T) {
	p := newPlane(t)
	issued, err := p.IssueToken(context.Background(), root, control.TokenRequest{Name: "web-1"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := mesh.ParseToken(issued.Token)
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	files, err := filepath.Glob(filepath.Join(p.dir, "control.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of the store: %v, %v", files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(token.SecretText())) || bytes.Contains(data, token.Secret[:]) || bytes.Contains(data, []byte(issued.Token)) {
			t.Errorf("%s holds the secret of the token", filepath.Base(name))
		}
	}
	p.start()
	if err := p.CheckToken(context.Background(), mesh.SecretHash(token.SecretText())); err != nil {
		t.Errorf("after a restart the token is not known any more: %v", err)
	}
}

// Shows: M24
func TestATokenIsUsedOnceAndExpires(t *testing.T) {
	p := newPlane(t)
	hash := p.token(control.TokenRequest{TTL: time.Minute})
	first, second := machine(p, "one"), machine(p, "two")
	if _, err := first.enrolWith(hash); err != nil {
		t.Fatal(err)
	}
	_, err := second.enrolWith(hash)
	wantCode(t, "a second machine with the token", err, mesh.CodeDenied, "used already", "one")

	old := p.token(control.TokenRequest{TTL: time.Minute})
	p.later(time.Minute)
	wantCode(t, "checking an expired token", p.CheckToken(context.Background(), old), mesh.CodeDenied, "expired")
	_, err = second.enrolWith(old)
	wantCode(t, "an expired token", err, mesh.CodeDenied, "expired", "meshctl token issue")
	wantCode(t, "a token of nobody", p.CheckToken(context.Background(), mesh.SecretHash("x")), mesh.CodeDenied)
}

// Shows: M24
func TestAnEnrolmentWhoseAnswerWasLostIsTheSameSuccessAgain(t *testing.T) {
	p := newPlane(t)
	hash := p.token(control.TokenRequest{TTL: time.Minute})
	h := machine(p, "web-1")
	first, err := h.enrolWith(hash)
	if err != nil {
		t.Fatal(err)
	}
	p.restart()
	p.later(time.Hour)
	if err := p.CheckToken(context.Background(), hash); err != nil {
		t.Errorf("the token does not pass a second time: %v", err)
	}
	again, err := h.enrolWith(hash)
	if err != nil || again.Node != first.Node || again.Eligible != first.Eligible {
		t.Errorf("the second answer is %+v, %v; the first was %+v", again, err, first)
	}
	if n := strings.Count(strings.Join(h.events(), " "), string(control.EventEnrolled)); n != 1 {
		t.Errorf("%d enrolments were recorded", n)
	}
}

// failingStore fails the enrolment after the policy has decided.
type failingStore struct {
	control.Store
	fail *bool
}

func (s failingStore) Enrol(ctx context.Context, tx control.EnrolTx) error {
	if *s.fail {
		return errors.New("the disk is full")
	}
	return s.Store.Enrol(ctx, tx)
}

// Shows: M24
func TestAnEnrolmentThatCouldNotBeStoredLeavesTheTokenUsable(t *testing.T) {
	p := newPlane(t)
	fail := true
	p.wrap = func(s control.Store) control.Store { return failingStore{s, &fail} }
	p.restart()
	hash := p.token(control.TokenRequest{})
	h := machine(p, "web-1")
	if _, err := h.enrolWith(hash); err == nil {
		t.Fatal("an enrolment that was not stored was a success")
	}
	if _, err := p.NodeByKey(context.Background(), h.key); mesh.CodeOf(err) != mesh.CodeDenied {
		t.Errorf("the key of an enrolment that was not stored is taken: %v", err)
	}
	fail = false
	if _, err := h.enrolWith(hash); err != nil {
		t.Errorf("the token cannot be used any more: %v", err)
	}
}

// Shows: M25
func TestTheProfileDecidesWhatAMachineGetsWithItsEnrolment(t *testing.T) {
	p := newPlane(t)
	p.declare(doc("deb", `os.family == "debian"`, file("/etc/deb", "x")))
	p.declare(doc("rpm", `os.family == "rpm"`, file("/etc/rpm", "x")))
	deb, rpm := machine(p, "deb-1"), machine(p, "rpm-1")
	rpm.e.Profile.OS = mesh.OS{ID: "fedora", Version: "40", Family: "rpm"}
	for _, h := range []*host{deb, rpm} {
		if _, err := h.enrol(control.TokenRequest{}); err != nil {
			t.Fatal(err)
		}
		h.connect()
	}
	wantPending(t, deb, "g1 [file:/etc/deb] released []")
	wantPending(t, rpm, "g1 [file:/etc/rpm] released []")
	if d := rpm.detail(); d.Profile.OS.ID != "fedora" || len(d.Briefing.Lines) == 0 {
		t.Errorf("profile and briefing are not stored: %+v", d)
	}
}

// Shows: M26
func TestAFailedBriefingLineMakesANodeIneligibleUntilItPasses(t *testing.T) {
	p := newPlane(t)
	p.declare(doc("base", "", file("/etc/base", "x")))
	h := machine(p, "web-1")
	bad := mesh.Briefing{Lines: []mesh.Line{{Check: "package database readable", Outcome: mesh.OutcomeFail, Detail: "it is locked"}}}
	good := h.e.Briefing
	h.e.Briefing = bad
	answer, err := h.enrol(control.TokenRequest{})
	if err != nil {
		t.Fatalf("adoption did not complete: %v", err)
	}
	if answer.Eligible || !slices.Equal(answer.Why, []string{"package database readable: it is locked"}) {
		t.Errorf("the answer is %+v", answer)
	}
	h.connect()
	wantPending(t, h, "nothing")
	if row := h.row(); row.Eligible || row.Declared != 0 {
		t.Errorf("an ineligible node shows as %+v", row)
	}
	h.say(mesh.FrameBriefing, good)
	wantPending(t, h, "g1 [file:/etc/base] released []")
	if h.link.wakes() != 1 {
		t.Errorf("the link was woken %d times", h.link.wakes())
	}
	h.say(mesh.FrameBriefing, bad)
	if got := p.declare(doc("base", "", file("/etc/base", "y"))); got.Nodes != 0 {
		t.Errorf("a node that became ineligible was given %d generations", got.Nodes)
	}
}

func TestANameIsMadeOfTheHostNameAndMustBeFree(t *testing.T) {
	p := newPlane(t)
	h := machine(p, "Web_1.Example.ORG.")
	if _, err := h.enrol(control.TokenRequest{}); err != nil || h.name != "web-1.example.org" {
		t.Errorf("the name is %q, %v", h.name, err)
	}
	other := machine(p, "other")
	other.e.Hostname = h.e.Hostname
	_, err := other.enrol(control.TokenRequest{})
	wantCode(t, "a name that is taken", err, mesh.CodeConflict, "--replaces web-1.example.org", "--name")
	for _, hostname := range []string{"", "localhost", "___"} {
		other.e.Hostname = hostname
		_, err := other.enrol(control.TokenRequest{})
		wantCode(t, "host name "+hostname, err, mesh.CodeInvalid, "--name")
	}
	if _, err := other.enrol(control.TokenRequest{Name: "given"}); err != nil || other.name != "given" {
		t.Errorf("a name from the token became %q, %v", other.name, err)
	}
}

// Shows: M28, M29
func TestReEnrolmentRevokesTheFormerIdentityAndHandsOverTheRecoveryCopy(t *testing.T) {
	p := newPlane(t)
	p.declare(doc("base", "", file("/etc/base", "x")))
	former := join(p, "web-1", map[string]string{"role": "web"})
	former.apply()

	fresh := machine(p, "replacement")
	answer, err := fresh.enrol(control.TokenRequest{Replaces: "web-1"})
	if err != nil || answer.Node != "web-1" {
		t.Fatalf("enrolment gave %+v, %v", answer, err)
	}
	_, err = p.NodeByKey(context.Background(), former.key)
	wantCode(t, "the former key", err, mesh.CodeDenied, "revoked")
	if reason := former.link.reasons(); !strings.HasPrefix(reason, "revoked") {
		t.Errorf("the former link was closed with %q", reason)
	}
	if events := fresh.events(); !slices.Contains(events, string(control.EventReplaced)) {
		t.Errorf("events are %v", events)
	}
	if row := fresh.row(); row.Applied != 0 || row.Outstanding.Undelivered != 1 {
		t.Errorf("what the former machine applied counts for the new one: %+v", row)
	}
	p.restart()
	_, recovery := fresh.connect()
	if recovery == nil || len(recovery.Owned) != 1 || recovery.Owned[0].Resource != "file:/etc/base" {
		t.Errorf("the recovery copy is %+v", recovery)
	}
	wantPending(t, fresh, "g1 [file:/etc/base] released []")
	if d := fresh.detail(); d.Labels["role"] != "web" {
		t.Errorf("the labels were lost: %v", d.Labels)
	}
}

// Shows: M29
func TestTheRecoveryCopyOfAMachineThatNeverConnectedIsHandedOverToo(t *testing.T) {
	p := newPlane(t)
	former := machine(p, "web-1")
	former.e.Owned = []mesh.Owned{{Resource: "file:/etc/a", Made: mesh.MadeCreated}}
	if _, err := former.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	fresh := machine(p, "replacement")
	if _, err := fresh.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil {
		t.Fatal(err)
	}
	if _, recovery := fresh.connect(); recovery == nil || len(recovery.Owned) != 1 {
		t.Errorf("the recovery copy is %+v", recovery)
	}
}

// Shows: M24
func TestATokenThatIsRevokedOpensNothingAndOneThatWasUsedIsNotTakenBack(t *testing.T) {
	p := newPlane(t)
	ctx := context.Background()
	leaked := p.token(control.TokenRequest{Name: "web-1", Labels: map[string]string{"role": "web"}})
	used := p.token(control.TokenRequest{Name: "web-2"})
	if _, err := machine(p, "web-2").enrolWith(used); err != nil {
		t.Fatal(err)
	}
	short := p.token(control.TokenRequest{TTL: time.Second})
	p.later(time.Minute)
	id := func(hash string) string { return control.TokenRecord{Hash: hash}.ID() }
	states := func(all bool) map[string]control.TokenState {
		t.Helper()
		views, err := p.Tokens(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		states := map[string]control.TokenState{}
		for _, v := range views {
			states[v.ID] = v.State
		}
		return states
	}
	if got, want := states(true), map[string]control.TokenState{id(leaked): control.TokenOpen, id(used): control.TokenUsed, id(short): control.TokenExpired}; !maps.Equal(got, want) {
		t.Errorf("all tokens are %v, want %v", got, want)
	}
	if got, want := states(false), map[string]control.TokenState{id(leaked): control.TokenOpen}; !maps.Equal(got, want) {
		t.Errorf("the tokens that can be used are %v, want %v", got, want)
	}

	if err := p.RevokeToken(ctx, root, id(leaked)); err != nil {
		t.Fatal(err)
	}
	p.restart()
	_, err := machine(p, "thief").enrolWith(leaked)
	wantCode(t, "an enrolment with a token that was revoked", err, mesh.CodeDenied)
	wantCode(t, "a look at a token that was revoked", p.CheckToken(ctx, leaked), mesh.CodeDenied)
	wantCode(t, "revoking it again", p.RevokeToken(ctx, root, id(leaked)), mesh.CodeNotFound)
	wantCode(t, "revoking one that was used", p.RevokeToken(ctx, root, id(used)), mesh.CodeConflict, "web-2", "node revoke")
	for _, none := range []string{"", id(used)[:11], id(used) + "0", "no token at all"} {
		wantCode(t, "revoking "+none, p.RevokeToken(ctx, root, none), mesh.CodeNotFound)
	}
	audit, err := p.Audit(ctx, 1)
	if err != nil || len(audit) != 1 || audit[0].What != "token revoked" || audit[0].Detail != id(leaked) {
		t.Errorf("the audit log ends with %+v, %v", audit, err)
	}
}

// Shows: M28
func TestReplacingIsDecidedWhenTheTokenIsIssued(t *testing.T) {
	p := newPlane(t)
	join(p, "web-1", nil)
	_, err := p.IssueToken(context.Background(), root, control.TokenRequest{Name: "web-1"})
	wantCode(t, "a token for a name that is taken", err, mesh.CodeConflict, "--replaces web-1")
	_, err = p.IssueToken(context.Background(), root, control.TokenRequest{Replaces: "nobody"})
	wantCode(t, "a token that replaces nobody", err, mesh.CodeNotFound)
	_, err = p.IssueToken(context.Background(), root, control.TokenRequest{Name: "web-2", Replaces: "web-1"})
	wantCode(t, "a token that replaces under another name", err, mesh.CodeInvalid)
}

func TestOneKeyIsOneNode(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	_, err := h.enrol(control.TokenRequest{Name: "web-2"})
	wantCode(t, "the key of a node with another token", err, mesh.CodeConflict, "web-1", "--replaces web-1")
	if _, err := h.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil || h.name != "web-1" {
		t.Errorf("enrolling the same machine anew gave %q, %v", h.name, err)
	}
	if name, err := p.NodeByKey(context.Background(), h.key); name != "web-1" {
		t.Errorf("the key is that of %q, %v", name, err)
	}
	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	_, err = h.enrol(control.TokenRequest{Name: "web-3"})
	wantCode(t, "a revoked key", err, mesh.CodeConflict, "revoked")
}

// Shows: M27
func TestTheFirstNodesBundleBecomesADeclarationAndNothingIsRemoved(t *testing.T) {
	p := newPlane(t)
	h := machine(p, "first")
	bundle := doc("whatever", "", file("/etc/a", "a"), file("/etc/b", "b"))
	h.e.Bundle, h.e.Held, h.held = &bundle, 1, 1
	h.e.Owned = []mesh.Owned{{Resource: "file:/etc/a", Made: mesh.MadeCreated, Generation: 1}, {Resource: "file:/etc/b", Made: mesh.MadeCreated, Generation: 1}}
	h.owned = h.e.Owned
	if _, err := h.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	other := join(p, "second", nil)
	p.restart()
	welcome, recovery := h.connect()
	if recovery != nil || len(welcome.Want) != 0 {
		t.Errorf("a host that has everything is asked for %v and given %+v", welcome.Want, recovery)
	}
	wantPending(t, h, "g2 [file:/etc/a file:/etc/b] released []")
	other.connect()
	wantPending(t, other, "nothing")
	view, err := p.Declaration(context.Background(), control.BootstrapDeclaration, 0)
	if err != nil || view.Document.Select != `name == "first"` || view.Resources != 2 {
		t.Errorf("the declaration is %+v, %v", view, err)
	}

	third := machine(p, "third")
	third.e.Bundle, third.e.Held = &bundle, 1
	if _, err := third.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	if events := third.events(); !slices.Contains(events, string(control.EventBundle)) {
		t.Errorf("nobody was told that a second bundle was not taken over: %v", events)
	}
}

// Cases: O-154
func TestAMachineIDThatAnotherNodeHasIsABriefingLineAndAnEvent(t *testing.T) {
	p := newPlane(t)
	first := join(p, "one", nil)
	two := machine(p, "two")
	two.e.Profile.MachineIDHash = "machine of one"
	answer, err := two.enrol(control.TokenRequest{})
	if err != nil || !answer.Eligible {
		t.Fatalf("enrolment gave %+v, %v", answer, err)
	}
	d := two.detail()
	last := d.Briefing.Lines[len(d.Briefing.Lines)-1]
	if last.Outcome != mesh.OutcomeWarn || !strings.Contains(last.Detail, "one") || !slices.Contains(two.events(), string(control.EventMachineShared)) {
		t.Errorf("line %+v, events %v", last, two.events())
	}
	if !slices.Contains(first.events(), string(control.EventMachineShared)) {
		t.Errorf("the node that was there first was told %v", first.events())
	}
}

func TestARequestForATokenIsCheckedWhole(t *testing.T) {
	p := newPlane(t)
	_, err := p.IssueToken(context.Background(), root, control.TokenRequest{
		Name: "Web 1", TTL: 365 * 24 * time.Hour, Labels: map[string]string{"1x": "a", "role": "a\nb"}, Addresses: []string{"nowhere"},
	})
	wantCode(t, "a wrong request", err, mesh.CodeInvalid, "name:", "ttl:", `"1x"`, `"role"`, "addresses[0]")
	_, err = p.IssueToken(context.Background(), root, control.TokenRequest{Addresses: []string{strings.Repeat("x", 3000) + ":7022"}})
	wantCode(t, "an address that makes the token too long", err, mesh.CodeInvalid, "shorter addresses")
	if all, err := p.Tokens(context.Background(), true); err != nil || len(all) != 0 {
		t.Errorf("requests that were refused left the tokens %+v, %v", all, err)
	}
}

// Shows: M28
func TestWhatBothTheFormerMachineAndTheNewOneOwnIsReleasedOnce(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a"), file("/etc/b", "b")))
	h.apply()
	p.declare(doc("web", "", file("/etc/c", "c")))
	next := machine(p, "web-1-new")
	next.e.Held = 5
	next.e.Owned = []mesh.Owned{{Resource: "file:/etc/b", Made: mesh.MadeCreated}, {Resource: "file:/etc/a", Made: mesh.MadeCreated}}
	if _, err := next.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil {
		t.Fatal(err)
	}

	next.held = 5
	next.connect()

	wantPending(t, next, "g6 [file:/etc/c] released [file:/etc/a file:/etc/b]")
}
