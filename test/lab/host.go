package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrOff says that a host has no processes to run a command among.
var ErrOff = errors.New("the host is off")

// bootLimit bounds the time from the start of nspawn to a booted system.
const bootLimit = 2 * time.Minute

// A Host is one machine of the lab. Its methods may be called from several
// goroutines; those that start or end it, from one at a time.
type Host struct {
	lab     *Lab
	flavour Flavour

	mu     sync.Mutex // guards what follows
	record Record
	// ended is closed when the nspawn process that this process started
	// has been waited for; nil when another process started it.
	ended chan struct{}
	runs  int // commands begun, for the names of their groups
}

// Name is the host's name, inside and outside.
func (h *Host) Name() string { return h.snapshot().Name }

// Addr is the host's address in the lab's network, without a prefix length.
func (h *Host) Addr() string { return h.snapshot().Addr }

// Flavour is what kind of host it is.
func (h *Host) Flavour() Flavour { return h.flavour }

// Root is the directory on this machine that is the host's file system. What
// the host mounts over it (/run, /tmp, /dev) is not visible there.
func (h *Host) Root() string { return filepath.Join(h.snapshot().Disk, "root") }

// State is what the host is doing, judged by its processes.
func (h *Host) State() State {
	r := h.snapshot()
	if r.State == Up && !r.Leader.alive() {
		return Off
	}
	return r.State
}

// Leader is the number of the host's PID 1 on this machine, or zero.
func (h *Host) Leader() int { return h.snapshot().Leader.PID }

func (h *Host) snapshot() Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record
}

// step moves the host to another state, with a change of its record, and
// writes the record.
func (h *Host) step(to State, change func(*Record)) error {
	h.mu.Lock()
	next, err := h.record.State.Step(to)
	if err == nil {
		h.record.State = next
		change(&h.record)
	}
	r := h.record
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.lab.place.write(r)
}

// group holds every process of the host: nspawn, its payload, and what Run
// started in it.
func (h *Host) group() group { return h.lab.group + group("/"+h.Name()) }

// console is where the host's console goes.
func (h *Host) console() string { return filepath.Join(h.snapshot().Disk, "console.log") }

// bootScript gives the host a view of control groups that is purely the
// unified one, whatever the machine has, and lets go of the other hosts'
// roots. Then it becomes nspawn.
const bootScript = `set -e
own=$1 disks=$2
shift 2
umount -R /sys/fs/cgroup 2>/dev/null || :
mount -t cgroup2 none /sys/fs/cgroup
for m in "$disks"/*/root; do
	[ "$m" = "$own" ] || umount -l "$m" 2>/dev/null || :
done
exec "$@"
`

// start boots the host's root and waits until it is up. When that does not
// come about, nothing of the host runs on return.
func (h *Host) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootLimit, fmt.Errorf("not booted after %s", bootLimit))
	defer cancel()
	if err := h.step(Starting, func(*Record) {}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; the console ends with:\n%s", err, h.consoleTail())
			err = errors.Join(err, h.end(context.WithoutCancel(ctx)))
		}
	}()
	if err := h.spawn(ctx); err != nil {
		return err
	}
	return h.waitBooted(ctx)
}

