package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// controlPackage is the package of the control plane itself. A node on which the
// mesh made it cannot retire: its last report would have nobody to go to.
const controlPackage mesh.ResourceID = "package:mesh-control"

// Retire gives a node its final declaration: no resources, and everything that
// the mesh owns there released. The node is enrolled until it has applied that
// and said goodbye.
func (c *Control) Retire(ctx context.Context, caller Caller, name string) (Retiring, error) {
	if err := c.enter(ctx); err != nil {
		return Retiring{}, err
	}
	defer c.leave()
	n, err := c.present(name)
	if err != nil {
		return Retiring{}, err
	}
	owned, err := c.store.OwnedIDs(ctx, []string{name})
	if err != nil {
		return Retiring{}, fmt.Errorf("read recovery copy: %w", err)
	}
	if n.Ahead || n.Unheard {
		return Retiring{}, unsure(n)
	}
	if n.Retiring {
		return Retiring{Node: name, Generation: n.Declared, Resources: len(owned[name])}, nil
	}
	if slices.Contains(owned[name], controlPackage) {
		return Retiring{}, mesh.Errorf(mesh.CodeConflict, "node %s carries the control plane itself as %s, and retiring would remove it with everything that is known; move the control plane to another machine first (mesh-control backup)", name, controlPackage)
	}
	n.Retiring = true
	record, _, err := c.decide(ctx, n, occasionRetired)
	if err != nil {
		return Retiring{}, err
	}
	yes := true
	tx := ChangeTx{
		Node: name, Retiring: &yes, Generation: record,
		Events: []EventView{c.event(name, EventRetiring, "retired by "+caller.Name+": everything that the mesh owns here is to be removed or put back, and then this node leaves")},
		Audit:  c.entry(caller, "node retired", fmt.Sprintf("%s, %d resources to be removed or put back", name, len(owned[name]))),
	}
	if err := c.store.ChangeNode(ctx, tx); err != nil {
		return Retiring{}, fmt.Errorf("store that %s retires: %w", name, err)
	}
	c.note(name, func(m *node) { m.Retiring, m.faults = true, nil })
	c.written(record)
	return Retiring{Node: name, Generation: record.Generation, Resources: len(owned[name]), Changed: true}, nil
}

// Keep takes a retirement back that has not come to its end. The node gets what
// its declarations say again.
func (c *Control) Keep(ctx context.Context, caller Caller, name string) (Retiring, error) {
	if err := c.enter(ctx); err != nil {
		return Retiring{}, err
	}
	defer c.leave()
	n, err := c.present(name)
	if err != nil {
		return Retiring{}, err
	}
	if !n.Retiring {
		return Retiring{}, mesh.Errorf(mesh.CodeConflict, "node %s is not being retired", name)
	}
	if n.Ahead || n.Unheard {
		return Retiring{}, unsure(n)
	}
	n.Retiring = false
	record, faults, err := c.decide(ctx, n, occasionEnrolled)
	if err != nil {
		return Retiring{}, err
	}
	no := false
	tx := ChangeTx{
		Node: name, Retiring: &no, Generation: record,
		Events: []EventView{c.event(name, EventStays, "the retirement was taken back by "+caller.Name)},
		Audit:  c.entry(caller, "retirement taken back", name),
	}
	if err := c.store.ChangeNode(ctx, tx); err != nil {
		return Retiring{}, fmt.Errorf("store that %s stays: %w", name, err)
	}
	c.note(name, func(m *node) { m.Retiring, m.faults = false, faults })
	c.written(record)
	answer := Retiring{Node: name, Changed: true}
	if record != nil {
		answer.Generation, answer.Resources = record.Generation, len(record.Resources)
	}
	return answer, nil
}

