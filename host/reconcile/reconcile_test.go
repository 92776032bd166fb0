package reconcile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
)

func TestEachResourceIsWrittenAfterWhatItRequires(t *testing.T) {
	w := newWorld(t)
	w.declare(
		file("/c", "3", "file:/b"),
		file("/b", "2", "package:p", "file:/a"),
		file("/a", "1"),
		pack("p"),
		file("/z", "9"),
	)
	want := []string{"package:p=version 1", "file:/a=1", "file:/b=2", "file:/c=3", "file:/z=9"}
	if !slices.Equal(w.m.writes, want) {
		t.Errorf("written in the order %q, not %q", w.m.writes, want)
	}
}

func TestWhatRequiresItselfFailsAndTheRestIsApplied(t *testing.T) {
	w := newWorld(t)
	// d closes a second circle through b, which is known only after a's.
	out := w.declare(
		file("/a", "1", "file:/b", "file:/d"), file("/b", "2", "file:/a"), file("/d", "4", "file:/b"),
		file("/on-top", "5", "file:/a"), file("/self", "6", "file:/self"), file("/free", "7"),
	)
	for _, id := range []mesh.ResourceID{"file:/a", "file:/b", "file:/d", "file:/self"} {
		w.want(id, mesh.StatusFailed, mesh.ReasonCycle)
	}
	w.want("file:/on-top", mesh.StatusSkipped, mesh.ReasonDependency)
	w.want("file:/free", mesh.StatusChanged, "")
	if out.State != mesh.GenerationFailed || !slices.Equal(w.m.writes, []string{"file:/free=7"}) {
		t.Errorf("the pass is %s and wrote %q", out.State, w.m.writes)
	}
}

// Shows: M4
func TestAWriteThatHarmedSomethingElseIsNoSuccessAndIsNotDoneAgain(t *testing.T) {
	w := newWorld(t)
	w.packages.behaves["package:p"] = harms
	out := w.declare(pack("p"), file("/a", "1", "package:p"))
	w.want("package:p", mesh.StatusFailed, mesh.ReasonHarm)
	w.want("file:/a", mesh.StatusSkipped, mesh.ReasonDependency)
	if out.State != mesh.GenerationFailed {
		t.Errorf("the pass is %s", out.State)
	}
	w.m.writes = nil
	w.again(mesh.TriggerDrift, pack("p"), file("/a", "1", "package:p"))
	w.want("package:p", mesh.StatusOK, "")
	if !slices.Equal(w.m.writes, []string{"file:/a=1"}) {
		t.Errorf("the next pass wrote %q", w.m.writes)
	}

	w.m.writes = nil
	w.released = []mesh.ResourceID{"package:p"}
	if out := w.declare(); out.State != mesh.GenerationFailed {
		t.Errorf("a removal that harms ends a pass that is %s", out.State)
	}
	if out := w.again(mesh.TriggerDrift); out.State != mesh.GenerationApplied {
		t.Errorf("what is gone is not known to be gone: the pass is %s", out.State)
	}
	if _, owned := w.owned("package:p"); owned || !slices.Equal(w.m.writes, []string{"package:p gone"}) {
		t.Errorf("it was removed with %q", w.m.writes)
	}
}

func TestWhatRequiresSomethingThatFailedIsSkippedAndAppliedWhenItIsThere(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{pack("nginx"), file("/etc/nginx.conf", "x", "package:nginx"), file("/orphan", "x", "package:not-declared")}
	w.packages.behaves["package:nginx"] = fails
	w.declare(decl...)
	w.want("package:nginx", mesh.StatusFailed, mesh.ReasonTool)
	w.want("file:/etc/nginx.conf", mesh.StatusSkipped, mesh.ReasonDependency)
	if r := w.result("package:nginx"); r.Output != "E: no" {
		t.Errorf("the tool's last lines are not in the result: %q", r.Output)
	}

	delete(w.packages.behaves, "package:nginx")
	w.again(mesh.TriggerDrift, decl...)
	w.want("package:nginx", mesh.StatusChanged, "")
	w.want("file:/etc/nginx.conf", mesh.StatusChanged, "")
	w.want("file:/orphan", mesh.StatusSkipped, mesh.ReasonDependency)
	w.there("file:/orphan", "")
}

