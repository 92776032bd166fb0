package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/internal/fault"
	"github.com/meshctl/mesh/systemd"
)

// How long to wait before a kit that could not be made is tried again, and
// before a version that could not be judged is looked at again.
const (
	kitRetry   = time.Minute
	judgeRetry = 30 * time.Second
)

// PassEnded is called after a pass that ended, or when there is nothing to
// reconcile. It confirms a version that is on trial. host.ErrHandOver: this
// process ends now, and the service manager starts the version that is
// installed.
func (u *Upgrader) PassEnded(ctx context.Context) error {
	u.passed = true
	now := u.now()
	switch now.Phase {
	case PhaseHandedOver:
		if now.Intent.To != u.cfg.Running {
			fault.Point("upgrade.before-exit")
			return host.ErrHandOver
		}
	case PhasePuttingBack:
		return u.finishPuttingBack(ctx)
	case PhaseIntended:
		if now.Intent.To != u.cfg.Running {
			return u.lookAtIntent(ctx)
		}
	}
	switch u.Mode() {
	case ModeFirst, ModeTrial:
		return u.confirm(ctx)
	case ModeConfirmed:
		return errors.Join(u.mend(ctx), u.completeKit(ctx))
	}
	return nil
}

// mend installs the confirmed version once more where the package database does
// not name it alone and whole, once in each life of the host: what put it back
// may have been cut off when its files were there and the rest was not.
func (u *Upgrader) mend(ctx context.Context) error {
	if u.whole || u.now().Phase != PhaseSettled || u.kit.check(ctx) != nil {
		return nil
	}
	if u.cfg.Unlocked(ctx) != nil {
		return nil // somebody is at it; the next pass looks again
	}
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	if found.has(u.cfg.Running) && !found.exactly(u.cfg.Running) {
		u.cfg.Log.WarnContext(ctx, "the installation of this version was cut off; it is installed once more", "database", found.String())
		if err := u.restore(ctx); err != nil {
			return fmt.Errorf("install version %s once more: %w", u.cfg.Running, err)
		}
		u.rememberProgram()
	}
	u.whole = true
	return nil
}

// rememberProgram takes the installed program for the one that runs.
func (u *Upgrader) rememberProgram() {
	if info, err := os.Stat(filepath.Join(u.cfg.Root, program)); err == nil {
		u.program = info
	}
}

// lookAtIntent ends an intent that the pass did not take up again, because it
// is not declared any more or could not be gone on with.
func (u *Upgrader) lookAtIntent(ctx context.Context) error {
	u.judgedAt = u.cfg.Now()
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	switch {
	case found.exactly(u.cfg.Running):
		return u.drop(ctx)
	case found.exactly(u.now().Intent.To):
		return u.judgeOutsideOfAPass(ctx)
	}
	return nil
}

// judgeOutsideOfAPass judges a version that no pass goes on with. How it ended
// was reported, unless it did not end.
func (u *Upgrader) judgeOutsideOfAPass(ctx context.Context) error {
	err := u.judge(ctx, u.keptFor(u.now().Intent), nil)
	switch u.now().Phase {
	case PhaseHandedOver:
		return host.ErrHandOver
	case PhaseSettled:
		return nil
	}
	return err
}

// finishPuttingBack goes on where a putting back stopped. A version that was to
// be put back and runs all the same ends when the other one is there.
func (u *Upgrader) finishPuttingBack(ctx context.Context) error {
	in := u.now().Intent
	err := u.goOnPuttingBack(ctx, "")
	if u.now().Phase != PhaseSettled {
		return err
	}
	if in.To == u.cfg.Running && u.kit.confirmed() != u.cfg.Running {
		return host.ErrHandOver
	}
	return nil
}

// confirm says that the version that runs is the one to go back to from now on.
func (u *Upgrader) confirm(ctx context.Context) error {
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	if !found.exactly(u.cfg.Running) {
		if database := found.String(); database != u.unconfirmed {
			u.unconfirmed = database
			u.cfg.Log.WarnContext(ctx, "this version completed a reconcile and is not confirmed, because the package database does not name it alone", "running", u.cfg.Running, "database", database)
		}
		return nil
	}
	u.kitTried = u.cfg.Now()
	file, _, obtained := u.obtain(ctx, u.cfg.Running, isInstalled)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if obtained != nil {
		u.cfg.Log.WarnContext(ctx, "this version is confirmed, and its package could not be obtained; until it is, the host is not upgraded", "version", u.cfg.Running, "error", obtained)
		file = ""
	}
	if err := u.keepPrevious(); err != nil {
		u.cfg.Log.InfoContext(ctx, "the package of the version before was not kept", "error", err)
	}
	fault.Point("upgrade.before-confirm")
	if err := u.kit.make(u.cfg.Running, file, script()); err != nil {
		return fmt.Errorf("confirm version %s: %w", u.cfg.Running, err)
	}
	u.changes.Add(1)
	first := u.Mode() == ModeFirst
	u.mu.Lock()
	u.mode = ModeConfirmed
	u.mu.Unlock()
	u.cfg.Log.InfoContext(ctx, "this version is confirmed", "version", u.cfg.Running)
	if err := u.dropAttempt(ctx); err != nil {
		return err
	}
	// The starts of a change of versions are no failures, and must not add up to
	// the service manager's limit.
	if err := u.cfg.Units.ResetFailed(ctx, systemd.HostUnit); err != nil {
		u.cfg.Log.WarnContext(ctx, "the service manager still counts the starts of this upgrade", "error", err)
	}
	if first && u.now().Phase == PhaseSettled {
		u.store.Confirm()
		return nil
	}
	return u.reportUpgraded(ctx)
}