// spawn starts nspawn, born into the host's own control group so that there
// is no moment at which it belongs to nobody.
func (h *Host) spawn(ctx context.Context) error {
	p := h.lab.place
	if err := p.dropPort(ctx, h.Name()); err != nil {
		return err
	}
	g := h.group()
	if err := g.remove(ctx); err != nil {
		return err
	}
	if err := g.make(); err != nil {
		return err
	}
	dir, err := os.Open(string(g))
	if err != nil {
		return fmt.Errorf("open control group: %w", err)
	}
	defer dir.Close()
	console, err := os.OpenFile(h.console(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open console: %w", err)
	}
	defer console.Close()

	// Not tied to ctx: the host lives on after the call that boots it.
	cmd := exec.Command("ip", "netns", "exec", p.netns(),
		"unshare", "--mount", "--propagation", "private",
		"sh", "-c", bootScript, "sh", h.Root(), p.disks(),
		"systemd-nspawn", "--quiet", "--boot", "--directory="+h.Root(), "--machine="+h.Name(),
		"--register=no", "--keep-unit", "--network-bridge="+bridge, "--console=read-only",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--settings=no")
	cmd.Env = []string{"PATH=" + hostPath}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start nspawn: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended is in the console
		close(ended)
	}()
	nspawn, err := processOf(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("nspawn ended at once: %w", err)
	}
	h.mu.Lock()
	h.ended = ended
	h.record.Nspawn = nspawn
	r := h.record
	h.mu.Unlock()
	return p.write(r)
}

// waitBooted waits for the host's systemd to say that the boot is over.
func (h *Host) waitBooted(ctx context.Context) error {
	last := "no PID 1 yet"
	for {
		nspawn := h.snapshot().Nspawn
		if !nspawn.alive() {
			return errors.New("the host ended while it booted")
		}
		if leader, found := leaderOf(nspawn); found {
			state := h.systemState(ctx, leader)
			if state == "running" || state == "degraded" {
				if err := h.step(Up, func(r *Record) { r.Leader = leader }); err != nil {
					return err
				}
				if state == "degraded" {
					h.reportDegraded(ctx)
				}
				return nil
			}
			last = "its systemd says " + state
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the boot, last seen: %s: %w", last, err)
		}
	}
}

// systemState asks the host's systemd how far it is.
func (h *Host) systemState(ctx context.Context, leader process) string {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/systemd/private", leader.PID)); err != nil {
		return "nothing yet"
	}
	cmd := enter(ctx, leader, "systemctl", "is-system-running")
	out, _ := cmd.Output() // the exit status repeats the word
	if s := strings.TrimSpace(string(out)); s != "" {
		return s
	}
	return "nothing yet"
}

// reportDegraded names the units that failed during the boot.
func (h *Host) reportDegraded(ctx context.Context) {
	out, err := h.Run(ctx, "systemctl", "--failed", "--no-legend", "--plain", "--no-pager")
	if err != nil {
		say(h.lab.log, "%s booted degraded, and its failed units cannot be listed: %v", h.Name(), err)
		return
	}
	say(h.lab.log, "%s booted degraded: %s", h.Name(), strings.TrimSpace(out.Stdout))
}

// consoleTail is the end of the console, for errors.
func (h *Host) consoleTail() string {
	b, err := os.ReadFile(h.console())
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return tail(string(b), 3000)
}

// end kills everything of the host at one instant and leaves it off.
func (h *Host) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the host's processes do not end"))
	defer cancel()
	if err := h.group().killAll(ctx); err != nil {
		return err
	}
	return h.settle(ctx)
}

