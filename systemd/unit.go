package systemd

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// Values of [UnitState] that this product decides by. systemd has more.
const (
	LoadLoaded   = "loaded"
	LoadNotFound = "not-found"
	LoadMasked   = "masked"

	ActiveActive   = "active"
	ActiveInactive = "inactive"
	ActiveFailed   = "failed"

	SubExited = "exited"

	ResultSuccess = "success"
)

// UnitState is what the service manager says about one unit at one moment. A
// unit that does not exist has LoadState "not-found" and is not an error.
// Fields that do not apply to the unit's kind are zero.
type UnitState struct {
	Name             string
	LoadState        string // loaded, not-found, bad-setting, masked, error
	ActiveState      string // active, activating, deactivating, reloading, inactive, failed
	SubState         string // for a service: running, exited, dead, auto-restart, failed, ...
	UnitFileState    string // enabled, disabled, static, masked, transient; "" when there is no file
	FragmentPath     string // the unit file that is loaded; "" when there is none
	NeedDaemonReload bool   // the file on disk is newer than what is loaded
	InvocationID     string // hex; changes with every start; "" when never started
	Unmet            bool   // the last start was skipped because a condition of the unit was not met
	JobID            uint32 // the job that is queued or running for the unit; 0 is none
	OnFailure        []string
	StartLimitBurst  uint32
	StartLimit       time.Duration // the interval that StartLimitBurst counts in

	Result         string // success, exit-code, signal, core-dump, watchdog, timeout, protocol, start-limit-hit, ...
	NRestarts      uint32 // automatic restarts since the last manual start or reset-failed
	Type           string // notify, oneshot, simple, ...
	Restart        string // always, no, ...
	Watchdog       time.Duration
	MainPID        uint32 // 0 when no main process runs
	ExecMainCode   int32  // how the main process ended, see [ExitKind]; 0 is not ended
	ExecMainStatus int32  // exit status or signal number, by ExecMainCode
	Started        time.Time
	Ended          time.Time
	ExecStart      [][]string // argv of each ExecStart= line
}

// DidItsPart says whether the unit is a oneshot that ran to its end and is not
// meant to stay active; or one of which, as [UnitState.Forgotten] says, nothing
// is known but that it did not fail.
func (s UnitState) DidItsPart() bool {
	return s.Type == "oneshot" && s.ActiveState == ActiveInactive && s.Result == ResultSuccess && !s.Unmet
}

// Forgotten says whether a unit that does not run reads back as never started. The
// service manager forgets a unit that nothing refers to as soon as it ends, with
// whether its conditions were met. A job holds the unit meanwhile, where there
// is a bus to hold it through.
func (s UnitState) Forgotten() bool {
	return s.ActiveState == ActiveInactive && s.InvocationID == "" && s.Started.IsZero() && !s.Unmet
}

// Exists says whether the service manager has the unit loaded.
func (s UnitState) Exists() bool { return s.LoadState != "" && s.LoadState != LoadNotFound }

// Unit reads the state of one unit. It reconnects when the bus was lost; an
// error that wraps [ErrUnknown] says that no answer came before ctx ended.
func (c *Client) Unit(ctx context.Context, name string) (UnitState, error) {
	var props map[string]any
	err := c.read(ctx, func(ctx context.Context, l *link) (err error) {
		props, err = l.GetAllPropertiesContext(ctx, name)
		return err
	})
	if err != nil {
		return UnitState{}, fmt.Errorf("read unit %s: %w", name, err)
	}
	return unitState(name, props), nil
}

// ActiveServices lists the services that run, in the order of their names.
func (c *Client) ActiveServices(ctx context.Context) ([]string, error) {
	var names []string
	err := c.read(ctx, func(ctx context.Context, l *link) error {
		units, err := l.ListUnitsByPatternsContext(ctx, []string{ActiveActive}, []string{"*.service"})
		names = nil
		for _, u := range units {
			names = append(names, u.Name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// unitState maps D-Bus properties to a UnitState. Properties that are missing
// or have another type stay zero.
func unitState(name string, p map[string]any) UnitState {
	s := UnitState{
		Name:             name,
		LoadState:        get[string](p, "LoadState"),
		ActiveState:      get[string](p, "ActiveState"),
		SubState:         get[string](p, "SubState"),
		UnitFileState:    get[string](p, "UnitFileState"),
		FragmentPath:     get[string](p, "FragmentPath"),
		NeedDaemonReload: get[bool](p, "NeedDaemonReload"),
		OnFailure:        get[[]string](p, "OnFailure"),
		StartLimitBurst:  get[uint32](p, "StartLimitBurst"),
		StartLimit:       microseconds(get[uint64](p, "StartLimitIntervalUSec")),
		Result:           get[string](p, "Result"),
		NRestarts:        get[uint32](p, "NRestarts"),
		Type:             get[string](p, "Type"),
		Restart:          get[string](p, "Restart"),
		Watchdog:         microseconds(get[uint64](p, "WatchdogUSec")),
		MainPID:          get[uint32](p, "MainPID"),
		ExecMainCode:     get[int32](p, "ExecMainCode"),
		ExecMainStatus:   get[int32](p, "ExecMainStatus"),
		Started:          timestamp(get[uint64](p, "ExecMainStartTimestamp")),
		Ended:            timestamp(get[uint64](p, "ExecMainExitTimestamp")),
		ExecStart:        execLines(p["ExecStart"]),
	}
	s.Unmet = get[uint64](p, "ConditionTimestamp") != 0 && !get[bool](p, "ConditionResult")
	if id := get[[]byte](p, "InvocationID"); len(id) > 0 {
		s.InvocationID = hex.EncodeToString(id)
	}
	if job, ok := p["Job"].([]any); ok && len(job) > 0 {
		s.JobID, _ = job[0].(uint32)
	}
	return s
}

func get[T any](p map[string]any, key string) T {
	v, _ := p[key].(T)
	return v
}

// microseconds converts systemd's unit of time; its "infinity" becomes the
// longest duration that there is.
func microseconds(usec uint64) time.Duration {
	const longest = uint64(1<<63-1) / uint64(time.Microsecond)
	if usec > longest {
		return 1<<63 - 1
	}
	return time.Duration(usec) * time.Microsecond
}

func timestamp(usec uint64) time.Time {
	if usec == 0 || usec > 1<<62 {
		return time.Time{}
	}
	return time.UnixMicro(int64(usec)).UTC()
}

// execLines reads the argv arrays out of an ExecStart property, whose type on
// the bus is a(sasbttttuii).
func execLines(v any) [][]string {
	rows, _ := v.([][]any)
	var lines [][]string
	for _, row := range rows {
		if len(row) < 2 {
			continue
		}
		if argv, ok := row[1].([]string); ok {
			lines = append(lines, argv)
		}
	}
	return lines
}
