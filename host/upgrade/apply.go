package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/internal/fault"
)

// The steps at which an upgrade can end badly, as a record names them.
const (
	stepInstall = "install"
	stepProgram = "check-of-the-program"
	stepUnit    = "check-of-the-unit"
	stepRefused = "refused"
	stepKit     = "kit"
)

// apply brings this host to the version that want names: everything from the
// check of the kit to the judgement of what was installed. When it returns nil
// the new version is sound, and this process ends after the pass. Install is
// the ordinary way of installing a package.
func (u *Upgrader) apply(ctx context.Context, want mesh.Resource, install func() error) error {
	version := want.Package.Version
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	if len(found.entries) > 1 {
		// What a killed rpm leaves. The kit is known to be good, the rest is not.
		if err := u.restore(ctx); err != nil {
			return resource.Failed(mesh.ReasonInterrupted, err, "an interrupted transaction left %s installed, and version %s could not be put back: %v", found, u.kit.confirmed(), err)
		}
	}
	switch {
	case version == u.cfg.Running:
		// Somebody installed another one and it was never started, or the
		// installation of this one was cut off: there is nothing to judge.
		return install()
	case u.Mode() == ModeUnpackaged:
		return resource.Failed(mesh.ReasonNoWayBack, nil, "the program that runs is not the one that the package database names, so it could not be put back and is not upgraded; install the package of this version first")
	case u.Mode() == ModeFirst, u.Mode() == ModeTrial:
		return resource.Deferred(mesh.ReasonNoWayBack, nil, "version %s of this host is not confirmed yet; it is upgraded when it is", u.cfg.Running)
	}
	named := naming(want)
	if err := u.kit.check(ctx); err != nil {
		return u.noWayBack(ctx, version, named, err)
	}
	file, digest, err := u.obtain(ctx, version, notInstalled)
	var passing *resource.Error
	if errors.As(err, &passing) {
		return passing
	}
	if err != nil {
		return resource.Failed(mesh.ReasonNotAvailable, err, "the package of version %s could not be fetched: %v", version, err)
	}
	now := u.now()
	if r := now.refuses(version, digest, named); r != nil {
		return u.refused(ctx, r, named)
	}
	d, err := u.store.Declaration(ctx)
	if err != nil {
		return err
	}
	in := &intent{From: u.cfg.Running, To: version, Digest: digest, Named: named, Began: u.cfg.Now()}
	if d != nil {
		in.Generation = d.Generation
	}
	fault.Point("upgrade.before-intent")
	if err := u.change(PhaseIntended, func(s *state) { s.Intent = in }); err != nil {
		return err
	}
	fault.Point("upgrade.after-intent")
	if err := u.guard.put(ctx); err != nil {
		return errors.Join(resource.Failed(mesh.ReasonNoWayBack, err, "the guard could not be put, so nothing was installed: %v", err), u.drop(ctx))
	}
	fault.Point("upgrade.after-guard")
	installErr := install()
	fault.Point("upgrade.after-install")
	return u.judge(ctx, file, installErr)
}

// unfit is what was found wanting in a new version. Any other error of a look
// at it means that the look could not be taken.
type unfit struct {
	step, why string
	// said is what the new program or the tool wrote. Empty: nothing.
	said string
}

func (e *unfit) Error() string { return e.why }

func wanting(step, why, said string) error { return &unfit{step: step, why: why, said: said} }

