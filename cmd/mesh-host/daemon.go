package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/bundle"
	"github.com/meshctl/mesh/host/dnf"
	"github.com/meshctl/mesh/host/link"
	"github.com/meshctl/mesh/host/local"
	"github.com/meshctl/mesh/host/profile"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/tool"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/host/transient"
	"github.com/meshctl/mesh/host/upgrade"
	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/sqlite"
	"github.com/meshctl/mesh/internal/version"
	"github.com/meshctl/mesh/systemd"
)

func newDaemonCommand(p *places) *cobra.Command {
	return &cobra.Command{
		Use:   "daemon",
		Short: "Run the daemon; mesh-host.service does this",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDaemon(cmd.Context(), *p)
		},
	}
}

func runDaemon(ctx context.Context, p places) error {
	notifier, err := systemd.TakeNotifier()
	if err != nil {
		return fmt.Errorf("read what the service manager says: %w", err)
	}
	settings, err := host.LoadSettings(p.settings)
	if err != nil {
		return err
	}
	level, err := settings.Level()
	if err != nil {
		return err
	}
	log := slog.New(cli.NewLogHandler(os.Stderr, level, cli.LogStyleFor(os.Getenv)))
	client, err := systemd.Connect(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd over D-Bus: %w", err)
	}
	defer client.Close()
	a, err := newAbilities(ctx, p, client, log)
	if err != nil {
		return err
	}
	mode, err := a.upgrader.Begin(ctx)
	if err != nil {
		return fmt.Errorf("look which version of this host is confirmed: %w", err)
	}
	log.Info("mesh-host starts", "version", version.Package(), "as", mode)
	var open opener = store.Open
	switch mode {
	case upgrade.ModeTrial:
		open = func(ctx context.Context, dir string, expected bool, now func() time.Time) (*store.Store, *store.Lost, error) {
			return store.OpenTrial(ctx, dir, version.Package(), a.upgrader.Confirmed(), expected, now)
		}
	case upgrade.ModeConfirmed:
		open = func(ctx context.Context, dir string, expected bool, now func() time.Time) (*store.Store, *store.Lost, error) {
			if err := store.Settle(ctx, dir, version.Package()); err != nil {
				return nil, nil, err
			}
			return store.Open(ctx, dir, expected, now)
		}
	}
	var st *store.Store
	var lost *store.Lost
	err = onceThereIsRoom(ctx, notifier, log, func() (err error) {
		st, lost, err = open(ctx, p.state, settings.Enrolled(), time.Now)
		return err
	})
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			log.Error("the store was not closed", "error", err)
		}
	}()
	if lost != nil {
		log.Error("the store was lost; removals wait for the recovery copy", "detail", lost.Detail)
	}
	if aside := store.UnreadTrial(p.state); aside != "" {
		log.Error("the store of a version that was not confirmed could not be read and was moved aside; what that version replaced is only there; remove it when it is needed no more", "directory", aside)
	}
	// A version that filled the disk was put back, and this one has to say so.
	err = onceThereIsRoom(ctx, notifier, log, func() error { return a.upgrader.Open(ctx, st) })
	if err != nil {
		return fmt.Errorf("report how an upgrade of this host ended: %w", err)
	}
	identityDir := filepath.Join(p.state, "identity")
	key, err := link.LoadOrCreateKey(identityDir)
	if err != nil {
		return err
	}
	network, stopWatching, err := link.WatchNetwork(ctx)
	if err != nil {
		// Without it a network that comes back is noticed at the next attempt.
		log.Warn("changes of the network are not noticed at once", "error", err)
		network, stopWatching = nil, func() {}
	}
	defer stopWatching()
	files := file.NewPatient(file.New(file.Config{Content: st, Logger: log}), file.Patience, a.beat)
	defer files.Close()
	h, err := assemble(ctx, parts{p, settings, log, notifier, client, st, files, &identity{dir: identityDir, key: key}, network, a})
	if err != nil {
		return err
	}
	listener, err := local.Listen(p.socket)
	if err != nil {
		return err
	}
	return runAll(ctx, log, notifier,
		h.Run,
		func(ctx context.Context) error { return local.Serve(ctx, listener, h, log) })
}

// fullDiskWait is how long a start waits for room before it looks again.
const fullDiskWait = 5 * time.Second

// opener opens the store in a directory, in which one is expected to be or not.
type opener func(ctx context.Context, dir string, expected bool, now func() time.Time) (*store.Store, *store.Lost, error)