// keepPrevious keeps the package of the version that was confirmed until now:
// somebody may install that one again, and its file may be nowhere else.
func (u *Upgrader) keepPrevious() error {
	to := u.previous()
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := os.Link(u.kit.packageFile(), to)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (u *Upgrader) previous() string {
	return filepath.Join(u.dir(), "previous."+string(u.cfg.Family))
}

// dropAttempt makes room for the next attempt: the version that it went back
// from is not the one that runs.
func (u *Upgrader) dropAttempt(ctx context.Context) error {
	if busy, err := u.guard.busy(ctx); err != nil || busy {
		return err
	}
	attempt := filepath.Join(u.records(), "attempt")
	if err := os.Remove(attempt); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("clear the record of an attempt: %w", err)
	}
	return syncDir(u.records())
}

// reportUpgraded reports that the version that runs was confirmed.
func (u *Upgrader) reportUpgraded(ctx context.Context) error {
	now := u.now()
	record := mesh.UpgradeRecord{Ending: mesh.EndingElsewhere, To: u.cfg.Running}
	if in := now.Intent; in != nil {
		record.From = in.From
		if !in.Elsewhere {
			record.Ending = mesh.EndingUpgraded
		}
	}
	if err := u.end(ctx, record); err != nil {
		return err
	}
	u.store.Confirm()
	return u.tidy(ctx)
}

// elapsed reports whether so much time has gone by. The clock may be set back,
// so that the last time lies ahead.
func elapsed(now, last time.Time, long time.Duration) bool {
	since := now.Sub(last)
	return since < 0 || since >= long
}

// completeKit makes the kit of the confirmed version when it is missing or
// damaged.
func (u *Upgrader) completeKit(ctx context.Context) error {
	u.store.Confirm()
	if err := u.tidy(ctx); err != nil {
		return err
	}
	if u.now().Phase != PhaseSettled || !elapsed(u.cfg.Now(), u.kitTried, kitRetry) {
		return nil
	}
	u.kitTried = u.cfg.Now()
	if u.kit.check(ctx) == nil {
		return nil
	}
	found, err := u.installed(ctx)
	if err != nil || !found.exactly(u.cfg.Running) {
		return err
	}
	file, _, err := u.obtain(ctx, u.cfg.Running, isInstalled)
	if err != nil {
		u.cfg.Log.InfoContext(ctx, "the package of the version that runs could not be obtained; it is tried again", "error", err)
		return nil
	}
	u.changes.Add(1)
	return u.kit.make(u.cfg.Running, file, script())
}

// Turn is called while the host has nothing else to do. It sees that somebody
// else replaced the program that runs. Errors are as for PassEnded.
func (u *Upgrader) Turn(ctx context.Context) error {
	now := u.now()
	if u.passed {
		// What a pass could not end may be possible by now: a host that the
		// package's script starts is not installed whole yet.
		var err error
		switch u.Mode() {
		case ModeFirst, ModeTrial:
			if now.Phase != PhasePuttingBack {
				err = u.confirm(ctx)
			}
		case ModeConfirmed:
			err = u.completeKit(ctx)
		}
		if err != nil {
			return err
		}
		now = u.now()
	}
	if u.Mode() == ModeConfirmed && now.Phase == PhaseIntended && elapsed(u.cfg.Now(), u.judgedAt, judgeRetry) {
		return u.lookAtIntent(ctx)
	}
	if u.Mode() != ModeConfirmed || now.Phase != PhaseSettled {
		return nil
	}
	info, err := os.Stat(filepath.Join(u.cfg.Root, program))
	if err != nil || u.program == nil {
		// In the middle of an installation there may be no file for a moment.
		return nil
	}
	if os.SameFile(info, u.program) && info.Size() == u.program.Size() && info.ModTime().Equal(u.program.ModTime()) {
		return nil
	}
	return u.replaced(ctx, info)
}

// replaced deals with a program that somebody else put in the place of the one
// that runs: it is judged as one that was declared.
func (u *Upgrader) replaced(ctx context.Context, info os.FileInfo) error {
	if u.cfg.Unlocked(ctx) != nil {
		return nil // the next turn looks again
	}
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	if found.exactly(u.cfg.Running) {
		u.program = info
		u.cfg.Log.InfoContext(ctx, "the program of this host was written anew in the version that runs")
		return nil
	}
	if len(found.entries) != 1 || found.entries[0].State != "" {
		return nil // somebody is at it, or it was cut off; the next turn looks again
	}
	to := trimEpoch(found.entries[0].Version)
	u.cfg.Log.WarnContext(ctx, "somebody else installed another version of this host", "running", u.cfg.Running, "installed", to)
	if err := u.kit.check(ctx); err != nil {
		u.program = info
		return u.end(ctx, mesh.UpgradeRecord{Ending: mesh.EndingNoWayBack, From: u.cfg.Running, To: to, Step: stepKit,
			Why: "somebody else installed it, this version goes on until it is started anew, and it could not be put back: " + err.Error()})
	}
	before := u.now()
	err = u.change(PhaseIntended, func(s *state) {
		s.Intent = &intent{From: u.cfg.Running, To: to, Elsewhere: true, Began: u.cfg.Now()}
	})
	if err != nil {
		return err
	}
	if err := u.guard.put(ctx); err != nil {
		return errors.Join(fmt.Errorf("put the guard: %w", err), u.change(PhaseSettled, func(*state) {}))
	}
	// Nobody's write asks for it, so only what was undone here counts.
	if r := before.refuses(to, "", ""); r != nil && u.namedNow(ctx, to) == r.Named {
		err = u.putBack(ctx, stepRefused, "somebody else installed it again; it was undone here before: "+r.Why, "")
		if u.now().Phase == PhaseSettled {
			return nil // it ended, and that was reported
		}
		return err
	}
	return u.judgeOutsideOfAPass(ctx)
}