// judge looks at what an installation left, and hands over, puts the running
// version back, or says that it could not look; then the guard stands, and it is
// looked at again.
func (u *Upgrader) judge(ctx context.Context, file string, installErr error) error {
	in := u.now().Intent
	u.judgedAt = u.cfg.Now()
	there, err := u.installed(ctx)
	if err != nil {
		// The guard stands, and it is looked at again.
		return err
	}
	if there.exactly(in.From) && in.From != in.To {
		// Nothing was done, or it was undone by the tool.
		return errors.Join(installErr, u.drop(ctx))
	}
	u.turning(func() {
		bounded, cancel := context.WithTimeout(ctx, judgeTimeout)
		defer cancel()
		err = u.look(bounded, there, file, outputOf(installErr))
	})
	var bad *unfit
	switch {
	case errors.As(err, &bad):
		return u.putBack(ctx, bad.step, bad.why, bad.said)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return notJudged(in.To, err)
	}
	fault.Point("upgrade.after-check")
	if err := u.guard.put(ctx); err != nil {
		return notJudged(in.To, fmt.Errorf("the guard does not stand: %w", err))
	}
	if err := u.change(PhaseHandedOver, func(*state) {}); err != nil {
		return err
	}
	fault.Point("upgrade.after-hand-over")
	u.cfg.Log.InfoContext(ctx, "the new version is sound; this one ends when its pass is done", "from", in.From, "to", in.To)
	return nil
}

func notJudged(version string, cause error) error {
	return resource.Unknown(mesh.ReasonNotJudged, cause, "version %s is installed, and whether it can run here could not be looked at, so the version that runs goes on and looks again: %v", version, cause)
}

// keptFor returns the package file that was fetched for an intent; empty: none
// was, or it is not there any more.
func (u *Upgrader) keptFor(in *intent) string {
	keep := u.keptFile()
	if sum, err := fileSum(keep); err != nil || in.Digest == "" || sum != in.Digest {
		return ""
	}
	return keep
}

// keptFile is where the package that was fetched last is kept.
func (u *Upgrader) keptFile() string { return filepath.Join(u.dir(), "package."+string(u.cfg.Family)) }

// look says what is wrong with the version that was installed, as an *unfit.
// Nil: it is sound. File is the package that was fetched; empty: none was.
func (u *Upgrader) look(ctx context.Context, there presenceOf, file, output string) error {
	in := u.now().Intent
	if !there.exactly(in.To) {
		return wanting(stepInstall, fmt.Sprintf("after the installation the package database says %s", there), output)
	}
	changed, err := u.cfg.Family.changedFiles(ctx)
	if err != nil {
		return err
	}
	if changed != "" {
		return wanting(stepInstall, "after the installation these files are not those of the package: "+changed, output)
	}
	if file != "" {
		err := u.cfg.Family.sameAsInstalled(ctx, file, u.cfg.Root)
		var differs *differs
		if errors.As(err, &differs) {
			return wanting(stepInstall, "what was installed is not the package that was fetched: "+err.Error(), "")
		}
		if err != nil {
			return err
		}
	}
	if err := u.judgeUnit(ctx); err != nil {
		return err
	}
	return u.judgeProgram(ctx)
}

func outputOf(err error) string {
	var e *resource.Error
	if errors.As(err, &e) {
		return e.Output
	}
	return ""
}

// drop settles an intent of which nothing came.
func (u *Upgrader) drop(ctx context.Context) error {
	if err := u.change(PhaseSettled, func(*state) {}); err != nil {
		return err
	}
	return u.guard.remove(ctx)
}

// noWayBack refuses an upgrade that could not be undone, and reports that once.
func (u *Upgrader) noWayBack(ctx context.Context, version, named string, cause error) error {
	failed := resource.Failed(mesh.ReasonNoWayBack, cause, "version %s was not installed, because version %s could not be put back: %v", version, u.cfg.Running, cause)
	last := u.now().Last
	if last != nil && last.Ending == mesh.EndingNoWayBack && last.To == version && last.Why == cause.Error() {
		return failed
	}
	return errors.Join(failed, u.end(ctx, mesh.UpgradeRecord{Ending: mesh.EndingNoWayBack, From: u.cfg.Running, To: version, Step: stepKit, Why: cause.Error()}))
}