// settle brings the record of a host without processes in line.
func (h *Host) settle(ctx context.Context) error {
	h.mu.Lock()
	ended, nspawn := h.ended, h.record.Nspawn
	h.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for nspawn.alive() {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	if err := h.group().remove(ctx); err != nil {
		return err
	}
	if err := h.lab.place.dropPort(ctx, h.Name()); err != nil {
		return err
	}
	return h.step(Off, func(r *Record) { r.Nspawn, r.Leader = process{}, process{} })
}

// PowerLoss ends every process of the host at one instant, with no chance to
// say goodbye. Its file system stays as the kernel last saw it (see the
// package comment for what that does not cover). The host is off on return.
func (h *Host) PowerLoss(ctx context.Context) error {
	if err := h.end(ctx); err != nil {
		return fmt.Errorf("power loss of %s: %w", h.Name(), err)
	}
	return nil
}

// BootAgain boots a host that is off, with the file system that it had, and
// returns as Boot does. Its cable is plugged in again. A host that rebooted or
// powered off by itself is off, and boots by this too.
func (h *Host) BootAgain(ctx context.Context) error {
	began := time.Now()
	if r := h.snapshot(); r.State == Up && !r.Nspawn.alive() {
		// It went off by itself.
		if err := h.settle(ctx); err != nil {
			return fmt.Errorf("boot %s again: %w", h.Name(), err)
		}
	}
	if err := h.start(ctx); err != nil {
		return fmt.Errorf("boot %s again: %w", h.Name(), err)
	}
	h.lab.took(fmt.Sprintf("boot %s again", h.Name()), time.Since(began))
	return nil
}

// Shutdown powers the host off in order, and waits until it is off. After
// thirty seconds (or when ctx ends) it kills what is left and returns an
// error.
func (h *Host) Shutdown(ctx context.Context) error {
	if err := h.leave(ctx, "poweroff"); err != nil {
		return fmt.Errorf("shut down %s: %w", h.Name(), err)
	}
	return nil
}

// Reboot restarts the host in order and returns when it is up again.
func (h *Host) Reboot(ctx context.Context) error {
	if err := h.leave(ctx, "reboot"); err != nil {
		return fmt.Errorf("reboot %s: %w", h.Name(), err)
	}
	return h.BootAgain(ctx)
}

// leave asks the host's systemd to end, and waits. nspawn ends on a reboot
// too, since it runs without a service manager around it.
func (h *Host) leave(ctx context.Context, verb string) error {
	nspawn := h.snapshot().Nspawn
	// The answer may be lost with the bus that carries it.
	_, asked := h.Run(ctx, "systemctl", verb)
	wait, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("not off after 30 s"))
	defer cancel()
	for nspawn.alive() {
		if err := pause(wait, 50*time.Millisecond); err != nil {
			return errors.Join(err, asked, h.end(context.WithoutCancel(ctx)))
		}
	}
	return h.settle(context.WithoutCancel(ctx))
}

// CutOff unplugs the host's cable. The host keeps its address and sees its
// link go down; nobody reaches it and it reaches nobody.
func (h *Host) CutOff(ctx context.Context) error {
	if err := h.lab.place.setPort(ctx, h.Name(), "down"); err != nil {
		return fmt.Errorf("cut off %s: %w", h.Name(), err)
	}
	return nil
}

// Reconnect plugs the host's cable in again and returns when the bridge
// forwards through it, which takes the kernel up to a second.
func (h *Host) Reconnect(ctx context.Context) error {
	if err := h.lab.place.setPort(ctx, h.Name(), "up"); err != nil {
		return fmt.Errorf("reconnect %s: %w", h.Name(), err)
	}
	wait, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("its port does not forward after 10 s"))
	defer cancel()
	for !h.lab.place.portForwards(wait, h.Name()) {
		if err := pause(wait, 20*time.Millisecond); err != nil {
			return fmt.Errorf("reconnect %s: %w", h.Name(), err)
		}
	}
	return nil
}

// WaitFor polls cond until it holds. cond returns whether it does and what it
// saw; an error of cond ends the wait. When ctx ends first (one minute, if it
// has no deadline), the error says what was waited for and what was last
// seen.
func (h *Host) WaitFor(ctx context.Context, what string, cond func(context.Context) (bool, string, error)) error {
	if err := WaitFor(ctx, what, cond); err != nil {
		return fmt.Errorf("%s: %w", h.Name(), err)
	}
	return nil
}

// WaitFor is Host.WaitFor for conditions that no single host has.
func WaitFor(ctx context.Context, what string, cond func(context.Context) (bool, string, error)) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	last := "nothing"
	for {
		ok, seen, err := cond(ctx)
		if ctx.Err() == nil || ok {
			if err != nil {
				return fmt.Errorf("wait for %s: %w", what, err)
			}
			if ok {
				return nil
			}
			last = seen
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s, last seen: %s: %w", what, last, err)
		}
	}
}

// openLocal opens a regular file of this machine for copying.
func openLocal(path string) (io.ReadCloser, fs.FileMode, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Mode().Perm(), nil
}
