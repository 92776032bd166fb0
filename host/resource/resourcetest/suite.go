// Package resourcetest is the contract of resource.Provider as tests. Every
// provider passes it, and so does every fake that stands in for one.
//
// It knows no kind of resource: a Machine hands it resources in known
// situations and looks at the result past the provider.
package resourcetest

import (
	"encoding/json"
	"errors"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// Machine is what a provider works on, in the hands of the test.
type Machine interface {
	// Provider returns a new provider for the machine, with no memory.
	Provider(t *testing.T) resource.Provider
	// Missing returns a resource of which nothing is there.
	Missing(t *testing.T) mesh.Resource
	// Present returns a resource that is there as wanted.
	Present(t *testing.T) mesh.Resource
	// Other returns a resource in whose place something else stands, that the
	// provider replaces and can put back.
	Other(t *testing.T) mesh.Resource
	// Look describes what is there for the resource. Equal means equal.
	Look(t *testing.T, want mesh.Resource) string
	// Writes changes whenever anything on the machine was written.
	Writes(t *testing.T) string
}

// Changer is a Machine of a kind of which somebody can change what the mesh
// wrote, so that removing it would lose their work.
type Changer interface {
	Machine
	// Change does that, behind the provider's back.
	Change(t *testing.T, want mesh.Resource)
}

// Run runs the contract. Each test gets a new machine.
func Run(t *testing.T, machine func(t *testing.T) Machine) {
	for _, c := range contract {
		t.Run(c.name, func(t *testing.T) { c.test(t, machine(t)) })
	}
	if c, ok := machine(t).(Changer); ok {
		t.Run("what somebody changed is not removed", func(t *testing.T) { changedIsAConflict(t, c) })
	}
}

var contract = []struct {
	name string
	test func(t *testing.T, m Machine)
}{
	{"a resource that is missing is a diff and no error", missingIsADiff},
	{"a resource that is as wanted has no diff and looking writes nothing", lookingWritesNothing},
	{"what was applied has no diff for a provider without memory", appliedIsThere},
	{"applying again after a crash with an old diff gets to the same end", applyingAgain},
	{"capture says how a resource came about and writes nothing", captureSays},
	{"a created resource is gone after removing, and removing it again succeeds", createdIsGone},
	{"a replaced resource is put back as it was", replacedIsPutBack},
	{"a resource that existed stays as it was", existedStays},
	{"before removing the read-back of removing has a diff", notRemovedIsADiff},
	{"a removal that was captured but never applied changes nothing", neverApplied},
}

func check(t *testing.T, p resource.Provider, want mesh.Resource) resource.Diff {
	t.Helper()
	start(t, p)
	d, err := p.Check(t.Context(), want)
	if err != nil {
		t.Fatalf("Check(%s): %v", want.ID(), err)
	}
	return d
}

func start(t *testing.T, p resource.Provider) {
	t.Helper()
	if s, ok := p.(resource.PassStarter); ok {
		s.StartPass(t.Context(), nil)
	}
}

// manage does what the reconciler does: check, capture, apply, read back. What
// is owned goes through JSON, as through a store.
func manage(t *testing.T, m Machine, want mesh.Resource) mesh.Owned {
	t.Helper()
	p := m.Provider(t)
	d := check(t, p, want)
	owned, err := p.Capture(t.Context(), want)
	if err != nil {
		t.Fatalf("Capture(%s): %v", want.ID(), err)
	}
	if !d.Zero() {
		if err := p.Apply(t.Context(), want, d); err != nil {
			t.Fatalf("Apply(%s): %v", want.ID(), err)
		}
	}
	if d := check(t, m.Provider(t), want); !d.Zero() {
		t.Fatalf("after Apply(%s) the read-back differs: %s", want.ID(), d)
	}
	if owned.Wrote, err = p.Wrote(t.Context(), want); err != nil {
		t.Fatalf("Wrote(%s): %v", want.ID(), err)
	}
	return stored(t, owned)
}

func stored(t *testing.T, owned mesh.Owned) mesh.Owned {
	t.Helper()
	data, err := json.Marshal(owned)
	if err != nil {
		t.Fatalf("what is owned cannot be stored: %v", err)
	}
	var back mesh.Owned
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatalf("what is owned cannot be read again: %v", err)
	}
	return back
}

func remove(t *testing.T, m Machine, owned mesh.Owned) {
	t.Helper()
	p := m.Provider(t)
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Fatalf("Remove(%s): %v", owned.Resource, err)
	}
	d, err := m.Provider(t).CheckRemoved(t.Context(), owned)
	if err != nil || !d.Zero() {
		t.Fatalf("after Remove(%s) the read-back says: %s, %v", owned.Resource, d, err)
	}
}

