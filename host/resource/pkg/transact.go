package pkg

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// job is one package that has to change.
type job struct {
	// index is the place of its result.
	index  int
	target Target
	remove bool
	// lower: the target's version is below the one installed.
	lower bool
	// again: it is there, and broken.
	again bool
}

// needsIndex reports whether what the repositories offer decides the version.
func (j job) needsIndex() bool {
	return !j.remove && j.target.Version == "" && j.target.Path == ""
}

func transaction(jobs []job) Transaction {
	var t Transaction
	for _, j := range jobs {
		if j.remove {
			t.Remove = append(t.Remove, j.target.Name)
			continue
		}
		t.Install = append(t.Install, j.target)
		t.Lower = t.Lower || j.lower
		t.Again = t.Again || j.again
	}
	return t
}

// done reports whether a job's package is as the job wants it.
func (j job) done(db *database) bool {
	found := db.find(j.target.Name)
	if j.remove {
		return len(found) == 0
	}
	e, ok := pick(found, j.target.Version)
	return ok && e.State == "" && !twice(found) && (j.target.Version == "" || sameVersion(e.Version, j.target.Version))
}

// run does as many of the jobs as can be done, in one transaction if possible,
// and puts an error for each of the others into errs. It returns ErrAdopted
// when everything has to be decided anew.
func (p *Provider) run(ctx context.Context, jobs []job, errs []error) error {
	if len(jobs) == 0 {
		return nil
	}
	set := func(jobs []job, err error) {
		for _, j := range jobs {
			errs[j.index] = err
		}
	}
	fault.Point("pkg.before-repair")
	interrupted := p.manager.Repair(ctx)
	fault.Point("pkg.after-repair")
	if errors.Is(interrupted, ErrAdopted) {
		return ErrAdopted
	}
	if passing(interrupted) {
		set(jobs, interrupted)
		return nil
	}
	p.take(jobs)
	if interrupted != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "interrupted package transaction could not be finished", slog.Any("error", interrupted))
	}
	db, err := p.reread(ctx)
	if err != nil {
		set(jobs, err)
		return nil
	}
	// What was interrupted may have been one of them.
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j job) bool { return j.done(db) })
	if len(jobs) == 0 {
		return nil
	}

	accepted, err := p.plan(ctx, db, jobs, errs)
	if err != nil {
		return err
	}
	if len(accepted) == 0 {
		return nil
	}
	err = p.commit(ctx, db, accepted)
	if errors.Is(err, ErrAdopted) {
		return err
	}
	if err == nil {
		return nil
	}
	if passing(err) || resource.AsError(err).Harm {
		set(accepted, err)
		return nil
	}
	after, readErr := p.reread(ctx)
	if readErr != nil {
		set(accepted, readErr)
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(accepted), func(j job) bool { return j.done(after) })
	p.despite(slices.DeleteFunc(slices.Clone(accepted), func(j job) bool { return !j.done(after) }), err)
	for _, j := range left {
		errs[j.index] = p.alone(ctx, j, len(accepted) > 1, err)
		if errors.Is(errs[j.index], ErrAdopted) {
			errs[j.index] = nil
			return ErrAdopted
		}
		if interrupted != nil && errs[j.index] != nil && vague(errs[j.index]) {
			errs[j.index] = interrupted
		}
	}
	return nil
}

// vague reports whether an error says no more than that the tool failed, so
// that what an earlier transaction left explains it better.
func vague(err error) bool {
	switch resource.AsError(err).Reason {
	case mesh.ReasonTool, mesh.ReasonInterrupted:
		return true
	}
	return false
}

// alone tries one job of a failed transaction by itself.
func (p *Provider) alone(ctx context.Context, j job, others bool, failed error) error {
	if resource.AsError(failed).Reason == mesh.ReasonToolUnknown || !others {
		return failed
	}
	if err := p.manager.Repair(ctx); errors.Is(err, ErrAdopted) || passing(err) {
		return err
	}
	db, err := p.reread(ctx)
	if err != nil {
		return err
	}
	if j.done(db) {
		return nil
	}
	if err := p.simulate(ctx, db, []job{j}); err != nil {
		return err
	}
	err = p.commit(ctx, db, []job{j})
	if err == nil || errors.Is(err, ErrAdopted) || resource.AsError(err).Harm {
		return err
	}
	after, readErr := p.reread(ctx)
	if readErr != nil {
		return readErr
	}
	if j.done(after) {
		p.despite([]job{j}, err)
		return nil
	}
	return err
}

