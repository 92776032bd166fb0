package reconcile_test

import (
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
)

func (w *world) did(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.units.did, want) {
		w.t.Errorf("the service manager saw %q, not %q", w.units.did, want)
	}
	w.units.did = nil
}

func TestAUnitIsRestartedOnceForAllThatAskForIt(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{
		restarting(file("/a", "1"), "nginx.service"), reloading(file("/b", "2"), "nginx.service", "other.service"), restarting(pack("p"), "nginx.service"),
	}
	w.declare(decl...)
	w.did("restart nginx.service", "reload other.service")
	w.again(mesh.TriggerDrift, decl...)
	w.did()
	w.m.things["file:/b"] = "edited"
	w.again(mesh.TriggerDrift, decl...)
	w.did("reload nginx.service", "reload other.service")
}

func TestAUnitThatDoesNotComeBackMakesTheResourceFailedAndIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{restarting(file("/a", "1"), "nginx.service", "web.service"), file("/b", "2")}
	w.units.broken["nginx.service"] = true
	out := w.declare(decl...)
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonUnit)
	w.want("file:/b", mesh.StatusChanged, "")
	w.did("restart nginx.service", "restart web.service")
	if r := w.result("file:/a"); r.Output != "exit 1" || out.State != mesh.GenerationFailed {
		t.Errorf("output %q, and the pass is %s", r.Output, out.State)
	}

	w.again(mesh.TriggerDrift, decl...)
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonUnit)
	w.did("restart nginx.service")

	w.units.broken["nginx.service"] = false
	out = w.again(mesh.TriggerDrift, decl...)
	w.want("file:/a", mesh.StatusOK, "")
	w.did("restart nginx.service")
	if out.State != mesh.GenerationApplied || len(w.control.events) != 0 {
		t.Errorf("the pass is %s, events %+v", out.State, w.control.events)
	}
	w.again(mesh.TriggerDrift, decl...)
	w.did()
}

func TestAUnitWaitsUntilItsResourceIsAsWanted(t *testing.T) {
	w := newWorld(t)
	a := restarting(file("/a", "1"), "nginx.service")
	w.units.broken["nginx.service"] = true
	w.declare(a)
	w.did("restart nginx.service")
	w.units.broken["nginx.service"] = false
	w.m.things["file:/a"] = "broken by hand"
	w.files.behaves["file:/a"] = fails
	w.again(mesh.TriggerDrift, a)
	w.did()
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonTool)
	delete(w.files.behaves, "file:/a")
	w.again(mesh.TriggerDrift, a)
	w.did("restart nginx.service")
}

func TestAnActionOfAPassThatWasSupersededIsDoneByTheNext(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{restarting(file("/a", "1"), "nginx.service"), file("/b", "2")}
	w.generation = 1
	w.pass(mesh.TriggerDeclared, func() bool { return len(w.m.writes) > 0 }, decl...)
	w.did()
	w.declare(decl...)
	w.did("restart nginx.service")
}

func TestAnActionOfWhatIsNoLongerDeclaredIsDropped(t *testing.T) {
	w := newWorld(t)
	w.units.broken["nginx.service"] = true
	w.declare(restarting(file("/a", "1"), "nginx.service"))
	w.did("restart nginx.service")
	w.released = []mesh.ResourceID{"file:/a"}
	w.declare()
	w.did()
	w.declare(file("/a", "1"))
	w.did()
}

func TestChangedUnitFilesAreReadBeforeUnitsAreRestarted(t *testing.T) {
	w := newWorld(t)
	unit := restarting(file("/etc/systemd/system/web.service", "v1"), "web.service")
	dropIn := file("/etc/systemd/system/db.service.d/10-mesh.conf", "v1")
	w.declare(unit, dropIn)
	w.did("daemon-reload", "restart web.service")
	w.again(mesh.TriggerDrift, unit, dropIn)
	w.did()
	w.released = []mesh.ResourceID{dropIn.ID()}
	w.declare(unit)
	w.did("daemon-reload")
	w.declare(unit)
	w.did()
}

// Shows: M4
func TestAUnitFileThatTheServiceManagerDidNotReadIsAFailure(t *testing.T) {
	w := newWorld(t)
	unit := restarting(file("/etc/systemd/system/web.service", "v1"), "web.service")
	other := restarting(file("/etc/web.conf", "1"), "web.service")
	w.units.deaf = true
	w.declare(unit, other)
	w.did("daemon-reload")
	w.want(unit.ID(), mesh.StatusFailed, mesh.ReasonUnit)
	w.want(other.ID(), mesh.StatusFailed, mesh.ReasonUnit)
	w.units.deaf = false
	w.again(mesh.TriggerDrift, unit, other)
	w.did("daemon-reload", "restart web.service")
	w.want(unit.ID(), mesh.StatusOK, "")
}

func TestTheServiceManagerReadsItsFilesAgainOnceAPassForUnitsAndWhatUnitsAreMadeOf(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{file("/etc/fstab", "1"), file("/etc/systemd/system/a.service.d/x.conf", "1"), file("/etc/fstab.backup", "1")}
	w.declare(decl...)
	w.did("daemon-reload")
	w.again(mesh.TriggerDrift, decl...)
	w.did()
	w.declare(decl[2])
	w.released = []mesh.ResourceID{"file:/etc/fstab"}
	w.declare(decl[2])
	w.did("daemon-reload")
}

