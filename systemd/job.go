package systemd

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// JobError says that the service manager finished a job without doing what was
// asked, or that the unit was not in the asked state when it was read back.
type JobError struct {
	Unit   string
	Verb   string    // start, restart, stop, reload
	Result string    // the job's result: failed, timeout, canceled, dependency, skipped, or done when only the read-back disagrees
	State  UnitState // the unit as it was read after the job
}

func (e *JobError) Error() string {
	if e.State.Unmet {
		return fmt.Sprintf("%s %s: job %s; a condition of the unit is not met, so it was not started, and is %s", e.Verb, e.Unit, e.Result, e.State.ActiveState)
	}
	return fmt.Sprintf("%s %s: job %s; the unit is %s (%s), result %s, main process %s",
		e.Verb, e.Unit, e.Result, e.State.ActiveState, e.State.SubState, e.State.Result,
		Result{Kind: ExitKind(e.State.ExecMainCode), Status: int(e.State.ExecMainStatus)}.exit())
}

// Start starts a unit, waits for the job, and reads the unit back: it must be
// active. Errors: [*JobError], or one that wraps [ErrUnknown].
func (c *Client) Start(ctx context.Context, unit string) (UnitState, error) {
	return c.job(ctx, "start", unit)
}

// Restart restarts a unit, waits for the job, and reads the unit back: it must
// be active in a new invocation, or be a oneshot that ran to its end. Errors as
// for [Client.Start].
func (c *Client) Restart(ctx context.Context, unit string) (UnitState, error) {
	return c.job(ctx, "restart", unit)
}

// Stop stops a unit, waits for the job, and reads the unit back: it must not be
// running. Errors as for [Client.Start].
func (c *Client) Stop(ctx context.Context, unit string) (UnitState, error) {
	return c.job(ctx, "stop", unit)
}

// Reload asks a running service to load its configuration again and waits for
// the job. Whether the service took the new configuration is for the caller to
// look at; when the bus is lost meanwhile the answer is [ErrUnknown].
func (c *Client) Reload(ctx context.Context, unit string) (UnitState, error) {
	return c.job(ctx, "reload", unit)
}

// ResetFailed forgets a unit's failed state, its restart counter and its start
// limit. A unit that is not loaded is not an error.
func (c *Client) ResetFailed(ctx context.Context, unit string) error {
	err := c.read(ctx, func(ctx context.Context, l *link) error { return l.ResetFailedUnitContext(ctx, unit) })
	if err != nil && errorName(err) != errNoSuchUnit {
		return fmt.Errorf("reset failed state of %s: %w", unit, err)
	}
	return nil
}

// DaemonReload makes the service manager read all unit files again. It may be
// repeated, so a lost bus is tried again until ctx ends.
func (c *Client) DaemonReload(ctx context.Context) error {
	if err := c.read(ctx, func(ctx context.Context, l *link) error { return l.ReloadContext(ctx) }); err != nil {
		return fmt.Errorf("reload unit files: %w", err)
	}
	return nil
}

const (
	errNoSuchUnit = "org.freedesktop.systemd1.NoSuchUnit"
	errUnitExists = "org.freedesktop.systemd1.UnitExists"
)

// jobLost is the job result of a job whose end was not heard.
const jobLost = "lost"

