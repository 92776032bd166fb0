package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/fault"
)

// Hello says who and where this host is; the link sends it first.
func (h *Host) Hello(ctx context.Context) (mesh.Hello, error) {
	sum, err := h.cfg.Store.Summary(ctx)
	if err != nil {
		return mesh.Hello{}, err
	}
	profile, err := h.cfg.Describer.Profile(ctx)
	if err != nil {
		return mesh.Hello{}, err
	}
	inventory, err := h.cfg.Describer.Inventory(ctx)
	if err != nil {
		return mesh.Hello{}, err
	}
	h.mu.Lock()
	node := h.settings.Node
	h.mu.Unlock()
	return mesh.Hello{
		ProtocolMin: mesh.ProtocolMin, ProtocolMax: mesh.ProtocolMax,
		Node: node, HostVersion: h.cfg.Version, BootID: h.cfg.BootID,
		MachineIDHash: profile.MachineIDHash, StoreID: sum.StoreID, Sequence: sum.Sequence,
		Held: sum.Held, Applied: sum.Applied, Ledger: sum.LedgerDigest, OwnedDigest: sum.OwnedDigest,
		ProfileDigest: profile.Digest(), InventoryDigest: inventory.Digest(),
	}, nil
}

// Heartbeat is what the link sends when time has passed.
func (h *Host) Heartbeat(ctx context.Context) (mesh.Heartbeat, error) {
	sum, err := h.cfg.Store.Summary(ctx)
	if err != nil {
		return mesh.Heartbeat{}, err
	}
	return mesh.Heartbeat{
		Sequence: h.heartbeat.Add(1), Held: sum.Held, Applied: sum.Applied,
		Ledger: sum.LedgerDigest, Drift: h.drift.Load(), Pending: sum.Pending,
	}, nil
}

// Describe returns the body of a profile, inventory or briefing frame.
func (h *Host) Describe(ctx context.Context, want string) (any, mesh.FrameType, error) {
	switch want {
	case mesh.WantProfile:
		p, err := h.cfg.Describer.Profile(ctx)
		return p, mesh.FrameProfile, err
	case mesh.WantInventory:
		i, err := h.cfg.Describer.Inventory(ctx)
		return i, mesh.FrameInventory, err
	case mesh.WantBriefing:
		b, err := h.cfg.Describer.Briefing(ctx)
		return b, mesh.FrameBriefing, err
	}
	return nil, "", fmt.Errorf("there is nothing called %q to describe", want)
}

// Want puts full messages into the outbox.
func (h *Host) Want(ctx context.Context, wants []string) error {
	var errs error
	if slices.Contains(wants, mesh.WantReport) {
		errs = errors.Join(errs, h.cfg.Store.AddFullReport(ctx))
	}
	if slices.Contains(wants, mesh.WantOwned) {
		errs = errors.Join(errs, h.cfg.Store.AddFullOwned(ctx))
	}
	return errs
}

// Declare stores a declaration with all its content, and only then has it
// applied. What cannot be taken is refused in the answer.
func (h *Host) Declare(ctx context.Context, d mesh.Declaration, fetch func(ctx context.Context, sha256 string, w io.Writer) error) (mesh.Received, error) {
	held := mesh.Generation(h.held.Load())
	refuse := func(kind mesh.EventKind, why string) (mesh.Received, error) {
		h.cfg.Log.WarnContext(ctx, "a declaration was refused", "generation", d.Generation, "held", held, "detail", why)
		err := h.cfg.Store.AddEvent(ctx, mesh.Event{Kind: kind, Detail: fmt.Sprintf("%s was refused: %s", d.Generation, why), At: h.cfg.Now()})
		return mesh.Received{Generation: d.Generation, Held: held, Refused: why}, err
	}
	if d.Generation == held {
		// The answer to an earlier delivery was lost.
		return mesh.Received{Generation: d.Generation, Held: held}, nil
	}
	if d.Generation < held {
		return refuse(mesh.EventRefused, fmt.Sprintf("this node holds %s, and generations only grow", held))
	}
	h.mu.Lock()
	node := h.settings.Node
	h.mu.Unlock()
	if d.Node != node {
		return refuse(mesh.EventRefused, fmt.Sprintf("it is for node %q and this is %q", d.Node, node))
	}
	if problems := d.Validate(); len(problems) > 0 {
		return refuse(mesh.EventInvalid, problems.Error())
	}
	for _, sum := range d.Blobs() {
		if h.cfg.Store.HasBlob(sum) {
			continue
		}
		err := h.cfg.Store.AddBlob(ctx, sum, func(ctx context.Context, w io.Writer) error { return fetch(ctx, sum, w) })
		if err != nil {
			return mesh.Received{}, err
		}
	}
	if err := h.hold(ctx, d); err != nil {
		return mesh.Received{}, err
	}
	fault.Point("host.after-received")
	return mesh.Received{Generation: d.Generation, Held: d.Generation}, nil
}

