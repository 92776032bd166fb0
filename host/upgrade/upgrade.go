// Package upgrade takes the host from one version of itself to the next, and
// sees to it that a version which does not live on this machine is undone.
//
// It keeps the kit from which a rollback installs the confirmed version, writes
// the intent of an upgrade, puts the guard, judges a new version before the old
// one ends, confirms a version that completed a reconcile, and reports how each
// upgrade ended. It installs nothing by itself but the kit: the declared version
// is installed by the kind of resource for packages. It is not the rollback: that
// is a script which needs nothing of this.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/internal/fault"
	"github.com/meshctl/mesh/rollback"
	"github.com/meshctl/mesh/systemd"
)

// self is the resource that is this host.
const self = mesh.ResourceID("package:" + name)

// ServiceManager is what is needed of systemd. *systemd.Client is one.
type ServiceManager interface {
	Unit(ctx context.Context, unit string) (systemd.UnitState, error)
	Start(ctx context.Context, unit string) (systemd.UnitState, error)
	Stop(ctx context.Context, unit string) (systemd.UnitState, error)
	ResetFailed(ctx context.Context, unit string) error
	DaemonReload(ctx context.Context) error
	Settings(ctx context.Context, unit string) (systemd.Settings, error)
	StartTransient(ctx context.Context, spec systemd.TransientSpec) error
	Wait(ctx context.Context, unit string) (systemd.Result, error)
	Collect(ctx context.Context, unit string) error
}

// Store is the store of the version that runs.
type Store interface {
	Declaration(ctx context.Context) (*mesh.Declaration, error)
	// AddEventOnce does nothing when the last event that was added so had the same
	// key.
	AddEventOnce(ctx context.Context, key string, e mesh.Event) error
	CopyTo(ctx context.Context, file string) error
	// Confirm lets messages leave the store.
	Confirm()
}

// Config is what New needs. Every field is needed unless it says otherwise.
type Config struct {
	// State is the state directory of the host.
	State string
	// Units is the directory for units of the admin, /etc/systemd/system.
	UnitDir string
	// Root stands before the paths of installed files. Empty: the machine's own.
	Root string
	// Settings is the file with the settings of this host.
	Settings string
	// Running is the version of this program, as a package database writes it.
	Running string
	// Family of packages on this machine. Empty: it has no package manager, and
	// the host cannot be upgraded by declaration.
	Family Family
	// Installed reads the package database.
	Installed func(ctx context.Context) ([]pkg.Installed, error)
	// Local returns a package file that was brought along.
	Local func(name, version string) (string, bool)
	// Refresh asks the repositories what they offer. A *resource.Error says why
	// it could not.
	Refresh func(ctx context.Context) error
	// Runner runs what changes the machine. It outlives this process.
	Runner pkg.Runner
	// Unlocked waits until the package manager is free. The error is Deferred.
	Unlocked func(ctx context.Context) error
	Units    ServiceManager
	// Beat is called again and again while something is waited for.
	Beat func()
	Now  func() time.Time
	Log  *slog.Logger
}

// Mode says as what this process runs.
type Mode string

// The modes.
const (
	// ModeConfirmed: this version is the confirmed one.
	ModeConfirmed Mode = "confirmed"
	// ModeFirst: no version was ever confirmed here.
	ModeFirst Mode = "first"
	// ModeTrial: another version is confirmed; this one works on a copy of the
	// store.
	ModeTrial Mode = "trial"
	// ModeUnpackaged: this program is not the one that the package database
	// names, so it can neither be confirmed nor put back.
	ModeUnpackaged Mode = "unpackaged"
)

// Upgrader is the host's own upgrade. Its methods but Facts are called from one
// goroutine at a time.
type Upgrader struct {
	cfg   Config
	kit   kit
	guard guard
	store Store

	mu    sync.Mutex
	state state // guarded by mu
	mode  Mode  // guarded by mu
	// changes counts what may have changed the facts.
	changes atomic.Uint64

	// program is the file of the installed program as it was last looked at.
	program os.FileInfo
	// kitTried is when making the kit was last tried. Zero: never.
	kitTried time.Time
	// judgedAt is when what was installed was last looked at. Zero: never.
	judgedAt time.Time
	// passed: a pass ended in this process.
	passed bool
	// whole: the package database was seen to name this version alone and whole,
	// or to name another one.
	whole bool
	// unconfirmed is what the database said when this version was not confirmed
	// for that. Empty: that was not the case.
	unconfirmed string
}

