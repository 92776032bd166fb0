// Package dnf is the package manager of rpm systems, with dnf 4 and with dnf5:
// it runs dnf to change the machine, and asks rpm what is installed.
//
// Reading and writing go different ways on purpose: what dnf said is never what
// is reported. It decides nothing: which packages change and what a transaction
// may drag along is the business of package pkg. It erases nothing to make room
// for something that was not declared absent, cleans up no dependencies, and imports
// no key that dnf's own configuration does not name.
package dnf

import (
	"context"
	"errors"
	"os"
	"slices"
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
	// Reader runs rpm, and dnf where it only looks. Nil: tool.Exec.
	Reader pkg.Reader
	// Program is dnf with its full path. Empty: the first of /usr/bin/dnf and
	// /usr/bin/dnf5 that is there.
	Program string
	// LockWait is how long a held lock is waited for. Zero: one minute.
	LockWait time.Duration
	// Waiting is called again and again while a lock is waited for. Nil: nothing.
	Waiting func()
	// Timeout bounds one transaction. Zero: one hour.
	Timeout time.Duration
	// Options go to dnf first, as in "--installroot=/x".
	Options []string
	// RPMOptions go to rpm first, as in "--root=/x".
	RPMOptions []string
	// Env is added to the environment of every tool, as KEY=value.
	Env []string
	// LockFiles are those of rpm. Nil: the one beside rpm's database.
	LockFiles []string
	// VersionLock are the lists of the versionlock plugin. Nil: where dnf 4 and
	// dnf5 keep them.
	VersionLock []string
	// History is where dnf 4 remembers why a package is installed, Reasons where
	// dnf5 does. Empty: where they do so on a machine.
	History, Reasons string
	// Kernel is the release of the running kernel. Empty: the kernel is asked.
	Kernel string
}

const rpm = "/usr/bin/rpm"

// reportLines is how much of a tool's output goes into a report.
const reportLines = 20

// lockRetry is how long to wait before dnf is asked again after it said that
// its own lock is held.
const lockRetry = 2 * time.Second

// Manager is the pkg.Manager for dnf. Use New.
type Manager struct {
	c     Config
	notes []pkg.Note
	// unasked lists the repositories that the last refresh could not fetch, and
	// named says that dnf named every one of them.
	unasked []string
	named   bool
}

var (
	_ pkg.Manager   = (*Manager)(nil)
	_ pkg.Marker    = (*Manager)(nil)
	_ pkg.Noter     = (*Manager)(nil)
	_ pkg.Explainer = (*Manager)(nil)
	_ pkg.Partial   = (*Manager)(nil)
	_ pkg.Finisher  = (*Manager)(nil)
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
	if c.Program == "" {
		c.Program = "/usr/bin/dnf"
		if _, err := os.Stat(c.Program); err != nil {
			c.Program = "/usr/bin/dnf5"
		}
	}
	if c.VersionLock == nil {
		c.VersionLock = []string{"/etc/dnf/plugins/versionlock.list", "/etc/dnf/versionlock.toml"}
	}
	if c.History == "" {
		c.History = "/var/lib/dnf/history.sqlite"
	}
	if c.Reasons == "" {
		c.Reasons = "/usr/lib/sysimage/libdnf5/packages.toml"
	}
	if c.Kernel == "" {
		c.Kernel = tool.KernelRelease()
	}
	return &Manager{c: c}
}

// Tool returns "dnf".
func (m *Manager) Tool() string { return "dnf" }

// Compare orders versions, [epoch:]version-release, as rpm does.
func (m *Manager) Compare(a, b string) int { return pkgversion.CompareRPM(a, b) }

func (m *Manager) environment() []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"LC_ALL=C.UTF-8",
		"LANG=C.UTF-8",
		"NEEDRESTART_SUSPEND=1",
	}, m.c.Env...)
}

// options of every dnf. A repository that does not answer is an error, and so is
// a package that cannot come: by itself dnf would go on without it and say
// success. Old kernels stay until the admin's own dnf counts them. Indexes are
// fetched by Refresh and never in passing. What the admin set for the eyes of
// people does not decide what is read here.
func (m *Manager) options() []string {
	whole := []string{"--setopt=strict=1"}
	if m.dnf5() {
		whole = []string{"--setopt=skip_broken=0", "--setopt=skip_unavailable=0"}
	}
	return append(append(slices.Clone(m.c.Options), whole...),
		"--setopt=*.skip_if_unavailable=0",
		"--setopt=clean_requirements_on_remove=0",
		"--setopt=exit_on_lock=1",
		"--setopt=installonly_limit=0",
		"--setopt=color=never",
	)
}

