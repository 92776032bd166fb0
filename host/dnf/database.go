package dnf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// queryFormat gives a line an entry; names, versions and architectures hold
// neither tabs nor line breaks.
const queryFormat = `%{NAME}\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\t%{ARCH}\n`

func unreadable(err error, stderr string) error {
	e := resource.Unknown(mesh.ReasonDatabase, err, "rpm's database could not be read, so nothing is installed or removed")
	if stderr == "" {
		return e
	}
	return e.WithOutput(pkg.LastLines(stderr, reportLines))
}

// Installed asks rpm for everything at once. An error of rpm is one even when
// its exit status denies it: half a list would look like removed packages.
func (m *Manager) Installed(ctx context.Context) ([]pkg.Installed, error) {
	argv := append([]string{rpm}, m.c.RPMOptions...)
	argv = append(argv, "-qa", "--qf", queryFormat)
	r, err := m.c.Reader.Read(ctx, argv, m.environment())
	if err != nil {
		return nil, unreadable(err, "")
	}
	if r.ExitStatus != 0 || strings.Contains(r.Stderr, "error:") {
		return nil, unreadable(fmt.Errorf("rpm ended with %d", r.ExitStatus), r.Stderr)
	}
	locks, err := m.versionLocks()
	if err != nil {
		return nil, resource.Unknown(mesh.ReasonDatabase, err, "the list of locked versions could not be read, so nothing is installed or removed")
	}
	known, err := m.marks(ctx)
	if err != nil {
		return nil, resource.Unknown(mesh.ReasonDatabase, err, "dnf's own memory of why packages are installed could not be read, so nothing is installed or removed: %v", err)
	}
	var entries []pkg.Installed
	for line := range strings.Lines(r.Stdout) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 || fields[0] == "" || fields[1] == "" {
			return nil, unreadable(fmt.Errorf("rpm wrote %.80q", line), "")
		}
		e := pkg.Installed{Name: fields[0], Version: fields[1], Arch: fields[2]}
		e.Mark = known.of(e)
		e.Protected = m.runsKernel(e)
		e.Held = locks.holds(e)
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, unreadable(errors.New("rpm lists no package at all"), r.Stderr)
	}
	if err := m.setMany(ctx, entries); err != nil {
		return nil, err
	}
	return entries, nil
}

// installOnly are the provides by which packages say that several versions of
// them stand side by side.
var installOnly = []string{"installonlypkg(kernel)", "installonlypkg(kernel-module)", "installonlypkg(vm)", "multiversion(kernel)"}

// setMany finds out which packages may be there in several versions. It asks rpm
// only where there may be some.
func (m *Manager) setMany(ctx context.Context, entries []pkg.Installed) error {
	seen := make(map[string]bool)
	ask := false
	for i, e := range entries {
		entries[i].Many = e.Name == "gpg-pubkey"
		key := e.Name + "." + e.Arch
		ask = ask || seen[key] && !entries[i].Many || strings.HasPrefix(e.Name, "kernel") || strings.HasPrefix(e.Name, "kmod")
		seen[key] = true
	}
	if !ask {
		return nil
	}
	argv := append(append([]string{rpm}, m.c.RPMOptions...), "-q", "--qf", `%{NAME}\t\n`, "--whatprovides")
	r, err := m.c.Reader.Read(ctx, append(argv, installOnly...), m.environment())
	if err != nil || strings.Contains(r.Stderr, "error:") {
		return unreadable(err, r.Stderr)
	}
	many := make(map[string]bool)
	for line := range strings.Lines(r.Stdout) {
		if name, found := strings.CutSuffix(line, "\t\n"); found {
			many[name] = true
		}
	}
	for i, e := range entries {
		entries[i].Many = e.Many || many[e.Name]
	}
	return nil
}

// runsKernel reports whether a package is part of the kernel that runs.
func (m *Manager) runsKernel(e pkg.Installed) bool {
	return strings.HasPrefix(e.Name, "kernel") && e.Version+"."+e.Arch == m.c.Kernel
}

// Architecture is the one that this program was built for, as rpm writes it.
func (m *Manager) Architecture() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	case "386":
		return "i686"
	case "arm":
		return "armv7hl"
	}
	return runtime.GOARCH
}

// locks are the entries of the versionlock plugin: by name, the versions that
// are locked. An empty version: whichever is installed.
type locks map[string][]string

func (l locks) holds(e pkg.Installed) bool {
	for _, v := range l[e.Name] {
		if v == "" || strings.TrimPrefix(v, "0:") == strings.TrimPrefix(e.Version, "0:") {
			return true
		}
	}
	return false
}

var (
	// lockLine is an entry of dnf 4, as in "fx-0:1.0-1.*".
	lockLine = regexp.MustCompile(`^([^!#\s].*)-((?:\d+:)?[^-:\s]+-[^-\s]+)\.[^.\s]+$`)
	// These are the lines of an entry of dnf5, as in `name = "fx"`.
	lockName  = regexp.MustCompile(`^\s*name\s*=\s*"([^"]+)"`)
	lockEqual = regexp.MustCompile(`^\s*comparator\s*=\s*"([^"]+)"`)
	lockValue = regexp.MustCompile(`^\s*value\s*=\s*"([^"]+)"`)
)

// lockListLimit bounds a list of locked versions.
const lockListLimit = 4 << 20

func (m *Manager) versionLocks() (locks, error) {
	l := make(locks)
	for _, file := range m.c.VersionLock {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && info.Size() > lockListLimit {
			err = fmt.Errorf("%s is larger than %d bytes", file, lockListLimit)
		}
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		l.read(string(data))
	}
	return l, nil
}

// read takes the entries of one list, of either dnf. An entry of dnf5 that says
// anything but which version it is locks every version.
func (l locks) read(list string) {
	name, equal := "", false
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if f := lockName.FindStringSubmatch(line); f != nil {
			name, equal = f[1], false
			l[name] = append(l[name], "")
		} else if f := lockEqual.FindStringSubmatch(line); f != nil {
			equal = f[1] == "=" || f[1] == "=="
		} else if f := lockValue.FindStringSubmatch(line); f != nil && equal && name != "" {
			l[name][len(l[name])-1] = f[1]
		} else if f := lockLine.FindStringSubmatch(line); f != nil {
			l[f[1]] = append(l[f[1]], f[2])
		}
	}
}

// unlocked refuses versions other than those that the admin locked, also of
// packages that are not installed and where dnf has no plugin that would.
func (m *Manager) unlocked(t pkg.Transaction) error {
	l, err := m.versionLocks()
	if err != nil {
		return resource.Unknown(mesh.ReasonDatabase, err, "the list of locked versions could not be read, so nothing is installed or removed")
	}
	for _, x := range t.Install {
		name, _, _ := strings.Cut(x.Name, ":")
		if len(l[name]) == 0 || x.Version == "" || l.holds(pkg.Installed{Name: name, Version: x.Version}) {
			continue
		}
		return resource.Failed(mesh.ReasonHeld, nil, "the versionlock of this machine holds %s at %s, so it does not become %s", x.Name, strings.Join(l[name], " or "), x.Version)
	}
	return nil
}
