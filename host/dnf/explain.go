package dnf

import (
	"context"
	"regexp"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// query asks the indexes that are there already. The answer is one word a line.
func (m *Manager) query(ctx context.Context, args ...string) ([]string, bool) {
	argv := append([]string{m.c.Program}, m.options()...)
	argv = append(argv, "-q", "-C", "repoquery", "--qf", `%{name}\n`)
	r, err := m.c.Reader.Read(ctx, append(argv, args...), m.environment())
	if err != nil || r.ExitStatus != 0 {
		return nil, false
	}
	var words []string
	for _, w := range strings.Fields(r.Stdout) {
		if !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return words, true
}

// Explain asks which package has taken the place of one that is not to be had,
// or provides its name.
func (m *Manager) Explain(ctx context.Context, t pkg.Target) error {
	name, _, _ := strings.Cut(t.Name, ":")
	except := func(words []string) []string {
		return slices.DeleteFunc(words, func(w string) bool { return w == name })
	}
	off := m.without()
	successors, _ := m.query(ctx, append(off, "--whatobsoletes", name)...)
	successors = except(append(successors, m.installedObsoleting(ctx, name)...))
	slices.Sort(successors)
	if len(successors) > 0 && t.Version == "" {
		return resource.Failed(mesh.ReasonObsoleted, nil, "%s has taken the place of %s; declare that instead", strings.Join(slices.Compact(successors), ", "), t.Name)
	}
	providers, _ := m.query(ctx, append(off, "--whatprovides", name)...)
	if slices.Contains(providers, name) {
		// It is there, in another version or architecture.
		return nil
	}
	if len(providers) > 0 {
		return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s; the name is provided by %s, which may be declared instead", t.Name, strings.Join(providers, ", "))
	}
	return nil
}

// installedObsoleting lists installed packages that take the place of another.
func (m *Manager) installedObsoleting(ctx context.Context, name string) []string {
	argv := append([]string{rpm}, m.c.RPMOptions...)
	r, err := m.c.Reader.Read(ctx, append(argv, "-qa", "--qf", `[%{=NAME}\t%{OBSOLETENAME}\n]`), m.environment())
	if err != nil || r.ExitStatus != 0 {
		return nil
	}
	var found []string
	for line := range strings.Lines(r.Stdout) {
		if by, what, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && what == name {
			found = append(found, by)
		}
	}
	return found
}

// without are the options that leave out what the last refresh could not ask.
func (m *Manager) without() []string {
	var off []string
	for _, id := range m.unasked {
		off = append(off, "--disablerepo="+id)
	}
	return off
}

// Certain looks into the last good index of each repository that could not be
// asked.
func (m *Manager) Certain(ctx context.Context, name string) bool {
	base, _, _ := strings.Cut(name, ":")
	for _, id := range m.unasked {
		offered, fetched := m.query(ctx, "--repo="+id, base)
		if !fetched || len(offered) > 0 {
			return false
		}
	}
	return m.named
}

var (
	scriptFailed = regexp.MustCompile(`%(\w+)\(([^)\s]+)\) scriptlet failed, (?:exit status|signal) (\d+)`)
	keptFile     = regexp.MustCompile(`(?:warning:|\[RPM\]) (\S+) (?:created|saved) as (\S+)`)
	fileConflict = regexp.MustCompile(`file (\S+) (?:from install of \S+ conflicts with file from package|conflicts between attempted installs of \S+ and) (\S+)`)
	unprovided   = regexp.MustCompile(`nothing provides (.+?) needed by (\S+)`)
	unmeetable   = regexp.MustCompile(`package (\S+) (?:from \S+ )?(requires .+?), but none of the providers can be installed`)
	incompatible = regexp.MustCompile(`package \S+\.(\S+?) (?:from \S+ )?does not have a compatible architecture`)
	inTheWay     = regexp.MustCompile(`(?:problem with installed package|conflicts with \S+(?: [<=>]+ \S+)? provided by|installed package) ([^\s]+-[^\s]+-[^\s]+)`)
	errorLine    = regexp.MustCompile(`(?m)^\s*(?:>>> \[RPM\]|error:|Error:) *(\S.*)$`)
)

// nevraName takes the name out of name-version-release.arch: neither version
// nor release holds a dash.
func nevraName(nevra string) string {
	name := nevra
	for range 2 {
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
	}
	return name
}

// note keeps what the output of dnf says that is worth telling.
func (m *Manager) note(output string) {
	for _, f := range scriptFailed.FindAllStringSubmatch(output, 20) {
		m.notes = append(m.notes, pkg.Note{Package: nevraName(f[2]), Text: "the %" + f[1] + " script of " + f[2] + " failed with " + f[3]})
	}
	for _, f := range keptFile.FindAllStringSubmatch(output, 20) {
		text := "the edited " + f[1] + " was kept, and the new one stands beside it as " + f[2]
		if strings.HasSuffix(f[2], ".rpmsave") {
			text = "the edited " + f[1] + " was saved as " + f[2]
		}
		m.notes = append(m.notes, pkg.Note{Text: text})
	}
}

// Notes returns what there is to tell.
func (m *Manager) Notes() []pkg.Note {
	notes := m.notes
	m.notes = nil
	return notes
}

// problem reads why dnf finds no way to do it.
func problem(output string) error {
	shown := pkg.LastLines(output, reportLines)
	var missing []string
	for _, f := range unprovided.FindAllStringSubmatch(output, 10) {
		if text := f[1] + " (for " + f[2] + ")"; !slices.Contains(missing, text) {
			missing = append(missing, text)
		}
	}
	if len(missing) > 0 {
		return resource.Failed(mesh.ReasonUnmet, nil, "what is needed is not to be had: %s; nothing was done", strings.Join(missing, ", ")).WithOutput(shown)
	}
	if f := incompatible.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonArchitecture, nil, "it is offered for architecture %s, and this machine takes no packages of that; nothing was done", f[1]).WithOutput(shown)
	}
	if strings.Contains(output, "conflicts with") || strings.Contains(output, "obsoletes") {
		var others []string
		for _, f := range inTheWay.FindAllStringSubmatch(output, 10) {
			if !slices.Contains(others, f[1]) {
				others = append(others, f[1])
			}
		}
		return resource.Failed(mesh.ReasonWouldRemove, nil, "it excludes what is installed or declared, which would have to go: %s; nothing was done", strings.Join(others, ", ")).WithOutput(shown)
	}
	if f := unmeetable.FindStringSubmatch(output); f != nil {
		return resource.Failed(mesh.ReasonUnmet, nil, "what is required cannot be brought together: %s %s; nothing was done", f[1], f[2]).WithOutput(shown)
	}
	return resource.Failed(mesh.ReasonUnmet, nil, "what it requires cannot be brought together; nothing was done").WithOutput(shown)
}