// withoutRepositories reports whether dnf5 refused an option for all
// repositories because there are none, which is no fault: a package may come
// from a file.
func withoutRepositories(status int, output string) bool {
	return status != 0 && strings.Contains(output, "No matching repositories for")
}

// onlyMain returns the arguments without the options for repositories.
func onlyMain(argv []string) []string {
	return slices.DeleteFunc(slices.Clone(argv), func(arg string) bool { return strings.HasPrefix(arg, "--setopt=*.") })
}

func (m *Manager) command(verb string, args ...string) []string {
	argv := append([]string{m.c.Program}, m.options()...)
	argv = append(argv, m.without()...)
	argv = append(argv, "--setopt=metadata_expire=-1", "--setopt=*.metadata_expire=-1")
	// A quieter dnf shows no plan.
	argv = append(argv, "--setopt=debuglevel=2", verb)
	return append(argv, args...)
}

// specs names packages as dnf takes them: name, name.arch, name-version,
// name-version.arch, or a file.
func specs(targets []pkg.Target) []string {
	var specs []string
	for _, x := range targets {
		if x.Path != "" {
			specs = append(specs, x.Path)
			continue
		}
		name, arch, hasArch := strings.Cut(x.Name, ":")
		if x.Version != "" {
			name += "-" + x.Version
		}
		if hasArch {
			name += "." + arch
		}
		specs = append(specs, name)
	}
	return specs
}

func removeSpecs(names []string) []string {
	var specs []string
	for _, name := range names {
		specs = append(specs, strings.ReplaceAll(name, ":", "."))
	}
	return specs
}

// Simulate runs dnf with --assumeno and reads the transaction that it shows.
// Installing and removing are two transactions of dnf, and are simulated so.
func (m *Manager) Simulate(ctx context.Context, t pkg.Transaction) (pkg.Plan, error) {
	if err := errors.Join(m.findable(ctx, t.Remove), m.unlocked(t)); err != nil {
		return pkg.Plan{}, err
	}
	var plan pkg.Plan
	for _, part := range m.parts(t) {
		if part.verb == "remove" {
			part.specs = slices.DeleteFunc(part.specs, func(spec string) bool {
				return slices.ContainsFunc(plan.Remove, func(s pkg.Step) bool { return spec == s.Name || spec == s.Name+"."+s.Arch })
			})
			if len(part.specs) == 0 {
				continue
			}
		}
		p, err := m.trial(ctx, part)
		if err != nil {
			return pkg.Plan{}, err
		}
		if part.verb == "remove" {
			if err := seen(part, p); err != nil {
				return pkg.Plan{}, err
			}
		}
		plan.Install = append(plan.Install, p.Install...)
		plan.Remove = append(plan.Remove, p.Remove...)
	}
	return plan, nil
}

// seen refuses a removal of what rpm has and dnf is told not to see.
func seen(part part, plan pkg.Plan) error {
	for _, spec := range part.specs {
		if !slices.ContainsFunc(plan.Remove, func(s pkg.Step) bool { return spec == s.Name || spec == s.Name+"."+s.Arch }) {
			return resource.Failed(mesh.ReasonHeld, nil, "%s is installed and dnf would not remove it, as its configuration excludes it; it stays", spec)
		}
	}
	return nil
}

// trial asks dnf what a part would do.
func (m *Manager) trial(ctx context.Context, part part) (pkg.Plan, error) {
	argv := m.command(part.verb, append([]string{"--assumeno"}, part.specs...)...)
	r, err := m.c.Reader.Read(ctx, argv, m.environment())
	if err == nil && withoutRepositories(r.ExitStatus, r.Stderr) {
		r, err = m.c.Reader.Read(ctx, onlyMain(argv), m.environment())
	}
	if err != nil {
		return pkg.Plan{}, resource.Unknown(mesh.ReasonToolUnknown, err, "dnf could not say what it would do; nothing was done")
	}
	return readTrial(r)
}

// part is what one call of dnf does.
type part struct {
	verb  string
	specs []string
}

