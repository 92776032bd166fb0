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
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/host/transient"
	"github.com/meshctl/mesh/internal/cli"
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
	log, err := newLog(settings.LogLevel)
	if err != nil {
		return err
	}
	client, err := systemd.Connect(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd over D-Bus: %w", err)
	}
	defer client.Close()
	st, lost, err := store.Open(ctx, p.state, settings.Enrolled(), time.Now)
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
		if err := st.AddEvent(ctx, mesh.Event{Kind: mesh.EventStoreLost, Detail: lost.Detail, At: time.Now()}); err != nil {
			return fmt.Errorf("record that the store was lost: %w", err)
		}
	}
	key, err := link.LoadOrCreateKey(filepath.Join(p.state, "identity"))
	if err != nil {
		return err
	}
	h, err := assemble(ctx, p, settings, log, notifier, client, st, key)
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

func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if level != "" {
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, mesh.Errorf(mesh.CodeInvalid, "log_level: %q is none of debug, info, warn and error", level)
		}
	}
	return slog.New(cli.NewLogHandler(os.Stderr, l, cli.LogStyleFor(os.Getenv))), nil
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

// assemble puts the host together.
func assemble(ctx context.Context, p places, settings host.Settings, log *slog.Logger, notifier systemd.Notifier, client *systemd.Client, st *store.Store, key ssh.Signer) (*host.Host, error) {
	beats := host.NewBeats(time.Now)
	reconcileBeat := beats.Loop("reconcile")
	runner := transient.NewRunner(client, filepath.Join(p.state, "run"), reconcileBeat, log)
	managerName := profile.DetectManager(ctx)
	manager, format := newManager(managerName, runner)
	looker, _ := newManager(managerName, nil) // only looks; a manager serves one goroutine
	bundles, err := bundle.Open(ctx, filepath.Join(p.state, "bundle"), format)
	if err != nil {
		return nil, fmt.Errorf("read the bundle that this host keeps: %w", err)
	}
	reconciler := reconcile.New(reconcile.Config{
		Store: st,
		Providers: []resource.Provider{
			file.New(file.Config{Content: st, Logger: log}),
			pkg.New(pkg.Config{Manager: manager, Local: bundles, Logger: log, Keep: []string{"mesh-host"}}),
		},
		Units: transient.NewUnits(client, reconcileBeat),
		Now:   time.Now,
		Log:   log,
	})
	describer := profile.New(profile.Config{
		Manager:  managerName,
		Packages: packagesOf(looker),
		Bus: func(ctx context.Context) error {
			_, err := client.Unit(ctx, systemd.HostUnit)
			return err
		},
		StateDir: p.state,
		Watchdog: notifier.Watchdog(),
		Now:      time.Now,
	})
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	h := host.New(host.Config{
		Store:      st,
		Reconciler: reconciler,
		Describer:  describer,
		Enroller:   enroller{key},
		Bundles:    bundles,
		Settings:   settings,
		Save:       func(s host.Settings) error { return host.SaveSettings(p.settings, s) },
		Dial: func(s host.Settings, h *host.Host) host.Link {
			return newLink(s, h, st, key, log, beats)
		},
		Settle:  runner.Settle,
		Notify:  notifier,
		Version: version.Version,
		BootID:  strings.TrimSpace(string(bootID)),
		Now:     time.Now,
		Log:     log,
		Beats:   beats,
	})
	return h, nil
}

// newManager returns the package manager of this machine, nil when it has none.
func newManager(name string, runner pkg.Runner) (pkg.Manager, bundle.Format) {
	switch name {
	case profile.ManagerApt:
		return apt.New(apt.Config{Runner: runner}), bundle.Deb
	case profile.ManagerDnf, profile.ManagerDnf5:
		return dnf.New(dnf.Config{Runner: runner}), bundle.RPM
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

type enroller struct{ key ssh.Signer }

func (e enroller) Enrol(ctx context.Context, token mesh.Token, body mesh.Enrol) (mesh.Enrolled, error) {
	return link.Enrol(ctx, token, e.key, body)
}

// nodeLink is a link.Client in the form in which the host knows it.
type nodeLink struct {
	client *link.Client
	err    error // the settings do not make a link
}

func newLink(s host.Settings, h *host.Host, st *store.Store, key ssh.Signer, log *slog.Logger, beats *host.Beats) nodeLink {
	fingerprint, err := mesh.ParseFingerprint(s.Fingerprint)
	if err != nil {
		return nodeLink{err: err}
	}
	client, err := link.New(link.Config{
		Addresses: s.Addresses, Key: key, Fingerprint: fingerprint,
		Host: h, Outbox: st, Log: log, Beat: beats.Loop("link"),
	})
	return nodeLink{client: client, err: err}
}

func (l nodeLink) Run(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	return l.client.Run(ctx)
}

func (l nodeLink) Status() (string, bool) {
	if l.err != nil {
		return l.err.Error(), false
	}
	s := l.client.Status()
	return s.Sentence(time.Now()), s.State == link.StateConnected
}
