package pkg

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// namesShown bounds how many names one sentence lists.
const namesShown = 8

// notes are what is worth telling of the changes of a pass.
type notes struct {
	// of one package, by declared name.
	of map[string][]string
}

// add tells something of the packages of some jobs.
func (n *notes) add(jobs []job, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if n.of == nil {
		n.of = make(map[string][]string)
	}
	for _, j := range jobs {
		if name := j.target.Name; !slices.Contains(n.of[name], text) {
			n.of[name] = append(n.of[name], text)
		}
	}
}

// Notes says what came with the installation of a package, what was kept, which
// scripts failed, what it did to services, and what of the package is not there
// although it is installed.
func (p *Provider) Notes(ctx context.Context, want mesh.Resource) []string {
	return append(slices.Clone(p.notes.of[want.Name]), p.missing(ctx, want)...)
}

// take sorts what the manager has to tell to the jobs that it is about. What is
// about another package, or about none, is told of every job.
func (p *Provider) take(jobs []job) {
	noter, ok := p.manager.(Noter)
	if !ok {
		return
	}
	for _, note := range noter.Notes() {
		about := slices.DeleteFunc(slices.Clone(jobs), func(j job) bool {
			base, _ := splitName(j.target.Name)
			return base != note.Package
		})
		if len(about) == 0 {
			about = jobs
		}
		p.notes.add(about, "%s", note.Text)
	}
}

// tell compares the database and the services before and after a transaction.
// Nil: nobody saw how the services were before.
func (p *Provider) tell(ctx context.Context, jobs []job, t Transaction, before, after *database, then *Watch) {
	var along []string
	for _, e := range after.entries {
		asked := slices.ContainsFunc(t.Install, func(x Target) bool { return matches(x.Name, e.Name, e.Arch, after.native) })
		was := slices.ContainsFunc(before.entries, func(b Installed) bool {
			return b.Name == e.Name && b.Arch == e.Arch && b.Version == e.Version
		})
		if !asked && !was {
			along = append(along, e.Name+" "+e.Version)
		}
	}
	if len(along) > 0 {
		p.notes.add(jobs, "with it came %s", some(along))
	}
	p.take(jobs)
	if then == nil {
		return
	}
	now, err := p.services.Watch(ctx)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "services could not be looked at after a transaction", slog.Any("error", err))
		return
	}
	for _, c := range []struct {
		says    string
		in, out []string
	}{
		{"now running: %s", now.Active, then.Active},
		{"no longer running: %s", then.Active, now.Active},
		{"needs a restart, because its files were replaced: %s", now.Outdated, then.Outdated},
	} {
		units := slices.DeleteFunc(slices.Clone(c.in), func(u string) bool { return slices.Contains(c.out, u) })
		if len(units) > 0 {
			p.notes.add(jobs, c.says, some(units))
		}
	}
}

// watch looks at the services before a transaction. Nil: that was not possible.
func (p *Provider) watch(ctx context.Context) *Watch {
	if p.services == nil {
		return nil
	}
	w, err := p.services.Watch(ctx)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "services could not be looked at before a transaction", slog.Any("error", err))
		return nil
	}
	return &w
}

// despite tells that the tool reported an error although its work is done.
func (p *Provider) despite(jobs []job, err error) {
	if e := resource.AsError(err); e != nil && len(jobs) > 0 {
		p.notes.add(jobs, "the tool reported an error and the package is as wanted: %s", e.Detail)
	}
}

// some lists names, not too many.
func some(names []string) string {
	slices.Sort(names)
	if more := len(names) - namesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), more)
	}
	return strings.Join(names, ", ")
}

// ConffileLooker is a Manager that knows which configuration files of an
// installed package are not there.
type ConffileLooker interface {
	// MissingConffiles returns their paths.
	MissingConffiles(ctx context.Context, name string) ([]string, error)
}

// missing says what of an installed package is not there although it is
// installed.
func (p *Provider) missing(ctx context.Context, want mesh.Resource) []string {
	looker, ok := p.manager.(ConffileLooker)
	if !ok || want.Absent() {
		return nil
	}
	missing, err := looker.MissingConffiles(ctx, want.Name)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "the configuration files of a package were not looked at", slog.String("package", want.Name), slog.Any("error", err))
		return nil
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("installed, and somebody deleted its configuration files, which do not come back by themselves: %s", strings.Join(missing, ", "))}
}
