// Command driver makes one pass over packages and files on the machine that it
// runs on, with the reconciler, the store, the providers and the service manager
// that a host has, and no control plane. Tests run it on hosts of the lab.
//
// It judges nothing: it writes what was reported, which commands ran, and how
// often the database was read, as JSON to standard output.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	_ "github.com/mattn/go-sqlite3"
	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/dnf"
	"github.com/meshctl/mesh/host/profile"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/host/transient"
	"github.com/meshctl/mesh/systemd"
	"golang.org/x/sys/unix"
)

// Request is what a pass is made of.
type Request struct {
	// State is the directory of the store.
	State     string            `json:"state"`
	Resources []mesh.Resource   `json:"resources"`
	Released  []mesh.ResourceID `json:"released"`
	// LockWait and Timeout in seconds; zero is the product's own.
	LockWait int `json:"lock_wait"`
	Timeout  int `json:"timeout"`
	// Local maps names of packages to files that were brought along.
	Local map[string]string `json:"local"`
	Keep  []string          `json:"keep"`
	// Kernel stands in for the release of the running kernel. Empty: the real one.
	Kernel string `json:"kernel"`
	// Manager is apt, dnf or dnf5. Empty: the one that a host would find.
	Manager string `json:"manager"`
	// Compare lists pairs of versions to be ordered instead of a pass.
	Compare [][2]string `json:"compare"`
}

// Answer is what came of it.
type Answer struct {
	State   mesh.GenerationState `json:"state"`
	Results []mesh.Result        `json:"results"`
	Removed []mesh.Result        `json:"removed"`
	Owned   []mesh.Owned         `json:"owned"`
	// Commands are those that may have changed the machine.
	Commands [][]string `json:"commands"`
	// Reads counts how often the database was asked for.
	Reads int `json:"reads"`
	// Beats counts the signs of life.
	Beats int `json:"beats"`
	// Order has a number for each pair of Compare.
	Order []int `json:"order"`
	// Took in seconds.
	Took float64 `json:"took"`
}

func main() {
	var err error
	switch {
	case len(os.Args) > 3 && os.Args[1] == "lock":
		err = lock(os.Args[2], os.Args[3:], func(fd int) error {
			return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		})
	case len(os.Args) > 3 && os.Args[1] == "flock":
		err = lock(os.Args[2], os.Args[3:], func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	case len(os.Args) == 4 && os.Args[1] == "sqlite":
		err = statement(os.Args[2], os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == "mount":
		err = unix.Mount("tmpfs", os.Args[2], "tmpfs", 0, "size="+os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == "remount":
		err = unix.Mount("tmpfs", os.Args[2], "tmpfs", unix.MS_REMOUNT, "size="+os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "readonly":
		err = unix.Mount("tmpfs", os.Args[2], "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	case len(os.Args) == 3 && os.Args[1] == "freeze":
		err = errors.Join(unix.Mount(os.Args[2], os.Args[2], "", unix.MS_BIND, ""), unix.Mount("", os.Args[2], "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	case len(os.Args) == 3 && os.Args[1] == "noexec":
		err = unix.Mount("tmpfs", os.Args[2], "tmpfs", unix.MS_NOEXEC, "mode=1777")
	case len(os.Args) == 3 && os.Args[1] == "unmount":
		err = unix.Unmount(os.Args[2], unix.MNT_DETACH)
	default:
		err = pass(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

// lock holds locks on files for some seconds, as another package manager would.
func lock(seconds string, files []string, take func(fd int) error) error {
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	for _, name := range files {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT, 0o640)
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		if err := take(fd); err != nil {
			return fmt.Errorf("lock %s: %w", name, err)
		}
	}
	fmt.Println("locked")
	deadline := time.NewTimer(time.Duration(n) * time.Second)
	<-deadline.C
	return nil
}

// statement runs one statement on a database file, to put it out of order.
func statement(file, text string) error {
	db, err := sql.Open("sqlite3", file)
	if err != nil {
		return err
	}
	_, err = db.Exec(text)
	return errors.Join(err, db.Close())
}

func pass(ctx context.Context) error {
	var q Request
	d := json.NewDecoder(os.Stdin)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	began := time.Now()
	var a Answer
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	beat := func() { a.Beats++ }
	runner := &counting{under: transient.NewRunner(client, q.State+"/run", beat, log), commands: &a.Commands}
	manager, err := managerOf(ctx, q, runner, beat)
	if err != nil {
		return err
	}
	for _, pair := range q.Compare {
		a.Order = append(a.Order, manager.Compare(pair[0], pair[1]))
	}
	if len(q.Compare) > 0 {
		return json.NewEncoder(os.Stdout).Encode(a)
	}
	if err := os.MkdirAll(q.State, 0o700); err != nil {
		return err
	}
	st, _, err := store.Open(ctx, q.State, false, time.Now)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	if err := runner.under.Settle(ctx); err != nil {
		return err
	}
	units := transient.NewUnits(client, beat)
	r := reconcile.New(reconcile.Config{
		Store: st,
		Providers: []resource.Provider{
			file.New(file.Config{Content: st, Logger: log}),
			newProvider(q, reading(manager, &a.Reads), units, log),
		},
		Units: units, Now: time.Now, Log: log,
	})
	declaration := mesh.Declaration{Resources: q.Resources, Released: q.Released, Generation: 1}
	out, err := r.Run(ctx, declaration, mesh.TriggerDeclared, func() bool { return false })
	if err != nil {
		return fmt.Errorf("make the pass: %w", err)
	}
	state, err := st.State(ctx)
	if err != nil {
		return err
	}
	a.State, a.Results, a.Removed, a.Owned = out.State, out.Results, out.Removed, state.Owned
	a.Took = time.Since(began).Seconds()
	if err := st.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func newProvider(q Request, m pkg.Manager, units *transient.Units, log *slog.Logger) *pkg.Provider {
	return pkg.New(pkg.Config{Manager: m, Local: local(q.Local), Logger: log, Keep: q.Keep, Services: units})
}

func managerOf(ctx context.Context, q Request, runner pkg.Runner, beat func()) (pkg.Manager, error) {
	wait, limit := time.Duration(q.LockWait)*time.Second, time.Duration(q.Timeout)*time.Second
	name := q.Manager
	if name == "" {
		name = profile.DetectManager(ctx)
	}
	switch name {
	case profile.ManagerApt:
		return apt.New(apt.Config{Runner: runner, Waiting: beat, LockWait: wait, Timeout: limit, Kernel: q.Kernel}), nil
	case profile.ManagerDnf, profile.ManagerDnf5:
		return dnf.New(dnf.Config{Runner: runner, Waiting: beat, LockWait: wait, Timeout: limit, Kernel: q.Kernel}), nil
	default:
		return nil, fmt.Errorf("this machine has %q", name)
	}
}

type local map[string]string

func (l local) Path(name, _ string) (string, bool) { path, ok := l[name]; return path, ok }

// counting notes what ran.
type counting struct {
	under    *transient.Runner
	commands *[][]string
}

func (c *counting) Run(ctx context.Context, cmd pkg.Command) (pkg.Outcome, error) {
	*c.commands = append(*c.commands, slices.Clone(cmd.Argv))
	return c.under.Run(ctx, cmd)
}
