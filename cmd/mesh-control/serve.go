package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/grant"
	"github.com/meshctl/mesh/control/link"
	"github.com/meshctl/mesh/control/store"
	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/systemd"
)

// downloadGrace is how long downloads that are under way may go on after the
// program was told to stop.
const downloadGrace = 5 * time.Second

func newServeCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane",
		Long: `Runs the control plane until it is told to stop. It tells the service manager
that it is ready once its store is open and it listens for nodes, for operators
and for package managers.

The first start makes the control plane's SSH key, which tokens pin, and the key
with which the repository is signed. Both are kept below the state directory,
under keys: losing them means adopting every machine again.`,
		Example: `  mesh-control serve
  mesh-control serve --config ./control.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flag("config").Value.String())
			if err != nil {
				return badConfig(err)
			}
			log := slog.New(cli.NewLogHandler(d.stderr, c.logLevel, cli.LogStyleFor(d.getenv)))
			notifier, err := systemd.TakeNotifier()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, notifier, log)
		},
	}
}

// serve opens what is on disk, then what is on the network, and runs until ctx
// ends.
func serve(ctx context.Context, c config, notifier systemd.Notifier, log *slog.Logger) (err error) {
	started := false
	defer func() {
		if err != nil && ctx.Err() != nil && !started {
			// Whoever stops a start did not ask for it to succeed.
			log.Info("told to stop before the start was complete; the next start goes on", "error", err)
			err = nil
		}
	}()
	closeLast := func(what string, close func() error) {
		if closeErr := close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close %s: %w", what, closeErr))
		}
	}
	if err := os.MkdirAll(c.stateDir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	lock, err := lockState(c.stateDir)
	if err != nil {
		return err
	}
	defer closeLast("lock", lock.Close)
	// From here on no other process uses the state directory, but to make a backup.
	keys := filepath.Join(c.stateDir, keysName)
	hostKey, err := link.LoadOrCreateHostKey(keys)
	if err != nil {
		return err
	}
	signer, err := openpgp.OpenKeys(keys, openpgp.Options{Identity: c.origin + " repository"})
	if err != nil {
		return err
	}
	packages, err := repo.Open(ctx, repo.Config{Dir: c.stateDir, Origin: c.origin, Label: c.origin, MaxPackage: c.maxPackage, ValidFor: c.validFor}, signer, log)
	if err != nil {
		return err
	}
	defer closeLast("repository", packages.Close)
	spool, err := clearLeftovers(c.stateDir)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(c.stateDir, databaseName))
	if err != nil {
		return err
	}
	defer closeLast("store", db.Close)
	if err := clearCopies(c.stateDir); err != nil {
		return err
	}
	blobs, err := store.OpenBlobs(filepath.Join(c.stateDir, blobsName))
	if err != nil {
		return err
	}
	defer closeLast("blobs", blobs.Close)

	nodes, err := net.Listen("tcp", c.linkListen)
	if err != nil {
		return fmt.Errorf("listen for nodes: %w", err)
	}
	defer nodes.Close() // again, for the ways out before it is served
	downloads, err := net.Listen("tcp", c.repositoryListen)
	if err != nil {
		return fmt.Errorf("listen for package managers: %w", err)
	}
	defer downloads.Close()
	certificate, err := loadCertificate(c)
	if err != nil {
		return err
	}
	where := places{config: c, link: nodes.Addr(), pool: downloads.Addr(), own: ownAddresses}

	credentials, err := grant.Open(keys, where.repositories)
	if err != nil {
		return err
	}
	settings := control.Config{
		Store: db, Blobs: blobs, Log: log,
		Fingerprint:      link.Fingerprint(hostKey.PublicKey()),
		HeartbeatSeconds: int(c.heartbeat / time.Second),
		Keep:             c.kept,
	}
	pages := repohttp.Options{Links: repohttp.Links{BaseURL: c.repositoryURL}}
	if c.readers == readersNodes {
		settings.Grants, settings.Readers = []control.Grants{credentials}, credentials
	}
	policy, err := control.New(ctx, settings)
	if err != nil {
		return err
	}
	if c.readers == readersNodes {
		pages.Readers = readersOf{policy}
	}
	links, err := link.New(link.Config{Policy: policy, Operators: policy, HostKey: hostKey, Log: log, Heartbeat: c.heartbeat})
	if err != nil {
		return err
	}
	adminGID := groupID(api.AdminGroup)
	if adminGID < 0 {
		log.Info("no group of administrators on this machine, operators are root and this user", "group", api.AdminGroup)
	}
	operators, err := api.Listen(c.socket, adminGID)
	if err != nil {
		return err
	}
	defer operators.Close()
	care := &upkeep{repo: packages, keys: signer, users: policy, keep: c.keep, now: time.Now, log: log, published: make(chan struct{}, 1)}
	answers := api.New(api.Config{
		Operator:   operator{Operator: policy, places: where},
		Publisher:  publisher{repo: packages, url: where.repository, note: care.note, gate: gate{readers: policy, log: log}},
		Librarian:  librarian{repo: packages, keys: signer},
		Admission:  api.Admission{Self: os.Getuid(), AdminGID: adminGID},
		SpoolDir:   spool,
		MaxPackage: c.maxPackage,
		Log:        log,
	})
	log.Info("control plane serves", "version", version.Version, "links", nodes.Addr(), "repository", downloads.Addr(), "socket", c.socket)
	started = true
	if err := notifier.Ready(); err != nil {
		log.Error("service manager not told that start-up is complete", "error", err)
	}
	return runStages(ctx, []stage{
		{"watchdog", func(ctx context.Context) error { return keepWatchdog(ctx, notifier, c.socket, log) }},
		{"operator socket", func(ctx context.Context) error { return answers.Serve(ctx, operators) }},
		{"operators over SSH", func(ctx context.Context) error { return answers.Serve(ctx, links.Operators()) }},
		{"links", func(ctx context.Context) error { return links.Serve(ctx, nodes) }},
		{"repository", func(ctx context.Context) error {
			return serveHTTP(ctx, secure(downloads, certificate), repohttp.New(packages, pages, log), log)
		}},
		{"upkeep of the repository", care.run},
		{"upkeep of memory", giveMemoryBack},
		{"policy", policy.Run},
	}, func() {
		log.Info("control plane stops")
		if err := notifier.Stopping(); err != nil {
			log.Warn("service manager not told of the stop", "error", err)
		}
	})
}

// clearLeftovers removes what a crash left of uploads, of a restore and of a
// backup, and returns where new uploads go.
func clearLeftovers(dir string) (string, error) {
	spool := filepath.Join(dir, "uploads")
	stale := []string{spool}
	patterns := []string{restorePrefix + "*"}
	switch backup, err := store.LockContent(filepath.Join(dir, blobsName), false); {
	case err == nil:
		defer func() { _ = backup.Close() }()
		patterns = append(patterns, backupPrefix+"*")
	case !errors.Is(err, store.ErrLocked): // else a backup is made at this moment
		return "", err
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", fmt.Errorf("look for leftovers: %w", err)
		}
		stale = append(stale, found...)
	}
	for _, path := range stale {
		if err := os.RemoveAll(path); err != nil {
			return "", fmt.Errorf("clear what was not finished: %w", err)
		}
	}
	if err := os.Mkdir(spool, 0o700); err != nil {
		return "", fmt.Errorf("make directory for uploads: %w", err)
	}
	return spool, nil
}

// clearCopies removes the copies of the database that were made before it was
// changed, but for the newest. The database was opened, so that change is done.
func clearCopies(dir string) error {
	copies, err := filepath.Glob(filepath.Join(dir, databaseName+".before-*"))
	if err != nil {
		return fmt.Errorf("look for copies of the database: %w", err)
	}
	number := func(path string) int {
		n, err := strconv.Atoi(path[strings.LastIndexByte(path, '-')+1:])
		if err != nil {
			return -1 // half a copy, or none of ours
		}
		return n
	}
	newest := 0
	for _, path := range copies {
		newest = max(newest, number(path))
	}
	for _, path := range copies {
		if n := number(path); n < 0 || n == newest {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an old copy of the database: %w", err)
		}
	}
	return nil
}

// groupID returns the id of a group, -1 when there is none of that name.
func groupID(name string) int {
	g, err := user.LookupGroup(name)
	if err != nil {
		return -1
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return gid
}

// serveHTTP serves until ctx ends, then lets downloads go on for a moment.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), downloadGrace)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = server.Close()
	}
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
