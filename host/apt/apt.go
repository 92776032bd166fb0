// Package apt is the package manager of Debian and its relatives: it runs
// apt-get and dpkg to change the machine, and reads dpkg's database itself.
//
// Reading and writing go different ways on purpose: what apt-get said is never
// what is reported. It decides nothing: which packages change and what a
// transaction may drag along is the business of package pkg. It leaves the
// machine's apt configuration, pins and recommendations to the admin, forces
// nothing that apt refuses, and deletes no lock.
package apt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/tool"
	"github.com/meshctl/mesh/internal/pkgversion"
)

// Config is what New needs. Everything but Runner has a default that is right
// for a machine's own root.
type Config struct {
	Runner pkg.Runner
	// Reader runs apt-get where it only looks. Nil: tool.Exec.
	Reader pkg.Reader
	// LockWait is how long a held lock is waited for. Zero: one minute.
	LockWait time.Duration
	// Waiting is called again and again while a lock is waited for. Nil: nothing.
	Waiting func()
	// Timeout bounds one transaction. Zero: one hour.
	Timeout time.Duration
	// Options go to every apt tool first, as in "-o", "Dir=/x".
	Options []string
	// DpkgOptions go to dpkg when it is run directly, as in "--root=/x".
	DpkgOptions []string
	// Env is added to the environment of every tool, as KEY=value.
	Env []string
	// AdminDir is dpkg's database. Empty: /var/lib/dpkg.
	AdminDir string
	// StateDir is apt's state. Empty: /var/lib/apt.
	StateDir string
	// CacheDir is apt's cache. Empty: /var/cache/apt.
	CacheDir string
	// DebconfDir is debconf's database. Empty: /var/cache/debconf.
	DebconfDir string
	// Kernel is the release of the running kernel. Empty: the kernel is asked.
	Kernel string
	// Now is the machine's clock, shown beside an index that is not current. Nil:
	// time.Now.
	Now func() time.Time
}

const (
	aptGet    = "/usr/bin/apt-get"
	aptHelper = "/usr/lib/apt/apt-helper"
	aptCache  = "/usr/bin/apt-cache"
	aptMark   = "/usr/bin/apt-mark"
	dpkg      = "/usr/bin/dpkg"
)

// reportLines is how much of a tool's output goes into a report.
const reportLines = 20

// Manager is the pkg.Manager for apt. Use New.
type Manager struct {
	c      Config
	native string
	cache  cache
	notes  []pkg.Note
	// unasked lists the addresses that the last refresh could not fetch from, and
	// named says that apt named every one of them.
	unasked []string
	named   bool
}

var (
	_ pkg.Manager        = (*Manager)(nil)
	_ pkg.Marker         = (*Manager)(nil)
	_ pkg.Noter          = (*Manager)(nil)
	_ pkg.Explainer      = (*Manager)(nil)
	_ pkg.Partial        = (*Manager)(nil)
	_ pkg.ConffileLooker = (*Manager)(nil)
)

// New makes a manager.
func New(c Config) *Manager {
	if c.Reader == nil {
		c.Reader = tool.Exec{Waiting: c.Waiting}
	}
	if c.LockWait == 0 {
		c.LockWait = time.Minute
	}
	if c.Timeout == 0 {
		c.Timeout = time.Hour
	}
	if c.AdminDir == "" {
		c.AdminDir = "/var/lib/dpkg"
	}
	if c.StateDir == "" {
		c.StateDir = "/var/lib/apt"
	}
	if c.CacheDir == "" {
		c.CacheDir = "/var/cache/apt"
	}
	if c.DebconfDir == "" {
		c.DebconfDir = "/var/cache/debconf"
	}
	if c.Kernel == "" {
		c.Kernel = tool.KernelRelease()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Manager{c: c}
}

// Tool returns "apt".
func (m *Manager) Tool() string { return "apt" }

// Compare orders versions as dpkg does.
func (m *Manager) Compare(a, b string) int { return pkgversion.CompareDeb(a, b) }

// environment is all that a tool gets to see: no dialog, no language but C, no
// restart of services behind our back.
func (m *Manager) environment() []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"LC_ALL=C.UTF-8",
		"LANG=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive",
		"DEBIAN_PRIORITY=critical",
		"APT_LISTCHANGES_FRONTEND=none",
		"APT_LISTBUGS_FRONTEND=none",
		"UCF_FORCE_CONFFOLD=1",
		"NEEDRESTART_SUSPEND=1",
		"NEEDRESTART_MODE=l",
	}, m.c.Env...)
}

