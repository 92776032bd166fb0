package upgrade

import (
	"context"
	"errors"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// Packages is the kind of resource for packages with the host's own package
// taken apart: where that changes its version, it goes the way of an upgrade.
type Packages struct {
	resource.SetProvider
	upgrader *Upgrader
	// declared is what the pass is for.
	declared []mesh.Resource
}

var (
	_ resource.SetProvider = (*Packages)(nil)
	_ resource.PassStarter = (*Packages)(nil)
	_ resource.Noter       = (*Packages)(nil)
)

// Wrap makes the kind of resource for packages one that upgrades the host.
func (u *Upgrader) Wrap(packages resource.SetProvider) *Packages {
	return &Packages{SetProvider: packages, upgrader: u}
}

// StartPass implements resource.PassStarter.
func (p *Packages) StartPass(ctx context.Context, declared []mesh.Resource) {
	p.declared = declared
	if s, ok := p.SetProvider.(resource.PassStarter); ok {
		s.StartPass(ctx, declared)
	}
}

// Notes implements resource.Noter.
func (p *Packages) Notes(ctx context.Context, want mesh.Resource) []string {
	if n, ok := p.SetProvider.(resource.Noter); ok {
		return n.Notes(ctx, want)
	}
	return nil
}

// Check implements resource.Provider. A version of the host that is refused is
// known before anything is looked at, and one that is installed and could not be
// judged is not known to be as wanted.
func (p *Packages) Check(ctx context.Context, want mesh.Resource) (resource.Diff, error) {
	diff, err := p.SetProvider.Check(ctx, want)
	if err == nil && diff.Zero() && want.ID() == self {
		if s := p.upgrader.now(); s.Phase == PhaseIntended && s.Intent.To != p.upgrader.cfg.Running {
			return diff, notJudged(s.Intent.To, errors.New("it is looked at again after this pass"))
		}
	}
	if err != nil || !changesVersion(want, diff) || want.Package.Version == p.upgrader.cfg.Running {
		return diff, err
	}
	s := p.upgrader.now()
	if s.Phase == PhaseSettled {
		if r := s.refuses(want.Package.Version, "", naming(want)); r != nil {
			return diff, p.upgrader.refused(ctx, r, naming(want))
		}
	}
	return diff, nil
}

func changesVersion(want mesh.Resource, diff resource.Diff) bool {
	if want.ID() != self || want.Package == nil || want.Package.Absent || want.Package.Version == "" {
		return false
	}
	for _, f := range diff.Fields {
		if f.Name == "version" || f.Name == "versions" {
			return true
		}
	}
	return false
}

// Apply is ApplySet for one.
func (p *Packages) Apply(ctx context.Context, want mesh.Resource, d resource.Diff) error {
	return p.ApplySet(ctx, []resource.Change{{Want: want, Diff: d}})[0]
}

// ApplySet implements resource.SetProvider.
func (p *Packages) ApplySet(ctx context.Context, changes []resource.Change) []error {
	errs := make([]error, len(changes))
	var others []resource.Change
	var at []int
	mine := -1
	for i, c := range changes {
		if changesVersion(c.Want, c.Diff) {
			mine = i
			continue
		}
		others = append(others, c)
		at = append(at, i)
	}
	if len(others) > 0 {
		for i, err := range p.SetProvider.ApplySet(ctx, others) {
			errs[at[i]] = err
		}
	}
	if mine >= 0 {
		errs[mine] = p.upgrade(ctx, changes[mine])
	}
	return errs
}

func (p *Packages) upgrade(ctx context.Context, change resource.Change) error {
	err := p.upgrader.apply(ctx, change.Want, func() error {
		return p.SetProvider.ApplySet(ctx, []resource.Change{change})[0]
	})
	// What was put back went past the provider, which must not remember.
	p.StartPass(ctx, p.declared)
	var named *resource.Error
	if err != nil && !errors.As(err, &named) {
		return resource.Failed(mesh.ReasonInternal, err, "the upgrade of this host could not be made: %v", err)
	}
	return err
}

// Self is the resource that is this host, which is changed last.
const Self = self
