package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// prepare checks one resource. What is right, or cannot be read, is recorded;
// what has to be written comes back.
func (p *pass) prepare(ctx context.Context, provider resource.Provider, res mesh.Resource) (*resource.Change, Intent, error) {
	id := res.ID()
	want := p.held(provider, res)
	diff, err := provider.Check(ctx, want)
	if err != nil {
		return nil, Intent{}, p.recordError(ctx, id, err)
	}
	entry := p.entries[id]
	owned, isOwned := p.owned[id]
	if !diff.Zero() {
		intent, err := p.announce(ctx, provider, want, diff)
		if err != nil {
			return nil, Intent{}, p.recordError(ctx, id, err)
		}
		return &resource.Change{Want: want, Diff: diff, Resumed: entry.Writing}, intent, nil
	}
	status := mesh.StatusOK
	if entry.Writing {
		// It was written, and nobody could say so then.
		status = mesh.StatusChanged
		if t, ok := provider.(resource.Tidier); ok {
			t.Tidy(ctx, id)
		}
	}
	record := Record{Result: p.result(id, status, "", "")}
	if status == mesh.StatusChanged || p.overtaken(res) {
		record.Units = p.follow(res)
	}
	if !isOwned {
		owned, err = p.capture(ctx, provider, res)
		if err != nil {
			return nil, Intent{}, p.recordError(ctx, id, err)
		}
		owned.Made = mesh.MadeExisted
	}
	if record.Owned, err = p.wrote(ctx, provider, res, owned); err != nil {
		return nil, Intent{}, p.recordError(ctx, id, err)
	}
	return nil, Intent{}, p.record(ctx, record)
}

// held is the resource with what it leaves open as it was last verified.
func (p *pass) held(provider resource.Provider, res mesh.Resource) mesh.Resource {
	if h, ok := provider.(resource.Holder); ok {
		if owned, isOwned := p.owned[res.ID()]; isOwned {
			return h.Hold(res, owned)
		}
	}
	return res
}

// announce gathers what must be stored before a resource is written.
func (p *pass) announce(ctx context.Context, provider resource.Provider, want mesh.Resource, diff resource.Diff) (Intent, error) {
	id := want.ID()
	intent := Intent{Resource: id}
	entry := p.entries[id]
	_, isOwned := p.owned[id]
	var owned mesh.Owned
	var err error
	if isOwned {
		owned, err = p.ownedWhole(ctx, id)
	} else if owned, err = p.capture(ctx, provider, want); err == nil {
		captured := owned
		intent.Owned = &captured
	}
	if err != nil {
		return Intent{}, err
	}
	edited := ""
	if a, ok := provider.(resource.Announcer); ok {
		said, err := a.Announce(ctx, want, owned)
		if err != nil {
			return Intent{}, err
		}
		if string(said.Owned.Wrote) != string(owned.Wrote) || string(said.Owned.Undo) != string(owned.Undo) {
			intent.Owned = &said.Owned
		}
		edited = said.Edited
		notes := said.Notes
		if edited != "" {
			notes = append([]string{edited}, notes...)
		}
		p.notes[id] = notes
	}
	asBefore := entry.BeforeWant == p.digests[id]
	if entry.Before.Good() && !entry.Writing && (asBefore || edited != "") {
		detail := diff.String()
		if edited != "" {
			detail = edited
		}
		intent.Event = &mesh.Event{Kind: mesh.EventDrift, Resource: id, Detail: detail, At: p.now()}
	}
	return intent, nil
}

// ownedWhole returns what is held about a resource together with what undoing it
// needs.
func (p *pass) ownedWhole(ctx context.Context, id mesh.ResourceID) (mesh.Owned, error) {
	if !p.whole[id] {
		owned, err := p.store.Owned(ctx, id)
		if err != nil {
			return mesh.Owned{}, &storeError{err}
		}
		p.owned[id], p.whole[id] = owned, true
	}
	return p.owned[id], nil
}

// storeError ends a pass: it is no result of a resource.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

func (p *pass) capture(ctx context.Context, provider resource.Provider, res mesh.Resource) (mesh.Owned, error) {
	owned, err := provider.Capture(ctx, res)
	if err != nil {
		return mesh.Owned{}, err
	}
	owned.Resource = res.ID()
	owned.Generation = p.decl.Generation
	return owned, nil
}