// onceThereIsRoom does what a start cannot do without. A full disk is waited for:
// ending would use up the starts that the service manager allows, for a fault
// that is not this program's.
func onceThereIsRoom(ctx context.Context, notifier systemd.Notifier, log *slog.Logger, do func() error) error {
	for {
		err := do()
		if err == nil || !sqlite.IsFull(err) {
			return err
		}
		log.Error("the disk is full, so this host cannot start; waiting for room", "error", err)
		if err := errors.Join(notifier.Status("waiting for room on the disk"), notifier.ExtendTimeout(4*fullDiskWait)); err != nil {
			return fmt.Errorf("tell the service manager to wait: %w", err)
		}
		timer := time.NewTimer(fullDiskWait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// runAll runs everything until ctx ends or one part does, and waits for all.
func runAll(ctx context.Context, log *slog.Logger, notifier systemd.Notifier, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	var all error
	for i := range parts {
		err := <-ended
		if i == 0 {
			if err := notifier.Stopping(); err != nil {
				log.Debug("the service manager was not told that this host stops", "error", err)
			}
		}
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// parts are what a host is made of.
type parts struct {
	places
	settings host.Settings
	log      *slog.Logger
	notifier systemd.Notifier
	client   *systemd.Client
	store    *store.Store
	files    *file.Patient
	identity *identity
	network  <-chan struct{}
	abilities
}

// abilities are what this host can do on this machine, before it has a store.
type abilities struct {
	beats       *host.Beats
	beat        func() // of the reconcile loop
	runner      *transient.Runner
	managerName string
	manager     pkg.Manager
	looker      pkg.Manager // only looks; a manager serves one goroutine
	bundles     *bundle.Store
	upgrader    *upgrade.Upgrader
}

func newAbilities(ctx context.Context, p places, client *systemd.Client, log *slog.Logger) (abilities, error) {
	a := abilities{beats: host.NewBeats(time.Now), managerName: profile.DetectManager(ctx)}
	a.beat = a.beats.Loop("reconcile")
	a.runner = transient.NewRunner(client, filepath.Join(p.state, "run"), a.beat, log)
	var format bundle.Format
	a.manager, format = newManager(a.managerName, a.runner, a.beat)
	a.looker, _ = newManager(a.managerName, nil, nil)
	var err error
	if a.bundles, err = bundle.Open(ctx, filepath.Join(p.state, "bundle"), format); err != nil {
		return a, fmt.Errorf("read the bundle that this host keeps: %w", err)
	}
	own, _ := newManager(a.managerName, nil, nil)
	a.upgrader = upgrade.New(upgrade.Config{
		State: p.state, UnitDir: "/etc/systemd/system", Settings: p.settings, Running: version.Package(),
		Family:    map[bundle.Format]upgrade.Family{bundle.Deb: upgrade.Deb, bundle.RPM: upgrade.RPM}[format],
		Installed: installedBy(own), Local: a.bundles.Path, Refresh: a.refresh, Runner: a.runner, Unlocked: unlockedFor(format, a.beat),
		Units: client, Beat: a.beat, Now: time.Now, Log: log,
	})
	return a, nil
}

// refresh asks the repositories, in the reconcile loop as all that changes
// something.
func (a abilities) refresh(ctx context.Context) error {
	if a.manager == nil {
		return errors.New("there is no package manager")
	}
	return a.manager.Refresh(ctx)
}

func installedBy(m pkg.Manager) func(context.Context) ([]pkg.Installed, error) {
	if m == nil {
		return func(context.Context) ([]pkg.Installed, error) { return nil, errors.New("there is no package manager") }
	}
	return m.Installed
}

// selfLockWait is how long the host waits for the package manager's lock before
// it puts itself back; after that it is tried again.
const selfLockWait = time.Minute

func unlockedFor(format bundle.Format, waiting func()) func(context.Context) error {
	files := []string{"/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"}
	if format == bundle.RPM {
		files = []string{"/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock"}
	}
	return func(ctx context.Context) error { return tool.WaitUnlocked(ctx, selfLockWait, waiting, files...) }
}

// describer adds to the inventory how the host stands with its own version.
type describer struct {
	*profile.Collector
	upgrader *upgrade.Upgrader
}

// Inventory implements host.Describer.
func (d describer) Inventory(ctx context.Context) (mesh.Inventory, error) {
	i, err := d.Collector.Inventory(ctx)
	if err == nil {
		facts := d.upgrader.Facts(ctx)
		i.Host = &facts
	}
	return i, err
}

// identity is this machine's key.
type identity struct {
	dir string

	mu  sync.Mutex
	key ssh.Signer // guarded by mu
}

func (i *identity) signer() ssh.Signer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.key
}

// replace drops the key and makes a new one.
func (i *identity) replace() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	key, err := link.ReplaceKey(i.dir)
	if err != nil {
		return err
	}
	i.key = key
	return nil
}

// busLimit is how long the service manager may take to answer that it does. What
// is said of this machine waits for it, the hello of the link too.
const busLimit = 10 * time.Second

// assemble puts the host together.
func assemble(ctx context.Context, p parts) (*host.Host, error) {
	log := p.log
	units := transient.NewUnits(p.client, p.beat)
	reconciler := reconcile.New(reconcile.Config{
		Store: p.store,
		Providers: []resource.Provider{
			p.files,
			p.upgrader.Wrap(pkg.New(pkg.Config{Manager: p.manager, Local: p.bundles, Logger: log, Keep: []string{"mesh-host"}, Services: units})),
		},
		Units: units,
		Last:  upgrade.Self,
		Now:   time.Now,
		Log:   log,
	})
	collector := profile.New(profile.Config{
		Manager:  p.managerName,
		Packages: packagesOf(p.looker),
		Bus: func(ctx context.Context) error {
			ctx, enough := context.WithTimeout(ctx, busLimit)
			defer enough()
			_, err := p.client.Unit(ctx, systemd.HostUnit)
			return err
		},
		StateDir: p.state,
		Watchdog: p.notifier.Watchdog(),
		Now:      time.Now,
	})
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	h := host.New(host.Config{
		Store:      p.store,
		Reconciler: reconciler,
		Describer:  describer{collector, p.upgrader},
		Enroller:   enroller{p.identity},
		Bundles:    p.bundles,
		Settings:   p.settings,
		Save:       func(s host.Settings) error { return host.SaveSettings(p.places.settings, s) },
		Forget:     p.identity.replace,
		Dial: func(s host.Settings, h *host.Host) host.Link {
			return newLink(p, s, h, p.beats)
		},
		Upgrader: p.upgrader,
		Settle:   p.runner.Settle,
		Notify:   p.notifier,
		Version:  version.Version,
		BootID:   strings.TrimSpace(string(bootID)),
		Now:      time.Now,
		Log:      log,
		Beats:    p.beats,
	})
	return h, nil
}

// newManager returns the package manager of this machine, nil when it has none.
// Without a runner it only looks; waiting is called while it waits for locks.
func newManager(name string, runner pkg.Runner, waiting func()) (pkg.Manager, bundle.Format) {
	switch name {
	case profile.ManagerApt:
		return apt.New(apt.Config{Runner: runner, Waiting: waiting}), bundle.Deb
	case profile.ManagerDnf, profile.ManagerDnf5:
		return dnf.New(dnf.Config{Runner: runner, Waiting: waiting}), bundle.RPM
	}
	return nil, ""
}

func packagesOf(m pkg.Manager) func(context.Context) ([]mesh.InstalledPackage, error) {
	if m == nil {
		return nil
	}
	var mu sync.Mutex // a manager serves one goroutine at a time
	return func(ctx context.Context) ([]mesh.InstalledPackage, error) {
		mu.Lock()
		defer mu.Unlock()
		installed, err := m.Installed(ctx)
		if err != nil {
			return nil, err
		}
		out := make([]mesh.InstalledPackage, len(installed))
		for i, p := range installed {
			out[i] = mesh.InstalledPackage{Name: p.Name, Version: p.Version, Arch: p.Arch}
		}
		return out, nil
	}
}

type enroller struct{ identity *identity }

func (e enroller) Enrol(ctx context.Context, token mesh.Token, body mesh.Enrol) (mesh.Enrolled, error) {
	return link.Enrol(ctx, token, e.identity.signer(), body)
}

// nodeLink is a link.Client in the form in which the host knows it.
type nodeLink struct {
	client *link.Client
	ended  func() // says that the loop of the link turns no more
	err    error  // the settings do not make a link
}

func newLink(p parts, s host.Settings, h *host.Host, beats *host.Beats) nodeLink {
	fingerprint, err := mesh.ParseFingerprint(s.Fingerprint)
	if err != nil {
		return nodeLink{err: err}
	}
	client, err := link.New(link.Config{
		Addresses: s.Addresses, Key: p.identity.signer(), Fingerprint: fingerprint,
		Host: h, Outbox: p.store, Log: p.log, Beat: beats.Loop("link"), Network: p.network,
	})
	return nodeLink{client: client, ended: func() { beats.End("link") }, err: err}
}

func (l nodeLink) Run(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	defer l.ended()
	return l.client.Run(ctx)
}

// Refresh implements host.Refresher.
func (l nodeLink) Refresh(want string) {
	if l.client != nil {
		l.client.Refresh(want)
	}
}

func (l nodeLink) Status() (string, bool) {
	if l.err != nil {
		return l.err.Error(), false
	}
	s := l.client.Status()
	return s.Sentence(time.Now()), s.State == link.StateConnected
}