func (m *Manager) parts(t pkg.Transaction) []part {
	var parts []part
	if len(t.Install) > 0 {
		install := specs(t.Install)
		if len(t.Remove) > 0 {
			// What is to go may be in the way of what is to come. Whatever else would
			// go shows in the plan.
			install = append([]string{"--allowerasing"}, install...)
		}
		if t.Again {
			parts = append(parts, part{"reinstall", install})
		} else {
			parts = append(parts, part{"install", install})
		}
	}
	if len(t.Remove) > 0 {
		parts = append(parts, part{"remove", removeSpecs(t.Remove)})
	}
	return parts
}

// Commit runs dnf, once for what is installed and once for what is removed. What
// was installed may need what is to be removed, which no trial beforehand shows.
func (m *Manager) Commit(ctx context.Context, t pkg.Transaction) error {
	for i, part := range m.parts(t) {
		if i > 0 {
			var err error
			if part.specs, err = m.stillThere(ctx, t.Remove); err != nil || len(part.specs) == 0 {
				return err
			}
			if err := m.alone(ctx, part, t.Remove); err != nil {
				return err
			}
		}
		argv := m.command(part.verb, append(yes(), part.specs...)...)
		if _, err := m.run(ctx, part.verb, argv, m.c.Timeout); err != nil {
			return err
		}
	}
	return nil
}

// yes answers whatever dnf asks, also where its configuration says no.
func yes() []string { return []string{"-y", "--setopt=assumeno=0"} }

// alone refuses a removal that would by now take others along.
func (m *Manager) alone(ctx context.Context, part part, names []string) error {
	plan, err := m.trial(ctx, part)
	if err != nil {
		return err
	}
	var others []string
	for _, s := range plan.Remove {
		if !slices.Contains(names, s.Name) && !slices.Contains(names, s.Name+":"+s.Arch) {
			others = append(others, s.Name)
		}
	}
	if len(others) > 0 {
		return resource.Failed(mesh.ReasonWouldRemove, nil, "to remove %s would take away %s as well, which was not asked for; it stays", strings.Join(part.specs, ", "), strings.Join(others, ", "))
	}
	return nil
}

// stillThere returns the specs of those names that are installed.
func (m *Manager) stillThere(ctx context.Context, names []string) ([]string, error) {
	entries, err := m.Installed(ctx)
	if err != nil {
		return nil, err
	}
	return removeSpecs(slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		base, arch, _ := strings.Cut(name, ":")
		return !slices.ContainsFunc(entries, func(e pkg.Installed) bool { return e.Name == base && (arch == "" || e.Arch == arch) })
	})), nil
}

// findable makes sure that rpm finds by name what it listed. A database whose
// index of names is damaged lists packages that cannot be removed.
func (m *Manager) findable(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	argv := append(append([]string{rpm}, m.c.RPMOptions...), "-q", "--qf", "")
	r, err := m.c.Reader.Read(ctx, append(argv, removeSpecs(names)...), m.environment())
	if err != nil {
		return unreadable(err, "")
	}
	if r.ExitStatus != 0 {
		return resource.Failed(mesh.ReasonInconsistent, nil, "rpm lists %s and does not find it by name; nothing was done. rpm --rebuilddb on the machine mends its index", strings.Join(names, ", ")).WithOutput(pkg.LastLines(r.Stdout+r.Stderr, reportLines))
	}
	return nil
}

// run runs dnf once its locks are free and names how it ended.
func (m *Manager) run(ctx context.Context, name string, argv []string, limit time.Duration) (string, error) {
	if err := tool.WaitUnlocked(ctx, m.c.LockWait, m.c.Waiting, m.lockFiles(ctx)...); err != nil {
		return "", err
	}
	patience := time.NewTimer(m.c.LockWait)
	defer patience.Stop()
	for {
		out, err := m.c.Runner.Run(ctx, pkg.Command{Name: name, Argv: argv, Env: m.environment(), Timeout: limit})
		switch {
		case err != nil:
			return "", resource.Unknown(mesh.ReasonToolUnknown, err, "how dnf ended could not be learned; what it did is read from the database")
		case out.Adopted:
			return out.Output, pkg.ErrAdopted
		case out.TimedOut:
			return out.Output, resource.Failed(mesh.ReasonTimeout, nil, "dnf was stopped after %s%s", limit, pkg.During(out)).WithOutput(pkg.LastLines(out.Output, reportLines))
		case out.ExitStatus == 0:
			m.note(out.Output)
			m.notes = append(m.notes, pkg.LeftNote(out)...)
			return out.Output, nil
		}
		if withoutRepositories(out.ExitStatus, out.Output) && len(onlyMain(argv)) < len(argv) {
			argv = onlyMain(argv)
			continue
		}
		failure := classify(out.Output, out.ExitStatus)
		if resource.AsError(failure).Reason != mesh.ReasonLocked {
			m.note(out.Output)
			return out.Output, failure
		}
		if m.c.Waiting != nil {
			m.c.Waiting()
		}
		again := time.NewTimer(lockRetry)
		select {
		case <-ctx.Done():
			again.Stop()
			return out.Output, failure
		case <-patience.C:
			again.Stop()
			return out.Output, failure
		case <-again.C:
		}
	}
}