// goodbye ends a node that has applied its final declaration, if everything that
// was recorded agrees with that. Otherwise nothing happens, and the host says it
// again after its next pass.
func (c *Control) goodbye(ctx context.Context, name string, b mesh.Goodbye) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	n, known := c.snapshot(name)
	if !known || n.State != mesh.NodeEnrolled {
		return mesh.Errorf(mesh.CodeDenied, "node %s is not part of this mesh any more", name)
	}
	owned, err := c.store.OwnedIDs(ctx, []string{name})
	if err != nil {
		return fmt.Errorf("read recovery copy: %w", err)
	}
	doubt := ""
	switch {
	case !n.Retiring || n.Digest != finalDigest:
		doubt = "it is not being retired"
	case b.Generation != n.Declared:
		doubt = fmt.Sprintf("its final generation is %s, not %s", n.Declared, b.Generation)
	case n.Reported != n.Declared || n.ReportedState != mesh.GenerationApplied:
		doubt = fmt.Sprintf("it has not reported %s as applied", n.Declared)
	case len(n.Kept) > 0:
		doubt = fmt.Sprintf("it still owns %d resources that were not released", len(n.Kept))
	case len(owned[name]) > 0:
		doubt = fmt.Sprintf("the recovery copy holds %d resources that it has not called gone", len(owned[name]))
	}
	if doubt != "" {
		c.log.Warn("a node said goodbye and stays", "node", name, "generation", b.Generation, "reason", doubt)
		if len(owned[name]) > 0 && n.live != nil {
			// A new hello compares what both sides believe.
			n.live.waker.Close("what this node owns is compared again")
		}
		return nil
	}
	state, err := n.stateNow().Step(mesh.NodeRetired)
	if err != nil {
		return mesh.Errorf(mesh.CodeInvalid, "%w", err)
	}
	now := c.now()
	tx := LeaveTx{
		Node: name, State: state, At: now,
		Event: c.event(name, EventRetired, fmt.Sprintf("%s was applied: everything that the mesh owned is gone or put back, and the node has left", n.Declared)),
		Audit: AuditEntry{At: now, Who: "node " + name, Door: "link", What: "node left", Detail: fmt.Sprintf("%s, verified with %s", name, n.Declared)},
	}
	return c.end(ctx, tx, ReasonRetired+": this node has left the mesh; everything that the mesh owned on it is gone or put back")
}

// end stores that a node leaves and closes its link. The caller has the gate.
func (c *Control) end(ctx context.Context, tx LeaveTx, reason string) error {
	if err := c.store.Leave(ctx, tx); err != nil {
		return fmt.Errorf("store that %s is %s: %w", tx.Node, tx.State, err)
	}
	var w Waker
	var ended string
	c.note(tx.Node, func(m *node) {
		m.State, m.faults = tx.State, nil
		ended = m.key
		if m.live != nil {
			w = m.live.waker
		}
		m.live, m.key = nil, ""
		for key, id := range c.keys {
			if id.Node == tx.Node && id.Revoked.IsZero() {
				id.Revoked = tx.At
				c.keys[key] = id
			}
		}
	})
	c.log.Info("node left", "node", tx.Node, "state", tx.State)
	c.revokeGrants(context.WithoutCancel(ctx), tx.Node, ended)
	if w != nil {
		w.Close(reason)
	}
	return nil
}

// Label changes labels of a node, and decides anew what it gets. Set holds what
// is to be there, drop what is to go.
func (c *Control) Label(ctx context.Context, caller Caller, name string, set map[string]string, drop []string) (map[string]string, error) {
	var ps mesh.Problems
	for _, k := range drop {
		if _, both := set[k]; both {
			ps.Add("labels", fmt.Sprintf("%q is to be set and to be dropped", bounded(k, 80)))
		}
	}
	checkLabels(&ps, set)
	if len(ps) > 0 {
		return nil, &mesh.Error{Code: mesh.CodeInvalid, Message: "no label was changed", Details: ps}
	}
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.leave()
	n, err := c.present(name)
	if err != nil {
		return nil, err
	}
	labels := make(map[string]string, len(n.Labels)+len(set))
	maps.Copy(labels, n.Labels)
	for _, k := range drop {
		delete(labels, k)
	}
	maps.Copy(labels, set)
	if maps.Equal(labels, n.Labels) {
		return labels, nil
	}
	if len(labels) > labelLimit {
		return nil, mesh.Errorf(mesh.CodeInvalid, "a node has at most %d labels; no label was changed", labelLimit)
	}
	n.Labels = labels
	n.facts = c.factsOf(ctx, &n)
	record, faults, err := c.decide(ctx, n, occasionLearned)
	if err != nil {
		return nil, err
	}
	if len(faults) > 0 {
		for _, f := range faults {
			ps.Add("", refusal(name, f))
		}
		return nil, &mesh.Error{Code: mesh.CodeConflict, Message: "with these labels the declarations contradict each other, so no label was changed", Details: ps}
	}
	text := name + ": " + labelText(labels)
	tx := ChangeTx{
		Node: name, Labels: labels, Generation: record,
		Events: []EventView{c.event(name, EventLabels, "the labels are now "+labelText(labels))},
		Audit:  c.entry(caller, "labels changed", text),
	}
	if err := c.store.ChangeNode(ctx, tx); err != nil {
		return nil, fmt.Errorf("store labels of %s: %w", name, err)
	}
	c.note(name, func(m *node) { m.Labels, m.facts, m.faults = labels, n.facts, nil })
	c.written(record)
	return labels, nil
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ", ")
}

