package tool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"golang.org/x/sys/unix"
)

// lockPoll is how often a held lock is looked at.
const lockPoll = 250 * time.Millisecond

// WaitUnlocked waits until no other process holds a record lock, or a lock of a
// whole file, on any of the files, at most for limit. Then the error is Deferred
// and names the holder. Files that do not exist are not locked. It takes no lock
// itself: whoever comes next may be faster, and the tool has its own way of
// waiting. It calls waiting, which may be nil, at every look.
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
		if pid := wholeFileHolder(name); pid != 0 {
			return pid, name, nil
		}
	}
	return 0, "", nil
}

// wholeFileHolder finds who holds a lock of flock(2), which cannot be asked for
// without taking it. Zero: nobody, as far as the kernel's list shows.
func wholeFileHolder(name string) int {
	var st unix.Stat_t
	list, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(name, &st) != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(list)) {
		// As in "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; who waits has an
		// arrow before the kind.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil {
			return pid
		}
	}
	return 0
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