// New makes an Upgrader. Call Begin before anything else.
func New(cfg Config) *Upgrader {
	return &Upgrader{
		cfg: cfg, kit: kit{dir: filepath.Join(cfg.State, "kit"), family: cfg.Family},
		guard: guard{dir: cfg.UnitDir, units: cfg.Units},
		state: state{Phase: PhaseSettled}, mode: ModeUnpackaged,
	}
}

func (u *Upgrader) dir() string       { return filepath.Join(u.cfg.State, "upgrade") }
func (u *Upgrader) stateFile() string { return filepath.Join(u.dir(), "state.json") }

// records is where the rollback script writes.
func (u *Upgrader) records() string { return filepath.Join(u.cfg.State, "rollback") }

func (u *Upgrader) now() state {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

// change moves the upgrade to another phase, durable when it returns nil.
func (u *Upgrader) change(to Phase, edit func(*state)) error {
	next := u.now()
	phase, err := next.Phase.Step(to)
	if err != nil {
		return err
	}
	next.Phase = phase
	if next.Intent != nil {
		copied := *next.Intent
		next.Intent = &copied
	}
	edit(&next)
	if to == PhaseSettled {
		next.Intent = nil
	}
	return u.keep(next)
}

// edit changes what is on record without moving the upgrade.
func (u *Upgrader) edit(edit func(*state)) error {
	next := u.now()
	edit(&next)
	return u.keep(next)
}

func (u *Upgrader) keep(next state) error {
	if err := next.save(u.stateFile()); err != nil {
		return err
	}
	u.mu.Lock()
	u.state = next
	u.mu.Unlock()
	u.changes.Add(1)
	return nil
}

// Changes implements host.Upgrader.
func (u *Upgrader) Changes() uint64 { return u.changes.Load() }

// Mode says as what this process runs.
func (u *Upgrader) Mode() Mode {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mode
}

// Confirmed is the version to go back to; empty: there is none.
func (u *Upgrader) Confirmed() string { return u.kit.confirmed() }

// Begin finds out as what this process runs, before it opens a store. A version
// that is not the confirmed one arms itself: from here on it is undone when it
// does not live.
func (u *Upgrader) Begin(ctx context.Context) (Mode, error) {
	if err := u.restoreKit(); err != nil {
		return "", fmt.Errorf("put back the kit that was being replaced: %w", err)
	}
	loaded, err := load(u.stateFile())
	if err != nil {
		u.cfg.Log.WarnContext(ctx, "the record of upgrades was not usable; a new one is begun", "error", err)
	}
	mode := u.decideMode(ctx)
	u.mu.Lock()
	u.state, u.mode = loaded, mode
	u.mu.Unlock()
	u.rememberProgram()
	if mode == ModeTrial {
		u.arm(ctx)
	}
	return mode, nil
}

// restoreKit undoes an exchange of kits that was cut off half way.
func (u *Upgrader) restoreKit() error {
	if _, err := os.Lstat(u.kit.dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(u.kit.dir+".old", u.kit.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (u *Upgrader) decideMode(ctx context.Context) Mode {
	if u.cfg.Family == "" {
		return ModeUnpackaged
	}
	confirmed := u.kit.confirmed()
	if confirmed == u.cfg.Running {
		return ModeConfirmed
	}
	found, err := u.installed(ctx)
	if err != nil {
		u.cfg.Log.WarnContext(ctx, "the package database does not say which version of this host is installed", "error", err)
	}
	switch {
	case err == nil && !found.has(u.cfg.Running):
		return ModeUnpackaged
	case confirmed == "":
		return ModeFirst
	}
	return ModeTrial
}

// arm has this version undone when it does not live. A failure of that is no
// reason not to run: OnFailure= is there too.
func (u *Upgrader) arm(ctx context.Context) {
	now := u.now()
	if now.Phase != PhasePuttingBack {
		err := u.change(PhaseTrying, func(s *state) {
			if s.Intent == nil || s.Intent.To != u.cfg.Running {
				s.Intent = &intent{From: u.kit.confirmed(), To: u.cfg.Running, Elsewhere: true, Began: u.cfg.Now()}
			}
		})
		if err != nil {
			u.cfg.Log.ErrorContext(ctx, "it could not be written that this version is on trial", "error", err)
		}
	}
	if err := u.kit.check(ctx); err != nil {
		u.cfg.Log.ErrorContext(ctx, "this version is not confirmed and could not be undone", "error", err)
		return
	}
	if err := u.guard.put(ctx); err != nil {
		u.cfg.Log.ErrorContext(ctx, "the guard could not be put; only the service manager judges this version", "error", err)
	}
}

// Open gives the store to the Upgrader, and reports what happened while another
// version ran.
func (u *Upgrader) Open(ctx context.Context, store Store) error {
	u.store = store
	if u.Mode() != ModeConfirmed {
		return nil
	}
	return u.settleAsConfirmed(ctx)
}

// settleAsConfirmed ends what an upgrade away from this version left, when this
// version is found to run.
func (u *Upgrader) settleAsConfirmed(ctx context.Context) error {
	for untold := u.now().Untold; len(untold) > 0; untold = untold[1:] {
		if err := u.event(ctx, untold[0]); err != nil {
			return err
		}
		if err := u.edit(func(s *state) { s.Untold = untold[1:]; s.Ended++ }); err != nil {
			return err
		}
	}
	if err := u.reportScript(ctx); err != nil {
		return err
	}
	now := u.now()
	switch now.Phase {
	case PhaseTrying, PhaseHandedOver:
		if now.Intent.To == u.cfg.Running {
			// Confirmed, and the power went before that was reported.
			return u.reportUpgraded(ctx)
		}
		why := "somebody installed version " + u.cfg.Running + " again"
		return u.end(ctx, mesh.UpgradeRecord{Ending: mesh.EndingElsewhere, From: now.Intent.To, To: u.cfg.Running, Why: why})
	}
	return nil
}

// reportScript reports what the rollback script did.
func (u *Upgrader) reportScript(ctx context.Context) error {
	path := filepath.Join(u.records(), "attempt")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the rollback did: %w", err)
	}
	record := parseRecord(string(data))
	// Only what the attempt was about identifies it: its outcome is written while
	// this version starts.
	digest := record["from"] + " " + record["to"] + " " + record["caller"] + " " + record["from-binary"]
	now := u.now()
	if record["to"] != u.cfg.Running || record["from"] == "" || (now.Phase == PhaseSettled && now.Reported == digest) {
		return nil
	}
	ending := mesh.EndingByServiceManager
	if record["caller"] == "guard" {
		ending = mesh.EndingByGuard
	}
	why := fmt.Sprintf("version %s did not live: %s", record["from"], record["why"])
	if journal, err := os.ReadFile(filepath.Join(u.records(), "journal")); err == nil {
		if last := strings.TrimSpace(string(journal)); last != "" {
			why += "; its last lines:\n" + last[max(0, len(last)-journalKept):]
		}
	}
	refused := refusal{Version: record["from"], Ending: ending, Why: record["why"], At: u.cfg.Now()}
	if now.Intent != nil && now.Intent.To == record["from"] {
		refused.Digest, refused.Named = now.Intent.Digest, now.Intent.Named
	}
	if refused.Named == "" {
		refused.Named = u.namedNow(ctx, record["from"])
	}
	last := mesh.UpgradeRecord{Ending: ending, From: record["to"], To: record["from"], Step: record["step"], Why: why, At: u.cfg.Now()}
	if err := u.event(ctx, last); err != nil {
		return err
	}
	settle := func(s *state) {
		s.Ended++
		s.Reported, s.Last = digest, &last
		s.Refused = append(s.Refused, refused)
	}
	if now.Phase == PhaseSettled {
		return u.edit(settle)
	}
	return u.change(PhaseSettled, settle)
}

// namedNow returns the write that names a version of this host at the moment.
func (u *Upgrader) namedNow(ctx context.Context, version string) string {
	d, err := u.store.Declaration(ctx)
	if err != nil || d == nil {
		return ""
	}
	for _, r := range d.Resources {
		if r.ID() == self && r.Package != nil && r.Package.Version == version {
			return naming(r)
		}
	}
	return ""
}

// journalKept is how much of the last lines of a version is reported, in bytes.
const journalKept = 2000

// parseRecord reads the KEY=VALUE lines of the rollback script.
func parseRecord(text string) map[string]string {
	record := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimRight(line, "\n"), "=")
		if found {
			record[key] = value
		}
	}
	return record
}

// event puts the ending of an upgrade among the messages. Until it is on record
// that it ended, it may be called again, also in another life.
func (u *Upgrader) event(ctx context.Context, r mesh.UpgradeRecord) error {
	detail := fmt.Sprintf("from %s to %s", orNone(r.From), orNone(r.To))
	if r.Why != "" {
		detail += ": " + r.Why
	}
	level := slog.LevelWarn
	if r.Ending == mesh.EndingUpgraded || r.Ending == mesh.EndingElsewhere {
		level = slog.LevelInfo
	}
	u.cfg.Log.Log(ctx, level, "an upgrade of this host ended", "ending", r.Ending, "from", r.From, "to", r.To, "detail", r.Why)
	now := u.now()
	key := fmt.Sprintf("%d %s %s %s %s", now.Ended, r.Ending, r.From, r.To, r.Step)
	if now.Intent != nil {
		key += now.Intent.Began.UTC().Format(" 2006-01-02T15:04:05.999999999Z")
	}
	if err := u.store.AddEventOnce(ctx, key, mesh.Event{Kind: mesh.EventKind(r.Ending), Resource: self, Detail: detail, At: u.cfg.Now()}); err != nil {
		return fmt.Errorf("report how the upgrade ended: %w", err)
	}
	return nil
}

func orNone(version string) string {
	if version == "" {
		return "none"
	}
	return version
}

// end reports an ending and settles.
func (u *Upgrader) end(ctx context.Context, r mesh.UpgradeRecord, refused ...refusal) error {
	r.At = u.cfg.Now()
	onTrial := u.Mode() == ModeTrial
	if !onTrial {
		if err := u.event(ctx, r); err != nil {
			return err
		}
	}
	fault.Point("upgrade.before-settle")
	settle := func(s *state) {
		s.Ended++
		s.Last = &r
		if onTrial {
			s.Untold = append(s.Untold, r)
		}
		s.Refused = append(s.Refused, refused...)
	}
	if u.now().Phase == PhaseSettled {
		return u.edit(settle)
	}
	return u.change(PhaseSettled, settle)
}

// Facts says how this host stands with its own version. It may be called from
// any goroutine.
func (u *Upgrader) Facts(ctx context.Context) mesh.HostUpgrade {
	u.mu.Lock()
	s, mode := u.state, u.mode
	u.mu.Unlock()
	f := mesh.HostUpgrade{Running: u.cfg.Running, Confirmed: u.kit.confirmed(), Phase: string(s.Phase), Last: s.Last}
	switch {
	case u.cfg.Family == "":
		f.Why = "this machine has no package manager that this host knows"
	case mode == ModeUnpackaged:
		f.Why = "the program that runs is not the one that the package database names, so there is no package to go back to"
	default:
		if err := u.kit.check(ctx); err != nil {
			f.Why = err.Error()
		} else if _, err := os.Lstat(filepath.Join(u.records(), "attempt")); err == nil {
			f.Why = "it was rolled back already since version " + f.Confirmed + " was confirmed"
		}
	}
	f.CanRollBack = f.Why == ""
	return f
}

// presenceOf is what the package database says about this host.
type presenceOf struct{ entries []pkg.Installed }

func (p presenceOf) has(version string) bool {
	for _, e := range p.entries {
		if trimEpoch(e.Version) == version {
			return true
		}
	}
	return false
}

// exactly reports whether this version is installed, whole, and no other.
func (p presenceOf) exactly(version string) bool {
	return len(p.entries) == 1 && p.entries[0].State == "" && trimEpoch(p.entries[0].Version) == version
}

func (p presenceOf) String() string {
	var all []string
	for _, e := range p.entries {
		text := e.Version
		if e.State != "" {
			text += " (" + e.State + ")"
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "no version"
	}
	return strings.Join(all, " and ")
}

func trimEpoch(version string) string { return strings.TrimPrefix(version, "0:") }

func (u *Upgrader) installed(ctx context.Context) (presenceOf, error) {
	all, err := u.cfg.Installed(ctx)
	if err != nil {
		return presenceOf{}, err
	}
	var p presenceOf
	for _, e := range all {
		if e.Name == name {
			p.entries = append(p.entries, e)
		}
	}
	return p, nil
}

// turning calls beat again and again while do runs.
func (u *Upgrader) turning(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for {
		u.cfg.Beat()
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// script is the rollback of this version, which its kit gets.
func script() []byte { return rollback.Script }
