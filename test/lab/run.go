package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hostPath is the search path of commands on hosts.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// hostEnv is the whole environment of commands on hosts: that of a root
// shell without a terminal, and nothing of this process.
var hostEnv = []string{"PATH=" + hostPath, "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=dumb"}

// outputLimit bounds what is kept of a command's output, for each stream.
const outputLimit = 16 << 20

// An Output is what a command on a host said.
type Output struct {
	Stdout, Stderr string
	// Code is the exit status; -1 when the command did not exit by itself.
	Code int
}

// An ExitError is returned for a command that ran and did not exit with 0.
type ExitError struct {
	Host   string
	Argv   []string
	Output Output
}

func (e *ExitError) Error() string {
	said := strings.TrimSpace(e.Output.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Output.Stdout)
	}
	return fmt.Sprintf("on %s, %s: exit status %d: %s", e.Host, tail(strings.Join(e.Argv, " "), 300), e.Output.Code, tail(said, 2000))
}

// Run runs a command on the host as root, in all its namespaces and in a
// control group of its own below the host's. The Output is good also when
// the error is an *ExitError. When ctx ends, the command and everything that
// it started are killed.
func (h *Host) Run(ctx context.Context, argv ...string) (Output, error) {
	return h.RunInput(ctx, nil, argv...)
}

// Sh runs a script with sh -eu.
func (h *Host) Sh(ctx context.Context, script string) (Output, error) {
	return h.Run(ctx, "sh", "-euc", script)
}

// RunInput is Run with standard input; nil is /dev/null.
func (h *Host) RunInput(ctx context.Context, stdin io.Reader, argv ...string) (Output, error) {
	var stdout, stderr limitedBuffer
	code, err := h.Stream(ctx, stdin, &stdout, &stderr, argv...)
	out := Output{Stdout: stdout.String(), Stderr: stderr.String(), Code: code}
	if err == nil && code != 0 {
		err = &ExitError{Host: h.Name(), Argv: argv, Output: out}
	}
	return out, err
}

// Stream runs a command like Run and passes its output on as it comes. It
// returns the exit status; an error means that the command did not run or
// was ended from outside.
func (h *Host) Stream(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (int, error) {
	leader := h.snapshot().Leader
	if !leader.alive() {
		return -1, fmt.Errorf("run %s on %s: %w", argv[0], h.Name(), ErrOff)
	}
	h.mu.Lock()
	h.runs++
	n := h.runs
	h.mu.Unlock()
	// Another process may run commands on this host too.
	g := h.group() + group("/payload/mesh-lab-run/"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(n))
	if err := g.make(); err != nil {
		return -1, fmt.Errorf("run %s on %s: %w", argv[0], h.Name(), err)
	}
	// What a command leaves behind stays in its group, as a daemon should.
	defer func() { _ = syscall.Rmdir(string(g)) }()
	dir, err := os.Open(string(g))
	if err != nil {
		return -1, fmt.Errorf("run %s on %s: %w", argv[0], h.Name(), err)
	}
	defer dir.Close()

	cmd := enter(ctx, leader, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	cmd.Cancel = func() error {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return g.killAll(kill)
	}
	// A daemon that the command left may hold the output open.
	cmd.WaitDelay = 2 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil && err != nil:
		return -1, fmt.Errorf("run %s on %s: %w", argv[0], h.Name(), context.Cause(ctx))
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return 0, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	}
	return -1, fmt.Errorf("run %s on %s: %w", argv[0], h.Name(), err)
}

// enter is a command in all namespaces of a host.
func enter(ctx context.Context, leader process, argv ...string) *exec.Cmd {
	pid := strconv.Itoa(leader.PID)
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", pid, "--all", "--root", "--wd=/proc/" + pid + "/root", "--"}, argv...)...)
	cmd.Env = hostEnv
	return cmd
}

// inside runs a script with arguments in the host's file system: among its
// processes when it is up, in its root alone when it is off.
func (h *Host) inside(ctx context.Context, stdin io.Reader, stdout io.Writer, script string, args ...string) error {
	argv := append([]string{"sh", "-euc", script, "sh"}, args...)
	var stderr limitedBuffer
	var code int
	var err error
	if h.State() == Off {
		cmd := inRoot(ctx, h.Root(), argv...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
		err = cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			code, err = exit.ExitCode(), nil
		}
	} else {
		code, err = h.Stream(ctx, stdin, stdout, &stderr, argv...)
	}
	if err != nil {
		return err
	}
	switch code {
	case 0:
		return nil
	case codeAbsent:
		return fs.ErrNotExist
	}
	return fmt.Errorf("exit status %d: %s", code, tail(stderr.String(), 2000))
}

// codeAbsent is the exit status of a script for a file that is not there.
const codeAbsent = 44

// WriteFile writes a file on the host, durably and at once, making
// directories that are missing. It works on a host that is off, too.
func (h *Host) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return h.put(ctx, bytes.NewReader(data), path, mode)
}

