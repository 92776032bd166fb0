package reconcile_test

import (
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
)

// Shows: M6
func TestWhatIsNoLongerDeclaredIsGoneOrPutBackAndNothingElse(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/replaced"] = "the admin's"
	w.m.things["file:/existed"] = "same"
	w.m.things["package:existed"] = "version 1"
	w.m.things["file:/taken-away"] = "the admin's too"
	w.m.things["file:/others"] = "never declared"
	w.declare(file("/created", "1"), file("/replaced", "2"), file("/existed", "same"), noFile("/taken-away"), pack("created"), pack("existed"))
	for id, made := range map[mesh.ResourceID]mesh.Made{
		"file:/created": mesh.MadeCreated, "file:/replaced": mesh.MadeReplaced, "file:/existed": mesh.MadeExisted,
		"file:/taken-away": mesh.MadeReplaced, "package:created": mesh.MadeCreated, "package:existed": mesh.MadeExisted,
	} {
		if o, _ := w.owned(id); o.Made != made || o.Generation != 1 {
			t.Errorf("%s is owned as %q since %s, not as %q since g1", id, o.Made, o.Generation, made)
		}
	}

	w.released = []mesh.ResourceID{"file:/created", "file:/replaced", "file:/existed", "file:/taken-away", "package:created", "package:existed", "file:/others"}
	out := w.declare()
	w.there("file:/created", "")
	w.there("file:/replaced", "the admin's")
	w.there("file:/existed", "same")
	w.there("file:/taken-away", "the admin's too")
	w.there("file:/others", "never declared")
	w.there("package:created", "")
	w.there("package:existed", "version 1")
	if out.State != mesh.GenerationApplied || out.Count(mesh.StatusRemoved) != 6 {
		t.Errorf("the pass is %s with %d removed", out.State, out.Count(mesh.StatusRemoved))
	}
	if len(w.control.owned) != 0 || len(w.control.results) != 0 {
		t.Errorf("the control plane still holds %v and %v", w.control.owned, w.control.results)
	}
}

// Shows: M6
func TestWhatIsOwnedAndNotReleasedIsKeptAndSaid(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/a", "1"), file("/b", "2"))
	out := w.declare(file("/a", "1"))
	w.there("file:/b", "2")
	kept := []mesh.ResourceID{"file:/b"}
	if !slices.Equal(out.Kept, kept) || !slices.Equal(w.control.lastReport().Kept, kept) {
		t.Errorf("kept %v, and the report says %v", out.Kept, w.control.lastReport().Kept)
	}
	w.released = kept
	w.declare(file("/a", "1"))
	w.there("file:/b", "")
	if r := w.control.lastReport(); len(r.Kept) != 0 {
		t.Errorf("the report still says that %v is kept", r.Kept)
	}
}

// Shows: M6
func TestAReleasedResourceThatIsDeclaredOrNotOwnedStays(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/admin"] = "the admin's"
	w.released = []mesh.ResourceID{"file:/a", "file:/admin"}
	w.declare(file("/a", "1"))
	w.again(mesh.TriggerDrift, file("/a", "1"))
	w.there("file:/a", "1")
	w.there("file:/admin", "the admin's")
	if n := w.files.called("remove"); n != 0 {
		t.Errorf("%d removals were tried", n)
	}
}

// Shows: M6
func TestRemovingWhatSomebodyChangedIsAConflictAndItStaysOwned(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/a", "1"))
	w.m.things["file:/a"] = "edited"
	w.released = []mesh.ResourceID{"file:/a"}
	out := w.declare()
	w.there("file:/a", "edited")
	w.want("file:/a", mesh.StatusConflict, mesh.ReasonModified)
	if _, owned := w.owned("file:/a"); !owned || out.State != mesh.GenerationFailed {
		t.Errorf("owned: %v, and the pass is %s", owned, out.State)
	}
	w.m.things["file:/a"] = "1"
	out = w.again(mesh.TriggerDrift)
	w.there("file:/a", "")
	if out.State != mesh.GenerationApplied {
		t.Errorf("after the edit was undone the pass is %s", out.State)
	}
}

// Shows: M4, M6
func TestARemovalIsReadBackWhateverTheToolSaid(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/liar", "1"), file("/failing", "2"), pack("complains"), pack("p"))
	w.files.behaves["file:/liar"] = saysDoneDoesNothing
	w.files.behaves["file:/failing"] = fails
	w.packages.behaves["package:complains"] = failsAndDidIt
	w.released = []mesh.ResourceID{"file:/liar", "file:/failing", "package:complains", "package:p"}
	out := w.declare()
	w.want("file:/liar", mesh.StatusFailed, mesh.ReasonReadBack)
	w.want("file:/failing", mesh.StatusFailed, mesh.ReasonTool)
	for _, id := range []mesh.ResourceID{"package:complains", "package:p"} {
		if _, owned := w.owned(id); owned {
			t.Errorf("%s is gone from the machine and still owned", id)
		}
	}
	if out.Count(mesh.StatusRemoved) != 2 || out.Count(mesh.StatusFailed) != 2 {
		t.Errorf("%d removed and %d failed", out.Count(mesh.StatusRemoved), out.Count(mesh.StatusFailed))
	}
	w.there("file:/liar", "1")
}