// options of every apt-get: configuration files of the admin stay, nothing is
// cleaned up or purged that nobody asked for, locks are waited for.
func (m *Manager) options() []string {
	return append(slices.Clone(m.c.Options),
		"-q", "-y",
		"-o", "Dpkg::Options::=--force-confdef",
		"-o", "Dpkg::Options::=--force-confold",
		"-o", "DPkg::Lock::Timeout="+strconv.Itoa(int(m.c.LockWait.Seconds())),
		"-o", "Dpkg::Use-Pty=0",
		"-o", "APT::Get::AutomaticRemove=false",
		"-o", "APT::Get::Purge=false",
		"-o", "APT::Get::Show-User-Simulation-Note=false",
		"-o", "APT::Color=0",
	)
}

// arguments of apt-get for a transaction. Names are exact: a name that apt
// would read as a pattern shows in the plan as another package.
func (m *Manager) arguments(t pkg.Transaction) []string {
	args := m.options()
	if len(t.Install) == 0 {
		return append(append(args, "remove", "--"), t.Remove...)
	}
	if t.Lower {
		args = append(args, "--allow-downgrades")
	}
	if t.Again {
		args = append(args, "--reinstall")
	}
	args = append(args, "install", "--")
	for _, x := range t.Install {
		switch {
		case x.Path != "":
			args = append(args, x.Path)
		case x.Version != "":
			args = append(args, x.Name+"="+x.Version)
		default:
			args = append(args, x.Name)
		}
	}
	for _, name := range t.Remove {
		args = append(args, name+"-")
	}
	return args
}

// Simulate runs apt-get with -s and reads its plan.
func (m *Manager) Simulate(ctx context.Context, t pkg.Transaction) (pkg.Plan, error) {
	if err := errors.Join(exactNames(t), m.knownArchitectures(t)); err != nil {
		return pkg.Plan{}, err
	}
	if err := m.pinned(ctx, t); err != nil {
		return pkg.Plan{}, err
	}
	argv := append([]string{aptGet, "-s"}, m.arguments(t)...)
	r, err := m.c.Reader.Read(ctx, argv, m.environment())
	if err != nil {
		return pkg.Plan{}, resource.Unknown(mesh.ReasonToolUnknown, err, "apt could not say what it would do; nothing was done")
	}
	if r.ExitStatus != 0 {
		return pkg.Plan{}, classify(r.Stdout+"\n"+r.Stderr, r.ExitStatus, "nothing was done")
	}
	return parsePlan(r.Stdout)
}

// exactNames refuses names that apt-get would take for an instruction.
func exactNames(t pkg.Transaction) error {
	for _, x := range t.Install {
		if x.Path == "" && x.Version == "" && strings.HasSuffix(x.Name, "-") {
			return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s", x.Name)
		}
	}
	return nil
}

// Commit runs apt-get, waiting for locks first.
func (m *Manager) Commit(ctx context.Context, t pkg.Transaction) error {
	if err := m.waitForDpkg(ctx); err != nil {
		return err
	}
	name := "install"
	if len(t.Install) == 0 {
		name = "remove"
	}
	out, err := m.run(ctx, name, append([]string{aptGet}, m.arguments(t)...), m.c.Timeout)
	return scriptOf(t, out, err)
}

// waitForDpkg waits for the locks of what a transaction uses. Without debconf's,
// scripts would fail half way.
func (m *Manager) waitForDpkg(ctx context.Context) error {
	return tool.WaitUnlocked(ctx, m.c.LockWait, m.c.Waiting, m.c.AdminDir+"/lock-frontend", m.c.AdminDir+"/lock", m.c.CacheDir+"/archives/lock", m.c.DebconfDir+"/config.dat")
}

// run runs a tool that changes the machine and names how it ended.
func (m *Manager) run(ctx context.Context, name string, argv []string, limit time.Duration) (string, error) {
	out, err := m.c.Runner.Run(ctx, pkg.Command{Name: name, Argv: argv, Env: m.environment(), Timeout: limit})
	switch {
	case err != nil:
		return "", resource.Unknown(mesh.ReasonToolUnknown, err, "how apt ended could not be learned; what it did is read from the database")
	case out.Adopted:
		return out.Output, pkg.ErrAdopted
	case out.TimedOut:
		return out.Output, resource.Failed(mesh.ReasonTimeout, nil, "apt was stopped after %s%s", limit, pkg.During(out)).WithOutput(pkg.LastLines(out.Output, reportLines))
	case out.ExitStatus != 0:
		m.note(out.Output)
		return out.Output, classify(out.Output, out.ExitStatus, "what it did is read from the database")
	}
	m.note(out.Output)
	m.notes = append(m.notes, pkg.LeftNote(out)...)
	return out.Output, nil
}