// CopyIn copies a file of this machine to the host, with its permissions.
func (h *Host) CopyIn(ctx context.Context, local, remote string) error {
	f, mode, err := openLocal(local)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", h.Name(), err)
	}
	defer f.Close()
	return h.put(ctx, f, remote, mode)
}

func (h *Host) put(ctx context.Context, data io.Reader, path string, mode fs.FileMode) error {
	const script = `umask 022
mkdir -p "$(dirname "$1")"
new=$(mktemp "$1.lab-XXXXXX")
cat >"$new"
chmod "$2" "$new"
sync "$new"
mv -f "$new" "$1"
sync "$(dirname "$1")"`
	if err := h.inside(ctx, data, nil, script, path, fmt.Sprintf("%04o", mode.Perm())); err != nil {
		return fmt.Errorf("write %s on %s: %w", path, h.Name(), err)
	}
	return nil
}

// ReadFile reads a file on the host. The error of a file that is not there
// is fs.ErrNotExist. It works on a host that is off, too.
func (h *Host) ReadFile(ctx context.Context, path string) ([]byte, error) {
	var b bytes.Buffer
	const script = `[ -e "$1" ] || exit 44
cat "$1"`
	if err := h.inside(ctx, nil, &b, script, path); err != nil {
		return nil, fmt.Errorf("read %s on %s: %w", path, h.Name(), err)
	}
	return b.Bytes(), nil
}

// Journal returns what a unit wrote to the host's journal, over all boots;
// an empty unit means everything. It works on a host that is off, too.
func (h *Host) Journal(ctx context.Context, unit string) (string, error) {
	var b limitedBuffer
	const script = `if [ -n "$1" ]; then set -- --unit="$1"; else set --; fi
journalctl --no-pager --quiet --output=short-precise "$@"`
	if err := h.inside(ctx, nil, &b, script, unit); err != nil {
		return "", fmt.Errorf("read the journal of %s: %w", h.Name(), err)
	}
	return b.String(), nil
}

// Collect puts what explains a failure into dir/NAME: the journal, the
// console, the state of the mesh's units, its configuration and stores, and
// the logs of the package managers. It goes on when a part is not to be had;
// the error names every such part.
func (h *Host) Collect(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, h.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("collect from %s: %w", h.Name(), err)
	}
	var problems []error
	save := func(name, content string, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	journal, err := h.Journal(ctx, "")
	save("journal.txt", journal, err)
	console, err := os.ReadFile(h.console())
	save("console.txt", string(console), err)
	if h.State() != Off {
		out, err := h.Run(ctx, "sh", "-c", `systemctl --no-pager --full status 'mesh-*' 2>&1
echo; systemctl --no-pager --failed; echo; systemctl --no-pager list-jobs; echo; ps -ef f 2>&1
echo; ip address; echo; systemctl --no-pager show 'mesh-*'`)
		save("units.txt", out.Stdout, err)
	}
	if err := h.collectFiles(ctx, filepath.Join(dir, "files")); err != nil {
		problems = append(problems, fmt.Errorf("files: %w", err))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("collect from %s: %w", h.Name(), err)
	}
	return nil
}

// collectFiles copies what the mesh keeps on a host, and the logs.
func (h *Host) collectFiles(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const script = `set --
for p in etc/mesh etc/apt/sources.list.d etc/yum.repos.d run/mesh-host var/lib/mesh-host var/lib/mesh-control/control.db* var/log; do
	[ ! -e "/$p" ] || set -- "$@" "$p"
done
tar -C / -cf - --exclude='*.sock' --exclude=var/log/journal --warning=no-file-changed --ignore-failed-read "$@"`
	unpack := exec.CommandContext(ctx, "tar", "-C", dir, "--no-same-owner", "-xf", "-")
	in, err := unpack.StdinPipe()
	if err != nil {
		return err
	}
	var said limitedBuffer
	unpack.Stderr = &said
	if err := unpack.Start(); err != nil {
		return err
	}
	packed := h.inside(ctx, nil, in, script)
	in.Close()
	if err := unpack.Wait(); err != nil {
		return errors.Join(packed, fmt.Errorf("unpack: %w: %s", err, tail(said.String(), 500)))
	}
	return packed
}

// A limitedBuffer keeps the first outputLimit bytes and drops the rest.
type limitedBuffer struct{ b bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := outputLimit - b.b.Len(); room > 0 {
		b.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (b *limitedBuffer) String() string { return b.b.String() }
