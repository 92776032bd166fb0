// Package transient lets the host act through the service manager: it runs the
// package manager in a transient service, outside the host's own control group,
// and reloads and restarts units.
//
// It does not know what the commands do, and it invents no result: how a
// command ended is what systemd says, or not known.
package transient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/systemd"
)

const (
	// unitName is fixed: at most one transaction runs, and a host that was
	// started anew finds the one that its earlier life left.
	unitName = "mesh-host-packages.service"
	// outputLimit is how much of a command's output is kept, in bytes, from its
	// end.
	outputLimit = 64 << 10
	// turn is how often a wait proves that it goes on.
	turn = 5 * time.Second
	// journalLines is how much of a unit's journal is shown.
	journalLines = "20"
	// unitTimeout bounds a reload or restart.
	unitTimeout = 3 * time.Minute
	// staysFor is how long a service is looked at after a reload or restart. What
	// does not like its configuration mostly ends within that.
	staysFor = 2 * time.Second
	// hostUnit is this host, which does not restart itself in the middle of a pass.
	hostUnit = "mesh-host.service"
	// watchTimeout bounds a look at the services.
	watchTimeout = 30 * time.Second
	// resultTimeout is the service manager's word for a command that took too
	// long.
	resultTimeout = "timeout"
)

var (
	_ pkg.Runner      = (*Runner)(nil)
	_ reconcile.Units = (*Units)(nil)
	_ pkg.Services    = (*Units)(nil)
)

// Runner runs commands in a transient service.
type Runner struct {
	client *systemd.Client
	dir    string
	beat   func()
	log    *slog.Logger
	look   looker
}

// NewRunner makes a Runner that keeps output files in dir and calls beat while
// it waits.
func NewRunner(client *systemd.Client, dir string, beat func(), log *slog.Logger) *Runner {
	return &Runner{client: client, dir: dir, beat: beat, log: log, look: newLooker()}
}

// Settle waits for a command that an earlier life of this host left running,
// and clears the name. What the command did is seen by looking at the machine.
func (r *Runner) Settle(ctx context.Context) error {
	_, err := r.settle(ctx)
	return err
}

// settle says whether there was a command to wait for or to clear away.
func (r *Runner) settle(ctx context.Context) (found bool, err error) {
	adoption, result, err := r.client.Adopt(ctx, unitName)
	if err != nil {
		return false, fmt.Errorf("look for an earlier package transaction: %w", err)
	}
	switch adoption {
	case systemd.AdoptAbsent:
		return false, nil
	case systemd.AdoptRunning:
		r.log.InfoContext(ctx, "a package transaction of an earlier life of this host still runs; waiting for it")
		if result, _, err = r.watch(ctx, 0); err != nil {
			return true, fmt.Errorf("wait for an earlier package transaction: %w", err)
		}
	}
	r.log.InfoContext(ctx, "a package transaction of an earlier life of this host has ended", "result", result.String())
	return true, r.collect(ctx)
}

// Run implements pkg.Runner.
func (r *Runner) Run(ctx context.Context, cmd pkg.Command) (pkg.Outcome, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return pkg.Outcome{}, fmt.Errorf("make the directory of outputs: %w", err)
	}
	found, err := r.settle(ctx)
	if err != nil {
		return pkg.Outcome{}, err
	}
	if found {
		return pkg.Outcome{Adopted: true}, nil
	}
	program, err := exec.LookPath(cmd.Argv[0])
	if err != nil {
		return pkg.Outcome{}, fmt.Errorf("find %s: %w", cmd.Argv[0], err)
	}
	file := filepath.Join(r.dir, "packages.log")
	spec := systemd.TransientSpec{
		Unit:        unitName,
		Description: "Package transaction of the mesh host: " + cmd.Name,
		Command:     append([]string{program}, cmd.Argv[1:]...),
		Environment: cmd.Env,
		Output:      file,
		Timeout:     cmd.Timeout,
	}
	if err := r.client.StartTransient(ctx, spec); err != nil {
		return pkg.Outcome{}, fmt.Errorf("start the package manager: %w", err)
	}
	result, doing, err := r.watch(ctx, cmd.Timeout)
	if err != nil {
		return pkg.Outcome{}, fmt.Errorf("wait for the package manager: %w", err)
	}
	output, err := tail(file)
	if err != nil {
		return pkg.Outcome{}, fmt.Errorf("read the package manager's output: %w", err)
	}
	out := pkg.Outcome{Output: output, ExitStatus: result.Status, TimedOut: result.Result == resultTimeout}
	if result.OK() {
		out.Left = r.keepLeft(ctx)
	}
	if err := r.collect(ctx); err != nil {
		return pkg.Outcome{}, err
	}
	if out.TimedOut {
		out.Doing = doing
	}
	if result.Kind != systemd.ExitExited || (result.Status == 0 && !result.OK()) {
		// Killed, timed out, or not run at all: no exit status says so.
		out.ExitStatus = -1
		out.Output = strings.TrimRight(output, "\n") + "\n" + result.String() + "\n"
	}
	return out, nil
}