func TestPackagesThatStandTogetherAreOneTransaction(t *testing.T) {
	w := newWorld(t)
	w.declare(pack("a"), pack("b"), file("/x", "1"), pack("c"), pack("d", "package:c"), pack("e"))
	if want := []string{"a b", "c", "d e"}; !slices.Equal(w.packages.sets, want) {
		t.Errorf("the transactions are %q, not %q", w.packages.sets, want)
	}
}

// Shows: M4
func TestAToolThatSaysDoneAndDidNothingIsAFailure(t *testing.T) {
	w := newWorld(t)
	w.files.behaves["file:/a"] = saysDoneDoesNothing
	w.packages.behaves["package:p"] = saysDoneDoesNothing
	out := w.declare(file("/a", "1"), pack("p"), pack("q"))
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonReadBack)
	w.want("package:p", mesh.StatusFailed, mesh.ReasonReadBack)
	w.want("package:q", mesh.StatusChanged, "")
	if out.State != mesh.GenerationFailed || w.control.lastReport().State != mesh.GenerationFailed {
		t.Errorf("the pass is %s and was reported as %s", out.State, w.control.lastReport().State)
	}
}

// Shows: M4
func TestAToolThatSaysErrorAndDidItIsNoFailure(t *testing.T) {
	w := newWorld(t)
	w.packages.behaves["package:p"] = failsAndDidIt
	out := w.declare(pack("p"))
	w.want("package:p", mesh.StatusChanged, "")
	if out.State != mesh.GenerationApplied {
		t.Errorf("the pass is %s", out.State)
	}
}

// Shows: M4
func TestAStateThatCannotBeReadIsUnknownAndNothingIsWrittenOnIt(t *testing.T) {
	w := newWorld(t)
	w.m.things["file:/a"] = "the admin's"
	w.files.behaves["file:/a"] = unreadable
	out := w.declare(file("/a", "1"))
	w.want("file:/a", mesh.StatusUnknown, mesh.ReasonIO)
	w.there("file:/a", "the admin's")
	if _, owned := w.owned("file:/a"); owned || out.State != mesh.GenerationFailed {
		t.Errorf("owned: %v, and the pass is %s", owned, out.State)
	}
}

func TestAProviderWithANonsenseErrorMakesNothingGood(t *testing.T) {
	w := newWorld(t)
	w.files.behaves["file:/a"] = namesNonsense
	w.files.behaves["file:/b"] = otherError
	w.declare(file("/a", "1"), file("/b", "2"), file("/c", "3"))
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonInternal)
	w.want("file:/b", mesh.StatusFailed, mesh.ReasonInternal)
	w.want("file:/c", mesh.StatusChanged, "")
}

func TestAPackageOnAMachineWithoutAManagerSaysSo(t *testing.T) {
	w := newWorld(t)
	r := reconcile.New(reconcile.Config{Store: w.store, Units: w.units, Now: w.now, Log: quiet()})
	d := mesh.Declaration{Generation: 1, Resources: []mesh.Resource{pack("p")}}
	if _, err := r.Run(t.Context(), d, mesh.TriggerDeclared, never); err != nil {
		t.Fatal(err)
	}
	w.want("package:p", mesh.StatusFailed, mesh.ReasonNoManager)
}