// refused refuses what was undone before, and reports that once for each time
// that it was undone.
func (u *Upgrader) refused(ctx context.Context, r *refusal, named string) error {
	why := fmt.Sprintf("it was undone here at %s (%s): %s", r.At.UTC().Format("2006-01-02 15:04:05Z"), r.Ending, r.Why)
	failed := resource.Failed(mesh.ReasonRefused, nil, "version %s is not tried again until a new revision of its declaration names it: %s", r.Version, why)
	last := u.now().Last
	if last != nil && last.Ending == mesh.EndingRefused && last.To == r.Version && last.Why == why {
		return failed
	}
	return errors.Join(failed, u.end(ctx, mesh.UpgradeRecord{Ending: mesh.EndingRefused, From: u.cfg.Running, To: r.Version, Step: stepRefused, Why: why}))
}

// obtain fetches the package file of a version, and returns it with its SHA-256.
func (u *Upgrader) obtain(ctx context.Context, version string, installed presence) (file, digest string, err error) {
	keep := u.keptFile()
	candidates := []string{keep}
	if u.cfg.Local != nil {
		if path, ok := u.cfg.Local(name, version); ok {
			candidates = append(candidates, path)
		}
	}
	if installed == isInstalled {
		// What is in the cache is compared with what is installed afterwards.
		candidates = append(candidates, u.previous())
		candidates = append(candidates, u.cfg.Family.cached()...)
	}
	good := func(path string) bool {
		have, err := u.cfg.Family.versionOf(ctx, path)
		if err != nil || have != version {
			return false
		}
		return installed == notInstalled || u.cfg.Family.sameAsInstalled(ctx, path, u.cfg.Root) == nil
	}
	for i, path := range candidates {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		// A file that was fetched for an earlier upgrade may be an old build.
		if i == 0 && installed == notInstalled {
			continue
		}
		if !good(path) {
			continue
		}
		// The package manager may clear its cache at any moment.
		if file, digest, err := u.keepFile(path, keep); err == nil {
			return file, digest, nil
		}
	}
	fetched, err := u.fetch(ctx, version, installed)
	if err != nil && installed == notInstalled {
		// It may have been published since the repositories were last asked.
		if refreshed := u.cfg.Refresh(ctx); refreshed != nil {
			return "", "", errors.Join(refreshed, err)
		}
		fetched, err = u.fetch(ctx, version, installed)
	}
	if err != nil {
		return "", "", err
	}
	if !good(fetched) {
		return "", "", fmt.Errorf("what the repository offers as version %s is something else", version)
	}
	return u.keepFile(fetched, keep)
}

func (u *Upgrader) fetch(ctx context.Context, version string, installed presence) (file string, err error) {
	dir := filepath.Join(u.dir(), "fetch")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("clear an earlier download: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make room for the download: %w", err)
	}
	u.turning(func() { err = u.cfg.Family.download(ctx, dir, version, installed) })
	if err != nil {
		return "", err
	}
	return u.cfg.Family.packageIn(dir)
}

func (u *Upgrader) keepFile(from, keep string) (file, digest string, err error) {
	if from != keep {
		if err := os.MkdirAll(u.dir(), 0o700); err != nil {
			return "", "", fmt.Errorf("keep the package: %w", err)
		}
		if err := copySynced(from, keep+".new"); err != nil {
			return "", "", fmt.Errorf("keep the package: %w", err)
		}
		if err := os.Rename(keep+".new", keep); err != nil {
			return "", "", fmt.Errorf("keep the package: %w", err)
		}
		if err := os.RemoveAll(filepath.Join(u.dir(), "fetch")); err != nil {
			return "", "", fmt.Errorf("clear the download: %w", err)
		}
	}
	digest, err = fileSum(keep)
	return keep, digest, err
}

// putBack installs the confirmed version from the kit, reads it back, and ends
// the upgrade. It returns the error that the resource gets.
func (u *Upgrader) putBack(ctx context.Context, step, why, output string) error {
	err := u.change(PhasePuttingBack, func(s *state) { s.Intent.Step, s.Intent.Why = step, why })
	if err != nil {
		return err
	}
	fault.Point("upgrade.putting-back")
	return u.goOnPuttingBack(ctx, output)
}