// keepLeft finds what a script of a package started and left running without the
// service manager, and keeps it from ending with the transaction. It returns the
// command lines of what was kept.
func (r *Runner) keepLeft(ctx context.Context) []string {
	var pids []int
	var commands []string
	all, ok := within(ctx, r.look, lookLimit, processes)
	if !ok {
		r.log.WarnContext(ctx, "the processes could not be looked at, so what a package transaction left running ends with it")
	}
	for _, p := range all {
		if p.unit == unitName && p.command != "" {
			pids, commands = append(pids, p.pid), append(commands, p.command)
		}
	}
	if len(pids) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	scope := fmt.Sprintf("mesh-host-left-%d.scope", pids[0])
	if err := r.client.Keep(bounded, scope, "Left running by a package transaction of the mesh host", pids); err != nil {
		r.log.WarnContext(ctx, "what a package transaction left running ends with it", "commands", commands, "error", err)
		return nil
	}
	return commands
}

func (r *Runner) collect(ctx context.Context) error {
	if err := r.client.Collect(ctx, unitName); err != nil {
		return fmt.Errorf("clear the package transaction: %w", err)
	}
	return nil
}

// watch waits for the end of the command, and turns meanwhile. It looks what the
// command is at a moment before its limit, for whoever has to say why it took so
// long; a limit of zero is none.
func (r *Runner) watch(ctx context.Context, limit time.Duration) (result systemd.Result, doing string, err error) {
	type end struct {
		result systemd.Result
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		result, err := r.client.Wait(ctx, unitName)
		ended <- end{result, err}
	}()
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	last := time.NewTimer(max(limit-limit/10-time.Second, 0))
	defer last.Stop()
	for {
		r.beat()
		select {
		case e := <-ended:
			return e.result, doing, e.err
		case <-last.C:
			if limit > 0 {
				doing, _ = within(ctx, r.look, lookLimit, func() string { return youngest(unitName) })
			}
		case <-ticker.C:
		}
	}
}

func tail(file string) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if over := info.Size() - outputLimit; over > 0 {
		if _, err := f.Seek(over, io.SeekStart); err != nil {
			return "", err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, outputLimit))
	return string(data), err
}

// Units reloads and restarts units.
type Units struct {
	client *systemd.Client
	beat   func()
	look   looker
	// slow holds what was begun at a unit and had not ended when the wait for it
	// did, by unit: it is waited for again and not begun anew.
	slow map[string]string
}

// NewUnits makes a Units that calls beat around each job.
func NewUnits(client *systemd.Client, beat func()) *Units {
	return &Units{client: client, beat: beat, look: newLooker(), slow: make(map[string]string)}
}

// Act implements reconcile.Units.
func (u *Units) Act(ctx context.Context, unit, verb string) (string, error) {
	defer turning(u.beat)()
	bounded, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	before, err := u.before(bounded, unit)
	if err != nil {
		return "", err
	}
	begun := u.slow[unit] == verb && before.ActiveState == systemd.ActiveActive
	delete(u.slow, unit)
	note := ""
	if !begun {
		var act bool
		var refused *resource.Error
		if note, act, refused = judge(before, verb); refused != nil {
			return "", refused.WithOutput(journal(ctx, unit))
		}
		if !act {
			return note, nil
		}
	}
	after, err := u.act(bounded, before, verb, begun)
	if err != nil && bounded.Err() != nil {
		u.slow[unit] = verb
		return "", tooSlow(unit, err)
	}
	if err != nil {
		return "", resource.Failed(mesh.ReasonUnit, err, "%s of %s: %v", verb, unit, err).WithOutput(journal(ctx, unit))
	}
	if after.Forgotten() {
		note = unit + " has ended, and the service manager keeps nothing of it, so whether its conditions were met is not known"
	}
	return note, nil
}

func tooSlow(unit string, err error) *resource.Error {
	return resource.Failed(mesh.ReasonTimeout, err, "%s still starts or reloads after %s; the next pass waits for it again", unit, unitTimeout)
}

