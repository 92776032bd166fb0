package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

// died is what a life of the host ends with in this process: everything after
// the step does not happen.
type died struct{}

// lives is a machine whose host dies, is superseded, and is lied to, while
// somebody edits files; with what must be so whatever happens.
type lives struct {
	*world
	rt     *rapid.T
	before map[mesh.ResourceID]string
	// declared is the last declaration.
	declared []mesh.Resource
	// edits and told count what somebody changed, and what was told of it.
	edits, told map[mesh.ResourceID]int
	// edited is changed and not put right yet. Empty: nothing is.
	edited mesh.ResourceID
	// justEdited: no pass was begun since.
	justEdited bool
	// runs is the content with which the service of a file runs.
	runs map[mesh.ResourceID]string
}

func serviceOf(id mesh.ResourceID) string { return strings.TrimPrefix(id.Name(), "/") + ".service" }

// life makes one pass, which may end in the middle. It reports whether the pass
// came to its end.
func (l *lives) life(trigger mesh.Trigger, dieBefore, supersedeAt int) (whole bool) {
	steps, asked := 0, 0
	l.step = func() {
		if steps++; steps == dieBefore {
			panic(died{})
		}
	}
	defer func() {
		l.step = nil
		if whole {
			return
		}
		if dead := recover(); dead != nil {
			if _, on := dead.(died); !on {
				panic(dead)
			}
			l.restart()
		}
		l.forgotten()
	}()
	out := l.pass(trigger, func() bool { asked++; return asked == supersedeAt }, l.declared...)
	return !out.Superseded
}

// forgotten has services of files that are not the mesh's run with what stands
// there: nobody promised to tell them of a removal.
func (l *lives) forgotten() {
	for id := range l.runs {
		if _, owned := l.owned(id); !owned {
			l.runs[id] = l.m.things[id]
		}
	}
}

// describe writes down what the next pass is about.
func (l *lives) describe(n, dieBefore, supersedeAt int) {
	var wants []string
	for _, r := range l.declared {
		value, absent := wanted(r)
		wants = append(wants, fmt.Sprintf("%s=%q absent %v requires %v", r.ID(), value, absent, r.Requires))
	}
	l.rt.Logf("pass %d over %s: declared %v, released %v, tools %v %v, broken %v, dies before step %d, superseded at %d, edited %q, machine %v",
		n, l.generation, wants, l.released, l.files.behaves, l.packages.behaves, l.units.broken, dieBefore, supersedeAt, l.edited, l.m.things)
}

// judge judges what a pass that came to its end left.
func (l *lives) judge() {
	truthful(l.rt, l.world, l.declared)
	for _, r := range l.declared {
		if runs, has := l.runs[r.ID()]; has && l.result(r.ID()).Status.Good() && runs != l.m.things[r.ID()] {
			l.rt.Fatalf("%s is said to be %s with %q, and its service runs with %q", r.ID(), l.result(r.ID()).Status, l.m.things[r.ID()], runs)
		}
	}
	l.forgotten()
}

// always judges what must be so at every moment.
func (l *lives) always() {
	for o, was := range originals(l.rt, l.world) {
		if had, there := l.before[o]; there != was.There || had != was.Was {
			l.rt.Fatalf("%s would be undone to %+v, and before the mesh it was %q (%v)", o, was, had, there)
		}
	}
	clear(l.told)
	for _, e := range l.control.events {
		l.told[e.Resource]++
	}
	for id, told := range l.told {
		if told > l.edits[id] {
			l.rt.Fatalf("%s was edited %d times, and %d drifts were told: %+v", id, l.edits[id], told, l.control.events)
		}
	}
	for id := range l.m.things {
		if _, owned := l.owned(id); !owned && l.m.things[id] != l.before[id] {
			l.rt.Fatalf("%s was %q before the mesh, is %q, and is not owned", id, l.before[id], l.m.things[id])
		}
	}
}

