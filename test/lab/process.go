package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A process is one process of this machine, told apart from a later one
// with the same number by its start time. The zero value is no process.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, as in /proc/PID/stat
}

// processOf identifies a running process.
func processOf(pid int) (process, error) {
	_, start, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start}, nil
}

// alive reports whether this very process still runs.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	_, start, err := readStat(p.PID)
	return err == nil && start == p.Start
}

// kill ends this very process, and no other that has its number now.
func (p process) kill() error {
	if !p.alive() {
		return nil
	}
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// readStat reads the parent and the start time of a process that has not
// ended; a zombie has.
func readStat(pid int) (parent int, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may hold anything, also spaces.
	rest := b[bytes.LastIndexByte(b, ')')+1:]
	fields := strings.Fields(string(rest))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("process %d: short stat", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, 0, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	if parent, err = strconv.Atoi(fields[1]); err != nil {
		return 0, 0, fmt.Errorf("process %d: parent: %w", pid, err)
	}
	if start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("process %d: start time: %w", pid, err)
	}
	return parent, start, nil
}

// leaderOf finds PID 1 of the host that this nspawn process runs. found is
// false while there is none yet.
func leaderOf(nspawn process) (leader process, found bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return process{}, false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent, start, err := readStat(pid)
		if err == nil && parent == nspawn.PID && isInit(pid) {
			return process{PID: pid, Start: start}, true
		}
	}
	return process{}, false
}

// isInit reports whether the process is number 1 in a PID namespace below
// this one.
func isInit(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			numbers := strings.Fields(rest)
			return len(numbers) == 2 && numbers[1] == "1"
		}
	}
	return false
}

// A group is a control group of the unified hierarchy, by its directory as
// this process sees it. Everything in a group of the lab was started by the
// lab.
type group string

// make creates the group.
func (g group) make() error {
	if err := os.MkdirAll(string(g), 0o755); err != nil {
		return fmt.Errorf("make control group: %w", err)
	}
	return nil
}

// processes lists what runs in the group and below.
func (g group) processes() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, s := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// killAll ends everything in the group and below at one instant, waits until
// it is gone, and returns. A group that does not exist is already so.
func (g group) killAll(ctx context.Context) error {
	for {
		err := os.WriteFile(filepath.Join(string(g), "cgroup.kill"), []byte("1"), 0)
		pids, e := g.processes()
		if e != nil {
			return fmt.Errorf("list control group: %w", e)
		}
		if len(pids) == 0 {
			return nil
		}
		if err != nil {
			// A kernel before 5.14: one by one, until none is left.
			for _, pid := range pids {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("kill process %d: %w", pid, err)
				}
			}
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d processes of %s do not end: %w", len(pids), g, err)
		}
	}
}

// remove deletes the group and those below. They must be empty.
func (g group) remove(ctx context.Context) error {
	for {
		var dirs []string
		err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("list control group: %w", err)
		}
		busy := error(nil)
		for _, dir := range slices.Backward(dirs) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				busy = fmt.Errorf("remove control group %s: %w", dir, err)
			}
		}
		if busy == nil {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return busy
		}
	}
}