// before reads the unit as it is on the disk now, when nothing is under way.
func (u *Units) before(ctx context.Context, unit string) (systemd.UnitState, error) {
	s, err := u.client.Settled(ctx, unit)
	if err == nil && s.NeedDaemonReload {
		if err = u.client.DaemonReload(ctx); err == nil {
			s, err = u.client.Settled(ctx, unit)
		}
	}
	switch {
	case err != nil && s.JobID != 0:
		return s, tooSlow(unit, err)
	case err != nil:
		return s, resource.Unknown(mesh.ReasonUnit, err, "the state of %s could not be read: %v", unit, err)
	}
	return s, nil
}

// judge says whether there is something to do with a unit, and what an operator
// should know of it. A unit that does not run has nothing to reload, and is not
// started by that; a restart starts it.
func judge(s systemd.UnitState, verb string) (note string, act bool, err *resource.Error) {
	no := func(format string, args ...any) (string, bool, *resource.Error) {
		return "", false, resource.Failed(mesh.ReasonUnit, nil, format, args...)
	}
	reload := verb == "reload"
	switch {
	case s.Name == hostUnit:
		return no("%s is this host, which neither restarts nor reloads itself in the middle of its work", s.Name)
	case s.LoadState == systemd.LoadNotFound:
		return no("there is no unit %s on this machine", s.Name)
	case s.LoadState == systemd.LoadMasked && !reload:
		return no("%s is masked on this machine, so it cannot be started", s.Name)
	case s.LoadState != systemd.LoadLoaded && s.LoadState != systemd.LoadMasked:
		return no("the unit file of %s has an error (%s)", s.Name, s.LoadState)
	case reload && s.ActiveState == systemd.ActiveInactive:
		return fmt.Sprintf("%s does not run, so there was nothing to reload, and it was not started", s.Name), false, nil
	case reload && s.ActiveState == systemd.ActiveFailed:
		return no("%s is failed, so it could not be reloaded", s.Name)
	case !reload && s.ActiveState == systemd.ActiveInactive && s.Type != "oneshot":
		return fmt.Sprintf("%s did not run, and was started", s.Name), true, nil
	}
	return "", true, nil
}

// act does it, unless it was begun before, and looks what becomes of it. It
// returns the unit as it was seen last.
func (u *Units) act(ctx context.Context, before systemd.UnitState, verb string, begun bool) (after systemd.UnitState, err error) {
	after = before
	switch {
	case begun:
	case verb == "reload":
		after, err = u.client.Reload(ctx, before.Name)
	default:
		// What failed or was restarted often before is no reason against this start,
		// and this one is not to use up the limit of the starts after it.
		if err := u.client.ResetFailed(ctx, before.Name); err != nil {
			return before, err
		}
		after, err = u.client.Restart(ctx, before.Name)
	}
	if err != nil || after.DidItsPart() {
		return after, err
	}
	if after, err = u.client.Stays(ctx, after, verb, staysFor); err != nil {
		return after, err
	}
	if after.ActiveState != systemd.ActiveActive {
		return after, fmt.Errorf("it is %s (%s)", after.ActiveState, after.SubState)
	}
	return after, nil
}

// turning calls beat again and again until what it returns is called: for a
// call that is bounded in itself.
func turning(beat func()) (done func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(turn)
		defer ticker.Stop()
		for {
			beat()
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// Watch implements pkg.Services.
func (u *Units) Watch(ctx context.Context) (pkg.Watch, error) {
	bounded, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	active, err := u.client.ActiveServices(bounded)
	if err != nil {
		return pkg.Watch{}, fmt.Errorf("list the services that run: %w", err)
	}
	active = slices.DeleteFunc(active, func(name string) bool { return name == unitName })
	old, ok := within(ctx, u.look, lookLimit, outdated)
	if !ok {
		return pkg.Watch{}, errors.New("look at what the processes run: the kernel does not answer for one of them")
	}
	return pkg.Watch{Active: active, Outdated: old}, nil
}

// DaemonReload implements reconcile.Units.
func (u *Units) DaemonReload(ctx context.Context) error {
	defer turning(u.beat)()
	bounded, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	return u.client.DaemonReload(bounded)
}

// journal returns the last lines of a unit, or why they cannot be had. What the
// unit wrote a moment ago may still be on its way, so the journal is asked to
// write down what it has.
func journal(ctx context.Context, unit string) string {
	moment, enough := context.WithTimeout(ctx, 5*time.Second)
	defer enough()
	// Without it there may be lines less; what there is, is read all the same.
	_ = exec.CommandContext(moment, "journalctl", "--sync").Run()
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(bounded, "journalctl", "--no-pager", "--quiet", "--lines", journalLines, "--unit", unit).Output()
	if err != nil {
		return fmt.Sprintf("(the journal of %s could not be read: %v)", unit, err)
	}
	return string(out)
}
