package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// removeAll removes what this host owns, is not declared, and was released. What
// has to be put back into a directory that comes back itself is done once that
// is there. It returns false when it was superseded.
func (p *pass) removeAll(ctx context.Context) (bool, error) {
	if err := p.flush(ctx); err != nil {
		return false, err
	}
	for owned := p.releasedOwned(); len(owned) > 0; {
		before := len(p.removed)
		if done, err := p.removeEach(ctx, slices.Clone(owned)); err != nil || !done {
			return done, err
		}
		if len(p.removed) == before {
			break
		}
		owned = slices.DeleteFunc(owned, func(o mesh.Owned) bool {
			return p.results[o.Resource].Status != mesh.StatusFailed || o.Resource.Kind() != mesh.KindFile
		})
		slices.Reverse(owned)
		for _, o := range owned {
			p.results[o.Resource] = p.result(o.Resource, mesh.StatusPending, "", "")
		}
	}
	return true, nil
}

func (p *pass) removeEach(ctx context.Context, owned []mesh.Owned) (bool, error) {
	for len(owned) > 0 {
		if p.stop() {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		kind := owned[0].Resource.Kind()
		provider, known := p.providers[kind]
		if !known {
			detail := fmt.Sprintf("this host has no provider for kind %q any more; it stays as it is", kind)
			if err := p.record(ctx, Record{Result: p.result(owned[0].Resource, mesh.StatusUnknown, mesh.ReasonInternal, detail)}); err != nil {
				return false, err
			}
			owned = owned[1:]
			continue
		}
		n := 1
		set, takesSet := provider.(resource.SetProvider)
		for takesSet && n < len(owned) && owned[n].Resource.Kind() == kind {
			n++
		}
		for i := range owned[:n] {
			var err error
			if owned[i], err = p.ownedWhole(ctx, owned[i].Resource); err != nil {
				return false, err
			}
		}
		if err := p.intendRemoval(ctx, owned[:n]); err != nil {
			return false, err
		}
		fault.Point("reconcile.before-remove")
		errs := make([]error, n)
		if takesSet {
			errs = set.RemoveSet(ctx, owned[:n])
		} else {
			errs[0] = provider.Remove(ctx, owned[0])
		}
		fault.Point("reconcile.after-remove")
		for i, o := range owned[:n] {
			if err := p.readBackRemoval(ctx, provider, o, errs[i]); err != nil {
				return false, err
			}
		}
		owned = owned[n:]
	}
	return true, nil
}

// intendRemoval says that resources are about to be undone, so that what a crash
// leaves of that is not taken for somebody's doing when they are declared again.
func (p *pass) intendRemoval(ctx context.Context, owned []mesh.Owned) error {
	intents := make([]Intent, len(owned))
	for i, o := range owned {
		intents[i].Resource = o.Resource
	}
	if err := p.store.Intend(ctx, intents); err != nil {
		return fmt.Errorf("store what is about to be removed: %w", err)
	}
	return nil
}

// readBackRemoval looks at the machine after a removal, whatever the removal
// said, and records what it saw.
func (p *pass) readBackRemoval(ctx context.Context, provider resource.Provider, o mesh.Owned, removed error) error {
	diff, err := provider.CheckRemoved(ctx, o)
	if err != nil {
		p.setWriting(o.Resource, unsettled)
	}
	switch {
	case err != nil && removed != nil:
		return p.recordError(ctx, o.Resource, errors.Join(removed, err))
	case err != nil:
		return p.recordError(ctx, o.Resource, err)
	case !diff.Zero() && removed != nil, harm(removed):
		return p.recordError(ctx, o.Resource, removed)
	case !diff.Zero():
		detail := "it was removed without an error and is still there: " + diff.String()
		return p.record(ctx, Record{Result: p.result(o.Resource, mesh.StatusFailed, mesh.ReasonReadBack, detail)})
	}
	if removed != nil {
		p.log.WarnContext(ctx, "removing reported an error and the machine is as before the mesh", "resource", o.Resource, "error", removed)
	}
	result := p.result(o.Resource, mesh.StatusRemoved, "", removalDetail(o))
	return p.record(ctx, Record{Result: result, Forget: true, Units: reread(o.Resource)})
}

func removalDetail(o mesh.Owned) string {
	switch o.Made {
	case mesh.MadeReplaced:
		return "what was there before is back"
	case mesh.MadeExisted:
		return "it was there before the mesh, and stays"
	default:
		return "gone"
	}
}

// actOnUnits does the reloads and restarts that changed resources asked for,
// each unit once, after the service manager has read changed unit files. A unit
// that does not come back makes the resource failed, and the action stays to be
// done again by the next pass. So does an action of a resource that is not as
// wanted now. An action that the declaration asks for no more is dropped. It
// returns false when it was superseded: what is left is done by the next pass.
func (p *pass) actOnUnits(ctx context.Context) (bool, error) {
	if err := p.flush(ctx); err != nil {
		return false, err
	}
	good := make(map[mesh.ResourceID]bool)
	for id := range p.declared {
		good[id] = p.results[id].Status.Good()
	}
	reread, err := p.rereadUnits(ctx, good)
	if err != nil {
		return false, err
	}
	type key struct{ unit, verb string }
	type ending struct {
		note string
		err  error
	}
	outcome := make(map[key]ending)
	restarts := make(map[string]bool)
	for _, a := range p.actions {
		if a.Verb == verbRestart && good[a.Resource] {
			restarts[a.Unit] = true
		}
	}
	for _, a := range p.actions {
		res, declared := p.declared[a.Resource]
		_, owned := p.owned[a.Resource]
		switch {
		case a.Verb == verbReread:
			continue
		case !declared && owned:
			continue // it stays, and so does what has to be done for it
		case !declared:
			if err := p.store.UnitDone(ctx, a); err != nil {
				return false, fmt.Errorf("drop a unit action of what is not declared: %w", err)
			}
			continue
		case !good[a.Resource]:
			continue
		case !slices.Contains(p.follow(res), a):
			if err := p.store.UnitDone(ctx, a); err != nil {
				return false, fmt.Errorf("drop a unit action that is asked for no more: %w", err)
			}
			continue
		}
		verb := a.Verb
		if restarts[a.Unit] {
			verb = verbRestart
		}
		k := key{a.Unit, verb}
		end, did := outcome[k]
		if !did {
			// A unit may take minutes.
			if p.stop() {
				return false, nil
			}
			if end.err = reread; end.err == nil {
				end.note, end.err = p.units.Act(ctx, a.Unit, verb)
			}
			outcome[k] = end
		}
		if err := p.acted(ctx, a, good[a.Resource], end.err); err != nil {
			return false, err
		}
		if err := p.noteUnit(ctx, a.Resource, end.note); err != nil {
			return false, err
		}
	}
	return true, nil
}

// noteUnit adds what was met at a unit to the result of the resource.
func (p *pass) noteUnit(ctx context.Context, id mesh.ResourceID, note string) error {
	r := p.results[id]
	if note == "" || !r.Status.Good() || strings.Contains(r.Detail, note) {
		return nil
	}
	if r.Detail != "" {
		note = r.Detail + "; " + note
	}
	p.results[id] = p.result(id, mesh.StatusPending, "", "")
	p.unchanged[id] = false
	return p.record(ctx, Record{Result: p.result(id, r.Status, "", note)})
}

// rereadUnits has the service manager read its unit files again when one was
// written or removed. The first error is that of the service manager, the
// second ends the pass.
func (p *pass) rereadUnits(ctx context.Context, good map[mesh.ResourceID]bool) (outcome, err error) {
	did := false
	for _, a := range p.actions {
		if a.Verb != verbReread {
			continue
		}
		if !did {
			did = true
			if err := p.units.DaemonReload(ctx); err != nil {
				outcome = resource.Failed(mesh.ReasonUnit, err, "the service manager did not read its unit files again: %v", err)
				p.log.WarnContext(ctx, "the service manager did not read its unit files again", "error", err)
			}
		}
		if err := p.acted(ctx, a, good[a.Resource], outcome); err != nil {
			return outcome, err
		}
	}
	return outcome, nil
}

// acted drops an action that was carried out. One that was not stays, and makes
// a resource that was as wanted failed.
func (p *pass) acted(ctx context.Context, a UnitAction, wasGood bool, outcome error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if outcome == nil {
		if err := p.store.UnitDone(ctx, a); err != nil {
			return fmt.Errorf("store that %s of %s was done: %w", a.Verb, a.Unit, err)
		}
		return nil
	}
	if !wasGood {
		return nil
	}
	p.results[a.Resource] = p.result(a.Resource, mesh.StatusPending, "", "")
	return p.recordError(ctx, a.Resource, outcome)
}
