package pkgtest

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"time"

	"github.com/meshctl/mesh/host/resource/pkg"
)

// Runner is a pkg.Runner whose commands are ordinary children. It is for tests
// alone: a host that is restarted would take such a command with it.
type Runner struct {
	// Commands lists the arguments of what ran, in order.
	Commands [][]string
}

// Run runs the command.
func (r *Runner) Run(ctx context.Context, c pkg.Command) (pkg.Outcome, error) {
	r.Commands = append(r.Commands, slices.Clone(c.Argv))
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env = c.Env
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	const keep = 64 << 10
	if len(out) > keep {
		out = out[len(out)-keep:]
	}
	o := pkg.Outcome{Output: string(out)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		o.TimedOut, o.ExitStatus = true, -1
	case errors.As(err, &exit):
		o.ExitStatus = exit.ExitCode()
	case err != nil:
		return pkg.Outcome{}, err
	}
	return o, nil
}