// Mark runs apt-mark.
func (m *Manager) Mark(ctx context.Context, names []string, mark pkg.Mark) error {
	argv := append(append([]string{aptMark}, m.c.Options...), string(mark), "--")
	_, err := m.run(ctx, "mark", append(argv, names...), 5*time.Minute)
	return err
}

// Repair runs dpkg --configure -a when a transaction was interrupted.
func (m *Manager) Repair(ctx context.Context) error {
	broken, err := m.interrupted(ctx)
	if err != nil || len(broken) == 0 {
		return err
	}
	if err := m.waitForDpkg(ctx); err != nil {
		return err
	}
	// Whoever held the lock may have finished it.
	if broken, err = m.interrupted(ctx); err != nil || len(broken) == 0 {
		return err
	}
	argv := append([]string{dpkg}, m.c.DpkgOptions...)
	argv = append(argv, "--force-confdef", "--force-confold", "--configure", "-a")
	out, err := m.run(ctx, "configure", argv, m.c.Timeout)
	if errors.Is(err, pkg.ErrAdopted) || err != nil && resource.AsError(err).Status == mesh.StatusDeferred {
		return err
	}
	left, readErr := m.interrupted(ctx)
	if readErr != nil {
		return readErr
	}
	if len(left) > 0 {
		m.notes = append(m.notes, pkg.Note{Text: "an earlier dpkg run was interrupted and could not be finished: " + strings.Join(left, ", ")})
		return resource.Failed(mesh.ReasonInterrupted, err, "an earlier dpkg run was interrupted and could not be finished: %s", strings.Join(left, ", ")).WithOutput(pkg.LastLines(out, reportLines))
	}
	m.notes = append(m.notes, pkg.Note{Text: "an interrupted dpkg run was finished first: " + strings.Join(broken, ", ")})
	return nil
}

// interrupted lists what an interrupted dpkg left, as "name (state)".
func (m *Manager) interrupted(ctx context.Context) ([]string, error) {
	entries, err := m.Installed(ctx)
	if err != nil {
		return nil, err
	}
	var broken []string
	for _, e := range entries {
		if e.State != "" {
			broken = append(broken, fmt.Sprintf("%s (%s)", e.Name, e.State))
		}
	}
	updates, err := m.updates()
	if err != nil {
		return nil, unreadable(err)
	}
	if len(updates) > 0 && len(broken) == 0 {
		broken = append(broken, "dpkg's journal is not empty")
	}
	return broken, nil
}

// Refresh runs apt-get update. Its exit status alone proves nothing: apt calls
// a repository that did not answer a warning.
func (m *Manager) Refresh(ctx context.Context) error {
	m.unasked, m.named = nil, false
	if err := tool.WaitUnlocked(ctx, m.c.LockWait, m.c.Waiting, m.c.StateDir+"/lists/lock"); err != nil {
		return err
	}
	argv := append([]string{aptGet}, m.options()...)
	argv = append(argv, "-o", "APT::Update::Error-Mode=any", "update")
	out, err := m.run(ctx, "update", argv, 15*time.Minute)
	if errors.Is(err, pkg.ErrAdopted) {
		return err
	}
	if e := resource.AsError(err); e != nil && (e.Status != mesh.StatusFailed || e.Reason == mesh.ReasonTimeout) {
		return e
	}
	failed, reason := refreshFailures(out)
	if err == nil && len(failed) == 0 {
		m.named = true
		return nil
	}
	if hook := failedHook(out); hook != "" && len(failed) == 0 {
		m.notes = append(m.notes, pkg.Note{Text: "the indexes were fetched, and a hook of this machine failed: " + hook})
		m.named = true
		return nil
	}
	m.unasked, m.named = addresses(failed)
	if reason == mesh.ReasonNotCurrent {
		failed = append(failed, "the clock of this machine says "+m.c.Now().UTC().Format(time.RFC3339))
	}
	if len(failed) == 0 {
		return resource.Failed(reason, err, "the repositories of this node could not all be asked").WithOutput(pkg.LastLines(out, reportLines))
	}
	return resource.Failed(reason, err, "these repositories of this node could not be asked: %s", strings.Join(failed, "; ")).WithOutput(pkg.LastLines(out, reportLines))
}
