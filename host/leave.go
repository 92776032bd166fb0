package host

import (
	"context"
	"fmt"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/internal/fault"
)

// sayGoodbye tells the control plane that a final declaration is applied: each
// removal was read back, and nothing is owned any more. It is said again after a
// later pass, until the control plane answers that this node has retired.
func (h *Host) sayGoodbye(ctx context.Context, d mesh.Declaration, out reconcile.Outcome) error {
	if !d.Final || out.State != mesh.GenerationApplied || len(out.Kept) > 0 {
		return nil
	}
	if err := h.cfg.Store.AddGoodbye(ctx, mesh.Goodbye{Generation: d.Generation}); err != nil {
		return fmt.Errorf("say goodbye: %w", err)
	}
	return nil
}

// Retired is called when the control plane says that it has committed the
// goodbye of this node. It does not wait.
func (h *Host) Retired(ctx context.Context, reason string) {
	h.cfg.Log.InfoContext(ctx, "the control plane says that this node has left the mesh", "reason", reason)
	select {
	case h.retired <- struct{}{}:
	default:
	}
}

// leave makes this host belong to no mesh, if it has nothing left to do for the
// one that it is leaving. When something goes wrong, the link dials again, is
// told the same again, and this is tried again.
func (h *Host) leave(ctx context.Context) {
	_, err := h.inLoop(ctx, mesh.TriggerAsked, func(ctx context.Context) error {
		release, err := h.join()
		if err != nil {
			return err
		}
		defer release()
		d, err := h.cfg.Store.Declaration(ctx)
		if err != nil {
			return fmt.Errorf("read the declaration held: %w", err)
		}
		if d != nil && !d.Final {
			return mesh.Errorf(mesh.CodeConflict, "this host holds %s, which is not final; it keeps that and its identity", d.Generation)
		}
		if err := h.cfg.Store.Leave(ctx); err != nil {
			return fmt.Errorf("forget what belongs to the mesh: %w", err)
		}
		h.held.Store(0)
		fault.Point("host.leave-before-forget")
		return h.forget(ctx)
	})
	if err != nil && ctx.Err() == nil {
		h.cfg.Log.ErrorContext(ctx, "this host could not leave its mesh; it is tried again", "error", err)
	}
}

// finishLeaving does what a crash in the middle of leaving left undone.
func (h *Host) finishLeaving(ctx context.Context) error {
	leaving, err := h.cfg.Store.Leaving(ctx)
	if err != nil {
		return fmt.Errorf("read whether this host is leaving: %w", err)
	}
	if !leaving {
		return nil
	}
	return h.forget(ctx)
}

// forget drops settings and identity. What is kept in memory changes last, so
// that a host that could not do it dials as before, and is told again.
func (h *Host) forget(ctx context.Context) error {
	h.mu.Lock()
	settings := h.settings
	h.mu.Unlock()
	settings.Addresses, settings.Fingerprint, settings.Node = nil, "", ""
	if err := h.cfg.Save(settings); err != nil {
		return fmt.Errorf("drop the settings: %w", err)
	}
	fault.Point("host.leave-before-identity")
	if err := h.cfg.Forget(); err != nil {
		return fmt.Errorf("drop the identity: %w", err)
	}
	h.mu.Lock()
	h.settings = settings
	h.mu.Unlock()
	if err := h.cfg.Store.Left(ctx); err != nil {
		return fmt.Errorf("store that this host has left: %w", err)
	}
	h.cfg.Log.InfoContext(ctx, "this machine belongs to no mesh any more")
	return nil
}