func TestAPassThatFindsEverythingRightWritesNothingAndSaysNothing(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{file("/a", "1"), pack("p"), noFile("/no")}
	w.declare(decl...)
	w.again(mesh.TriggerDrift, decl...)
	w.want("file:/a", mesh.StatusOK, "")
	w.want("file:/no", mesh.StatusOK, "")

	writes, calls, reports := len(w.m.writes), len(w.files.calls)+len(w.packages.calls), len(w.control.reports)
	for range 3 {
		w.again(mesh.TriggerDrift, decl...)
	}
	if n := len(w.files.calls) + len(w.packages.calls); len(w.m.writes) != writes || n != calls {
		t.Errorf("a pass over a machine that is right wrote %d times and called the providers to do so %d times", len(w.m.writes)-writes, n-calls)
	}
	if n := len(w.control.reports) - reports; n != 0 {
		t.Errorf("passes that found nothing new sent %d reports", n)
	}
}

func TestOnlyWhatDiffersFromWhatWasToldIsReported(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/a", "1"), file("/b", "2"))
	if r := w.control.lastReport(); !r.Full || len(r.Results) != 2 {
		t.Errorf("the first report of a store is not a full one: %+v", r)
	}
	w.again(mesh.TriggerDrift, file("/a", "1"), file("/b", "2"))
	w.declare(file("/a", "1"), file("/b", "3"))
	r := w.control.lastReport()
	if r.Full || len(r.Results) != 1 || r.Results[0].Resource != "file:/b" || r.Generation != 2 {
		t.Errorf("after a change to one file the report says %+v", r)
	}
	w.declare(file("/a", "1"), file("/b", "3"))
	w.declare(file("/a", "1"), file("/b", "3"))
	if r := w.control.lastReport(); len(r.Results) != 0 || r.Generation != 4 || r.State != mesh.GenerationApplied {
		t.Errorf("a generation that changes nothing here is reported as %+v", r)
	}
}

// Shows: M2
func TestDriftIsToldOnceAndPutRight(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{file("/a", "1"), file("/b", "2")}
	w.declare(decl...)
	w.m.things["file:/a"] = "edited"
	out := w.again(mesh.TriggerDrift, decl...)
	w.there("file:/a", "1")
	w.want("file:/a", mesh.StatusChanged, "")
	if drifts(w.control.events) != 1 || !slices.Equal(out.Drifted, []mesh.ResourceID{"file:/a"}) {
		t.Errorf("events %+v, drifted %v", w.control.events, out.Drifted)
	}
	w.again(mesh.TriggerDrift, decl...)
	if drifts(w.control.events) != 1 {
		t.Errorf("the same drift was told again: %+v", w.control.events)
	}
}

// Shows: M2
func TestDriftThatCannotBePutRightIsToldOnce(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{file("/a", "1")}
	w.declare(append(decl, file("/b", "2"))...)
	w.m.things["file:/a"] = "edited"
	w.files.behaves["file:/a"] = fails
	// A removal makes the pass look at what failed a second time.
	w.released = []mesh.ResourceID{"file:/b"}
	w.declare(decl...)
	if w.files.called("apply file:/a") != 3 {
		t.Fatalf("the failing file was tried %d times, so this test shows nothing", w.files.called("apply file:/a"))
	}
	w.again(mesh.TriggerDrift, decl...)
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonTool)
	if drifts(w.control.events) != 1 {
		t.Errorf("%d drift events for one edit", drifts(w.control.events))
	}
}

func TestAnEditOfTheDeclarationIsNoDrift(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/a", "1"))
	w.declare(file("/a", "2"))
	w.there("file:/a", "2")
	if len(w.control.events) != 0 {
		t.Errorf("events %+v", w.control.events)
	}
}

func TestDriftFoundByAPassThatIsSupersededIsNotLost(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/a", "1"), file("/b", "2"))
	w.m.things["file:/a"] = "edited"
	asked := 0
	out := w.pass(mesh.TriggerDrift, func() bool { asked++; return asked > 1 }, file("/a", "1"), file("/b", "2"))
	if !out.Superseded || len(out.Drifted) != 1 || drifts(w.control.events) != 1 {
		t.Errorf("superseded %v, drifted %v, events %+v", out.Superseded, out.Drifted, w.control.events)
	}
}