// TestWhateverEndsALifeOfTheHostTheNextOneLosesNothingAndSaysNothingFalse drives
// a machine through declarations, deaths at any step, superseded passes, edits,
// tools that lie and services that do not come back, chosen at random.
//
// Shows: M4, M5, M6
func TestWhateverEndsALifeOfTheHostTheNextOneLosesNothingAndSaysNothingFalse(t *testing.T) {
	names := []string{"/a", "/b", "/d", "/d/e", "p", "q"}
	id := func(name string) mesh.ResourceID {
		if name[0] == '/' {
			return mesh.NewResourceID(mesh.KindFile, name)
		}
		return mesh.NewResourceID(mesh.KindPackage, name)
	}
	behaviours := []behaviour{"", "", "", "", "", saysDoneDoesNothing, failsAndDidIt, fails, busy, resultUnknown, unreadable}
	rapid.Check(t, func(rt *rapid.T) {
		l := &lives{world: newWorld(t), rt: rt, edits: map[mesh.ResourceID]int{}, told: map[mesh.ResourceID]int{}, runs: map[mesh.ResourceID]string{}}
		defer func() {
			if err := l.store.Close(); err != nil {
				rt.Error(err)
			}
		}()
		l.before = map[mesh.ResourceID]string{"file:/others": "never declared", "package:others": "never declared"}
		for _, name := range names {
			if rapid.Bool().Draw(rt, "there before "+name) {
				l.before[id(name)] = rapid.SampledFrom([]string{"1", "2", "version 1"}).Draw(rt, "value before")
			}
		}
		maps.Copy(l.m.things, l.before)
		for _, name := range names {
			if name[0] == '/' {
				l.runs[id(name)] = l.m.things[id(name)]
			}
		}
		l.units.acted = func(unit, _ string) {
			for of := range l.runs {
				if serviceOf(of) == unit {
					l.runs[of] = l.m.things[of]
				}
			}
		}
		want := func(name, label string) mesh.Resource {
			if name[0] != '/' {
				return pack(name)
			}
			r := rapid.SampledFrom([]mesh.Resource{file(name, "1"), file(name, "2"), noFile(name)}).Draw(rt, label+" want of "+name)
			return restarting(r, serviceOf(r.ID()))
		}
		for n := range rapid.IntRange(2, 9).Draw(rt, "passes") {
			label := fmt.Sprintf("pass %d:", n)
			honest := rapid.IntRange(0, 2).Draw(rt, label+" honest") > 0
			for _, name := range names {
				b := behaviour("")
				if !honest {
					b = rapid.SampledFrom(behaviours).Draw(rt, label+" behaviour of "+name)
				}
				l.files.behaves[id(name)], l.packages.behaves[id(name)] = b, b
				l.units.broken[serviceOf(id(name))] = !honest && rapid.IntRange(0, 4).Draw(rt, label+" breaks "+name) == 0
			}
			trigger := mesh.TriggerDrift
			if l.edited == "" && rapid.IntRange(0, 2).Draw(rt, label+" declares") > 0 {
				trigger = mesh.TriggerDeclared
				l.generation++
				l.declared, l.released = nil, nil
				for _, name := range rapid.Permutation(names).Draw(rt, label+" order")[:rapid.IntRange(0, len(names)).Draw(rt, label+" declared")] {
					r := want(name, label)
					if rapid.IntRange(0, 4).Draw(rt, label+" requires") == 0 {
						r.Requires = []mesh.ResourceID{id(rapid.SampledFrom(names).Draw(rt, label+" required"))}
					}
					l.declared = append(l.declared, r)
				}
				for _, name := range names {
					if !slices.ContainsFunc(l.declared, func(r mesh.Resource) bool { return r.ID() == id(name) }) && rapid.IntRange(0, 3).Draw(rt, label+" released "+name) > 0 {
						l.released = append(l.released, id(name))
					}
				}
			}
			dieBefore, supersedeAt := 0, 0
			switch rapid.IntRange(0, 3).Draw(rt, label+" ends") {
			case 0:
				dieBefore = rapid.IntRange(1, 30).Draw(rt, label+" dies before step")
			case 1:
				supersedeAt = rapid.IntRange(1, 8).Draw(rt, label+" superseded at")
			}
			l.describe(n, dieBefore, supersedeAt)
			told := l.told[l.edited]
			whole := l.life(trigger, dieBefore, supersedeAt)
			if whole {
				l.judge()
			}
			l.always()
			if l.edited != "" && whole && l.result(l.edited).Status.Good() {
				if honest && l.told[l.edited] == told && l.told[l.edited] < l.edits[l.edited] && l.justEdited {
					rt.Fatalf("an edit of %s was put right and not told", l.edited)
				}
				l.edited = ""
			}
			l.justEdited = false
			if whole && honest && l.edited == "" && rapid.IntRange(0, 2).Draw(rt, label+" edits") == 0 {
				good := slices.DeleteFunc(slices.Clone(l.declared), func(r mesh.Resource) bool { return r.Kind != mesh.KindFile || !l.result(r.ID()).Status.Good() })
				if len(good) > 0 {
					l.edited, l.justEdited = rapid.SampledFrom(good).Draw(rt, label+" edited").ID(), true
					l.m.things[l.edited] = "edited"
					l.edits[l.edited]++
				}
			}
		}
		clear(l.files.behaves)
		clear(l.packages.behaves)
		clear(l.units.broken)
		l.life(mesh.TriggerDrift, 0, 0) // puts right what was edited
		l.always()
		l.generation++
		l.declared, l.released = nil, nil
		for _, name := range names {
			l.released = append(l.released, id(name))
		}
		l.life(mesh.TriggerDeclared, 0, 0)
		if !maps.Equal(l.m.things, l.before) {
			rt.Fatalf("after everything was undone the machine holds %v, and before the mesh it held %v", l.m.things, l.before)
		}
		if len(l.control.owned) != 0 || len(l.control.results) != 0 {
			rt.Fatalf("the control plane still holds %v and %v", l.control.owned, l.control.results)
		}
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}
