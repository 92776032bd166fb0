package reconcile_test

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

// TestWhateverIsDeclaredAndWhoeverLiesNothingForeignIsTouched drives a machine
// through declarations and misbehaving tools chosen at random, and then has
// everything removed. It looks for what nobody thought of.
func TestWhateverIsDeclaredAndWhoeverLiesNothingForeignIsTouched(t *testing.T) {
	names := []string{"/a", "/b", "/c", "p", "q"}
	id := func(name string) mesh.ResourceID {
		if name[0] == '/' {
			return mesh.NewResourceID(mesh.KindFile, name)
		}
		return mesh.NewResourceID(mesh.KindPackage, name)
	}
	behaviours := []behaviour{"", "", "", saysDoneDoesNothing, failsAndDidIt, fails, busy, resultUnknown, unreadable, otherError}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		before := map[mesh.ResourceID]string{"file:/others": "never declared", "package:others": "never declared"}
		for _, name := range names {
			if rapid.Bool().Draw(rt, "there before "+name) {
				before[id(name)] = rapid.SampledFrom([]string{"1", "2", "version 1"}).Draw(rt, "value before")
			}
		}
		maps.Copy(w.m.things, before)
		for range rapid.IntRange(1, 6).Draw(rt, "passes") {
			for _, name := range names {
				b := rapid.SampledFrom(behaviours).Draw(rt, "behaviour of "+name)
				w.files.behaves[id(name)], w.packages.behaves[id(name)] = b, b
			}
			var decl []mesh.Resource
			declared := map[mesh.ResourceID]bool{}
			for _, name := range rapid.Permutation(names).Draw(rt, "order")[:rapid.IntRange(0, len(names)).Draw(rt, "declared")] {
				r := pack(name)
				if name[0] == '/' {
					r = rapid.SampledFrom([]mesh.Resource{file(name, "1"), file(name, "2"), noFile(name)}).Draw(rt, "want of "+name)
				}
				if rapid.IntRange(0, 4).Draw(rt, "requires") == 0 {
					r.Requires = []mesh.ResourceID{id(rapid.SampledFrom(names).Draw(rt, "required"))}
				}
				decl = append(decl, r)
				declared[id(name)] = true
			}
			w.released = nil
			for _, name := range names {
				if !declared[id(name)] && rapid.Bool().Draw(rt, "released "+name) {
					w.released = append(w.released, id(name))
				}
			}
			w.declare(decl...)
			truthful(rt, w, decl)
			for o, was := range originals(rt, w) {
				if had, there := before[o]; there != was.There || had != was.Was {
					rt.Fatalf("%s would be undone to %+v, and before the mesh it was %q (%v)", o, was, had, there)
				}
			}
		}
		clear(w.files.behaves)
		clear(w.packages.behaves)
		w.released = nil
		for _, name := range names {
			w.released = append(w.released, id(name))
		}
		w.declare()
		if !maps.Equal(w.m.things, before) {
			rt.Fatalf("after everything was undone the machine holds %v, and before the mesh it held %v", w.m.things, before)
		}
		if len(w.control.owned) != 0 || len(w.control.results) != 0 {
			rt.Fatalf("the control plane still holds %v and %v", w.control.owned, w.control.results)
		}
		if len(w.control.events) != 0 {
			rt.Fatalf("nobody edited anything, and %+v was told", w.control.events)
		}
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

// truthful judges that what the ledger calls good is so, and that nothing is
// left pending.
func truthful(rt *rapid.T, w *world, decl []mesh.Resource) {
	for _, r := range decl {
		result := w.result(r.ID())
		if result.Status == mesh.StatusPending || result.Status == "" {
			rt.Fatalf("%s ended as %q", r.ID(), result.Status)
		}
		value, absent := wanted(r)
		have, there := w.m.things[r.ID()]
		if result.Status.Good() && (there == absent || have != value && !absent) {
			rt.Fatalf("%s is said to be %s, and it is %q (%v)", r.ID(), result.Status, have, there)
		}
	}
}

func originals(rt *rapid.T, w *world) map[mesh.ResourceID]undo {
	copied, err := w.store.RecoveryCopy(w.t.Context())
	if err != nil {
		rt.Fatal(err)
	}
	out := map[mesh.ResourceID]undo{}
	for _, o := range copied {
		u, err := w.files.original(o)
		if err != nil {
			rt.Fatal(fmt.Errorf("%s: %w", o.Resource, err))
		}
		out[o.Resource] = u
	}
	return out
}