func missingIsADiff(t *testing.T, m Machine) {
	if d := check(t, m.Provider(t), m.Missing(t)); d.Zero() {
		t.Error("Check found nothing to do although nothing is there")
	}
}

func lookingWritesNothing(t *testing.T, m Machine) {
	want := m.Present(t)
	before := m.Writes(t)
	if d := check(t, m.Provider(t), want); !d.Zero() {
		t.Errorf("Check found a diff although all is as wanted: %s", d)
	}
	if after := m.Writes(t); after != before {
		t.Errorf("Check wrote: before %s, after %s", before, after)
	}
}

func appliedIsThere(t *testing.T, m Machine) {
	want := m.Missing(t)
	manage(t, m, want)
	before := m.Writes(t)
	if d := check(t, m.Provider(t), want); !d.Zero() || m.Writes(t) != before {
		t.Errorf("the second look found %q or wrote", d)
	}
}

func applyingAgain(t *testing.T, m Machine) {
	want := m.Missing(t)
	p := m.Provider(t)
	d := check(t, p, want)
	for range 2 {
		if err := m.Provider(t).Apply(t.Context(), want, d); err != nil {
			t.Fatalf("Apply: %v", err)
		}
	}
	if d := check(t, m.Provider(t), want); !d.Zero() {
		t.Errorf("after applying twice the read-back differs: %s", d)
	}
}

func captureSays(t *testing.T, m Machine) {
	for _, c := range []struct {
		want mesh.Resource
		made mesh.Made
	}{
		{m.Missing(t), mesh.MadeCreated},
		{m.Present(t), mesh.MadeExisted},
		{m.Other(t), mesh.MadeReplaced},
	} {
		before := m.Writes(t)
		owned, err := m.Provider(t).Capture(t.Context(), c.want)
		if err != nil || owned.Made != c.made || owned.Resource != c.want.ID() {
			t.Errorf("Capture(%s) says %q, %v; want %q", c.want.ID(), owned.Made, err, c.made)
		}
		if m.Writes(t) != before {
			t.Errorf("Capture(%s) wrote", c.want.ID())
		}
	}
}

func createdIsGone(t *testing.T, m Machine) {
	want := m.Missing(t)
	before := m.Look(t, want)
	owned := manage(t, m, want)
	remove(t, m, owned)
	if after := m.Look(t, want); after != before {
		t.Errorf("after removing: %s; before the mesh: %s", after, before)
	}
	remove(t, m, owned)
}

func replacedIsPutBack(t *testing.T, m Machine) {
	want := m.Other(t)
	before := m.Look(t, want)
	owned := manage(t, m, want)
	if m.Look(t, want) == before {
		t.Fatal("applying changed nothing, so this test shows nothing")
	}
	remove(t, m, owned)
	if after := m.Look(t, want); after != before {
		t.Errorf("after removing: %s; before the mesh: %s", after, before)
	}
	remove(t, m, owned)
}

func existedStays(t *testing.T, m Machine) {
	want := m.Present(t)
	before := m.Look(t, want)
	remove(t, m, manage(t, m, want))
	if after := m.Look(t, want); after != before {
		t.Errorf("after removing: %s; before the mesh: %s", after, before)
	}
}

func notRemovedIsADiff(t *testing.T, m Machine) {
	for _, want := range []mesh.Resource{m.Missing(t), m.Other(t)} {
		owned := manage(t, m, want)
		if d, err := m.Provider(t).CheckRemoved(t.Context(), owned); err != nil || d.Zero() {
			t.Errorf("CheckRemoved(%s) of what stands there says %q, %v", owned.Resource, d, err)
		}
	}
}

func changedIsAConflict(t *testing.T, m Changer) {
	want := m.Missing(t)
	owned := manage(t, m, want)
	m.Change(t, want)
	before := m.Look(t, want)
	err := m.Provider(t).Remove(t.Context(), owned)
	var e *resource.Error
	if !errors.As(err, &e) || e.Status != mesh.StatusConflict {
		t.Errorf("Remove of what somebody changed says %v, not conflict", err)
	}
	if after := m.Look(t, want); after != before {
		t.Errorf("what somebody changed was %s and is now %s", before, after)
	}
}

func neverApplied(t *testing.T, m Machine) {
	for _, want := range []mesh.Resource{m.Missing(t), m.Other(t), m.Present(t)} {
		before := m.Look(t, want)
		owned, err := m.Provider(t).Capture(t.Context(), want)
		if err != nil {
			t.Fatalf("Capture(%s): %v", want.ID(), err)
		}
		remove(t, m, stored(t, owned))
		if after := m.Look(t, want); after != before {
			t.Errorf("%s was %s and is now %s although nothing was applied", want.ID(), before, after)
		}
	}
}