// Recover confirms that a node which holds a generation that is not known here
// is to get what its declarations say. Generations go on above what it holds.
// A node that no declaration selects keeps what it has.
func (c *Control) Recover(ctx context.Context, caller Caller, name string) (Recovered, error) {
	if err := c.enter(ctx); err != nil {
		return Recovered{}, err
	}
	defer c.leave()
	n, err := c.present(name)
	if err != nil {
		return Recovered{}, err
	}
	if n.Unheard {
		return Recovered{}, unsure(n)
	}
	if !n.Ahead {
		return Recovered{}, mesh.Errorf(mesh.CodeConflict, "node %s holds nothing that is not known here; there is nothing to confirm", name)
	}
	record, faults, err := c.decide(ctx, n, occasionConfirmed)
	if err != nil {
		return Recovered{}, err
	}
	no := false
	tx := ChangeTx{
		Node: name, Ahead: &no, Generation: record,
		Events: []EventView{c.event(name, EventConfirmed, fmt.Sprintf("%s confirmed that %s, which this control plane does not know, is superseded", caller.Name, n.Held))},
		Audit:  c.entry(caller, "node recovered", fmt.Sprintf("%s, which holds %s", name, n.Held)),
	}
	if err := c.store.ChangeNode(ctx, tx); err != nil {
		return Recovered{}, fmt.Errorf("store that %s is confirmed: %w", name, err)
	}
	c.note(name, func(m *node) { m.Ahead, m.faults = false, faults })
	c.written(record)
	answer := Recovered{Node: name, Held: n.Held}
	if record != nil {
		answer.Generation, answer.Resources, answer.Released = record.Generation, len(record.Resources), record.Released
	}
	return answer, nil
}

// unsure refuses to decide about a node of which it is not known what it holds.
func unsure(n node) error {
	if n.Unheard {
		return mesh.Errorf(mesh.CodeUnavailable, "node %s was not heard of since the control plane was restored, so what it holds is not known; ask again when it is back", n.Name)
	}
	return mesh.Errorf(mesh.CodeConflict, "node %s holds %s, which is not known here; confirm it first with mesh-control recover %s", n.Name, n.Held, n.Name)
}

// present returns a node that is part of the mesh.
func (c *Control) present(name string) (node, error) {
	n, known := c.snapshot(name)
	if !known {
		return node{}, c.unknownNode(name)
	}
	if n.State != mesh.NodeEnrolled {
		return node{}, mesh.Errorf(mesh.CodeConflict, "node %s is %s already", name, n.State)
	}
	return n, nil
}

// note changes what is kept in memory of a node.
func (c *Control) note(name string, change func(*node)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		change(m)
	}
}

func (c *Control) entry(caller Caller, what, detail string) AuditEntry {
	return caller.entry(c.now(), what, bounded(detail, detailLimit))
}

// Events returns what happened lately on one node, or on all when name is empty,
// newest first.
func (c *Control) Events(ctx context.Context, name string, limit int) ([]EventView, error) {
	if name != "" {
		if _, known := c.snapshot(name); !known {
			return nil, c.unknownNode(name)
		}
	}
	events, err := c.store.Events(ctx, name, limit)
	return events, wrap(err, "read events")
}