// lockFiles asks rpm where its database is. When it does not say, dnf waits by
// itself or fails.
func (m *Manager) lockFiles(ctx context.Context) []string {
	if m.c.LockFiles == nil {
		r, err := m.c.Reader.Read(ctx, []string{rpm, "--eval", "%{_dbpath}"}, m.environment())
		if dir := strings.TrimSpace(r.Stdout); err == nil && r.ExitStatus == 0 && strings.HasPrefix(dir, "/") {
			m.c.LockFiles = []string{dir + "/.rpm.lock"}
		}
	}
	return m.c.LockFiles
}

// Repair does nothing: rpm has no journal that could be finished. What an
// interrupted transaction leaves shows in the database as two versions.
func (m *Manager) Repair(context.Context) error { return nil }

// Finish erases the other versions with rpm, which keeps the files that the one
// that stays has too, and runs their scripts as an upgrade does.
func (m *Manager) Finish(ctx context.Context, t pkg.Target, others []string) error {
	argv := append(append([]string{rpm}, m.c.RPMOptions...), "-e", "--")
	for _, version := range others {
		name, arch, named := strings.Cut(t.Name, ":")
		spec := name + "-" + version
		if named {
			spec += "." + arch
		}
		argv = append(argv, spec)
	}
	_, err := m.run(ctx, "finish", argv, m.c.Timeout)
	return err
}

// refreshRounds bounds how many repositories that do not answer are found: dnf
// ends at the first, and is asked again without it.
const refreshRounds = 10

// Refresh runs dnf makecache. --refresh alone leaves dnf5 content with what it
// fetched a short while ago; an expiry of zero does not. A key that a repository
// names and dnf has not met is taken, as an installation takes it: without that
// a repository whose key was changed could not be read any more.
func (m *Manager) Refresh(ctx context.Context) error {
	m.unasked, m.named = nil, false
	var failure error
	var shown string
	reason := mesh.ReasonRepository
	for range refreshRounds {
		argv := append(append([]string{m.c.Program}, m.options()...), m.without()...)
		out, err := m.run(ctx, "update", append(append(argv, "--setopt=metadata_expire=0", "--setopt=*.metadata_expire=0", "makecache", "--refresh"), yes()...), 15*time.Minute)
		if errors.Is(err, pkg.ErrAdopted) {
			return err
		}
		if e := resource.AsError(err); e != nil && (e.Status != mesh.StatusFailed || e.Reason == mesh.ReasonTimeout) {
			return e
		}
		failed, signature := refreshFailures(out)
		if err == nil && len(failed) == 0 {
			m.named = true
			break
		}
		switch e := resource.AsError(err); {
		case signature:
			reason = mesh.ReasonSignature
		case e != nil && (e.Reason == mesh.ReasonNoSpace || e.Reason == mesh.ReasonReadOnly):
			return e
		}
		failure, shown = err, out
		failed = slices.DeleteFunc(failed, func(id string) bool { return slices.Contains(m.unasked, id) })
		if len(failed) == 0 {
			break
		}
		m.unasked = append(m.unasked, failed...)
	}
	if len(m.unasked) == 0 && m.named {
		return nil
	}
	failed := slices.Clone(m.unasked)
	if !m.named {
		failed = append(failed, "others, which dnf does not name")
	}
	return resource.Failed(reason, failure, "these repositories of this node could not be asked: %s", strings.Join(failed, "; ")).WithOutput(pkg.LastLines(shown, reportLines))
}
