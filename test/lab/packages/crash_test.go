package packages_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/test/lab"
)

// points lists the fault points of the rooms that a pass over packages goes
// through, as their source has them.
func points(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"host/reconcile", "host/resource/pkg"} {
		files, err := filepath.Glob("../../../" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, f := range regexp.MustCompile(`fault\.Point\("([^"]+)"\)`).FindAllStringSubmatch(string(data), -1) {
				all = append(all, f[1])
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// usual reports whether a point is killed at in every run: those that only a
// pass over packages comes to, and one on the way of a removal. The others are
// with the tag "matrix"; the host's own tests die at each of them.
func usual(point string) bool {
	return strings.HasPrefix(point, "pkg.") || point == "reconcile.after-remove"
}

// Points that this scenario does not come to, and what does.
var pointsElsewhere = map[string]string{
	"pkg.before-finish": "two versions of an interrupted upgrade, below",
	"pkg.after-finish":  "two versions of an interrupted upgrade, below",
}

// Shows: M5, M13
func TestAPassThatIsKilledAtAnyPointIsFinishedByTheNext(t *testing.T) {
	l := lab.Shared(t)
	program, s, k := buildDriver(t), newServer(t, l), newKey(t, "rows")
	all := points(t)
	if len(all) < 10 {
		t.Fatalf("only %d fault points were found: %q", len(all), all)
	}
	for _, flavour := range flavours() {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			h := rowHost(t, l, flavour, program)
			for _, point := range all {
				if pointsElsewhere[point] != "" || !everyPoint && !usual(point) {
					continue
				}
				t.Run(point, func(t *testing.T) { killedAt(newMachine(t, h, s, k), point) })
			}
			t.Run("finish", func(t *testing.T) {
				if h.Flavour().RPM() {
					finished(newMachine(t, h, s, k))
				}
			})
		})
	}
}

// killedAt has a pass die at a point: one that installs, marks and repairs when
// the point is on its way, otherwise one that removes.
func killedAt(m *machine, point string) {
	auto := pack{name: "fx-auto", version: "1"}
	parent := pack{name: "fx-parent", version: "1", depends: []string{"fx-auto"}}
	p := fx("1")
	p.depends = []string{"libfx"}
	m.offer(p, pack{name: "libfx", version: "1"}, auto, parent)
	m.refresh()
	if m.rpm() {
		m.sh("dnf -q -y install fx-parent >/dev/null 2>&1")
	} else {
		m.sh("apt-get -q -y install fx-parent >/dev/null")
	}
	declared := []string{"fx", "fx-auto"}
	die := func(released ...string) bool {
		m.request.env = []string{"MESH_FAULT_POINT=" + point, "MESH_FAULT_ONCE=/run/rows-died"}
		for _, name := range released {
			m.request.Released = append(m.request.Released, present(name, "").ID())
		}
		var err error
		if len(released) == 0 {
			_, err = m.tryPass(present("fx", ""), present("fx-auto", ""))
		} else {
			_, err = m.tryPass()
		}
		m.request.env, m.request.Released = nil, nil
		died := m.sh("test -e /run/rows-died && echo yes || true") == "yes"
		if died == (err == nil) {
			m.Fatalf("died is %t, and the driver ended with %v", died, err)
		}
		return died
	}
	removal := !die()
	a := m.pass(present("fx", ""), present("fx-auto", ""))
	for _, name := range declared {
		if got := a.of(name); !got.Status.Good() {
			m.Errorf("after a kill at %s %s is %q: %s\n%s", point, name, word(got), got.Detail, got.Output)
		}
	}
	m.wantVersions(versions{"fx": "1-1", "libfx": "1-1", "fx-auto": "1-1"})
	if m.reason("fx-auto") != "user" {
		m.Errorf("fx-auto is marked as %s", m.reason("fx-auto"))
	}
	if again := m.pass(present("fx", ""), present("fx-auto", "")); len(again.Commands) > 0 || again.State != "applied" {
		m.Errorf("the pass after it is %s and ran %q", again.State, again.Commands)
	}
	if removal && !die(declared...) {
		m.Fatalf("no pass came to %s", point)
	}
	m.undeclare(declared)
	m.wantVersions(versions{"fx": "", "libfx": "1-1", "fx-auto": "1-1"})
	if m.reason("fx-auto") != "dependency" {
		m.Errorf("the mark of fx-auto was not put back: %s", m.reason("fx-auto"))
	}
	if len(m.last.Owned) > 0 {
		m.Errorf("still owned: %v", m.last.Owned)
	}
	if !m.rpm() {
		m.sh(`test -z "$(dpkg --audit)"`)
	}
}

// finished leaves a package in two versions in the middle of the mesh's own
// upgrade, which the next pass finishes, killed at each point of that.
func finished(m *machine) {
	m.install(fx("1"))
	m.offer(fx("2"))
	for _, point := range []string{"pkg.before-finish", "pkg.after-finish"} {
		m.request.env = []string{"MESH_FAULT_POINT=pkg.before-commit"}
		if _, err := m.tryPass(present("fx", "2-1")); err == nil {
			m.Fatal("the pass did not die")
		}
		m.sh("rpm -i --force --nodeps " + m.carry(fx("2")))
		m.wantVersions(versions{"fx": "1-1 2-1"})
		m.request.env = []string{"MESH_FAULT_POINT=" + point}
		if _, err := m.tryPass(present("fx", "2-1")); err == nil {
			m.Fatalf("the pass did not die at %s", point)
		}
		m.request.env = nil
		m.wantReport(m.pass(present("fx", "2-1")), report{"fx": "changed"})
		m.wantVersions(versions{"fx": "2-1"})
		m.sh("rpm -e fx; rpm -i " + m.carry(fx("1")))
	}
}

// Shows: M2
func TestAPassOverAHundredRightPackagesReadsTheDatabaseOnceAndRunsNothing(t *testing.T) {
	l := lab.Shared(t)
	program, s, k := buildDriver(t), newServer(t, l), newKey(t, "rows")
	for _, flavour := range usualFlavours {
		t.Run(flavour, func(t *testing.T) {
			m := newMachine(t, rowHost(t, l, flavour, program), s, k)
			var rs = present100(m)
			first := m.pass(rs...)
			if first.State != "applied" || len(first.Results) != 100 {
				m.Fatalf("the first pass is %s over %d packages", first.State, len(first.Results))
			}
			second := m.pass(rs...)
			if second.Reads != 1 || len(second.Commands) > 0 || second.State != "applied" {
				m.Errorf("the pass over what is right is %s, read the database %d times and ran %q", second.State, second.Reads, second.Commands)
			}
			m.Logf("it took %.3f s", second.Took)
		})
	}
}
