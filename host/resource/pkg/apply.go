package pkg

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// adoptions is how often a command found at work is looked at anew.
const adoptions = 3

// ApplySet brings about all changes in one transaction of the package manager,
// or in as few as it takes. What the tool said is not the result: the caller
// checks each package afterwards.
func (p *Provider) ApplySet(ctx context.Context, changes []resource.Change) []error {
	return p.anew(len(changes), func(errs []error) error { return p.applyOnce(ctx, changes, errs) })
}

// anew has once fill in an error for each of n, again from the beginning when a
// command of an earlier life was found at work.
func (p *Provider) anew(n int, once func(errs []error) error) []error {
	errs := make([]error, n)
	for range adoptions {
		clear(errs)
		if !errors.Is(once(errs), ErrAdopted) {
			return errs
		}
		p.snapshot = nil
	}
	for i := range errs {
		errs[i] = resource.Deferred(mesh.ReasonLocked, nil, "earlier package transactions of this host were still ending; it is tried again")
	}
	return errs
}

func (p *Provider) applyOnce(ctx context.Context, changes []resource.Change, errs []error) error {
	db, err := p.reread(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return nil
	}
	var jobs []job
	for i, c := range changes {
		if err := known(c.Want); err != nil {
			errs[i] = err
			continue
		}
		if c.Resumed {
			if db, err = p.finish(ctx, db, c.Want); errors.Is(err, ErrAdopted) {
				return err
			} else if err != nil {
				errs[i] = err
				continue
			}
		}
		j, needed, err := p.jobFor(db, c.Want)
		if err != nil {
			errs[i] = err
			continue
		}
		if needed {
			j.index = i
			jobs = append(jobs, j)
		}
	}
	if err := p.run(ctx, jobs, errs); err != nil {
		return err
	}
	return p.markManual(ctx, changes, errs)
}

// finish ends what an interrupted transaction of the mesh itself left: a package
// in the version that is wanted, beside the one that was to go. Two versions of
// whose making nothing is known are left alone.
func (p *Provider) finish(ctx context.Context, db *database, want mesh.Resource) (*database, error) {
	found := db.find(want.Name)
	finisher, ok := p.manager.(Finisher)
	if !ok || want.Package.Absent || !twice(found) {
		return db, nil
	}
	stays := Target{Name: want.Name, Version: want.Package.Version}
	if stays.Version == "" {
		newest := slices.MaxFunc(found, func(a, b Installed) int { return p.manager.Compare(a.Version, b.Version) })
		stays.Version = newest.Version
	}
	var others []string
	for _, e := range found {
		if !sameVersion(e.Version, stays.Version) {
			others = append(others, e.Version)
		}
	}
	if len(others) == len(found) {
		return db, nil
	}
	fault.Point("pkg.before-finish")
	if err := finisher.Finish(ctx, stays, others); err != nil {
		return db, err
	}
	fault.Point("pkg.after-finish")
	p.notes.add([]job{{target: stays}}, "an interrupted transaction was finished: %s was taken away beside %s", strings.Join(others, ", "), stays.Version)
	return p.reread(ctx)
}

// jobFor says what has to be done for a package, if anything.
func (p *Provider) jobFor(db *database, want mesh.Resource) (job, bool, error) {
	found := db.find(want.Name)
	j := job{target: Target{Name: want.Name, Version: want.Package.Version}, remove: want.Package.Absent}
	if j.done(db) {
		return j, false, nil
	}
	if j.remove {
		return j, true, p.removable(want.Name, found, resource.Failed)
	}
	entry, there := pick(found, want.Package.Version)
	right := there && (j.target.Version == "" || sameVersion(entry.Version, j.target.Version))
	if there && twice(found) {
		return j, false, resource.Failed(mesh.ReasonInterrupted, nil, "%s is installed in several versions at once (%s), which an interrupted transaction leaves; remove all but one, then it is tried again", want.Name, versions(found))
	}
	if there && entry.Held && !right {
		return j, false, resource.Failed(mesh.ReasonHeld, nil, "%s is held at %s by the admin of this machine, so it does not become %s", want.Name, entry.Version, j.target.Version)
	}
	j.lower = there && !right && !entry.Many && p.manager.Compare(j.target.Version, entry.Version) < 0
	j.again = there && entry.Broken
	if p.local != nil {
		if path, ok := p.local.Path(want.Name, j.target.Version); ok {
			j.target.Path = path
		}
	}
	return j, true, nil
}

// removable refuses what must stay, with the kind of error that make builds.
func (p *Provider) removable(name string, found []Installed, make func(mesh.Reason, error, string, ...any) *resource.Error) error {
	base, _ := splitName(name)
	if slices.Contains(p.keep, base) {
		return make(mesh.ReasonProtected, nil, "%s is what this host itself runs from; it stays", name)
	}
	for _, e := range found {
		switch {
		case e.Protected:
			return make(mesh.ReasonProtected, nil, "%s is one that the system cannot do without; it stays", name)
		case e.Held:
			return make(mesh.ReasonHeld, nil, "%s is held at %s by the admin of this machine; it stays", name, e.Version)
		}
	}
	return nil
}

func versions(found []Installed) string {
	var all []string
	for _, e := range found {
		all = append(all, e.Version)
	}
	return strings.Join(all, ", ")
}

// markManual marks what is declared as asked for, so that no clean-up of
// packages nobody asked for takes it away.
func (p *Provider) markManual(ctx context.Context, changes []resource.Change, errs []error) error {
	var jobs []job
	for i, c := range changes {
		if !c.Want.Package.Absent {
			jobs = append(jobs, job{index: i, target: Target{Name: c.Want.Name, Version: c.Want.Package.Version}})
		}
	}
	marked, err := p.mark(ctx, jobs, MarkManual, errs)
	p.notes.add(marked, "its mark as automatically installed was taken off")
	return err
}

