package host

import (
	"context"
	"encoding/json"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
)

// Refresher is a Link that can be told that the machine would be described
// differently now.
type Refresher interface {
	// Refresh has what mesh.WantProfile, mesh.WantInventory or
	// mesh.WantBriefing names sent again. It does not wait.
	Refresh(want string)
}

// described remembers, in the goroutine of the reconcile loop, what the machine
// looked like when the control plane was last told.
type described struct {
	profile   string
	inventory string
	briefing  string
}

// tellChanges looks at the machine after a pass that may have changed it, or
// that was made to look, and has the link tell what is different.
func (h *Host) tellChanges(ctx context.Context, trigger mesh.Trigger, out reconcile.Outcome) {
	h.mu.Lock()
	link, ok := h.link.(Refresher)
	h.mu.Unlock()
	if !ok || (trigger != mesh.TriggerDrift && out.Count(mesh.StatusChanged)+out.Count(mesh.StatusRemoved) == 0) {
		return
	}
	now, err := h.describe(ctx)
	if err != nil {
		h.cfg.Log.WarnContext(ctx, "the machine could not be described; it is tried again after the next pass", "error", err)
		return
	}
	before := h.described
	h.described = now
	for _, part := range []struct{ want, before, now string }{
		{mesh.WantProfile, before.profile, now.profile},
		{mesh.WantInventory, before.inventory, now.inventory},
		{mesh.WantBriefing, before.briefing, now.briefing},
	} {
		if part.before != part.now {
			link.Refresh(part.want)
		}
	}
}

func (h *Host) describe(ctx context.Context) (described, error) {
	profile, err := h.cfg.Describer.Profile(ctx)
	if err != nil {
		return described{}, err
	}
	inventory, err := h.cfg.Describer.Inventory(ctx)
	if err != nil {
		return described{}, err
	}
	briefing, err := h.cfg.Describer.Briefing(ctx)
	if err != nil {
		return described{}, err
	}
	// A detail may hold a number that moves; only checks and outcomes count.
	for i := range briefing.Lines {
		briefing.Lines[i].Detail = ""
	}
	lines, err := json.Marshal(briefing)
	if err != nil {
		return described{}, err
	}
	return described{profile: profile.Digest(), inventory: inventory.Digest(), briefing: string(lines)}, nil
}
