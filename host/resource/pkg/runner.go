package pkg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ErrAdopted says that a command which an earlier life of this process had
// started was found at work and has ended now. The command asked for did not
// run; whoever gets this looks at the machine and decides anew.
var ErrAdopted = errors.New("an earlier command was found at work")

// Runner runs a tool that changes the machine, where it outlives this process.
type Runner interface {
	// Run waits until the command has ended. The error means that how it ended
	// could not be learned, so that it may have done anything or may still be at
	// it. Standard input is empty.
	Run(ctx context.Context, c Command) (Outcome, error)
}

// Command is one run of a tool.
type Command struct {
	// Name is a label that may be part of a unit's name: "install", "update".
	Name string
	// Argv is the program, with its full path, and its arguments.
	Argv []string
	// Env is the whole environment, as KEY=value.
	Env []string
	// Timeout after which the command is stopped. Zero: never.
	Timeout time.Duration
}

// Outcome is how a command ended.
type Outcome struct {
	ExitStatus int
	// TimedOut: it was stopped because of its Timeout. ExitStatus is then not 0.
	TimedOut bool
	// Adopted: this is the end of a command that was found at work, started with
	// other arguments or with ones that are no longer known.
	Adopted bool
	// Output is the last 64 KiB of what it wrote to both streams.
	Output string
}

// Reader runs a tool that only looks. It is an ordinary child.
type Reader interface {
	// Read returns what the tool wrote and its exit status. The error means that
	// it did not run or did not end by itself, or wrote more than fits.
	Read(ctx context.Context, argv, env []string) (Reading, error)
}

// Reading is what a tool that looked said.
type Reading struct {
	ExitStatus int
	Stdout     string
	Stderr     string
}

// Exec is the Reader that runs children of this process.
type Exec struct {
	// Timeout bounds one run. Zero: five minutes.
	Timeout time.Duration
}

const (
	readTimeout = 5 * time.Minute
	readLimit   = 64 << 20
)

// Read runs argv with env as its whole environment.
func (e Exec) Read(ctx context.Context, argv, env []string) (Reading, error) {
	limit := e.Timeout
	if limit == 0 {
		limit = readTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr bounded
	stdout.limit, stderr.limit = readLimit, readLimit
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	r := Reading{Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, fmt.Errorf("run %s: %w", argv[0], ctx.Err())
	case stdout.over || stderr.over:
		return r, fmt.Errorf("run %s: it wrote more than %d bytes", argv[0], readLimit)
	case errors.As(err, &exit) && exit.Exited():
		r.ExitStatus = exit.ExitCode()
		return r, nil
	case err != nil:
		return r, fmt.Errorf("run %s: %w", argv[0], err)
	}
	return r, nil
}

// bounded keeps up to limit bytes and notes when there were more.
type bounded struct {
	bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); len(p) > room {
		b.over = true
		b.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

// LastLines returns the last n lines of a tool's output, for a report.
func LastLines(output string, n int) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.ToValidUTF8(strings.Join(lines, "\n"), "?")
}