// Shows: M7
func TestANewerDeclarationSupersedesAtAResourceBoundary(t *testing.T) {
	w := newWorld(t)
	newer := false
	w.files.during = func(id mesh.ResourceID) { newer = newer || id == "file:/b" }
	w.generation = 1
	out := w.pass(mesh.TriggerDeclared, func() bool { return newer }, file("/a", "1"), file("/b", "2"), file("/c", "3"))
	if !out.Superseded || out.State != mesh.GenerationOutstanding {
		t.Errorf("superseded %v, state %s", out.Superseded, out.State)
	}
	w.there("file:/b", "2")
	w.there("file:/c", "")
	w.want("file:/b", mesh.StatusChanged, "")
	w.want("file:/c", mesh.StatusPending, "")
	if len(w.control.reports) != 0 {
		t.Errorf("a superseded pass was reported: %+v", w.control.reports)
	}

	w.released = []mesh.ResourceID{"file:/a"}
	w.declare(file("/b", "2"), file("/d", "4"))
	w.there("file:/a", "")
	w.there("file:/d", "4")
	if r := w.control.lastReport(); r.Generation != 2 || r.State != mesh.GenerationApplied {
		t.Errorf("the newer generation is reported as %+v", r)
	}
	if _, known := w.control.results["file:/a"]; known {
		t.Error("a resource that came and went unreported stays in the control plane's ledger")
	}
}

// Shows: M9
func TestAPassingObstacleLeavesTheGenerationOutstanding(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{pack("p"), file("/a", "1", "package:p"), file("/b", "2")}
	w.packages.behaves["package:p"] = busy
	out := w.declare(decl...)
	w.want("package:p", mesh.StatusDeferred, mesh.ReasonLocked)
	w.want("file:/b", mesh.StatusChanged, "")
	if out.State != mesh.GenerationOutstanding || w.control.lastReport().State != mesh.GenerationOutstanding {
		t.Errorf("the pass is %s, reported as %s", out.State, w.control.lastReport().State)
	}
	delete(w.packages.behaves, "package:p")
	if out := w.again(mesh.TriggerRetry, decl...); out.State != mesh.GenerationApplied {
		t.Errorf("after the obstacle went the pass is %s", out.State)
	}
}

func TestAWriteWhoseResultIsUnknownIsAChangeWhenItIsFoundDone(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{restarting(pack("p"), "p.service")}
	w.packages.behaves["package:p"] = resultUnknown
	out := w.declare(decl...)
	// Capture reads as Check does: nothing may be written that cannot be undone.
	w.want("package:p", mesh.StatusUnknown, mesh.ReasonIO)
	if len(w.m.writes) != 0 {
		t.Fatalf("something was written before it could be captured: %q", w.m.writes)
	}

	delete(w.packages.behaves, "package:p")
	w.packages.during = func(mesh.ResourceID) { w.packages.behaves["package:p"] = resultUnknown }
	out = w.again(mesh.TriggerDrift, decl...)
	w.want("package:p", mesh.StatusUnknown, mesh.ReasonIO)
	if out.State != mesh.GenerationFailed || len(w.units.did) != 0 {
		t.Errorf("the pass is %s and did %q", out.State, w.units.did)
	}
	w.again(mesh.TriggerDrift, decl...) // and still nobody can say

	delete(w.packages.behaves, "package:p")
	w.again(mesh.TriggerDrift, decl...)
	w.want("package:p", mesh.StatusChanged, "")
	if w.packages.called("apply") != 1 || !slices.Equal(w.units.did, []string{"restart p.service"}) {
		t.Errorf("applied %d times, and the units saw %q", w.packages.called("apply"), w.units.did)
	}
	if len(w.control.events) != 0 {
		t.Errorf("events %+v", w.control.events)
	}
}

