package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// What is kept of the words that a node sends.
const (
	detailLimit  = 2 << 10
	outputLimit  = 16 << 10
	resultsLimit = 4 * resourceLimit
	nameLimit    = 128
	// idLimit is above the longest identity of a resource, which is a path.
	idLimit = 4200
	// Greatest lengths of the stored form of what a node says of itself.
	profileLimit   = 64 << 10
	briefingLimit  = 256 << 10
	inventoryLimit = 8 << 20
)

// copyLimit bounds the recovery copy of one node. An honest host keeps at most
// 4 MiB of one resource in it.
var copyLimit = CopyLimit{Entries: resultsLimit, Bytes: 256 << 20}

// countLimit bounds what a node may say of anything that is counted one by one:
// generations, passes, messages, resources found changed. The store keeps such
// numbers with a sign, and one that it could not read back would keep the
// control plane from its next start.
const countLimit = 1 << 48

// counted refuses numbers that nobody can have counted.
func counted(numbers ...uint64) error {
	if most := slices.Max(numbers); most > countLimit {
		return mesh.Errorf(mesh.CodeInvalid, "it says %d of something that is counted one by one, which nobody can have reached", most)
	}
	return nil
}

// checkSize refuses what no honest host says.
func checkSize(what string, body any, limit int) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("marshal %s: %w", what, err)
	}
	if len(data) > limit {
		return mesh.Errorf(mesh.CodeInvalid, "the %s has %d bytes; the limit is %d", what, len(data), limit)
	}
	return nil
}

// Handle takes one frame of a node. It returns after the commit; a message
// whose sequence number was seen is a success that changes nothing. An error
// with CodeInvalid says that the message can never be taken, CodeDenied that
// the node is not part of the mesh any more; after any other the message may be
// sent again. Types that are not known are ignored. A message that can never be
// taken is an event of the node: what it said is missing from then on.
func (c *Control) Handle(ctx context.Context, name, storeID string, f mesh.Frame) error {
	err := c.handle(ctx, name, storeID, f)
	if mesh.CodeOf(err) != mesh.CodeInvalid {
		return err
	}
	detail := bounded(fmt.Sprintf("a message of type %s was dropped, since it can never be taken: %v", bounded(string(f.Type), 64), err), detailLimit)
	if n, _ := c.snapshot(name); n.dropped == detail {
		return err
	}
	if raised := c.raise(ctx, name, EventDropped, detail); raised != nil {
		return raised
	}
	c.note(name, func(n *node) { n.dropped = detail })
	return err
}