func (u *Upgrader) goOnPuttingBack(ctx context.Context, output string) error {
	in := u.now().Intent
	confirmed := u.kit.confirmed()
	if err := u.restore(ctx); err != nil {
		if resource.AsError(err).Status == mesh.StatusDeferred {
			return err
		}
		return resource.Failed(mesh.ReasonPutBack, err, "version %s cannot run here (%s), and version %s could not be put back yet; it is tried again: %v", in.To, in.Why, confirmed, err).WithOutput(output)
	}
	if err := u.judgeUnit(ctx); err != nil {
		return resource.Failed(mesh.ReasonPutBack, err, "version %s cannot run here (%s); version %s is installed again, and its unit is not sound; it is tried again: %v", in.To, in.Why, confirmed, err).WithOutput(output)
	}
	ending := mesh.EndingPutBack
	if in.Step == stepRefused {
		ending = mesh.EndingRefused
	}
	why := in.Why
	if output != "" {
		why += "; it said: " + pkg.LastLines(output, 5)
	}
	err := u.end(ctx,
		mesh.UpgradeRecord{Ending: ending, From: in.From, To: in.To, Step: in.Step, Why: why},
		refusal{Version: in.To, Digest: in.Digest, Named: u.namedFor(ctx, in), Ending: ending, Why: in.Why, At: u.cfg.Now()})
	if err != nil {
		return err
	}
	u.rememberProgram()
	failed := resource.Failed(mesh.ReasonPutBack, nil, "version %s cannot run here and version %s was put back (%s): %s", in.To, confirmed, in.Step, in.Why).WithOutput(output)
	return errors.Join(failed, u.tidy(ctx))
}

func (u *Upgrader) namedFor(ctx context.Context, in *intent) string {
	if in.Named != "" {
		return in.Named
	}
	return u.namedNow(ctx, in.To)
}

// restore installs the package of the kit and reads back that it is there.
func (u *Upgrader) restore(ctx context.Context) error {
	if err := u.kit.check(ctx); err != nil {
		return err
	}
	if err := u.cfg.Unlocked(ctx); err != nil {
		return err
	}
	version := u.kit.confirmed()
	out, err := u.cfg.Runner.Run(ctx, u.cfg.Family.restore(u.kit.packageFile()))
	if err != nil {
		return fmt.Errorf("run the package manager on the kit: %w", err)
	}
	if out.Adopted {
		return resource.Deferred(mesh.ReasonLocked, nil, "an earlier package transaction of this host was still ending; it is tried again")
	}
	found, err := u.installed(ctx)
	if err != nil {
		return err
	}
	if !found.exactly(version) {
		return fmt.Errorf("the package manager ended with status %d, and the package database says %s: %s", out.ExitStatus, found, pkg.LastLines(out.Output, 5))
	}
	if changed, err := u.cfg.Family.changedFiles(ctx); err != nil || changed != "" {
		return errors.Join(fmt.Errorf("these files are not those of version %s: %s", version, changed), err)
	}
	if err := u.cfg.Family.sameAsInstalled(ctx, u.kit.packageFile(), u.cfg.Root); err != nil {
		return err
	}
	return nil
}

// tidy removes the guard and the record of an attempt when no upgrade goes on
// and no script is at work.
func (u *Upgrader) tidy(ctx context.Context) error {
	if u.now().Phase != PhaseSettled {
		return nil
	}
	attempt := filepath.Join(u.records(), "attempt")
	_, err := os.Lstat(attempt)
	attempted := err == nil && u.passed && u.Mode() == ModeConfirmed
	if !attempted && !u.guard.stands() {
		return nil
	}
	busy, err := u.guard.busy(ctx)
	if err != nil || busy {
		return err
	}
	if u.guard.stands() {
		if err := u.guard.remove(ctx); err != nil {
			return err
		}
	}
	if !attempted {
		return nil
	}
	// Completed a reconcile once more, this version may be gone back to again.
	if err := os.Rename(attempt, filepath.Join(u.records(), "reported")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the record of the attempt: %w", err)
	}
	if err := syncDir(u.records()); err != nil {
		return err
	}
	return u.edit(func(s *state) { s.Reported = "" })
}
