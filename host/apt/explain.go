package apt

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// hardPin is the priority from which on a pin overrides everything else.
const hardPin = 1000

// knownArchitectures refuses targets for which dpkg has no architecture: apt
// plans them, and dpkg refuses them in the middle.
func (m *Manager) knownArchitectures(t pkg.Transaction) error {
	for _, x := range t.Install {
		_, arch, named := strings.Cut(x.Name, ":")
		if !named || arch == "all" || arch == "any" || arch == m.Architecture() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.c.AdminDir, "arch"))
		if err != nil || !slices.Contains(strings.Fields(string(data)), arch) {
			return resource.Failed(mesh.ReasonArchitecture, nil, "this machine takes no packages of architecture %s; dpkg --add-architecture would have it do so", arch)
		}
	}
	return nil
}

// policy is what apt-cache policy says of one package.
type policy struct {
	candidate string
	// priority of each version that is known.
	priority map[string]int
}

var (
	policyHead    = regexp.MustCompile(`^(\S+):$`)
	policyVersion = regexp.MustCompile(`^ (?: {4}|\*{3} |  \*\*\* )(\S+)(?: (-?\d+))?$`)
	policySource  = regexp.MustCompile(`^ {8,}(-?\d+) `)
)

func parsePolicy(output string) map[string]policy {
	all := make(map[string]policy)
	var name, version string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if f := policyHead.FindStringSubmatch(line); f != nil {
			name, version = f[1], ""
			all[name] = policy{priority: make(map[string]int)}
			continue
		}
		p := all[name]
		if candidate, found := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); found {
			p.candidate = candidate
			all[name] = p
			continue
		}
		if f := policyVersion.FindStringSubmatch(line); f != nil {
			version = f[1]
			if n, err := strconv.Atoi(f[2]); err == nil {
				p.priority[version] = n
			}
			continue
		}
		// An apt that writes no priority of the version writes those of sources.
		if f := policySource.FindStringSubmatch(line); f != nil && version != "" {
			if _, known := p.priority[version]; !known {
				n, err := strconv.Atoi(f[1])
				if err == nil {
					p.priority[version] = n
				}
			}
		}
	}
	return all
}

// policies asks apt-cache about packages. One that no index has is left out.
func (m *Manager) policies(ctx context.Context, names []string) (map[string]policy, error) {
	argv := append(append([]string{aptCache}, m.c.Options...), "policy", "--")
	r, err := m.c.Reader.Read(ctx, append(argv, names...), m.environment())
	switch {
	case err != nil:
		return nil, resource.Unknown(mesh.ReasonToolUnknown, err, "what the pins of this machine allow could not be read; nothing was done")
	case r.ExitStatus != 0:
		// As a rule it is the configuration, which apt-get could not read either.
		return nil, resource.Failed(mesh.ReasonTool, nil, "apt-cache policy, which knows what the pins of this machine allow, ended with %d; nothing was done", r.ExitStatus).
			WithOutput(pkg.LastLines(r.Stderr, reportLines))
	}
	return parsePolicy(r.Stdout), nil
}

