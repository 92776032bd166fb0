//go:build fault

package fault_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/mesh/internal/fault"
)

// reach has a process of its own come to the point "here".
func reach(t *testing.T, env ...string) (died bool) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestAProcessDiesAtThePointThatIsNamedAndNowhereElse$")
	child.Env = append(append(os.Environ(), "MESH_TEST_REACH=1"), env...)
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

func TestAProcessDiesAtThePointThatIsNamedAndNowhereElse(t *testing.T) {
	if os.Getenv("MESH_TEST_REACH") != "" {
		fault.Point("here")
		return
	}
	if os.Getenv("MESH_TEST_HELD") != "" {
		go fault.Point("here")
		for {
			if _, err := os.Stat(os.Getenv(fault.EnvOnce)); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	if !fault.Enabled {
		t.Fatal("points are not compiled in")
	}
	if !reach(t, fault.EnvPoint+"=here") {
		t.Error("it did not die")
	}
	if reach(t, fault.EnvPoint+"=there") || reach(t, fault.EnvPoint+"=") {
		t.Error("it died at a point that nobody named")
	}
	once := filepath.Join(t.TempDir(), "once")
	if !reach(t, fault.EnvPoint+"=here", fault.EnvOnce+"="+once) {
		t.Error("it did not die the first time")
	}
	if reach(t, fault.EnvPoint+"=here", fault.EnvOnce+"="+once) {
		t.Error("it died twice, and once was asked for")
	}
	held := filepath.Join(t.TempDir(), "held")
	if reach(t, "MESH_TEST_REACH=", "MESH_TEST_HELD=1", fault.EnvPoint+"=here", fault.EnvHold+"=1", fault.EnvOnce+"="+held) {
		t.Error("it died where it was to be held")
	}
}
