package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// TransientSpec is one command to run in a transient service: outside the
// caller's control group, with an environment of its own, and kept by the
// service manager until [Client.Collect], so that a caller which died finds the
// real exit status afterwards.
type TransientSpec struct {
	// Unit is the unit's name, ending in ".service". It is also the lock: a
	// second start under the same name is refused with [ErrExists].
	Unit string
	// Description is shown by systemctl; "" becomes the command.
	Description string
	// Command is the argv. The first element is an absolute path. Nothing in it
	// is expanded.
	Command []string
	// Environment holds "NAME=value" entries. Nothing is inherited from the
	// caller; the service manager adds its own PATH and the like.
	Environment []string
	// Output is the absolute path of the file that gets the standard output and
	// the standard error. The file is made anew with mode 0600; its directory
	// must exist. "" sends both to the journal.
	Output string
	// WorkingDirectory is absolute; "" is "/".
	WorkingDirectory string
	// Timeout ends the command, with SIGTERM to its whole group and later
	// SIGKILL. Zero means no limit.
	Timeout time.Duration
	// Settings of another service that the command runs under. Zero: those of
	// the service manager's defaults.
	Settings Settings
}

// Check says what is wrong with a spec, or nil.
func (s TransientSpec) Check() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if name, ok := strings.CutSuffix(s.Unit, ".service"); !ok || name == "" || len(s.Unit) > 255 || strings.ContainsAny(name, "/@ \t\n\x00") {
		bad("unit name %q: want a plain name that ends in .service", s.Unit)
	}
	if len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]) {
		bad("command %q: the program must be an absolute path", s.Command)
	}
	for _, text := range append(append([]string{s.Description, s.Output, s.WorkingDirectory}, s.Command...), s.Environment...) {
		if strings.ContainsRune(text, 0) {
			bad("%q holds a zero byte", text)
		}
	}
	for _, e := range s.Environment {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			bad("environment entry %q: want NAME=value", e)
		}
	}
	for what, path := range map[string]string{"output file": s.Output, "working directory": s.WorkingDirectory} {
		if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path) {
			bad("%s %q: want a clean absolute path", what, path)
		}
	}
	if s.Timeout < 0 {
		bad("timeout %s is negative", s.Timeout)
	}
	return errors.Join(problems...)
}

// properties maps the spec to the properties of the transient unit.
//
// The type is oneshot because there a command that was killed by SIGTERM is a
// failure; for every other type systemd calls it a success. RemainAfterExit
// keeps a unit that succeeded, and one that failed is kept anyhow.
func (s TransientSpec) properties() []sd.Property {
	description := s.Description
	if description == "" {
		description = strings.Join(s.Command, " ")
	}
	argv, environment := s.carried()
	type execLine struct {
		Path          string
		Argv          []string
		IgnoreFailure bool
	}
	directory := s.WorkingDirectory
	if directory == "" {
		directory = "/"
	}
	props := []sd.Property{
		property("Description", description),
		property("Type", "oneshot"),
		property("RemainAfterExit", true),
		property("ExecStart", []execLine{{Path: argv[0], Argv: argv}}),
		property("StandardInput", "null"),
		property("WorkingDirectory", directory),
	}
	if s.Output != "" {
		props = append(props, property("StandardOutputFile", s.Output), property("StandardError", "inherit"))
	}
	if len(environment) > 0 {
		props = append(props, property("Environment", environment))
	}
	if s.Timeout > 0 {
		props = append(props, property("TimeoutStartUSec", uint64(s.Timeout.Microseconds())))
	}
	return append(props, s.Settings.properties...)
}