// pinned refuses an exact version against which the admin pinned: apt-get would
// take a named version for permission to do so.
func (m *Manager) pinned(ctx context.Context, t pkg.Transaction) error {
	var names []string
	for _, x := range t.Install {
		if x.Version != "" && x.Path == "" {
			names = append(names, x.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	all, err := m.policies(ctx, names)
	if err != nil {
		return err
	}
	for _, x := range t.Install {
		p, known := all[x.Name]
		if !known || x.Version == "" || x.Path != "" {
			continue
		}
		mine, offered := p.priority[x.Version]
		if !offered {
			continue
		}
		if mine < 0 {
			return resource.Failed(mesh.ReasonHeld, nil, "a pin of this machine (priority %d) keeps %s %s off it", mine, x.Name, x.Version)
		}
		if p.candidate != x.Version && p.priority[p.candidate] >= hardPin && mine < p.priority[p.candidate] {
			return resource.Failed(mesh.ReasonHeld, nil, "a pin of this machine (priority %d) holds %s at %s, so it does not become %s", p.priority[p.candidate], x.Name, p.candidate, x.Version)
		}
	}
	return nil
}

// Explain asks apt-cache whether a pin keeps the package off the machine, and
// which packages only provide the name.
func (m *Manager) Explain(ctx context.Context, t pkg.Target) error {
	// What cannot be asked explains nothing.
	all, _ := m.policies(ctx, []string{t.Name})
	if p := all[t.Name]; p.candidate == "(none)" {
		kept := slices.DeleteFunc(slices.Collect(maps.Keys(p.priority)), func(version string) bool { return p.priority[version] >= 0 })
		if len(kept) > 0 {
			newest := slices.MaxFunc(kept, m.Compare)
			return resource.Failed(mesh.ReasonHeld, nil, "a pin of this machine (priority %d) keeps %s %s off it", p.priority[newest], t.Name, newest)
		}
	}
	if t.Version != "" {
		return nil
	}
	argv := append(append([]string{aptCache}, m.c.Options...), "showpkg", "--", t.Name)
	r, err := m.c.Reader.Read(ctx, argv, m.environment())
	if err != nil || r.ExitStatus != 0 {
		return nil
	}
	own, isOwn := strings.CutPrefix(r.Stdout, "Package: "+t.Name+"\n")
	own, _, _ = strings.Cut(own, "\nPackage: ")
	_, list, found := strings.Cut(own, "Reverse Provides:")
	found = found && isOwn
	var providers []string
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 1 && !slices.Contains(providers, f[0]) {
			providers = append(providers, f[0])
		}
	}
	if !found || len(providers) == 0 {
		return nil
	}
	return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s; the name is provided by %s, which may be declared instead", t.Name, strings.Join(providers, ", "))
}

// Certain compares what the last refresh could not fetch with the indexes of
// before.
func (m *Manager) Certain(ctx context.Context, name string) bool {
	if !m.named || len(m.unasked) == 0 {
		return m.named
	}
	argv := append(append([]string{aptGet}, m.c.Options...), "indextargets", "--format", "$(CREATED_BY) $(REPO_URI) $(FILENAME)")
	r, err := m.c.Reader.Read(ctx, argv, m.environment())
	if err != nil || r.ExitStatus != 0 {
		return false
	}
	base, _, _ := strings.Cut(name, ":")
	for _, from := range m.unasked {
		fetched := false
		for line := range strings.Lines(r.Stdout) {
			f := strings.Fields(line)
			if len(f) != 3 || f[0] != "Packages" || !below(from, f[1]) {
				continue
			}
			fetched = true
			if offers, err := m.indexOffers(ctx, f[2], base); err != nil || offers {
				return false
			}
		}
		if !fetched {
			return false
		}
	}
	return true
}

// below reports whether an address lies in a repository.
func below(address, repository string) bool {
	repository = strings.TrimRight(repository, "/")
	return address == repository || strings.HasPrefix(address, repository+"/")
}

// indexOffers looks for a package in an index, in whatever form apt keeps it.
func (m *Manager) indexOffers(ctx context.Context, file, name string) (bool, error) {
	r, err := m.c.Reader.Read(ctx, []string{aptHelper, "cat-file", file}, m.environment())
	if err != nil {
		return false, err
	}
	if r.ExitStatus != 0 {
		return false, os.ErrInvalid
	}
	return strings.HasPrefix(r.Stdout, "Package: "+name+"\n") || strings.Contains(r.Stdout, "\nPackage: "+name+"\n"), nil
}

var keptFile = regexp.MustCompile(`^Configuration file '([^']+)'`)

// note keeps what the output of apt-get or dpkg says that is worth telling.
func (m *Manager) note(output string) {
	file := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if f := keptFile.FindStringSubmatch(line); f != nil {
			file = f[1]
		}
		if file != "" && strings.HasPrefix(line, "==> Keeping old config file") {
			m.notes = append(m.notes, pkg.Note{Text: "the edited " + file + " was kept, and the new one stands beside it as " + file + ".dpkg-dist"})
			file = ""
		}
	}
}

// Notes returns what there is to tell.
func (m *Manager) Notes() []pkg.Note {
	notes := m.notes
	m.notes = nil
	return notes
}