// hold stores a declaration and wakes the loop.
func (h *Host) hold(ctx context.Context, d mesh.Declaration) error {
	if err := h.cfg.Store.Hold(ctx, d); err != nil {
		return fmt.Errorf("store the declaration: %w", err)
	}
	h.held.Store(uint64(d.Generation))
	select {
	case h.declared <- struct{}{}:
	default:
	}
	return nil
}

// Recover takes over the recovery copy, and looks at everything anew. It waits
// for the loop: a pass in the middle of its work would write what it captured
// over what is handed back. A store that holds a declaration of this node has had
// the copy before it: what it knows since then counts, and the copy may be that of
// a control plane which was put back from an old backup.
func (h *Host) Recover(ctx context.Context, r mesh.Recover) error {
	_, err := h.inLoop(ctx, noPass, func(ctx context.Context) error {
		held, err := h.cfg.Store.Declaration(ctx)
		if err != nil {
			return fmt.Errorf("read the declaration held: %w", err)
		}
		h.mu.Lock()
		node := h.settings.Node
		h.mu.Unlock()
		if held != nil && held.Node == node {
			h.cfg.Log.WarnContext(ctx, "a recovery copy came for a store that knows better; it is not taken over", "held", held.Generation, "resources", len(r.Owned))
			return nil
		}
		if err := h.cfg.Store.Recover(ctx, r.Owned); err != nil {
			return fmt.Errorf("store the recovery copy: %w", err)
		}
		h.cfg.Log.InfoContext(ctx, "the recovery copy was taken over", "resources", len(r.Owned))
		select {
		case h.declared <- struct{}{}:
		default:
		}
		return nil
	})
	return err
}

// Revoked is called when the control plane says that it knows this node no
// more. The last declaration stays in force.
func (h *Host) Revoked(ctx context.Context, reason string) {
	h.cfg.Log.ErrorContext(ctx, "the control plane has revoked this node; it keeps its last declaration", "reason", reason)
}

// Status is what mesh-host status shows.
type Status struct {
	State   mesh.NodeState `json:"state"`
	Node    string         `json:"node,omitempty"`
	Version string         `json:"version"`
	// Link says in a sentence how the link is.
	Link    string               `json:"link"`
	Held    mesh.Generation      `json:"held"`
	Applied mesh.Generation      `json:"applied"`
	Last    mesh.GenerationState `json:"last_pass_state,omitempty"`
	LastAt  string               `json:"last_pass_ended,omitempty"`
	Trigger mesh.Trigger         `json:"last_pass_trigger,omitempty"`
	// Working says what the host is doing now. Empty: it watches.
	Working string            `json:"working,omitempty"`
	Results []mesh.Result     `json:"results"`
	Kept    []mesh.ResourceID `json:"kept,omitempty"`
	Pending int               `json:"pending_messages"`
	Drift   uint64            `json:"drift"`
	// Upgrade says how the host stands with its own version. Nil: it does not
	// say.
	Upgrade *mesh.HostUpgrade `json:"upgrade,omitempty"`
}

// Status reads how the host is.
func (h *Host) Status(ctx context.Context) (Status, error) {
	sum, err := h.cfg.Store.Summary(ctx)
	if err != nil {
		return Status{}, err
	}
	h.mu.Lock()
	settings, link, working := h.settings, h.link, h.working
	h.mu.Unlock()
	s := Status{
		State: mesh.NodeHosted, Node: settings.Node, Version: h.cfg.Version,
		Link: "not enrolled: this machine belongs to no mesh yet",
		Held: sum.Held, Applied: sum.Applied, Last: sum.LastState, Trigger: sum.LastTrigger,
		Working: working, Results: sum.Ledger, Kept: sum.Kept, Pending: sum.Pending, Drift: h.drift.Load(),
	}
	if h.cfg.Upgrader != nil {
		facts := h.cfg.Upgrader.Facts(ctx)
		s.Upgrade = &facts
	}
	if sum.LastPass > 0 {
		s.LastAt = sum.LastEnded.UTC().Format("2006-01-02 15:04:05Z")
	}
	if settings.Enrolled() {
		s.State = mesh.NodeDisconnected
		s.Link = "not connected yet"
		if link != nil {
			sentence, up := link.Status()
			s.Link = sentence
			if up {
				s.State = mesh.NodeEnrolled
			}
		}
	}
	return s, nil
}