// plan finds the jobs that can be done together, fetching the indexes at most
// once a pass and only when they decide something.
func (p *Provider) plan(ctx context.Context, db *database, jobs []job, errs []error) ([]job, error) {
	if slices.ContainsFunc(jobs, job.needsIndex) {
		if err := p.refresh(ctx); errors.Is(err, ErrAdopted) {
			return nil, err
		}
	}
	trial := func(jobs []job) error { return p.simulate(ctx, db, jobs) }
	usable := p.usable(ctx, jobs, errs)
	accepted, refused := settle(usable, trial)
	if len(refused) > 0 && p.refreshed == nil && slices.ContainsFunc(refused, func(r refusal) bool { return !r.job.remove && !passing(r.err) }) {
		if err := p.refresh(ctx); errors.Is(err, ErrAdopted) {
			return nil, err
		}
		usable = p.usable(ctx, usable, errs)
		accepted, refused = settle(usable, trial)
	}
	for _, r := range refused {
		errs[r.job.index] = p.explain(ctx, r)
	}
	return accepted, nil
}

// refresh fetches the indexes, once a pass.
func (p *Provider) refresh(ctx context.Context) error {
	if p.refreshed != nil {
		return nil
	}
	err := p.manager.Refresh(ctx)
	fault.Point("pkg.after-refresh")
	if errors.Is(err, ErrAdopted) {
		return err
	}
	p.refreshed = &refresh{err: err}
	return nil
}

// certain reports whether a refresh that failed leaves no doubt about which
// version of a package would come.
func (p *Provider) certain(ctx context.Context, j job) bool {
	if passing(p.refreshed.err) {
		return false
	}
	partial, ok := p.manager.(Partial)
	return ok && partial.Certain(ctx, j.target.Name)
}

// usable leaves out the jobs whose version an index would decide that could
// not be fetched.
func (p *Provider) usable(ctx context.Context, jobs []job, errs []error) []job {
	if p.refreshed == nil || p.refreshed.err == nil {
		return jobs
	}
	var usable []job
	for _, j := range jobs {
		if j.needsIndex() && !p.certain(ctx, j) {
			errs[j.index] = p.refreshed.err
			continue
		}
		usable = append(usable, j)
	}
	return usable
}

// explain says of a package that is not available that a repository could not
// be asked, or what else the manager knows.
func (p *Provider) explain(ctx context.Context, r refusal) error {
	if resource.AsError(r.err).Reason != mesh.ReasonNotAvailable {
		return r.err
	}
	if p.refreshed != nil && p.refreshed.err != nil && !p.certain(ctx, r.job) {
		return p.refreshed.err
	}
	if e, ok := p.manager.(Explainer); ok && !r.job.remove {
		if err := e.Explain(ctx, r.job.target); err != nil {
			return err
		}
	}
	if db, err := p.read(ctx); err == nil && r.job.target.Version != "" {
		for _, e := range db.find(r.job.target.Name) {
			counts := ""
			switch have, want := withoutEpoch(e.Version), withoutEpoch(r.job.target.Version); {
			case have == want:
				counts = "an epoch"
			case strings.HasPrefix(have, want+"-"):
				counts = "a release"
			default:
				continue
			}
			return resource.Failed(mesh.ReasonNotAvailable, r.err, "%s %s is not in any repository of this node; installed is %s, and %s counts", r.job.target.Name, r.job.target.Version, e.Version, counts)
		}
	}
	return r.err
}

// simulate asks what the jobs would do, and refuses what they may not do.
func (p *Provider) simulate(ctx context.Context, db *database, jobs []job) error {
	t := transaction(jobs)
	plan, err := p.manager.Simulate(ctx, t)
	if err != nil {
		return err
	}
	if err := judge(t, plan, db, p.manager.Compare); err != nil {
		return err
	}
	return p.against(t, plan, db)
}

// against refuses a plan that would bring what is declared absent, or another
// version of what is declared in one: the next pass would undo it.
func (p *Provider) against(t Transaction, plan Plan, db *database) error {
	for _, s := range plan.Install {
		if slices.ContainsFunc(t.Install, func(x Target) bool { return matches(x.Name, s.Name, s.Arch, db.native) }) {
			continue
		}
		for _, r := range p.declared {
			if r.Kind != mesh.KindPackage || !matches(r.Name, s.Name, s.Arch, db.native) {
				continue
			}
			switch {
			case r.Package.Absent:
				return resource.Failed(mesh.ReasonUnmet, nil, "it would bring %s, which is declared absent; nothing was done", s.Name)
			case r.Package.Version != "" && s.Version != "" && !sameVersion(r.Package.Version, s.Version) && len(db.find(r.Name)) > 0:
				return resource.Failed(mesh.ReasonUnmet, nil, "it would make %s %s, which is declared as %s; nothing was done", s.Name, s.Version, r.Package.Version)
			}
		}
	}
	return nil
}