// carried is the argv and the environment to send.
//
// The manager keeps a transient unit in a file and reads it back at every
// daemon-reload, also before the command was started. systemd 252 reads ";" and
// "$" in an argument back as something else, and 257 and 262 "$"; every other
// character, and everything in the environment, comes back as it was. So a
// command with one of the two travels in the environment, and a shell takes it
// from there. Were the variable missing, the status would be 127, never success.
func (s TransientSpec) carried() (argv, environment []string) {
	if !slices.ContainsFunc(s.Command, func(a string) bool { return strings.ContainsAny(a, ";$") }) {
		return s.Command, s.Environment
	}
	quoted := make([]string, len(s.Command))
	for i, a := range s.Command {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	environment = append(slices.Clone(s.Environment),
		`MESH_EVAL=unset MESH_EVAL; eval "$MESH_COMMAND"`,
		"MESH_COMMAND=unset MESH_COMMAND; exec "+strings.Join(quoted, " "))
	return []string{"/bin/sh", "-c", "eval `printenv MESH_EVAL || echo exit 127`"}, environment
}

func property(name string, value any) sd.Property {
	return sd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// ExitKind is how a process ended, in the numbers of waitid(2) that systemd
// reports.
type ExitKind int32

// The kinds of end. ExitNone means that the process has not ended or never ran.
const (
	ExitNone   ExitKind = 0
	ExitExited ExitKind = 1
	ExitKilled ExitKind = 2
	ExitDumped ExitKind = 3
)

// Result is how a transient service ended.
type Result struct {
	Result  string   // the service manager's word: success, exit-code, signal, timeout, ...
	Kind    ExitKind // how the main process ended (ExecMainCode)
	Status  int      // exit status, or the signal's number when it was killed (ExecMainStatus)
	Started time.Time
	Ended   time.Time
}

// OK says that the command ran to its end and exited with status 0.
func (r Result) OK() bool {
	return r.Result == ResultSuccess && r.Kind == ExitExited && r.Status == 0
}

// String says in words how the command ended.
func (r Result) String() string {
	if r.OK() {
		return "exited with status 0"
	}
	return fmt.Sprintf("%s (%s)", r.exit(), r.Result)
}

func (r Result) exit() string {
	switch r.Kind {
	case ExitExited:
		switch r.Status {
		case 203:
			return "could not be executed (status 203)"
		case 200, 226, 217, 209:
			return fmt.Sprintf("could not be set up by the service manager (status %d)", r.Status)
		}
		return fmt.Sprintf("exited with status %d", r.Status)
	case ExitKilled:
		return fmt.Sprintf("was killed by signal %d", r.Status)
	case ExitDumped:
		return fmt.Sprintf("was killed by signal %d and dumped core", r.Status)
	}
	return "did not run"
}

// StartTransient starts the command and returns when the service manager has
// taken it; it does not wait for the end. Errors: [ErrExists] when the name is
// taken, [ErrUnreachable] when nothing was sent, [ErrUnknown] when the bus was
// lost and it could not be found out whether the command was started, anything
// else when it was refused.
func (c *Client) StartTransient(ctx context.Context, spec TransientSpec) error {
	if err := spec.Check(); err != nil {
		return fmt.Errorf("transient unit: %w", err)
	}
	l, err := c.connection(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", spec.Unit, err)
	}
	// The output of an earlier run under this name must not be destroyed by a
	// start that is going to be refused.
	state, err := c.Unit(ctx, spec.Unit)
	if err != nil {
		return err
	}
	if state.Exists() {
		return fmt.Errorf("start %s: %w: it is %s (%s)", spec.Unit, ErrExists, state.ActiveState, state.SubState)
	}
	if spec.Output != "" {
		if err := freshFile(spec.Output); err != nil {
			return fmt.Errorf("make output file: %w", err)
		}
	}
	asking, enough := context.WithTimeout(ctx, answerLimit)
	defer enough()
	_, err = l.StartTransientUnitContext(asking, spec.Unit, "fail", spec.properties(), nil)
	switch {
	case err == nil:
		return nil
	case errorName(err) == errUnitExists:
		return fmt.Errorf("start %s: %w", spec.Unit, ErrExists)
	case !lost(l, err) && ctx.Err() == nil:
		return fmt.Errorf("start %s: %w", spec.Unit, err)
	}
	if state, readErr := c.Unit(ctx, spec.Unit); readErr == nil && state.Exists() {
		return nil // it did arrive
	}
	return fmt.Errorf("start %s: %w: the bus was lost: %w", spec.Unit, ErrUnknown, err)
}

// freshFile makes an empty file that belongs to the caller alone.
func freshFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Adoption is what became of a transient unit.
type Adoption string

// The states of a transient unit.
const (
	// AdoptAbsent: no unit of that name; it was never started, was collected, or
	// the machine was booted since. What the command did is not known.
	AdoptAbsent Adoption = "absent"
	// AdoptRunning: the command has not ended; use [Client.Wait].
	AdoptRunning Adoption = "running"
	// AdoptFinished: the command has ended; its Result is real.
	AdoptFinished Adoption = "finished"
)

// Adopt looks once at a transient unit that this process or an earlier one
// started. The result is set only for [AdoptFinished].
func (c *Client) Adopt(ctx context.Context, unit string) (Adoption, Result, error) {
	s, err := c.Unit(ctx, unit)
	if err != nil {
		return "", Result{}, err
	}
	a, r := adoption(s)
	return a, r, nil
}

// adoption reads the fate of a oneshot with RemainAfterExit out of its state.
func adoption(s UnitState) (Adoption, Result) {
	switch {
	case !s.Exists():
		return AdoptAbsent, Result{}
	case s.JobID != 0:
		return AdoptRunning, Result{}
	case s.ActiveState == ActiveFailed, s.ActiveState == ActiveActive && s.SubState == SubExited:
		return AdoptFinished, Result{
			Result: s.Result, Kind: ExitKind(s.ExecMainCode), Status: int(s.ExecMainStatus),
			Started: s.Started, Ended: s.Ended,
		}
	case s.ActiveState == ActiveInactive:
		// Loaded, at rest and without a job: somebody stopped it after its end,
		// and its result no longer says what the command did.
		return AdoptAbsent, Result{}
	}
	return AdoptRunning, Result{}
}

// Wait waits for the end of a transient unit and returns its result. It survives
// a lost bus and a re-executed service manager by reading the unit again. When
// the unit is gone, nobody answers for long, or ctx ends first, the error wraps
// [ErrUnknown]: the command may still run, and Wait may be called again.
func (c *Client) Wait(ctx context.Context, unit string) (Result, error) {
	for wait := 20 * time.Millisecond; ; wait = min(wait*3/2, 500*time.Millisecond) {
		a, r, err := c.Adopt(ctx, unit)
		if err != nil {
			return Result{}, err
		}
		switch a {
		case AdoptFinished:
			return r, nil
		case AdoptAbsent:
			return Result{}, fmt.Errorf("wait for %s: %w: the unit is gone", unit, ErrUnknown)
		}
		if err := pause(ctx, wait); err != nil {
			return Result{}, fmt.Errorf("wait for %s: %w: it still runs: %w", unit, ErrUnknown, err)
		}
	}
}

// Collect ends a transient unit if it still runs and makes the service manager
// forget it, so that its name is free again. It reads back that the unit is
// gone. A unit that does not exist is not an error.
func (c *Client) Collect(ctx context.Context, unit string) error {
	s, err := c.Unit(ctx, unit)
	if err != nil {
		return err
	}
	if s.Exists() && s.ActiveState != ActiveFailed {
		if _, err := c.Stop(ctx, unit); err != nil {
			return fmt.Errorf("collect: %w", err)
		}
	}
	if err := c.ResetFailed(ctx, unit); err != nil {
		return fmt.Errorf("collect: %w", err)
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		s, err := c.Unit(ctx, unit)
		if err != nil || !s.Exists() {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("collect %s: %w: it is still %s (%s): %w", unit, ErrUnknown, s.ActiveState, s.SubState, err)
		}
	}
}