// Enrol makes this machine a node of the mesh that the token names.
func (h *Host) Enrol(ctx context.Context, text string) (mesh.Enrolled, error) {
	token, err := mesh.ParseToken(text)
	if err != nil {
		return mesh.Enrolled{}, err
	}
	leave, err := h.join()
	if err != nil {
		return mesh.Enrolled{}, err
	}
	defer leave()
	h.mu.Lock()
	settings := h.settings
	h.mu.Unlock()
	if settings.Enrolled() {
		return mesh.Enrolled{}, mesh.Errorf(mesh.CodeConflict, "this machine is node %s already; to have it join anew, remove /etc/mesh/host.yaml, restart mesh-host, and use a token issued with --replaces %s", settings.Node, settings.Node)
	}
	body, err := h.introduce(ctx)
	if err != nil {
		return mesh.Enrolled{}, err
	}
	answer, err := h.cfg.Enroller.Enrol(ctx, token, body)
	if err != nil {
		return mesh.Enrolled{}, err
	}
	fault.Point("host.enrol-before-save")
	settings.Addresses = token.Addresses
	settings.Fingerprint = mesh.FingerprintText(token.Fingerprint)
	settings.Node = answer.Node
	if err := h.cfg.Save(settings); err != nil {
		return mesh.Enrolled{}, fmt.Errorf("the control plane knows this node as %s, and that could not be written here; run the same command again: %w", answer.Node, err)
	}
	h.mu.Lock()
	h.settings = settings
	h.mu.Unlock()
	select {
	case h.relink <- struct{}{}:
	default:
	}
	return answer, nil
}

func (h *Host) introduce(ctx context.Context) (mesh.Enrol, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return mesh.Enrol{}, fmt.Errorf("read the host name: %w", err)
	}
	e := mesh.Enrol{
		ProtocolMin: mesh.ProtocolMin, ProtocolMax: mesh.ProtocolMax,
		HostVersion: h.cfg.Version, Hostname: hostname, Held: mesh.Generation(h.held.Load()),
	}
	if e.Profile, err = h.cfg.Describer.Profile(ctx); err != nil {
		return mesh.Enrol{}, err
	}
	if e.Inventory, err = h.cfg.Describer.Inventory(ctx); err != nil {
		return mesh.Enrol{}, err
	}
	if e.Briefing, err = h.cfg.Describer.Briefing(ctx); err != nil {
		return mesh.Enrol{}, err
	}
	if e.Bundle, err = h.cfg.Store.Bundle(ctx); err != nil {
		return mesh.Enrol{}, err
	}
	if e.Owned, err = h.cfg.Store.RecoveryCopy(ctx); err != nil {
		return mesh.Enrol{}, err
	}
	return e, nil
}

// Apply reconciles this machine from a bundle. It is for a machine that knows
// no mesh yet.
func (h *Host) Apply(ctx context.Context, path string) (Status, error) {
	if err := h.belongsToNone(); err != nil {
		return Status{}, err
	}
	return h.inLoop(ctx, mesh.TriggerAsked, func(ctx context.Context) error {
		leave, err := h.join()
		if err != nil {
			return err
		}
		defer leave()
		// It may have become a node while this waited for the loop.
		if err := h.belongsToNone(); err != nil {
			return err
		}
		doc, err := h.cfg.Bundles.Take(ctx, path)
		if err != nil {
			return err
		}
		owned, err := h.cfg.Store.RecoveryCopy(ctx)
		if err != nil {
			return err
		}
		d := mesh.Declaration{Generation: mesh.Generation(h.held.Load() + 1)}
		declared := make(map[mesh.ResourceID]bool)
		for _, r := range doc.Resources {
			r.Resource.From, r.Resource.Revision = doc.Declaration, int64(d.Generation)
			d.Resources = append(d.Resources, r.Resource)
			declared[r.ID()] = true
		}
		for _, o := range owned {
			if !declared[o.Resource] {
				d.Released = append(d.Released, o.Resource)
			}
		}
		if problems := d.Validate(); len(problems) > 0 {
			return &mesh.Error{Code: mesh.CodeInvalid, Message: "the bundle's declaration has faults; nothing was done", Details: problems}
		}
		if err := h.cfg.Store.SetBundle(ctx, doc); err != nil {
			return err
		}
		return h.hold(ctx, d)
	})
}

// belongsToNone refuses a bundle on a machine that is a node.
func (h *Host) belongsToNone() error {
	h.mu.Lock()
	node := h.settings.Node
	h.mu.Unlock()
	if node == "" {
		return nil
	}
	return mesh.Errorf(mesh.CodeConflict, "this machine is node %s; what it should have is declared at the control plane, not by a bundle", node)
}

// Look makes a pass now and returns how the host is afterwards.
func (h *Host) Look(ctx context.Context) (Status, error) {
	return h.inLoop(ctx, mesh.TriggerAsked, func(context.Context) error { return nil })
}