// mark gives the installed packages of some jobs another mark, but for those that
// have an error, and returns the jobs that it was done for. It returns
// ErrAdopted when everything has to be decided anew.
func (p *Provider) mark(ctx context.Context, jobs []job, mark Mark, errs []error) ([]job, error) {
	marker, ok := p.manager.(Marker)
	if !ok {
		return nil, nil
	}
	db, err := p.read(ctx)
	if err != nil {
		// The read-back will say so for each package.
		return nil, nil
	}
	jobs = slices.DeleteFunc(jobs, func(j job) bool {
		e, there := pick(db.find(j.target.Name), j.target.Version)
		return errs[j.index] != nil || !there || e.Mark == "" || e.Mark == mark
	})
	if len(jobs) == 0 {
		return nil, nil
	}
	var names []string
	for _, j := range jobs {
		names = append(names, j.target.Name)
	}
	fault.Point("pkg.before-mark")
	err = marker.Mark(ctx, names, mark)
	p.snapshot = nil
	fault.Point("pkg.after-mark")
	if errors.Is(err, ErrAdopted) {
		return nil, err
	}
	if err == nil {
		return jobs, nil
	}
	for _, j := range jobs {
		errs[j.index] = err
	}
	return nil, nil
}

// RemoveSet takes away what this mesh installed, in one transaction or as few
// as it takes, and brings back what it had removed.
func (p *Provider) RemoveSet(ctx context.Context, owned []mesh.Owned) []error {
	return p.anew(len(owned), func(errs []error) error { return p.removeOnce(ctx, owned, errs) })
}

func (p *Provider) removeOnce(ctx context.Context, owned []mesh.Owned, errs []error) error {
	db, err := p.reread(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return nil
	}
	var out, back []job
	var marks []job
	for i, o := range owned {
		goal, err := readGoal(o)
		if err != nil {
			errs[i] = err
			continue
		}
		name := o.Resource.Name()
		found := db.find(name)
		switch {
		case goal.uninstall && len(found) > 0:
			if errs[i] = p.removable(name, found, resource.Conflict); errs[i] == nil {
				out = append(out, job{index: i, target: Target{Name: name}, remove: true})
			}
		case goal.reinstall && len(found) == 0:
			back = append(back, job{index: i, target: Target{Name: name, Version: goal.version}})
		}
		if goal.mark == MarkAuto {
			marks = append(marks, job{index: i, target: Target{Name: name}})
		}
	}
	if err := p.run(ctx, out, errs); err != nil {
		return err
	}
	for _, j := range out {
		errs[j.index] = needed(j.target.Name, errs[j.index])
	}
	if err := p.bringBack(ctx, back, errs); err != nil {
		return err
	}
	_, err = p.mark(ctx, marks, MarkAuto, errs)
	return err
}

// needed turns "would remove others" around: others need it.
func needed(name string, err error) error {
	var e *resource.Error
	if !errors.As(err, &e) || e.Reason != mesh.ReasonWouldRemove {
		return err
	}
	return resource.Conflict(mesh.ReasonNeeded, e, "%s stays, because others need it: %s", name, e.Detail)
}

// bringBack installs again what the mesh had removed: in the version that was
// there, or, where that cannot be had any more, in the one that can.
func (p *Provider) bringBack(ctx context.Context, jobs []job, errs []error) error {
	if err := p.run(ctx, jobs, errs); err != nil {
		return err
	}
	var again []job
	for _, j := range jobs {
		if errs[j.index] == nil || resource.AsError(errs[j.index]).Reason != mesh.ReasonNotAvailable {
			continue
		}
		j.target.Version = ""
		errs[j.index] = nil
		again = append(again, j)
	}
	return p.run(ctx, again, errs)
}

// goal is what removing the management of a package means.
type goal struct {
	uninstall bool
	reinstall bool
	// version to reinstall.
	version string
	// mark to put back. Empty: none.
	mark Mark
}

func readGoal(owned mesh.Owned) (goal, error) {
	name := owned.Resource.Name()
	lost := func(err error) error {
		return resource.Failed(mesh.ReasonUndo, err, "whether %s was there before the mesh is no longer known; it stays as it is", name)
	}
	var u undo
	switch {
	case len(owned.Undo) > 0:
		if err := json.Unmarshal(owned.Undo, &u); err != nil {
			return goal{}, lost(err)
		}
	case owned.Made == mesh.MadeCreated:
		u.Meant.Installed = true
	case owned.Made == mesh.MadeExisted:
		return goal{}, nil
	default:
		return goal{}, lost(nil)
	}
	last := u.Meant
	if len(owned.Wrote) > 0 {
		if err := json.Unmarshal(owned.Wrote, &last); err != nil {
			return goal{}, lost(err)
		}
	}
	was := u.Version != ""
	return goal{uninstall: !was && last.Installed, reinstall: was && !last.Installed, version: u.Version, mark: u.Mark}, nil
}

// CheckRemoved looks whether the package is gone, or there again.
func (p *Provider) CheckRemoved(ctx context.Context, owned mesh.Owned) (resource.Diff, error) {
	var d resource.Diff
	goal, err := readGoal(owned)
	if err != nil {
		return d, err
	}
	db, err := p.read(ctx)
	if err != nil {
		return d, err
	}
	found := db.find(owned.Resource.Name())
	switch {
	case goal.uninstall && len(found) > 0:
		d.Add("version", versions(found), "")
	case goal.reinstall && len(found) == 0:
		d.Add("version", "", goal.version)
	}
	return d, nil
}
