package tool_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg/tool"
	"golang.org/x/sys/unix"
)

func TestALockOfAWholeFileIsSeenAndNotTaken(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.dat")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wait := func() error {
		return tool.WaitUnlocked(t.Context(), time.Millisecond, nil, name, filepath.Join(t.TempDir(), "is-not-there"))
	}
	if err := wait(); err != nil {
		t.Errorf("a file that nobody locked: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if e := resource.AsError(wait()); e == nil || e.Status != mesh.StatusDeferred || e.Reason != mesh.ReasonLocked {
		t.Errorf("a file that somebody locked: %v", e)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Errorf("after the lock was let go: %v", err)
	}
}