// judge compares a plan with what was asked for.
func judge(t Transaction, plan Plan, db *database, compare func(a, b string) int) error {
	var extra, lowered []string
	for _, s := range plan.Remove {
		if !slices.ContainsFunc(t.Remove, func(name string) bool { return matches(name, s.Name, s.Arch, db.native) }) {
			extra = append(extra, s.Name)
		}
	}
	if len(extra) > 0 {
		return resource.Failed(mesh.ReasonWouldRemove, nil, "it would remove %s as well, which was not asked for; nothing was done", strings.Join(extra, ", "))
	}
	for _, s := range plan.Install {
		if slices.ContainsFunc(t.Install, func(x Target) bool { return matches(x.Name, s.Name, s.Arch, db.native) }) {
			continue
		}
		for _, e := range db.entries {
			if e.Name != s.Name || e.Arch != s.Arch || e.Many || s.Version == "" {
				continue
			}
			if e.Held && !sameVersion(e.Version, s.Version) {
				return resource.Failed(mesh.ReasonHeld, nil, "it would make %s %s, which the admin of this machine holds at %s; nothing was done", s.Name, s.Version, e.Version)
			}
			if compare(s.Version, e.Version) < 0 {
				lowered = append(lowered, s.Name)
			}
		}
	}
	if len(lowered) > 0 {
		return resource.Failed(mesh.ReasonWouldRemove, nil, "it would put %s back to an older version, which was not asked for; nothing was done", strings.Join(lowered, ", "))
	}
	for _, x := range t.Install {
		i := slices.IndexFunc(plan.Install, func(s Step) bool { return matches(x.Name, s.Name, s.Arch, db.native) })
		switch {
		case i < 0 && installed(db, x):
			// Nothing but its state or mark has to change.
		case i < 0:
			return resource.Failed(mesh.ReasonNotAvailable, nil, "no repository of this node offers a package named %s", x.Name)
		case x.Version != "" && plan.Install[i].Version != "" && !sameVersion(plan.Install[i].Version, x.Version):
			return resource.Failed(mesh.ReasonNotAvailable, nil, "%s %s is not in any repository of this node; it would become %s", x.Name, x.Version, plan.Install[i].Version)
		}
	}
	for _, name := range t.Remove {
		if len(db.find(name)) > 0 && !slices.ContainsFunc(plan.Remove, func(s Step) bool { return matches(name, s.Name, s.Arch, db.native) }) {
			return resource.Failed(mesh.ReasonTool, nil, "the tool would not remove %s", name)
		}
	}
	return nil
}

func installed(db *database, x Target) bool {
	e, ok := pick(db.find(x.Name), x.Version)
	return ok && (x.Version == "" || sameVersion(e.Version, x.Version))
}

// commit does the jobs and looks what became of everything else.
func (p *Provider) commit(ctx context.Context, before *database, jobs []job) error {
	t := transaction(jobs)
	then := p.watch(ctx)
	fault.Point("pkg.before-commit")
	err := p.manager.Commit(ctx, t)
	p.snapshot = nil
	fault.Point("pkg.after-commit")
	if errors.Is(err, ErrAdopted) || passing(err) {
		p.take(jobs)
		return err
	}
	after, readErr := p.read(ctx)
	switch {
	case readErr != nil:
		p.take(jobs)
		return readErr
	case err != nil:
		p.take(jobs)
	default:
		p.tell(ctx, jobs, t, before, after, then)
	}
	if harm := p.harm(t, before, after, err); harm != nil {
		return harm
	}
	return err
}

// harm says what a transaction did to packages that it was not about. A plan
// that would do so is refused, so none of it was in the plan.
func (p *Provider) harm(t Transaction, before, after *database, failed error) error {
	var lost, lowered []string
	for _, e := range before.entries {
		about := func(name string) bool { return matches(name, e.Name, e.Arch, before.native) }
		if e.Many || slices.ContainsFunc(t.Remove, about) || slices.ContainsFunc(t.Install, func(x Target) bool { return about(x.Name) }) {
			continue
		}
		there := func(a Installed) bool { return a.Name == e.Name && sameArch(a.Arch, e.Arch) }
		// One that was in two versions before may still be.
		asNew := func(a Installed) bool { return there(a) && p.manager.Compare(a.Version, e.Version) >= 0 }
		switch {
		case slices.ContainsFunc(after.entries, asNew):
		case slices.ContainsFunc(after.entries, there):
			lowered = append(lowered, e.Name)
		case !slices.Contains(lost, e.Name):
			lost = append(lost, e.Name)
		}
	}
	var what []string
	if len(lost) > 0 {
		what = append(what, some(lost)+" went")
	}
	if len(lowered) > 0 {
		what = append(what, some(lowered)+" went back to an older version")
	}
	if len(what) == 0 {
		return nil
	}
	e := resource.Failed(mesh.ReasonHarm, failed, "while it ran %s, which was not asked for and not in the tool's plan", strings.Join(what, ", and "))
	e.Harm = true
	if failed != nil {
		e.Output = resource.AsError(failed).Output
	}
	return e
}

// passing reports whether an error says that nothing was done, or that nobody
// knows, for reasons that hold for every package alike.
func passing(err error) bool {
	if err == nil {
		return false
	}
	e := resource.AsError(err)
	return e.Status == mesh.StatusDeferred || e.Status == mesh.StatusUnknown && e.Reason != mesh.ReasonToolUnknown
}