func (c *Control) handle(ctx context.Context, name, storeID string, f mesh.Frame) error {
	c.mu.Lock()
	n := c.nodes[name]
	if n == nil || n.State != mesh.NodeEnrolled {
		c.mu.Unlock()
		return mesh.Errorf(mesh.CodeDenied, "node %s is not part of this mesh any more", name)
	}
	if n.live != nil && n.live.storeID != storeID {
		// What an earlier life of the host had still said would count as said by
		// the store that is connected now.
		c.mu.Unlock()
		return mesh.Errorf(mesh.CodeUnavailable, "node %s is connected with another store by now", name)
	}
	n.contact = c.now()
	c.mu.Unlock()

	if err := counted(f.Seq); err != nil {
		return err
	}
	seq := Sequence{StoreID: storeID, Number: f.Seq}
	switch f.Type {
	case mesh.FrameHeartbeat:
		return take(f, func(b mesh.Heartbeat) error {
			if err := counted(uint64(b.Held), uint64(b.Applied), b.Drift); err != nil {
				return err
			}
			c.heartbeatOf(name, b)
			return nil
		})
	case mesh.FrameReceived:
		return take(f, func(b mesh.Received) error {
			if err := counted(uint64(b.Held), uint64(b.Generation)); err != nil {
				return err
			}
			return c.received(ctx, name, storeID, b)
		})
	case mesh.FrameReport:
		return take(f, func(b mesh.Report) error { return c.report(ctx, name, seq, b) })
	case mesh.FrameOwned:
		return take(f, func(b mesh.OwnedChange) error { return c.owned(ctx, name, seq, b) })
	case mesh.FrameEvent:
		return take(f, func(b mesh.Event) error {
			b.Detail = bounded(b.Detail, detailLimit)
			b.Kind, b.Resource = mesh.EventKind(bounded(string(b.Kind), 64)), mesh.ResourceID(bounded(string(b.Resource), idLimit))
			_, err := c.store.StoreEvent(ctx, EventTx{Sequence: seq, Event: EventView{Event: b, Node: name, Received: c.now()}})
			return wrap(err, "store event of %s", name)
		})
	case mesh.FrameGoodbye:
		return take(f, func(b mesh.Goodbye) error { return c.goodbye(ctx, name, b) })
	case mesh.FrameProfile:
		return take(f, func(b mesh.Profile) error {
			if err := checkSize("profile", b, profileLimit); err != nil {
				return err
			}
			return c.learn(ctx, FactsTx{Node: name, Profile: &b, ProfileDigest: b.Digest()})
		})
	case mesh.FrameBriefing:
		return take(f, func(b mesh.Briefing) error {
			if err := checkSize("briefing", b, briefingLimit); err != nil {
				return err
			}
			return c.learn(ctx, FactsTx{Node: name, Briefing: &b})
		})
	case mesh.FrameInventory:
		return take(f, func(b mesh.Inventory) error {
			if err := checkSize("inventory", b, inventoryLimit); err != nil {
				return err
			}
			digest := b.Digest()
			if err := c.store.StoreFacts(ctx, FactsTx{Node: name, Inventory: &b, InventoryDigest: digest}); err != nil {
				return fmt.Errorf("store inventory of %s: %w", name, err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if n := c.nodes[name]; n != nil {
				n.InventoryDigest = digest
			}
			return nil
		})
	}
	return nil
}

// take decodes the body and hands it on.
func take[B any](f mesh.Frame, to func(B) error) error {
	var body B
	if err := json.Unmarshal(f.Body, &body); err != nil {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: fmt.Sprintf("the body of a %s frame cannot be read", f.Type), Err: err}
	}
	return to(body)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (c *Control) heartbeatOf(name string, b mesh.Heartbeat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil {
		n.beat = b
		n.Drift = b.Drift
	}
}

// received notes that a declaration is on the host's disk, or was not taken.
func (c *Control) received(ctx context.Context, name, storeID string, b mesh.Received) error {
	n, _ := c.snapshot(name)
	after := n.NodeRecord
	after.Held = b.Held
	if b.Refused == "" {
		after.Held = max(b.Held, b.Generation)
		if after.Refused == b.Generation {
			after.Refused, after.RefusedWhy = 0, ""
		}
	} else {
		after.Refused, after.RefusedWhy = b.Generation, bounded(b.Refused, detailLimit)
		c.log.Warn("a node refused its declaration", "node", name, "generation", b.Generation, "reason", after.RefusedWhy)
	}
	after.Floor = max(after.Floor, after.Held)
	// The recovery copy goes before any declaration, so whoever has received a
	// declaration on this link has the copy too.
	after.StoreID = storeID
	before := n.NodeRecord
	if after.Held <= before.Floor {
		// It was written for the node here. That the node has it is stored with its
		// last contact: after a crash its next hello says so again.
		before.Held = after.Held
	}
	if linkChanged(before, after) {
		tx := LinkTx{Node: name, HostVersion: after.HostVersion, StoreID: after.StoreID, Floor: after.Floor, Held: after.Held, Ahead: after.Ahead, Unheard: after.Unheard, Refused: after.Refused, RefusedWhy: after.RefusedWhy}
		if err := c.store.StoreLink(ctx, tx); err != nil {
			return fmt.Errorf("store what %s received: %w", name, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		noteLink(m, after)
		if m.live != nil && m.live.storeID == storeID {
			m.live.settled = true
		}
	}
	return nil
}

// report records what a pass came to. Nothing is called applied that the
// report's own results contradict.
func (c *Control) report(ctx context.Context, name string, seq Sequence, r mesh.Report) error {
	if len(r.Results)+len(r.Gone)+len(r.Kept) > resultsLimit {
		return mesh.Errorf(mesh.CodeInvalid, "a report has at most %d results", resultsLimit)
	}
	if err := counted(uint64(r.Generation), r.Pass); err != nil {
		return err
	}
	r.Trigger, r.Ledger = mesh.Trigger(bounded(string(r.Trigger), 64)), bounded(r.Ledger, nameLimit)
	for i := range r.Results {
		result := &r.Results[i]
		if err := counted(uint64(result.Generation)); err != nil {
			return err
		}
		if !slices.Contains(mesh.Statuses(), result.Status) || len(result.Resource) > idLimit {
			return mesh.Errorf(mesh.CodeInvalid, "result %d of a report has status %q, which is none, or too long a name", i, bounded(string(result.Status), 40))
		}
		result.Detail = bounded(result.Detail, detailLimit)
		result.Output = tail(result.Output, outputLimit)
		result.Reason = mesh.Reason(bounded(string(result.Reason), 64))
	}
	state := r.State
	switch state {
	case mesh.GenerationApplied:
		state = mesh.StateOf(r.Results)
	case mesh.GenerationFailed, mesh.GenerationOutstanding:
	default:
		return mesh.Errorf(mesh.CodeInvalid, "a report has state %q, which is none", bounded(string(state), 40))
	}
	fresh, err := c.store.StoreReport(ctx, ReportTx{Node: name, Sequence: seq, Report: r, State: state, At: c.now(), Limit: resultsLimit})
	if err != nil {
		return fmt.Errorf("store report of %s: %w", name, err)
	}
	// One that was recorded before may have come again because what follows from
	// it could not be done then.
	c.mu.Lock()
	n := c.nodes[name]
	anew := false
	if n != nil {
		if fresh {
			n.ledgerDigest = ""
			NoteReport(&n.NodeRecord, r, state)
		}
		anew = !contains(n.Released, n.Kept)
	}
	c.mu.Unlock()
	if !anew {
		return nil
	}
	return c.reconsiderAlone(ctx, name)
}

// NoteReport puts into a record what a report says of its node. A report of a
// generation older than the one reported before changes nothing.
func NoteReport(n *NodeRecord, r mesh.Report, state mesh.GenerationState) {
	if r.Generation < n.Reported {
		return
	}
	n.Reported, n.ReportedState, n.Kept = r.Generation, state, r.Kept
	if state == mesh.GenerationApplied {
		n.Applied = max(n.Applied, r.Generation)
	}
}

// checkOwned refuses entries of a recovery copy that no honest host has.
func checkOwned(owned []mesh.Owned) error {
	for i, o := range owned {
		if len(o.Resource) > idLimit || len(o.Made) > nameLimit {
			return mesh.Errorf(mesh.CodeInvalid, "entry %d of a recovery copy has too long a name", i)
		}
		if err := counted(uint64(o.Generation)); err != nil {
			return err
		}
	}
	return nil
}

// owned changes the recovery copy.
func (c *Control) owned(ctx context.Context, name string, seq Sequence, change mesh.OwnedChange) error {
	if len(change.Owned)+len(change.Gone) > resultsLimit {
		return mesh.Errorf(mesh.CodeInvalid, "a change of the recovery copy has at most %d entries", resultsLimit)
	}
	if err := checkOwned(change.Owned); err != nil {
		return err
	}
	n, _ := c.snapshot(name)
	mode := OwnedAsSaid
	settle := false
	if n.StoreID != "" && n.StoreID != seq.StoreID {
		mode = OwnedOnlyAdd
		if change.Full {
			ids, err := c.store.OwnedIDs(ctx, []string{name})
			if err != nil {
				return fmt.Errorf("read recovery copy of %s: %w", name, err)
			}
			said := make(map[mesh.ResourceID]bool, len(change.Owned))
			for _, o := range change.Owned {
				said[o.Resource] = true
			}
			settle = !slices.ContainsFunc(ids[name], func(id mesh.ResourceID) bool { return !said[id] })
		}
		if settle {
			mode = OwnedAsSaid
		}
	}
	fresh, err := c.store.StoreOwned(ctx, OwnedTx{Node: name, Sequence: seq, Change: change, Mode: mode, Limit: copyLimit})
	if err != nil {
		return fmt.Errorf("store recovery copy of %s: %w", name, err)
	}
	// As with a report: what follows is done also when it was recorded before.
	if settle {
		if err := c.settle(ctx, name, seq.StoreID); err != nil {
			return err
		}
	}
	c.mu.Lock()
	if m := c.nodes[name]; m != nil {
		if fresh {
			m.copyDigest = ""
		}
		n = *m
	}
	set := c.set
	c.mu.Unlock()
	compiled := set.Compile(n.facts)
	anew := slices.ContainsFunc(change.Owned, func(o mesh.Owned) bool {
		return !compiled.Has(o.Resource) && !contains(n.Released, []mesh.ResourceID{o.Resource})
	})
	if !anew {
		return nil
	}
	return c.reconsiderAlone(ctx, name)
}

// settle takes a new store of a host for the one that the recovery copy is of.
func (c *Control) settle(ctx context.Context, name, storeID string) error {
	n, _ := c.snapshot(name)
	tx := LinkTx{Node: name, HostVersion: n.HostVersion, StoreID: storeID, Floor: n.Floor, Held: n.Held, Ahead: n.Ahead, Unheard: n.Unheard, Refused: n.Refused, RefusedWhy: n.RefusedWhy}
	if err := c.store.StoreLink(ctx, tx); err != nil {
		return fmt.Errorf("store the host store of %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		m.StoreID = storeID
		if m.live != nil && m.live.storeID == storeID {
			m.live.settled = true
		}
	}
	return nil
}

func (c *Control) reconsiderAlone(ctx context.Context, name string) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	return c.reconsider(ctx, name)
}

// learn replaces what is known of a node and decides anew what it gets, in one
// transaction.
func (c *Control) learn(ctx context.Context, tx FactsTx) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	n, known := c.snapshot(tx.Node)
	if !known {
		return nil
	}
	if tx.Profile != nil {
		n.Profile, n.ProfileDigest = *tx.Profile, tx.ProfileDigest
		n.facts = c.factsOf(ctx, &n)
	}
	eligible := n.Briefing.Eligible()
	if tx.Briefing != nil {
		b := c.withMachineLine(*tx.Briefing, n.Name, n.Machine)
		tx.Briefing, n.Briefing = &b, b
		switch now := b.Eligible(); {
		case now == eligible:
		case now:
			tx.Events = append(tx.Events, c.event(n.Name, EventEligible, "no line of its briefing fails any more"))
		default:
			tx.Events = append(tx.Events, c.event(n.Name, EventIneligible, "nothing new is assigned to it, since its briefing failed: "+strings.Join(answer(n.NodeRecord).Why, "; ")))
		}
	}
	record, faults, err := c.decide(ctx, n, occasionLearned)
	if err != nil {
		return err
	}
	tx.Generation = record
	if err := c.store.StoreFacts(ctx, tx); err != nil {
		return fmt.Errorf("store facts of %s: %w", tx.Node, err)
	}
	c.mu.Lock()
	if m := c.nodes[tx.Node]; m != nil {
		m.Profile, m.ProfileDigest, m.facts, m.Briefing, m.faults = n.Profile, n.ProfileDigest, n.facts, n.Briefing, faults
	}
	c.mu.Unlock()
	c.written(record)
	if record == nil && !eligible && n.Briefing.Eligible() && n.live != nil {
		// What was written before is handed out now.
		n.live.waker.Wake()
	}
	return nil
}

// tail keeps the end of what a tool wrote.
func tail(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-limit:], "")
}
