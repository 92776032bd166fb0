package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

const (
	eventsShown   = 50
	failuresShown = 1000
)

// stateNow says where the node is in its life: one that is enrolled and has no
// link is disconnected.
func (n *node) stateNow() mesh.NodeState {
	if n.State == mesh.NodeEnrolled && n.live == nil {
		return mesh.NodeDisconnected
	}
	return n.State
}

// progressTo says how far the node has come with a generation, or a newer one:
// delivered is false while it is not known to hold it.
func (n *node) progressTo(target mesh.Generation) (state mesh.GenerationState, delivered bool) {
	if n.Refused >= target && n.Refused == n.Declared {
		return mesh.GenerationFailed, true
	}
	if n.Held < target {
		return mesh.GenerationOutstanding, false
	}
	if n.Reported >= target {
		return n.ReportedState, true
	}
	return mesh.GenerationOutstanding, true
}

func (n *node) view(bad []mesh.Result) NodeView {
	v := NodeView{
		Node: n.Name, State: n.stateNow(), Labels: n.Labels, Declared: n.Declared, Held: n.Held, Applied: n.Applied,
		Failed: n.failures(bad), LastContact: n.contact, Eligible: n.Briefing.Eligible(),
	}
	member := n.State == mesh.NodeEnrolled
	v.Retiring, v.Ahead, v.Unheard, v.Note = member && n.Retiring, member && n.Ahead, member && n.Unheard, n.remark()
	switch {
	case n.State != mesh.NodeEnrolled:
	case n.Ahead || n.Unheard:
		v.Outstanding.Undelivered = 1
	case n.Declared > 0:
		switch state, delivered := n.progressTo(n.Declared); {
		case state != mesh.GenerationOutstanding:
		case delivered:
			v.Outstanding.Delivered = 1
		default:
			v.Outstanding.Undelivered = 1
		}
	}
	return v
}

// remark says in a few words what the columns of a row cannot. Empty: nothing.
func (n *node) remark() string {
	running := max(n.Held, n.Applied)
	switch {
	case n.State == mesh.NodeRevoked && running > 0:
		return fmt.Sprintf("the machine may still be running %s", running)
	case n.State != mesh.NodeEnrolled:
		return ""
	case n.Unheard:
		return "not heard of since the control plane was restored; nothing is written for it until it is"
	case n.Ahead:
		return fmt.Sprintf("holds %s, which is not known here; nothing is pushed until mesh-control recover %s", n.Held, n.Name)
	case n.Retiring && n.Declared > 0:
		return fmt.Sprintf("leaves with %s", n.Declared)
	}
	return ""
}

// failures lists what is not as declared: what the node reported, and what
// keeps it from getting its declarations.
func (n *node) failures(bad []mesh.Result) []FailedView {
	failed := []FailedView{}
	if n.State == mesh.NodeEnrolled {
		for _, f := range n.faults {
			failed = append(failed, FailedView{Resource: f.Resource, Status: mesh.StatusConflict, Reason: ReasonDeclaredTwice, Detail: f.Detail + "; the node keeps what it had"})
		}
		if n.Refused > 0 && n.Refused == n.Declared {
			failed = append(failed, FailedView{Status: mesh.StatusFailed, Reason: mesh.ReasonInternal, Detail: fmt.Sprintf("the host did not take %s: %s", n.Refused, n.RefusedWhy)})
		}
	}
	for _, r := range bad {
		failed = append(failed, FailedView{Resource: r.Resource, Status: r.Status, Reason: r.Reason, Detail: r.Detail, Output: r.Output})
	}
	return failed
}

// Nodes lists every node by name.
func (c *Control) Nodes(ctx context.Context) ([]NodeView, error) {
	bad, err := c.store.BadResults(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read what failed: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	views := make([]NodeView, 0, len(c.nodes))
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		views = append(views, c.nodes[name].view(bad[name]))
	}
	return views, nil
}