func (c *Client) job(ctx context.Context, verb, unit string) (UnitState, error) {
	before, err := c.Unit(ctx, unit)
	if err != nil {
		return UnitState{}, err
	}
	l, err := c.connection(ctx)
	if err != nil {
		return before, fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	if verb == "start" || verb == "restart" {
		defer hold(ctx, unit)()
	}
	ended := make(chan string, 1)
	asking, enough := context.WithTimeout(ctx, answerLimit)
	defer enough()
	switch verb {
	case "start":
		_, err = l.StartUnitContext(asking, unit, "replace", ended)
	case "restart":
		_, err = l.RestartUnitContext(asking, unit, "replace", ended)
	case "stop":
		_, err = l.StopUnitContext(asking, unit, "replace", ended)
	case "reload":
		_, err = l.ReloadUnitContext(asking, unit, "replace", ended)
	}
	if verb == "stop" && errorName(err) == errNoSuchUnit {
		return before, nil // what is not loaded does not run
	}
	if err != nil && !lost(l, err) && ctx.Err() == nil {
		return before, fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	result := jobLost
	if err == nil {
		if result, err = c.awaitJob(ctx, l, unit, ended); err != nil {
			return before, fmt.Errorf("%s %s: %w: %w", verb, unit, ErrUnknown, err)
		}
	}
	after, err := c.Settled(ctx, unit)
	if err != nil {
		return after, fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	return after, judgeJob(verb, result, before, after)
}

// hold keeps the service manager from forgetting a unit, with what became of its
// start, until release is called. Without a system bus there is nothing to hold
// it through: see [UnitState.Forgotten].
func hold(ctx context.Context, unit string) (release func()) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return func() {}
	}
	manager := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	// Where it is refused, the unit reads back as forgotten.
	_ = manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.RefUnit", 0, unit).Err
	// The reference goes with the connection.
	return func() { _ = conn.Close() }
}

// awaitJob waits for the end of a job. When the end cannot be heard any more,
// because the connection was lost or the signal was, the answer is jobLost.
func (c *Client) awaitJob(ctx context.Context, l *link, unit string, ended <-chan string) (string, error) {
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	for quiet := 0; ; {
		select {
		case result := <-ended:
			return result, nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-look.C:
			if !l.Connected() {
				return jobLost, nil
			}
			s, err := c.Unit(ctx, unit)
			if err != nil {
				return "", err
			}
			if s.JobID != 0 {
				quiet = 0
			} else if quiet++; quiet > 2 {
				return jobLost, nil
			}
		}
	}
}

// Stays looks at a service that was started or reloaded until it has stayed as
// it was for a while. One that ends meanwhile, or is started anew, did not come
// back: the error is a [*JobError]. Units that have no process of their own have
// nothing that could end.
func (c *Client) Stays(ctx context.Context, was UnitState, verb string, while time.Duration) (UnitState, error) {
	if was.MainPID == 0 {
		return was, nil
	}
	const steps = 8
	for range steps {
		if err := pause(ctx, while/steps); err != nil {
			return was, fmt.Errorf("%w: %s was not looked at for long enough: %w", ErrUnknown, was.Name, err)
		}
		now, err := c.Unit(ctx, was.Name)
		if err != nil {
			return was, err
		}
		running := now.ActiveState == ActiveActive || now.ActiveState == "reloading"
		if !running || now.InvocationID != was.InvocationID {
			return now, &JobError{Unit: was.Name, Verb: verb, Result: "done, and it ended a moment later", State: now}
		}
	}
	return was, nil
}

// Settled reads the unit until no job is queued for it.
func (c *Client) Settled(ctx context.Context, unit string) (UnitState, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		s, err := c.Unit(ctx, unit)
		if err != nil || s.JobID == 0 {
			return s, err
		}
		if err := pause(ctx, wait); err != nil {
			return s, fmt.Errorf("%w: job %d for %s is still running: %w", ErrUnknown, s.JobID, unit, err)
		}
	}
}

// judgeJob compares what a job said with what the unit shows.
func judgeJob(verb, result string, before, after UnitState) error {
	failed := &JobError{Unit: after.Name, Verb: verb, Result: result, State: after}
	if result != "done" && result != jobLost {
		return failed
	}
	running := after.ActiveState == ActiveActive || after.ActiveState == "reloading"
	switch verb {
	case "start":
		// A oneshot without RemainAfterExit is inactive again when it is done.
		if running || result == "done" && after.DidItsPart() {
			return nil
		}
	case "restart":
		if running && after.InvocationID != before.InvocationID || result == "done" && after.DidItsPart() {
			return nil
		}
	case "stop":
		if !running && after.ActiveState != "activating" && after.ActiveState != "deactivating" {
			return nil
		}
	case "reload":
		if result == jobLost {
			return fmt.Errorf("reload %s: %w: the bus was lost before the job ended", after.Name, ErrUnknown)
		}
		if running {
			return nil
		}
	}
	if result == jobLost {
		return fmt.Errorf("%s %s: %w: the bus was lost before the job ended and the unit is %s (%s)",
			verb, after.Name, ErrUnknown, after.ActiveState, after.SubState)
	}
	return failed
}
