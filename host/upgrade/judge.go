package upgrade

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/systemd"
)

const (
	checkUnit    = "mesh-host-check.service"
	checkTimeout = 90 * time.Second
	// judgeTimeout is for everything that is looked at. A service manager that
	// does not answer so long is one that cannot be asked.
	judgeTimeout = 4 * time.Minute
	program      = "/usr/bin/" + name
)

// soundUnit says what is wrong with the unit that the service manager has
// loaded for the host; nil: it will start the installed program, watch it, and
// call the rollback. This is asked before the old process ends, because a unit
// that is empty, unreadable or gone would simply never be started again.
func soundUnit(host, rollback systemd.UnitState) error {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(host.LoadState == systemd.LoadLoaded, "its load state is %q, not loaded", host.LoadState)
	if host.LoadState == systemd.LoadLoaded {
		check(!host.NeedDaemonReload, "its file is newer than what is loaded")
		check(host.Type == "notify", "its type is %q, not notify", host.Type)
		check(host.Watchdog > 0, "it has no watchdog")
		check(host.Restart == "always", "it is restarted %q, not always", host.Restart)
		check(host.StartLimitBurst > 0 && host.StartLimit > 0, "it has no start limit")
		check(slices.Contains(host.OnFailure, systemd.RollbackUnit), "a failure calls %q, not %s", strings.Join(host.OnFailure, " "), systemd.RollbackUnit)
		check(len(host.ExecStart) == 1 && len(host.ExecStart[0]) > 0 && host.ExecStart[0][0] == program, "it starts %q, not %s", host.ExecStart, program)
		check(host.UnitFileState == "enabled", "it is %q, not enabled", host.UnitFileState)
	}
	if rollback.LoadState != systemd.LoadLoaded {
		wrong = append(wrong, fmt.Sprintf("the load state of %s is %q, not loaded", systemd.RollbackUnit, rollback.LoadState))
	}
	if len(wrong) == 0 {
		return nil
	}
	return wanting(stepUnit, fmt.Sprintf("the new unit %s is not sound: %s", systemd.HostUnit, strings.Join(wrong, "; ")), "")
}

// judgeUnit reads the unit and says whether it is sound.
func (u *Upgrader) judgeUnit(ctx context.Context) error {
	if err := u.cfg.Units.DaemonReload(ctx); err != nil {
		return fmt.Errorf("have the new unit read: %w", err)
	}
	host, err := u.cfg.Units.Unit(ctx, systemd.HostUnit)
	if err != nil {
		return fmt.Errorf("look at the new unit: %w", err)
	}
	rollback, err := u.cfg.Units.Unit(ctx, systemd.RollbackUnit)
	if err != nil {
		return fmt.Errorf("look at the new unit: %w", err)
	}
	return soundUnit(host, rollback)
}

// judgeProgram runs the new program once, as its unit would, on a copy of the
// store, and says what is wrong with it.
func (u *Upgrader) judgeProgram(ctx context.Context) (err error) {
	dir := filepath.Join(u.dir(), "check")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear an earlier check: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make room for the check: %w", err)
	}
	defer func() {
		if removed := os.RemoveAll(dir); err == nil && removed != nil {
			err = fmt.Errorf("clear the check: %w", removed)
		}
	}()
	if err := u.store.CopyTo(ctx, filepath.Join(dir, "store.db")); err != nil {
		return fmt.Errorf("copy the store for the check: %w", err)
	}
	settings, err := u.cfg.Units.Settings(ctx, systemd.HostUnit)
	if err != nil {
		return err
	}
	if err := u.cfg.Units.Collect(ctx, checkUnit); err != nil {
		return fmt.Errorf("clear an earlier check: %w", err)
	}
	output := filepath.Join(u.dir(), "check.log")
	err = u.cfg.Units.StartTransient(ctx, systemd.TransientSpec{
		Unit: checkUnit, Description: "Check of the new version of mesh-host",
		Command: []string{program, "check", "--copy", dir, "--settings", u.cfg.Settings},
		Output:  output, Timeout: checkTimeout, Settings: settings,
	})
	if err != nil {
		return fmt.Errorf("start the check of the new program: %w", err)
	}
	result, err := u.cfg.Units.Wait(ctx, checkUnit)
	if err != nil {
		return fmt.Errorf("wait for the check of the new program: %w", err)
	}
	if err := u.cfg.Units.Collect(ctx, checkUnit); err != nil {
		return fmt.Errorf("clear the check: %w", err)
	}
	data, err := os.ReadFile(output)
	if err != nil {
		return fmt.Errorf("read what the check said: %w", err)
	}
	said := pkg.LastLines(string(data[max(0, len(data)-outputLimit):]), 20)
	if !result.OK() {
		return wanting(stepProgram, fmt.Sprintf("the new program, run once as \"%s check\", %s", program, result), said)
	}
	if !strings.Contains(said, checkPassed) {
		return wanting(stepProgram, "the new program, run once, ended well and did not say that it had looked", said)
	}
	return nil
}

// checkPassed is what a program prints at the end of a check that it made.
const checkPassed = "check: this version can run here"

// CheckPassed is the last line of "mesh-host check". The version before looks
// for it, so it must stay.
func CheckPassed() string { return checkPassed }
