package transient

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commandShown bounds how much of a command line is shown, in bytes.
const commandShown = 200

// lookLimit is how long a look at the processes may take.
const lookLimit = 20 * time.Second

// A looker looks at the processes, and waits for none that does not let itself be
// looked at: the kernel does not tell the command line of one that hangs in a call
// to a file system which does not answer. A look that is left to itself is the
// only one until it comes back.
type looker struct {
	// out holds one ticket.
	out chan struct{}
}

func newLooker() looker { return looker{out: make(chan struct{}, 1)} }

// within makes a look. False: it did not come back, or an earlier one has not.
func within[T any](ctx context.Context, l looker, limit time.Duration, look func() T) (T, bool) {
	var none T
	select {
	case l.out <- struct{}{}:
	default:
		return none, false
	}
	seen := make(chan T, 1)
	go func() {
		defer func() { <-l.out }()
		seen <- look()
	}()
	enough := time.NewTimer(limit)
	defer enough.Stop()
	select {
	case s := <-seen:
		return s, true
	case <-enough.C:
	case <-ctx.Done():
	}
	return none, false
}

// youngest returns the command line of the process of a unit that was started
// last: what the unit waits for, most of the time. Empty when none is seen.
func youngest(unit string) string {
	var started uint64
	var found string
	for _, p := range processes() {
		if p.unit == unit && p.started >= started && p.command != "" {
			started, found = p.started, p.command
		}
	}
	return found
}

// seen is a process as /proc shows it.
type seen struct {
	pid int
	// unit of the service manager. Empty: none.
	unit    string
	command string
	// started in ticks since boot.
	started uint64
}

// processes lists what runs. A process that ends meanwhile is left out.
func processes() []seen {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []seen
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		group, err := os.ReadFile(dir + "/cgroup")
		if err != nil {
			continue
		}
		p := seen{pid: pid, unit: unitOf(string(group))}
		if command, err := os.ReadFile(dir + "/cmdline"); err == nil {
			p.command = strings.TrimSpace(string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			p.command = strings.ToValidUTF8(p.command[:min(len(p.command), commandShown)], "?")
		}
		if stat, err := os.ReadFile(dir + "/stat"); err == nil {
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if len(fields) > 19 {
				p.started, _ = strconv.ParseUint(fields[19], 10, 64)
			}
		}
		all = append(all, p)
	}
	return all
}

// unitOf takes the service out of a process's control groups.
func unitOf(groups string) string {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for dir := parts[2]; dir != "/" && dir != "."; dir = path.Dir(dir) {
			if base := path.Base(dir); strings.HasSuffix(base, ".service") {
				return base
			}
		}
	}
	return ""
}

// outdated lists the units with processes that run programs or libraries which
// were deleted, as a replaced package leaves them.
func outdated() []string {
	var units []string
	for _, p := range processes() {
		if p.unit == "" || slices.Contains(units, p.unit) {
			continue
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(maps)) {
			fields := strings.Fields(line)
			if len(fields) < 7 || fields[len(fields)-1] != "(deleted)" || !strings.Contains(fields[1], "x") {
				continue
			}
			if file := fields[5]; strings.HasPrefix(file, "/usr/") || strings.HasPrefix(file, "/lib") || strings.HasPrefix(file, "/bin/") || strings.HasPrefix(file, "/sbin/") || strings.HasPrefix(file, "/opt/") {
				units = append(units, p.unit)
				break
			}
		}
	}
	return units
}
