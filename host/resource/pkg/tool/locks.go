package tool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"golang.org/x/sys/unix"
)

// lockPoll is how often a held lock is looked at.
const lockPoll = 250 * time.Millisecond

// WaitUnlocked waits until no other process holds a record lock on any of the
// files, at most for limit. Then the error is Deferred and names the holder.
// Files that do not exist are not locked. It takes no lock itself: whoever
// comes next may be faster, and the tool has its own way of waiting. It calls
// waiting, which may be nil, at every look.
func WaitUnlocked(ctx context.Context, limit time.Duration, waiting func(), files ...string) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		holder, file, err := lockHolder(files)
		if err != nil || holder == 0 {
			// What cannot be looked at is left to the tool.
			return nil
		}
		if waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return resource.Deferred(mesh.ReasonLocked, ctx.Err(), "%s is held by %s; it is tried again", file, processName(holder))
		case <-deadline.C:
			return resource.Deferred(mesh.ReasonLocked, nil, "%s is held by %s, also after %s; it is tried again", file, processName(holder), limit)
		case <-tick.C:
		}
	}
}

// lockHolder returns the process that holds a lock on one of the files; zero
// when nobody does.
func lockHolder(files []string) (pid int, file string, err error) {
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, "", fmt.Errorf("open lock %s: %w", name, err)
		}
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0}
		err = unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock)
		_ = f.Close()
		if err != nil {
			return 0, "", fmt.Errorf("look at lock %s: %w", name, err)
		}
		if lock.Type != unix.F_UNLCK {
			if lock.Pid == 0 {
				// Held from another process namespace.
				return -1, name, nil
			}
			return int(lock.Pid), name, nil
		}
	}
	return 0, "", nil
}

func processName(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	switch {
	case pid <= 0:
		return "a process that cannot be seen from here"
	case err != nil:
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
}