func TestTheDetailOfAFailedReadBackNamesWhatDiffers(t *testing.T) {
	w := newWorld(t)
	w.files.behaves["file:/a"] = saysDoneDoesNothing
	w.declare(file("/a", "1"))
	if r := w.result("file:/a"); !strings.Contains(r.Detail, "value nothing, not 1") {
		t.Errorf("the detail is %q", r.Detail)
	}
}

// Shows: M13, M15
func TestTheHostItselfIsChangedWhenEverythingElseWasDone(t *testing.T) {
	w := newWorld(t)
	w.declare(file("/gone", "0"))
	w.released = []mesh.ResourceID{"file:/gone"}
	w.m.writes = nil
	w.declare(
		pack("mesh-host"),
		file("/after", "1", "package:mesh-host"),
		pack("other"),
		file("/z", "2"),
	)
	if n := len(w.m.writes); n < 4 || !slices.Equal(w.m.writes[n-2:], []string{"package:mesh-host=version 1", "file:/after=1"}) {
		t.Errorf("written in the order %q; the host, and what requires it, do not come last", w.m.writes)
	}
	w.want("file:/after", mesh.StatusChanged, "")
	w.want("package:other", mesh.StatusChanged, "")
}

func TestAFileComesAfterTheDirectoryThatHoldsItAndBeforeOneThatGoes(t *testing.T) {
	for name, c := range map[string]struct {
		declared []mesh.Resource
		want     []string
	}{
		"the directory stands later": {[]mesh.Resource{file("/d/e/x", "1"), file("/d", "1"), file("/d/e", "1")}, []string{"file:/d=1", "file:/d/e=1", "file:/d/e/x=1"}},
		"a level is not declared":    {[]mesh.Resource{file("/d/e/x", "1"), file("/a", "1"), file("/d", "1")}, []string{"file:/d=1", "file:/d/e/x=1", "file:/a=1"}},
		"a name begins alike":        {[]mesh.Resource{file("/dd", "1"), file("/d", "1")}, []string{"file:/dd=1", "file:/d=1"}},
		"all are to go":              {[]mesh.Resource{noFile("/d"), noFile("/d/x")}, []string{"file:/d/x gone", "file:/d gone"}},
		"required the other way":     {[]mesh.Resource{file("/d", "1", "file:/d/x"), file("/d/x", "1")}, []string{"file:/d/x=1", "file:/d=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, id := range []mesh.ResourceID{"file:/d", "file:/d/x"} {
				if name == "all are to go" {
					w.m.things[id] = "there"
				}
			}
			w.declare(c.declared...)
			if !slices.Equal(w.m.writes, c.want) {
				t.Errorf("written in the order %q, not %q", w.m.writes, c.want)
			}
		})
	}
}

// Shows: M5
func TestAPassThatIsAskedToEndInTheMiddleOfATransactionClaimsNothingAndTheNextOneSeesWhatCameOfIt(t *testing.T) {
	w := newWorld(t)
	ctx, end := context.WithCancel(t.Context())
	w.packages.during = func(mesh.ResourceID) { end() }
	d := mesh.Declaration{Generation: 1, Resources: []mesh.Resource{restarting(pack("p"), "p.service"), file("/a", "1")}}
	w.generation = 1
	if _, err := w.r.Run(ctx, d, mesh.TriggerDeclared, never); !errors.Is(err, context.Canceled) {
		t.Errorf("the pass ended with %v", err)
	}
	w.want("package:p", mesh.StatusPending, "")
	w.there("file:/a", "")
	w.did()
	if n := w.deliver(); n != 0 {
		t.Errorf("%d messages were told", n)
	}

	w.restart()
	w.again(mesh.TriggerResumed, d.Resources...)
	w.want("package:p", mesh.StatusChanged, "")
	w.want("file:/a", mesh.StatusChanged, "")
	w.did("restart p.service")
	if n := w.packages.called("apply"); n != 1 {
		t.Errorf("it was applied %d times", n)
	}
}
