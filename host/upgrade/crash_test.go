//go:build fault

package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/fault"
)

// envLife names the machine on which a process of its own is the host.
const envLife = "MESH_TEST_UPGRADE"

// exitSettled is the exit status of a life after which nothing is left to do.
const exitSettled = 7

func TestMain(m *testing.M) {
	dir := os.Getenv(envLife)
	if dir == "" {
		os.Exit(m.Run())
	}
	settled, err := machine{dir}.live(context.Background())
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case settled:
		os.Exit(exitSettled)
	}
	os.Exit(0)
}

// process runs one life of whichever version is installed. It dies at the point;
// empty: nowhere.
func (m machine) process(t *testing.T, point string) (died, settled bool) {
	t.Helper()
	child := exec.Command(os.Args[0])
	// A life goes when the test does, however that ends: with the thread that
	// began it, which has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.Env = append(os.Environ(), envLife+"="+m.dir, fault.EnvPoint+"="+point)
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, false
	case errors.As(err, &exit) && exit.ExitCode() == exitSettled:
		return false, true
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true, false
	}
	t.Fatalf("a life of version %s ended with %v and not by the point:\n%s", m.running(), err, out)
	return false, false
}

// A story is an upgrade that is to come to one end wherever a process dies.
type story struct {
	prepare func(t *testing.T) machine
	version string
	// ending is how it is reported. Empty: not at all.
	ending mesh.Ending
}

var stories = map[string]story{
	"the first version confirms itself": {newMachine, v1, ""},
	"a good version":                    {declared(v2), v2, mesh.EndingUpgraded},
	"a version that is unfit":           {declared(unfit), v1, mesh.EndingPutBack},
}

// unjudged is the point at which a version is installed that nobody looked at.
// It is started then, and one that completes a reconcile is confirmed for that.
const unjudged = "upgrade.after-install"

func declared(version string) func(*testing.T) machine {
	return func(t *testing.T) machine {
		m := confirmedFirst(t)
		m.declare(t, version)
		return m
	}
}

// tell has each life die at the point until a life gets no further than the one
// before it, and then lets the host go on. It returns how many died.
func (s story) tell(t *testing.T, point string) (died int) {
	t.Helper()
	m := s.prepare(t)
	if point == unjudged && s.ending == mesh.EndingPutBack {
		s.version, s.ending = unfit, mesh.EndingUpgraded
	}
	for range 6 {
		if dead, _ := m.process(t, point); dead {
			died++
		}
	}
	if died == 0 {
		return 0
	}
	for range 6 {
		dead, settled := m.process(t, "")
		if dead {
			t.Fatal("a life without the point died")
		}
		if settled {
			r := m.arrived(t, s.version)
			want := []mesh.Ending{s.ending}
			switch {
			case s.ending == "":
				want = nil
			case s.ending == mesh.EndingPutBack:
				want = append(want, mesh.EndingRefused)
			}
			if !slices.Equal(r.endings, want) {
				t.Errorf("after %d deaths it was reported as %v, not as %v", died, r.endings, want)
			}
			if s.ending == mesh.EndingUpgraded && !r.status.Status.Good() || s.ending == mesh.EndingPutBack && r.status.Reason != mesh.ReasonRefused {
				t.Errorf("the resource is %+v", r.status)
			}
			return died
		}
	}
	t.Fatalf("six lives without the point did not come to rest; version %s runs", m.running())
	return died
}

// Shows: M5, M14, M20
func TestAHostThatDiesAtAnyPointOfItsUpgradeComesToRestInOneVersion(t *testing.T) {
	for _, point := range points(t) {
		t.Run(point, func(t *testing.T) {
			died := 0
			for name, s := range stories {
				t.Run(name, func(t *testing.T) { died += s.tell(t, point) })
			}
			if died == 0 {
				t.Fatal("no life came to this point, so nothing is known of dying there")
			}
		})
	}
}

var pointCall = regexp.MustCompile(`fault\.Point\("((?:upgrade\.|store\.trial-|store\.settle-)[^"]+)"\)`)

// points lists the points of an upgrade that are in the code.
func points(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, room := range []string{".", "../store"} {
		err := filepath.WalkDir(room, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range pointCall.FindAllSubmatch(source, -1) {
				names = append(names, string(match[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(names) == 0 {
		t.Fatal("there are no points")
	}
	slices.Sort(names)
	return slices.Compact(names)
}