// Node returns everything that is known of a node.
func (c *Control) Node(ctx context.Context, name string) (NodeDetail, error) {
	n, known := c.snapshot(name)
	if !known {
		return NodeDetail{}, c.unknownNode(name)
	}
	results, err := c.store.Results(ctx, name)
	if err != nil {
		return NodeDetail{}, fmt.Errorf("read results of %s: %w", name, err)
	}
	ids, err := c.store.OwnedIDs(ctx, []string{name})
	if err != nil {
		return NodeDetail{}, fmt.Errorf("read recovery copy of %s: %w", name, err)
	}
	events, err := c.store.Events(ctx, name, eventsShown)
	if err != nil {
		return NodeDetail{}, fmt.Errorf("read events of %s: %w", name, err)
	}
	inventory, err := c.store.Inventory(ctx, name)
	if err != nil {
		return NodeDetail{}, fmt.Errorf("read inventory of %s: %w", name, err)
	}
	bad := slices.DeleteFunc(slices.Clone(results), func(r mesh.Result) bool { return !r.Status.Bad() })
	return NodeDetail{
		NodeView: n.view(bad), Key: keyFingerprint(n.key), HostVersion: n.HostVersion, Enrolled: n.Enrolled, Host: inventory.Host,
		Profile: n.Profile, Briefing: n.Briefing, Results: results, Owned: ids[name], Kept: n.Kept, Events: events, Drift: n.Drift,
		LedgerAgrees: n.beat.Ledger != "" && n.beat.Ledger == mesh.LedgerDigest(results),
	}, nil
}

// Progress says how far the nodes have come that a revision selects, or that
// got a generation because it no longer selects them. Zero means the newest.
func (c *Control) Progress(ctx context.Context, name string, revision int64) (Progress, error) {
	r, err := c.revision(ctx, name, revision)
	if err != nil {
		return Progress{}, err
	}
	caused, err := c.store.CausedBy(ctx, name, r.Revision)
	if err != nil {
		return Progress{}, fmt.Errorf("read what revision %d caused: %w", r.Revision, err)
	}
	source := c.currentSet().Get(name)
	c.mu.Lock()
	newest := c.revisions[name].Revision
	c.mu.Unlock()
	if r.Removed {
		source = nil
	} else if r.Revision != newest || source == nil {
		var ps mesh.Problems
		if source, ps = c.compiler.Prepare(r.Document); len(ps) > 0 {
			return Progress{}, fmt.Errorf("prepare declaration %s revision %d: %w", name, r.Revision, ps)
		}
	}
	c.mu.Lock()
	all := make([]node, 0, len(c.nodes))
	for _, n := range c.nodes {
		if n.State == mesh.NodeEnrolled {
			all = append(all, *n)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.Name, b.Name) })

	p := Progress{Declaration: name, Revision: r.Revision}
	var failed []node
	for _, n := range all {
		target, ours := caused[n.Name]
		switch {
		case ours:
		case n.Retiring || !n.Briefing.Eligible() || !concerns(source, n):
			continue
		default:
			target = n.Declared
		}
		p.Nodes++
		state, delivered := n.progressTo(max(target, 1))
		switch {
		case n.Ahead || n.Unheard:
			p.Outstanding++
			p.Undelivered++
		case len(n.faults) > 0 && !ours:
			p.Failed++
			failed = append(failed, n)
		case state == mesh.GenerationApplied:
			p.Applied++
		case state == mesh.GenerationFailed:
			p.Failed++
			failed = append(failed, n)
		default:
			p.Outstanding++
			if !delivered {
				p.Undelivered++
			}
		}
	}
	p.Failures, err = c.failuresOf(ctx, failed)
	return p, err
}

func (c *Control) failuresOf(ctx context.Context, failed []node) ([]FailedView, error) {
	if len(failed) == 0 {
		return nil, nil
	}
	failed = failed[:min(len(failed), failuresShown)]
	names := make([]string, len(failed))
	for i, n := range failed {
		names[i] = n.Name
	}
	bad, err := c.store.BadResults(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read what failed: %w", err)
	}
	var views []FailedView
	for _, n := range failed {
		for _, f := range n.failures(bad[n.Name]) {
			f.Node = n.Name
			views = append(views, f)
		}
	}
	return views[:min(len(views), failuresShown)], nil
}

// Revoke ends the identity of a node: its key is refused from now on and its
// link is closed. The machine may go on running its last declaration.
func (c *Control) Revoke(ctx context.Context, caller Caller, name string) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	n, known := c.snapshot(name)
	if !known {
		return c.unknownNode(name)
	}
	state, err := n.stateNow().Step(mesh.NodeRevoked)
	if err != nil {
		return mesh.Errorf(mesh.CodeConflict, "node %s is %s already", name, n.State)
	}
	now := c.now()
	tx := LeaveTx{
		Node: name, State: state, At: now,
		Event: c.event(name, EventRevoked, "revoked by "+caller.Name+"; the machine may still be running its last declaration"),
		Audit: c.entry(caller, "node revoked", name),
	}
	return c.end(ctx, tx, ReasonRevoked+": this node was revoked by an operator")
}