// wrote sets what a later removal compares with. It returns nil when nothing
// changed in what is held.
func (p *pass) wrote(ctx context.Context, provider resource.Provider, res mesh.Resource, owned mesh.Owned) (*mesh.Owned, error) {
	wrote, err := provider.Wrote(ctx, res)
	if err != nil {
		return nil, err
	}
	if held, ok := p.owned[res.ID()]; ok {
		if string(held.Wrote) == string(wrote) {
			return nil, nil
		}
		if owned, err = p.ownedWhole(ctx, res.ID()); err != nil {
			return nil, err
		}
	}
	owned.Wrote = wrote
	return &owned, nil
}

// readBack looks at the machine after a write, whatever the write said, and
// records what it saw.
func (p *pass) readBack(ctx context.Context, provider resource.Provider, res mesh.Resource, applied error) error {
	id := res.ID()
	diff, err := provider.Check(ctx, res)
	if err != nil {
		p.setWriting(id, unsettled)
		return p.recordError(ctx, id, errors.Join(err, applied))
	}
	if !diff.Zero() {
		if applied != nil {
			switch resource.AsError(applied).Status {
			case mesh.StatusUnknown:
				// The tool may still be at work.
				p.setWriting(id, unsettled)
			case mesh.StatusDeferred:
				// Nothing was done now; what was before is not better known.
			default:
				p.setWriting(id, settled)
			}
			record := p.errorRecord(ctx, id, applied)
			record.Disown = p.untouched(ctx, provider, id)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return p.record(ctx, record)
		}
		p.setWriting(id, settled)
		return p.record(ctx, Record{Result: p.result(id, mesh.StatusFailed, mesh.ReasonReadBack, "it was written without an error and reads back differently: "+diff.String())})
	}
	owned, err := p.wrote(ctx, provider, res, p.owned[id])
	if err != nil {
		return p.recordError(ctx, id, err)
	}
	if harm(applied) {
		record := p.errorRecord(ctx, id, applied)
		record.Owned, record.Units = owned, p.follow(res)
		p.setWriting(id, settled)
		return p.record(ctx, record)
	}
	if applied != nil {
		p.log.WarnContext(ctx, "the tool reported an error and the machine is as wanted", "resource", id, "error", applied)
	}
	record := Record{Result: p.result(id, mesh.StatusChanged, "", p.note(ctx, provider, res, applied)), Owned: owned, Units: p.follow(res)}
	fault.Point("reconcile.before-record")
	if err := p.record(ctx, record); err != nil {
		return err
	}
	fault.Point("reconcile.after-record")
	return nil
}

// harm reports whether a write did more than was asked for, so that it is no
// success whatever the thing itself is like.
func harm(err error) bool {
	e := resource.AsError(err)
	return e != nil && e.Harm
}

// note joins what was known before the write, what the provider says of it
// afterwards, and the error that it reported although all is as wanted.
func (p *pass) note(ctx context.Context, provider resource.Provider, res mesh.Resource, applied error) string {
	notes := slices.Clone(p.notes[res.ID()])
	if n, ok := provider.(resource.Noter); ok {
		notes = append(notes, n.Notes(ctx, res)...)
	}
	if e := resource.AsError(applied); e != nil && e.Status != mesh.StatusDeferred {
		notes = append(notes, "it is as wanted although an error was reported: "+e.Detail)
	}
	all := strings.Join(notes, "; ")
	if all != "" {
		p.log.InfoContext(ctx, "resource changed", "resource", res.ID(), "detail", all)
	}
	return all
}

// untouched reports whether a write that failed left nothing of the mesh: it was
// never read back as wanted before, and what there was still stands. Then it is
// not owned: what comes about there later is somebody else's.
func (p *pass) untouched(ctx context.Context, provider resource.Provider, id mesh.ResourceID) bool {
	owned, isOwned := p.owned[id]
	if !isOwned || len(owned.Wrote) > 0 || owned.Partial || p.entries[id].Writing {
		return false
	}
	owned, err := p.ownedWhole(ctx, id)
	if err != nil {
		return false
	}
	diff, err := provider.CheckRemoved(ctx, owned)
	return err == nil && diff.Zero()
}
