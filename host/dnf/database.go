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
	var entries []pkg.Installed
	for line := range strings.Lines(r.Stdout) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 || fields[0] == "" || fields[1] == "" {
			return nil, unreadable(fmt.Errorf("rpm wrote %.80q", line), "")
		}
		e := pkg.Installed{Name: fields[0], Version: fields[1], Arch: fields[2], Many: sideBySide(fields[0])}
		e.Held = locks.holds(e)
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, unreadable(errors.New("rpm lists no package at all"), r.Stderr)
	}
	return entries, nil
}

// sideBySide reports whether several versions of a package may be installed:
// kernels and keys, by default.
func sideBySide(name string) bool {
	return name == "gpg-pubkey" || name == "kernel" || strings.HasPrefix(name, "kernel-")
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
	// lockName is an entry of dnf5, as in `name = "fx"`.
	lockName = regexp.MustCompile(`^\s*name\s*=\s*"([^"]+)"`)
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
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			if f := lockName.FindStringSubmatch(line); f != nil {
				l[f[1]] = append(l[f[1]], "")
			} else if f := lockLine.FindStringSubmatch(line); f != nil {
				l[f[1]] = append(l[f[1]], f[2])
			}
		}
	}
	return l, nil
}