// Shows: M6
func TestTheOriginalIsTheOneFromBeforeTheFirstWrite(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/a"] = "original"
	w.declare(file("/a", "1"))
	w.m.things["file:/a"] = "edited"
	w.again(mesh.TriggerDrift, file("/a", "1"))
	w.declare(file("/a", "2"))
	w.declare(noFile("/a"))
	w.declare(file("/a", "3"))
	if n := w.files.called("capture"); n != 1 {
		t.Errorf("what was there was captured %d times", n)
	}
	w.released = []mesh.ResourceID{"file:/a"}
	w.declare()
	w.there("file:/a", "original")
}

// Shows: M6
func TestWhatExistedAsWantedIsPutBackAfterTheMeshChangedIt(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/a"] = "1"
	w.declare(file("/a", "1"))
	w.declare(file("/a", "2"))
	w.released = []mesh.ResourceID{"file:/a"}
	w.declare()
	w.there("file:/a", "1")
}

func TestAnApplyThatFailedLeavesWhatIsNeededToUndoIt(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/a"] = "original"
	w.files.behaves["file:/a"] = fails
	w.declare(file("/a", "1"))
	delete(w.files.behaves, "file:/a")
	w.released = []mesh.ResourceID{"file:/a"}
	w.declare()
	w.there("file:/a", "original")
	if len(w.control.owned) != 0 {
		t.Errorf("still owned: %v", w.control.owned)
	}
}

func TestWhatARemovalMadeRoomForIsAppliedInTheSamePass(t *testing.T) {
	w := newWorld(t)
	w.declare(pack("old"))
	w.packages.behaves["package:new"] = fails
	w.packages.during = func(id mesh.ResourceID) {
		if _, there := w.m.things["package:old"]; id == "package:new" && !there {
			delete(w.packages.behaves, "package:new")
		}
	}
	w.released = []mesh.ResourceID{"package:old"}
	out := w.declare(pack("new"), file("/conf", "x", "package:new"))
	if out.State != mesh.GenerationApplied {
		t.Errorf("the pass is %s: %+v", out.State, out.Results)
	}
}

func TestFilesAreRemovedBeforePackagesAndTheDeepestFirst(t *testing.T) {
	w := newWorld(t)
	w.declare(pack("p"), file("/srv", "dir"), file("/srv/a", "dir"), file("/srv/a/f", "1"))
	w.m.writes = nil
	w.released = []mesh.ResourceID{"package:p", "file:/srv", "file:/srv/a", "file:/srv/a/f"}
	w.declare()
	want := []string{"file:/srv/a/f gone", "file:/srv/a gone", "file:/srv gone", "package:p gone"}
	if !slices.Equal(w.m.writes, want) {
		t.Errorf("removed in the order %q", w.m.writes)
	}
}

// Shows: M6
func TestAFinalDeclarationLeavesTheMachineAsItWas(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/b"] = "the admin's"
	w.declare(file("/a", "1"), file("/b", "2"), pack("p"))
	d := mesh.Declaration{Generation: 2, Final: true, Released: []mesh.ResourceID{"file:/a", "file:/b", "package:p"}}
	out, err := w.r.Run(t.Context(), d, mesh.TriggerDeclared, never)
	if err != nil {
		t.Fatal(err)
	}
	w.deliver()
	w.agree()
	w.there("file:/a", "")
	w.there("file:/b", "the admin's")
	w.there("package:p", "")
	if r := w.control.lastReport(); out.State != mesh.GenerationApplied || r.Generation != 2 || r.State != mesh.GenerationApplied {
		t.Errorf("the pass is %s, and the report says %+v", out.State, r)
	}
}

func TestAnOwnedResourceOfAnUnknownKindStaysAndSaysSo(t *testing.T) {
	w := newWorld(t)
	if err := w.store.Recover(t.Context(), []mesh.Owned{{Resource: "service:x", Made: mesh.MadeCreated, Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	w.released = []mesh.ResourceID{"service:x"}
	w.declare()
	w.want("service:x", mesh.StatusUnknown, mesh.ReasonInternal)
	if _, owned := w.owned("service:x"); !owned {
		t.Error("it is not owned any more")
	}
}

func TestARemovalThatWasCutOffIsNobodysDrift(t *testing.T) {
	w := newWorld(t)
	w.m.things["package:p"] = "version 0"
	w.declare(pack("p"))
	w.released = []mesh.ResourceID{"package:p"}
	w.step = func() {
		if w.m.things["package:p"] == "version 0" {
			panic(died{})
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the host did not die, so this test shows nothing")
			}
		}()
		w.declare()
	}()
	w.step = nil
	w.restart()
	w.declare(pack("p"))
	w.want("package:p", mesh.StatusChanged, "")
	if len(w.control.events) != 0 {
		t.Errorf("what the host did itself is told as %+v", w.control.events)
	}
}

func TestARemovalThatFailedForgetsNoWriteThatWasCutOff(t *testing.T) {
	w := newWorld(t)
	a := restarting(file("/a", "1"), "web.service")
	w.files.during = func(mesh.ResourceID) { w.files.behaves["file:/a"] = resultUnknown }
	w.declare(a)
	w.want("file:/a", mesh.StatusUnknown, mesh.ReasonIO)
	w.files.during = nil
	w.files.behaves["file:/a"] = fails
	w.released = []mesh.ResourceID{"file:/a"}
	w.declare()
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonTool)
	clear(w.files.behaves)
	w.declare(a)
	w.did("restart web.service")
}
