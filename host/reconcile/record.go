package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

func (p *pass) result(id mesh.ResourceID, status mesh.Status, reason mesh.Reason, detail string) mesh.Result {
	r := mesh.Result{Resource: id, Status: status, Reason: reason, Detail: detail, Generation: p.decl.Generation, At: p.now()}
	r.Want = p.digests[id]
	return r
}

func (p *pass) recordError(ctx context.Context, id mesh.ResourceID, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var lost *storeError
	if errors.As(err, &lost) {
		return lost.error
	}
	return p.record(ctx, p.errorRecord(ctx, id, err))
}

func (p *pass) errorRecord(ctx context.Context, id mesh.ResourceID, err error) Record {
	e := resource.AsError(err)
	switch e.Status {
	case mesh.StatusFailed, mesh.StatusDeferred, mesh.StatusUnknown, mesh.StatusConflict:
	default:
		// No error makes a resource good.
		e = resource.Failed(mesh.ReasonInternal, err, "its provider names an error with status %q: %v", e.Status, err)
	}
	if e.Reason == mesh.ReasonInternal {
		p.log.ErrorContext(ctx, "a resource could not be handled", "resource", id, "error", err)
	}
	result := p.result(id, e.Status, e.Reason, e.Detail)
	result.Output = e.Output
	return Record{Result: result}
}

func (p *pass) record(ctx context.Context, record Record) error {
	id := record.Result.Resource
	if _, err := p.results[id].Status.Step(record.Result.Status); err != nil {
		return fmt.Errorf("record %s: %w", id, err)
	}
	if record.Result.Status.Good() {
		p.setWriting(id, settled)
	}
	record.Unfinished = p.entries[id].Writing
	found := record.Result.Status == mesh.StatusOK && len(record.Units) == 0
	switch {
	case found && record.Owned == nil && p.unchanged[id]:
		// The ledger says so already.
	default:
		p.unstored = append(p.unstored, record)
		if found && len(p.unstored) < unstoredLimit {
			break
		}
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	for _, a := range record.Units {
		if !slices.Contains(p.actions, a) {
			p.actions = append(p.actions, a)
		}
	}
	switch {
	case record.Forget:
		delete(p.results, id)
		delete(p.owned, id)
		p.removed = append(p.removed, record.Result)
	default:
		p.results[id] = record.Result
		p.unchanged[id] = p.unchanged[id] && found
		if record.Owned != nil {
			p.owned[id], p.whole[id] = *record.Owned, true
		}
		if record.Disown {
			delete(p.owned, id)
			delete(p.whole, id)
		}
	}
	return nil
}

// flush stores the records that were held back.
func (p *pass) flush(ctx context.Context) error {
	if len(p.unstored) == 0 {
		return nil
	}
	if err := p.store.Record(ctx, p.unstored); err != nil {
		return fmt.Errorf("record %s: %w", p.unstored[len(p.unstored)-1].Result.Resource, err)
	}
	p.unstored = nil
	return nil
}

// What is known of a write that was announced.
const (
	settled   = false
	unsettled = true
)

func (p *pass) setWriting(id mesh.ResourceID, writing bool) {
	entry := p.entries[id]
	entry.Writing = writing
	p.entries[id] = entry
}
