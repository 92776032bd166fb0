// Package tool is what every package manager needs to look at a machine: it
// runs tools that only read, and sees who holds a lock.
//
// It changes nothing and takes no lock. Tools that change the machine go
// through a pkg.Runner, which outlives this process.
package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/meshctl/mesh/host/resource/pkg"
)

var _ pkg.Reader = Exec{}

// Exec is the pkg.Reader that runs children of this process.
type Exec struct {
	// Timeout bounds one run. Zero: five minutes.
	Timeout time.Duration
	// Waiting is called again and again while a tool runs. Nil: nothing.
	Waiting func()
}

const (
	readTimeout = 5 * time.Minute
	readLimit   = 64 << 20
)

// Read runs argv with env as its whole environment.
func (e Exec) Read(ctx context.Context, argv, env []string) (pkg.Reading, error) {
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
	err := e.run(cmd)
	r := pkg.Reading{Stdout: stdout.String(), Stderr: stderr.String()}
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

// turn is how often a wait for a tool proves that it goes on.
const turn = 2 * time.Second

// run runs the command and calls Waiting meanwhile, from this goroutine alone.
func (e Exec) run(cmd *exec.Cmd) error {
	if e.Waiting == nil {
		return cmd.Run()
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			e.Waiting()
		}
	}
}

// bounded keeps up to limit bytes and notes when there were more. The buffer is
// not embedded: its ReadFrom would go past the limit.
type bounded struct {
	kept  bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.limit - b.kept.Len()
	if len(p) > room {
		b.over = true
		b.kept.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.kept.Write(p)
}

func (b *bounded) String() string { return b.kept.String() }
