package reconcile

import (
	"context"
	"fmt"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// removeAll removes what this host owns, is not declared, and was released. It
// returns false when it was superseded.
func (p *pass) removeAll(ctx context.Context) (bool, error) {
	owned := p.releasedOwned()
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

func (p *pass) readBackRemoval(ctx context.Context, provider resource.Provider, o mesh.Owned, removed error) error {
	if removed != nil {
		return p.recordError(ctx, o.Resource, removed)
	}
	diff, err := provider.CheckRemoved(ctx, o)
	if err != nil {
		return p.recordError(ctx, o.Resource, err)
	}
	if !diff.Zero() {
		detail := "it was removed without an error and is still there: " + diff.String()
		return p.record(ctx, Record{Result: p.result(o.Resource, mesh.StatusFailed, mesh.ReasonReadBack, detail)})
	}
	result := p.result(o.Resource, mesh.StatusRemoved, "", removalDetail(o))
	return p.record(ctx, Record{Result: result, Forget: true})
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
// each unit once. A unit that does not come back makes the resource failed,
// and the action stays to be done again by the next pass.
func (p *pass) actOnUnits(ctx context.Context) error {
	if p.reload {
		if err := p.units.DaemonReload(ctx); err != nil {
			p.log.WarnContext(ctx, "the service manager did not read its unit files again", "error", err)
		}
	}
	type key struct{ unit, verb string }
	outcome := make(map[key]error)
	restarts := make(map[string]bool)
	for _, a := range p.actions {
		if a.Verb == "restart" {
			restarts[a.Unit] = true
		}
	}
	for _, a := range p.actions {
		if _, declared := p.declared[a.Resource]; !declared {
			if err := p.store.UnitDone(ctx, a); err != nil {
				return fmt.Errorf("drop a unit action of what is not declared: %w", err)
			}
			continue
		}
		verb := a.Verb
		if restarts[a.Unit] {
			verb = "restart"
		}
		k := key{a.Unit, verb}
		err, did := outcome[k]
		if !did {
			err = p.units.Act(ctx, a.Unit, verb)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			outcome[k] = err
		}
		if err != nil {
			p.results[a.Resource] = p.result(a.Resource, mesh.StatusPending, "", "")
			if err := p.recordError(ctx, a.Resource, err); err != nil {
				return err
			}
			continue
		}
		if err := p.store.UnitDone(ctx, a); err != nil {
			return fmt.Errorf("store that %s was %sed: %w", a.Unit, a.Verb, err)
		}
	}
	return nil
}