// Shows: M4
func TestAnActionForAUnitThatIsNamedNoMoreIsDroppedAndTheOneNamedInsteadIsDone(t *testing.T) {
	w := newWorld(t)
	w.units.broken["ngnix.service"] = true
	w.declare(restarting(file("/a", "1"), "ngnix.service", "web.service"))
	w.did("restart ngnix.service", "restart web.service")
	w.want("file:/a", mesh.StatusFailed, mesh.ReasonUnit)

	corrected := restarting(file("/a", "1"), "nginx.service")
	w.declare(corrected)
	w.did("restart nginx.service")
	w.want("file:/a", mesh.StatusOK, "")
	w.again(mesh.TriggerDrift, corrected)
	w.did()
}

func TestAnActionThatIsAskedForNoMoreIsDropped(t *testing.T) {
	w := newWorld(t)
	w.units.broken["nginx.service"] = true
	w.declare(reloading(file("/a", "1"), "nginx.service"))
	w.did("reload nginx.service")
	w.declare(file("/a", "1"))
	w.did()
	w.want("file:/a", mesh.StatusOK, "")
	// Another verb is another action.
	w.declare(reloading(file("/a", "2"), "nginx.service"))
	w.did("reload nginx.service")
	w.units.broken["nginx.service"] = false
	w.declare(restarting(file("/a", "2"), "nginx.service"))
	w.did("restart nginx.service")
}

func TestWhatIsNotedOfAUnitStandsWithEveryResourceThatAskedForIt(t *testing.T) {
	w := newWorld(t)
	w.units.says = map[string]string{"nginx.service": "it does not run"}
	decl := []mesh.Resource{reloading(file("/a", "1"), "nginx.service"), reloading(file("/b", "1"), "nginx.service"), file("/c", "1")}
	out := w.declare(decl...)
	for _, r := range out.Results {
		if want := map[mesh.ResourceID]string{"file:/a": "it does not run", "file:/b": "it does not run", "file:/c": ""}[r.Resource]; r.Detail != want || r.Status != mesh.StatusChanged {
			t.Errorf("%s is %s, and it is said %q, not %q", r.Resource, r.Status, r.Detail, want)
		}
	}
	out = w.again(mesh.TriggerDrift, decl...)
	if r := w.result("file:/a"); r.Status != mesh.StatusOK || r.Detail != "" || out.State != mesh.GenerationApplied {
		t.Errorf("a pass later it is %s, with %q", r.Status, r.Detail)
	}
	w.did("reload nginx.service")
}

func TestWhatUnitsAreMadeOfIsReadAgain(t *testing.T) {
	for path, read := range map[string]bool{
		"/etc/systemd/system/web.service.d/10-mesh.conf": true,
		"/etc/systemd/system/web.timer":                  true,
		"/etc/systemd/system/multi-user.target.wants/w":  true,
		"/etc/containers/systemd/web.container":          true,
		"/etc/init.d/web":                                true,
		"/etc/crypttab":                                  true,
		"/etc/systemd/journald.conf":                     false,
		"/etc/systemd/systemish/web.service":             false,
		"/etc/fstab.d/x":                                 false,
	} {
		w := newWorld(t)
		w.declare(file(path, "1"))
		if read {
			w.did("daemon-reload")
		} else {
			w.did()
		}
	}
}

// Shows: M7
func TestANewerDeclarationSupersedesBetweenTwoUnits(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{restarting(file("/a", "1"), "one.service", "two.service", "three.service")}
	newer := false
	w.units.acted = func(unit, _ string) { newer = unit == "one.service" }
	w.generation = 1
	if out := w.pass(mesh.TriggerDeclared, func() bool { return newer }, decl...); !out.Superseded {
		t.Error("the newer declaration waited for all units")
	}
	w.did("restart one.service")
	w.declare(decl...)
	w.did("restart three.service", "restart two.service")
}

func TestWhatIsNotedOfAUnitIsStoredAlsoAfterACrashBetweenTheLookAndTheUnit(t *testing.T) {
	w := newWorld(t)
	decl := []mesh.Resource{reloading(file("/a", "1"), "nginx.service")}
	w.generation = 1
	w.pass(mesh.TriggerDeclared, func() bool { return len(w.m.writes) > 0 }, decl...)
	// The ledger says by itself that all is well, and the unit is still to do.
	w.pass(mesh.TriggerResumed, func() bool { return w.result("file:/a").Status == mesh.StatusOK }, decl...)
	w.did()
	w.want("file:/a", mesh.StatusOK, "")

	w.units.says = map[string]string{"nginx.service": "it does not run"}
	w.again(mesh.TriggerResumed, decl...)
	w.did("reload nginx.service")
	if r := w.result("file:/a"); r.Detail != "it does not run" {
		t.Errorf("of the unit it is said %q", r.Detail)
	}
}

func TestWhatAUnitHasToBeToldIsNotForgottenWhileItsFileIsKept(t *testing.T) {
	w := newWorld(t)
	a := restarting(file("/a", "1"), "web.service")
	w.generation = 1
	w.pass(mesh.TriggerDeclared, func() bool { return len(w.m.writes) > 0 }, a)
	w.declare() // not declared, and not released either
	w.did()
	w.declare(a)
	w.did("restart web.service")
}

func TestAWriteThatWasCutOffIsNotForgottenWhileItsFileIsKept(t *testing.T) {
	w := newWorld(t)
	a := restarting(file("/a", "1"), "web.service")
	w.files.during = func(mesh.ResourceID) { w.files.behaves["file:/a"] = resultUnknown }
	w.declare(a)
	w.want("file:/a", mesh.StatusUnknown, mesh.ReasonIO)
	w.files.during = nil
	clear(w.files.behaves)
	for range 2 {
		w.declare() // not declared, and not released either
		w.want("file:/a", "", "")
	}
	w.declare(a)
	w.want("file:/a", mesh.StatusChanged, "")
	w.did("restart web.service")
	w.declare()
	w.declare(a)
	w.want("file:/a", mesh.StatusOK, "")
}
