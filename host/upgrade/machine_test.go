package upgrade_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/host/upgrade"
	"github.com/meshctl/mesh/systemd"
)

// The versions of the stories. The unfit one says at its check that it cannot
// run here.
const (
	v1    = "1-1"
	v2    = "2-1"
	unfit = "3-1"
)

// machine is a directory that holds what outlives a process of the host: the
// installed files, the package database, the state of the host, the units of the
// admin and what the service manager holds, and a repository. The store, the
// package files and the tools that read them are real.
type machine struct{ dir string }

func (m machine) path(elements ...string) string {
	return filepath.Join(append([]string{m.dir}, elements...)...)
}

// newMachine has version 1 installed, and nothing confirmed.
func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{t.TempDir()}
	for _, dir := range []string{"root", "state", "units", "loaded", "packages", "bin"} {
		if err := os.Mkdir(m.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{v1, v2, unfit} {
		m.build(t, version)
	}
	for tool, text := range map[string]string{
		// The files of the package are never changed here.
		"dpkg":    "#!/bin/sh\nexit 0\n",
		"apt-get": "#!/bin/sh\nfor last; do :; done\nexec cp '" + m.path("packages") + "'/\"${last#*=}\".deb .\n",
	} {
		if err := os.WriteFile(m.path("bin", tool), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", m.path("bin")+":"+os.Getenv("PATH"))
	if err := m.install(m.path("packages", v1+".deb")); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m machine) build(t *testing.T, version string) {
	t.Helper()
	tree := t.TempDir()
	for path, content := range map[string]string{
		"DEBIAN/control":            "Package: mesh-host\nVersion: " + version + "\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n",
		"usr/bin/mesh-host":         "program of " + version + "\n",
		"usr/lib/mesh-host/version": version + "\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, m.path("packages", version+".deb")).CombinedOutput(); err != nil {
		t.Fatalf("build a package: %v\n%s", err, out)
	}
}

// install is what the package manager does, which runs outside of the host.
func (m machine) install(file string) error {
	if out, err := exec.Command("dpkg-deb", "--extract", file, m.path("root")).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	version, err := os.ReadFile(m.path("root", "usr/lib/mesh-host/version"))
	if err != nil {
		return err
	}
	return os.WriteFile(m.path("database"), version, 0o644)
}

// version is the one that the package database names: a line for each, with its
// state when it is not whole.
func (m machine) version() string { return m.line("database") }

// running is the version of the program that the service manager would start.
func (m machine) running() string { return m.line("root", "usr/lib/mesh-host/version") }

func (m machine) line(elements ...string) string {
	data, err := os.ReadFile(m.path(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// declare has the store of version 1 hold a declaration that names a version.
func (m machine) declare(t *testing.T, version string) {
	t.Helper()
	st, _, err := store.Open(t.Context(), m.path("state"), false, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	want := mesh.Resource{Kind: mesh.KindPackage, Name: "mesh-host", Package: &mesh.PackageSpec{Version: version}, From: "host", Revision: 1}
	err = errors.Join(st.Hold(t.Context(), mesh.Declaration{Node: "n", Generation: 1, Resources: []mesh.Resource{want}}), st.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// life is one process of the host, which makes one pass.
type life struct {
	upgrader   *upgrade.Upgrader
	mode       upgrade.Mode
	store      *store.Store
	reconciler *reconcile.Reconciler
}

// begin does what the daemon does before its loop.
func (m machine) begin(ctx context.Context, units *units, now func() time.Time) (*life, error) {
	quiet := slog.New(slog.DiscardHandler)
	l := &life{upgrader: upgrade.New(upgrade.Config{
		State: m.path("state"), UnitDir: m.path("units"), Root: m.path("root"), Running: m.running(), Family: upgrade.Deb,
		Installed: func(context.Context) ([]pkg.Installed, error) {
			var all []pkg.Installed
			for line := range strings.Lines(m.version()) {
				version, state, _ := strings.Cut(strings.TrimSpace(line), " ")
				all = append(all, pkg.Installed{Name: "mesh-host", Version: version, State: state})
			}
			return all, nil
		},
		Refresh:  func(context.Context) error { return nil },
		Runner:   runner{m},
		Unlocked: func(context.Context) error { return nil },
		Units:    units, Beat: func() {}, Now: now, Log: quiet,
	})}
	var err error
	if l.mode, err = l.upgrader.Begin(ctx); err != nil {
		return nil, err
	}
	switch l.mode {
	case upgrade.ModeTrial:
		l.store, _, err = store.OpenTrial(ctx, m.path("state"), m.running(), l.upgrader.Confirmed(), true, now)
	case upgrade.ModeConfirmed:
		if err = store.Settle(ctx, m.path("state"), m.running()); err != nil {
			return nil, err
		}
		fallthrough
	default:
		l.store, _, err = store.Open(ctx, m.path("state"), false, now)
	}
	if err != nil {
		return nil, err
	}
	l.reconciler = reconcile.New(reconcile.Config{
		Store: l.store, Providers: []resource.Provider{l.upgrader.Wrap(&packages{machine: m})}, Last: upgrade.Self, Now: now, Log: quiet,
	})
	return l, l.upgrader.Open(ctx, l.store)
}

// pass is one pass with its end.
func (l *life) pass(ctx context.Context) error {
	d, err := l.store.Declaration(ctx)
	if err != nil {
		return err
	}
	if d != nil {
		if _, err := l.reconciler.Run(ctx, *d, mesh.TriggerResumed, func() bool { return false }); err != nil {
			return err
		}
	}
	return l.upgrader.PassEnded(ctx)
}

// live runs one life to its end. Settled: the version that runs is confirmed and
// nothing is left to be done.
func (m machine) live(ctx context.Context) (settled bool, err error) {
	l, err := m.begin(ctx, &units{machine: m}, time.Now)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.store.Close()) }()
	for range 3 {
		if err := l.pass(ctx); err != nil {
			if errors.Is(err, host.ErrHandOver) {
				err = nil
			}
			return false, err
		}
	}
	facts := l.upgrader.Facts(ctx)
	return l.mode == upgrade.ModeConfirmed && facts.Phase == string(upgrade.PhaseSettled) && facts.CanRollBack, nil
}

// report is what is found on a machine in the end.
type report struct {
	facts   mesh.HostUpgrade
	status  mesh.Result
	endings []mesh.Ending
}

// arrived judges what must hold of a machine whatever happened to it: version is
// installed, runs, is confirmed and can be gone back to, and nothing of the way
// there is left.
func (m machine) arrived(t *testing.T, version string) report {
	t.Helper()
	if installed, runs := m.version(), m.running(); installed != version || runs != version {
		t.Fatalf("version %s is installed and %s would run, not %s", installed, runs, version)
	}
	left, err := filepath.Glob(m.path("units", "*"))
	if err != nil || len(left) > 0 && !slices.Equal(left, []string{m.path("units", "timers.target.wants")}) {
		t.Errorf("the guard is left: %v, %v", left, err)
	}
	for _, gone := range []string{"units/timers.target.wants/" + systemd.GuardTimer, "loaded/" + systemd.GuardTimer, "state/trial", "state/upgrade/check", "state/upgrade/fetch", "state/kit.new", "state/kit.old"} {
		if _, err := os.Lstat(m.path(gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left", gone)
		}
	}
	l, err := m.begin(t.Context(), &units{machine: m}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.store.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := report{facts: l.upgrader.Facts(t.Context())}
	if f := r.facts; f.Confirmed != version || f.Running != version || !f.CanRollBack || f.Phase != string(upgrade.PhaseSettled) {
		t.Errorf("of its own version it says %+v", f)
	}
	sum, err := l.store.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range sum.Ledger {
		r.status = result
	}
	frames, err := l.store.Next(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		var e mesh.Event
		if f.Type == mesh.FrameEvent && json.Unmarshal(f.Body, &e) == nil && slices.Contains(mesh.Endings(), mesh.Ending(e.Kind)) {
			r.endings = append(r.endings, mesh.Ending(e.Kind))
		}
	}
	return r
}

// runner is the package manager as the upgrade itself calls it.
type runner struct{ machine machine }

func (r runner) Run(_ context.Context, c pkg.Command) (pkg.Outcome, error) {
	return pkg.Outcome{}, r.machine.install(c.Argv[len(c.Argv)-1])
}

// units is the service manager.
type units struct {
	machine machine
	// mute has it not answer the question of that name, and muteAfterGuard not
	// once the guard was started.
	mute, muteAfterGuard string
}

var errMute = errors.New("the service manager does not answer")

func (u *units) answer(question string) error {
	if question == u.mute {
		return errMute
	}
	return nil
}

func (u *units) Unit(_ context.Context, unit string) (systemd.UnitState, error) {
	s := systemd.UnitState{Name: unit, LoadState: systemd.LoadLoaded, ActiveState: systemd.ActiveInactive}
	switch unit {
	case systemd.HostUnit:
		s.UnitFileState, s.Type, s.Restart, s.Watchdog = "enabled", "notify", "always", time.Minute
		s.StartLimitBurst, s.StartLimit = 10, time.Hour
		s.OnFailure, s.ExecStart = []string{systemd.RollbackUnit}, [][]string{{"/usr/bin/mesh-host", "daemon"}}
	case systemd.GuardUnit, systemd.GuardTimer:
		if _, err := os.Stat(u.machine.path("units", unit)); err != nil {
			s.LoadState = systemd.LoadNotFound
		}
	}
	if _, err := os.Stat(u.machine.path("loaded", unit)); err == nil {
		s.ActiveState = systemd.ActiveActive
	}
	return s, u.answer("unit " + unit)
}

func (u *units) Start(ctx context.Context, unit string) (systemd.UnitState, error) {
	if _, err := os.Stat(u.machine.path("units", unit)); err != nil {
		return systemd.UnitState{}, err
	}
	if unit == systemd.GuardTimer && u.muteAfterGuard != "" {
		u.mute = u.muteAfterGuard
	}
	if err := errors.Join(u.answer("start "+unit), os.WriteFile(u.machine.path("loaded", unit), nil, 0o644)); err != nil {
		return systemd.UnitState{}, err
	}
	return u.Unit(ctx, unit)
}

func (u *units) Stop(ctx context.Context, unit string) (systemd.UnitState, error) {
	if err := os.Remove(u.machine.path("loaded", unit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return systemd.UnitState{}, err
	}
	return u.Unit(ctx, unit)
}

func (u *units) ResetFailed(context.Context, string) error { return nil }
func (u *units) DaemonReload(context.Context) error        { return u.answer("reload") }

func (u *units) Settings(context.Context, string) (systemd.Settings, error) {
	return systemd.Settings{}, u.answer("settings")
}

// StartTransient runs the check of the program that is installed.
func (u *units) StartTransient(_ context.Context, spec systemd.TransientSpec) error {
	said := upgrade.CheckPassed()
	if u.machine.running() == unfit {
		said = "this version cannot run here"
	}
	return errors.Join(u.answer("start the check"), os.WriteFile(spec.Output, []byte(said+"\n"), 0o600))
}

func (u *units) Wait(context.Context, string) (systemd.Result, error) {
	r := systemd.Result{Result: systemd.ResultSuccess, Kind: systemd.ExitExited}
	if u.machine.running() == unfit {
		r.Result, r.Status = "exit-code", 1
	}
	return r, u.answer("wait for the check")
}

func (u *units) Collect(context.Context, string) error { return u.answer("collect") }

// packages is the kind of resource that installs what is declared.
type packages struct{ machine machine }

func (*packages) Kind() mesh.Kind { return mesh.KindPackage }

func (p *packages) Check(_ context.Context, want mesh.Resource) (resource.Diff, error) {
	var d resource.Diff
	if have := p.machine.version(); have != want.Package.Version {
		d.Add("version", have, want.Package.Version)
	}
	return d, nil
}

func (p *packages) ApplySet(_ context.Context, changes []resource.Change) []error {
	errs := make([]error, len(changes))
	for i, c := range changes {
		errs[i] = p.machine.install(p.machine.path("packages", c.Want.Package.Version+".deb"))
	}
	return errs
}

func (p *packages) Apply(ctx context.Context, want mesh.Resource, d resource.Diff) error {
	return p.ApplySet(ctx, []resource.Change{{Want: want, Diff: d}})[0]
}

func (*packages) Capture(_ context.Context, want mesh.Resource) (mesh.Owned, error) {
	return mesh.Owned{Resource: want.ID(), Made: mesh.MadeExisted}, nil
}

func (*packages) Wrote(context.Context, mesh.Resource) ([]byte, error) { return nil, nil }
func (*packages) Remove(context.Context, mesh.Owned) error             { return nil }
func (*packages) RemoveSet(_ context.Context, owned []mesh.Owned) []error {
	return make([]error, len(owned))
}

func (*packages) CheckRemoved(context.Context, mesh.Owned) (resource.Diff, error) {
	return resource.Diff{}, nil
}
