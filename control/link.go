package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// bootsKept bounds how many superseded boots of a node are remembered.
const bootsKept = 8

// protocol picks the greatest protocol number that both ends speak.
func protocol(lowest, highest int) (int, error) {
	picked := min(highest, mesh.ProtocolMax)
	if picked < max(lowest, mesh.ProtocolMin) {
		return 0, mesh.Errorf(mesh.CodeInvalid, "this host speaks protocols %d to %d and the control plane %d to %d; upgrade the older of the two", lowest, highest, mesh.ProtocolMin, mesh.ProtocolMax)
	}
	return picked, nil
}

// NodeByKey returns the name of the node that a key belongs to, or an error
// with CodeDenied. It only looks into memory.
func (c *Control) NodeByKey(_ context.Context, key string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, known := c.keys[strings.TrimSpace(key)]
	if !known {
		return "", mesh.Errorf(mesh.CodeDenied, "no node of this mesh has this key")
	}
	if n := c.nodes[id.Node]; n != nil && n.State == mesh.NodeRetired {
		return "", mesh.Errorf(mesh.CodeRetired, "node %s has left the mesh; everything that the mesh owned on it is gone or put back", id.Node)
	}
	if !id.Revoked.IsZero() {
		return "", mesh.Errorf(mesh.CodeDenied, "the key of node %s was revoked", id.Node)
	}
	return id.Node, nil
}

// Connect takes a link into use. A link of the same machine that is there
// already is closed; one of another machine stays, and this one is refused.
// When the recovery copy comes back, it must be handed to the host before any
// declaration.
func (c *Control) Connect(ctx context.Context, name string, hello mesh.Hello, w Waker) (mesh.Welcome, *mesh.Recover, error) {
	picked, err := protocol(hello.ProtocolMin, hello.ProtocolMax)
	if err != nil {
		return mesh.Welcome{}, nil, err
	}
	if hello.Node != "" && hello.Node != name {
		return mesh.Welcome{}, nil, mesh.Errorf(mesh.CodeInvalid, "this host calls itself %s and its key is that of node %s; enrol it again", bounded(hello.Node, 80), name)
	}
	if hello.StoreID == "" || max(len(hello.StoreID), len(hello.BootID), len(hello.MachineIDHash)) > nameLimit {
		return mesh.Welcome{}, nil, mesh.Errorf(mesh.CodeInvalid, "a hello names the host's store, and no name in it has more than %d bytes", nameLimit)
	}
	if err := counted(uint64(hello.Held), uint64(hello.Applied), hello.Sequence); err != nil {
		return mesh.Welcome{}, nil, err
	}
	former, detail, refusal := c.attach(name, hello, w)
	if former != nil && refusal == nil {
		former.Close("replaced: the same machine has opened another link")
	}
	if refusal != nil {
		if detail != "" {
			c.log.Warn("link refused", "node", name, "reason", detail)
			if first, can := former.(Teller); can {
				first.Tell(detail + ". This machine, whose link is open, keeps it")
			}
			if err := c.raise(ctx, name, EventCloned, detail); err != nil {
				return mesh.Welcome{}, nil, err
			}
		}
		return mesh.Welcome{}, nil, refusal
	}
	welcome, recovery, err := c.greet(ctx, name, hello, w)
	if err != nil {
		c.Disconnect(name, w)
		return mesh.Welcome{}, nil, err
	}
	welcome.Protocol = picked
	return welcome, recovery, nil
}

// attach makes w the live link of the node, and returns the one that it takes the
// place of. Or it refuses w, and returns the one that stays; detail is set when
// the refusal has not been raised yet.
func (c *Control) attach(name string, hello mesh.Hello, w Waker) (former Waker, detail string, refusal error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil || n.State != mesh.NodeEnrolled {
		return nil, "", mesh.Errorf(mesh.CodeDenied, "node %s is not part of this mesh any more", name)
	}
	n.contact = c.now()
	clone := ""
	switch {
	case n.Machine != "" && hello.MachineIDHash != n.Machine:
		clone = "a machine with another machine id has connected with this node's key"
	case n.live != nil && n.live.machine != hello.MachineIDHash:
		clone = "two machines have connected with this node's key at the same time"
	case hello.BootID != "" && slices.Contains(n.boots, hello.BootID):
		clone = "two machines with the same machine id connect with this node's key in turn"
	}
	if clone != "" {
		if n.live != nil {
			former = n.live.waker
		}
		told := clone + "\x00" + hello.MachineIDHash + "\x00" + hello.BootID
		if n.told != told {
			n.told = told
			detail = clone + "; the second one was refused. One was cloned from the other: enrol it anew with meshctl token issue, after moving its identity directory away"
		}
		return former, detail, mesh.Errorf(mesh.CodeConflict, "%s; this link is refused. If this machine was cloned, move its identity directory away and enrol it with a token of its own; if it replaces the other, issue the token with --replaces %s", clone, name)
	}
	if n.live != nil {
		former = n.live.waker
	}
	if n.boot != "" && n.boot != hello.BootID {
		n.boots = append(slices.Clone(n.boots), n.boot)
		n.boots = n.boots[max(0, len(n.boots)-bootsKept):]
	}
	n.boot = hello.BootID
	n.beat = mesh.Heartbeat{Held: hello.Held, Applied: hello.Applied, Ledger: hello.Ledger}
	n.live = &live{waker: w, machine: hello.MachineIDHash, boot: hello.BootID, storeID: hello.StoreID}
	return former, "", nil
}

// greet compares what the host says with what is stored, and stores what is new.
func (c *Control) greet(ctx context.Context, name string, hello mesh.Hello, w Waker) (mesh.Welcome, *mesh.Recover, error) {
	back, err := c.takeBack(ctx, name, hello)
	if err != nil {
		return mesh.Welcome{}, nil, err
	}
	owned, copyDigest, err := c.recoveryCopy(ctx, name, hello.StoreID)
	if err != nil {
		return mesh.Welcome{}, nil, err
	}
	ledger, err := c.ledger(ctx, name)
	if err != nil {
		return mesh.Welcome{}, nil, err
	}
	n, _ := c.snapshot(name)
	after := n.NodeRecord
	settled := n.StoreID == hello.StoreID || n.StoreID == "" || len(owned) == 0 || hello.OwnedDigest == copyDigest
	if settled {
		after.StoreID = hello.StoreID
	}
	if after.HostVersion != bounded(hello.HostVersion, 128) {
		// Another host may take what this one refused.
		after.HostVersion = bounded(hello.HostVersion, 128)
		after.Refused, after.RefusedWhy = 0, ""
	}
	after.Held = hello.Held
	after.Unheard = false
	tx := LinkTx{Node: name}
	if hello.Held > n.Floor {
		after.Floor, after.Ahead = hello.Held, true
		detail := fmt.Sprintf("the node holds generation %s and this control plane knows of %s: its store is older than the node. Nothing is pushed to it until an operator confirms it with mesh-control recover %s; generations then go on above %s", hello.Held, n.Floor, name, hello.Held)
		tx.Events = append(tx.Events, c.event(name, EventAhead, detail))
		c.log.Warn("node holds a generation that is not known here", "node", name, "held", hello.Held, "known", n.Floor)
	}
	if linkChanged(n.NodeRecord, after) {
		tx.HostVersion, tx.StoreID, tx.Floor, tx.Held, tx.Ahead, tx.Unheard = after.HostVersion, after.StoreID, after.Floor, after.Held, after.Ahead, after.Unheard
		tx.Refused, tx.RefusedWhy = after.Refused, after.RefusedWhy
		if err := c.store.StoreLink(ctx, tx); err != nil {
			return mesh.Welcome{}, nil, fmt.Errorf("store what %s said: %w", name, err)
		}
	}
	c.mu.Lock()
	if m := c.nodes[name]; m != nil {
		noteLink(m, after)
		if m.live != nil && m.live.waker == w {
			m.live.settled = settled
		}
	}
	c.mu.Unlock()
	if n.Unheard {
		// What was written since the store was restored left it out.
		if err := c.reconsiderAlone(ctx, name); err != nil {
			return mesh.Welcome{}, nil, err
		}
	}

	welcome := mesh.Welcome{HeartbeatSeconds: c.heartbeat, Now: c.now()}
	if hello.ProfileDigest != n.ProfileDigest {
		welcome.Want = append(welcome.Want, mesh.WantProfile)
	}
	if hello.InventoryDigest != n.InventoryDigest {
		welcome.Want = append(welcome.Want, mesh.WantInventory)
	}
	if hello.ProfileDigest != n.ProfileDigest || after.HostVersion != n.HostVersion || !n.Briefing.Eligible() {
		welcome.Want = append(welcome.Want, mesh.WantBriefing)
	}
	if hello.Ledger != ledger || back {
		welcome.Want = append(welcome.Want, mesh.WantReport)
	}
	if settled {
		if hello.OwnedDigest != copyDigest {
			welcome.Want = append(welcome.Want, mesh.WantOwned)
		}
		return welcome, nil, nil
	}
	return welcome, &mesh.Recover{Owned: owned}, nil
}

// takeBack finds out whether the host's store knows less than it did when it
// reported: it was lost, or put back to an earlier moment with the machine. What
// it reported then says nothing about now, and it gives the numbers of messages
// that were recorded to others.
func (c *Control) takeBack(ctx context.Context, name string, hello mesh.Hello) (bool, error) {
	n, _ := c.snapshot(name)
	tx := TakeBackTx{Node: name, Sequence: Sequence{StoreID: hello.StoreID, Number: hello.Sequence}, Applied: hello.Applied}
	var recorded uint64
	if hello.Sequence > 0 {
		var err error
		if recorded, err = c.store.Recorded(ctx, name, hello.StoreID); err != nil {
			return false, fmt.Errorf("read what %s has said: %w", name, err)
		}
	} else {
		// It says nothing of numbers, and they stay.
		tx.Sequence.Number = countLimit
	}
	switch {
	case recorded > hello.Sequence:
		detail := fmt.Sprintf("the host's store was put back to an earlier moment: it has given its messages numbers up to %d, and %d was recorded here; what it reported since counts no more", hello.Sequence, recorded)
		tx.Events = append(tx.Events, c.event(name, EventPutBack, detail))
	case hello.Held >= n.Reported:
		return false, nil
	}
	if err := c.store.TakeBack(ctx, tx); err != nil {
		return false, fmt.Errorf("take back what %s has said: %w", name, err)
	}
	c.note(name, func(m *node) {
		m.Reported, m.ReportedState, m.Applied = 0, "", min(m.Applied, hello.Applied)
	})
	return true, nil
}

func linkChanged(a, b NodeRecord) bool {
	return a.HostVersion != b.HostVersion || a.StoreID != b.StoreID || a.Floor != b.Floor || a.Held != b.Held || a.Ahead != b.Ahead || a.Unheard != b.Unheard || a.Refused != b.Refused || a.RefusedWhy != b.RefusedWhy
}

func noteLink(n *node, r NodeRecord) {
	n.HostVersion, n.StoreID, n.Held = r.HostVersion, r.StoreID, r.Held
	n.Floor = max(n.Floor, r.Floor)
	n.Ahead = r.Ahead && n.Declared < r.Held
	n.Unheard = r.Unheard
	n.Refused, n.RefusedWhy = r.Refused, r.RefusedWhy
	if n.Held >= n.Declared {
		n.resources = nil
	}
}

// recoveryCopy returns the digest of the recovery copy, and the copy itself
// when the host's store is another than the one that it is of.
func (c *Control) recoveryCopy(ctx context.Context, name, storeID string) ([]mesh.Owned, string, error) {
	n, _ := c.snapshot(name)
	if n.copyDigest != "" && (n.StoreID == "" || n.StoreID == storeID) {
		return nil, n.copyDigest, nil
	}
	owned, err := c.store.Owned(ctx, name)
	if err != nil {
		return nil, "", fmt.Errorf("read recovery copy of %s: %w", name, err)
	}
	digest := mesh.OwnedDigest(owned)
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		m.copyDigest = digest
	}
	return owned, digest, nil
}

// ledger returns the digest of the results that are stored for the node.
func (c *Control) ledger(ctx context.Context, name string) (string, error) {
	n, _ := c.snapshot(name)
	if n.ledgerDigest != "" {
		return n.ledgerDigest, nil
	}
	results, err := c.store.Results(ctx, name)
	if err != nil {
		return "", fmt.Errorf("read results of %s: %w", name, err)
	}
	digest := mesh.LedgerDigest(results)
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		m.ledgerDigest = digest
	}
	return digest, nil
}

// Disconnect says that a link has ended. It does nothing when the node has
// another link by now.
func (c *Control) Disconnect(name string, w Waker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil && n.live != nil && n.live.waker == w {
		n.live, n.resources = nil, nil
	}
}

// Pending returns the newest declaration of the node if the node is not known
// to hold it; nil when there is none.
func (c *Control) Pending(ctx context.Context, name string) (*Outgoing, error) {
	for {
		n, known := c.snapshot(name)
		if !known || n.State != mesh.NodeEnrolled {
			return nil, noNode(name)
		}
		if n.Ahead || n.Unheard || (!n.Retiring && !n.Briefing.Eligible()) {
			return nil, nil
		}
		if n.Declared <= n.Held || n.Declared == n.Refused {
			return nil, nil
		}
		d := mesh.Declaration{Node: name, Generation: n.Declared, Final: n.Digest == finalDigest, Resources: n.resources, Released: n.Released}
		if n.resources == nil {
			var err error
			d, err = c.store.Compiled(ctx, name, n.Declared)
			if errors.Is(err, ErrNotFound) {
				if later, _ := c.snapshot(name); later.Declared > n.Declared {
					continue
				}
			}
			if err != nil {
				return nil, fmt.Errorf("read generation %s of %s: %w", n.Declared, name, err)
			}
		}
		if d.Final != n.Retiring {
			// It is from an earlier life of the node, and the one of this life is
			// not written yet.
			return nil, nil
		}
		resources, err := c.encodings.of(d.Resources)
		if err != nil {
			return nil, err
		}
		return outgoing(d, resources)
	}
}

// OpenBlob opens content that a declaration of the node names. Anything else
// is refused, whether it is there or not.
func (c *Control) OpenBlob(ctx context.Context, name, sha256 string) (io.ReadCloser, error) {
	if !mesh.ValidDigest(sha256) {
		return nil, mesh.Errorf(mesh.CodeInvalid, "a blob is named by its SHA-256 in lower-case hexadecimal")
	}
	if n, known := c.snapshot(name); !known || n.State != mesh.NodeEnrolled {
		return nil, noNode(name)
	}
	named, err := c.store.NamesBlob(ctx, name, sha256)
	if err != nil {
		return nil, fmt.Errorf("look up blob: %w", err)
	}
	if !named {
		return nil, mesh.Errorf(mesh.CodeDenied, "no declaration of node %s names the blob %s", name, sha256)
	}
	r, err := c.blobs.Open(ctx, sha256)
	if errors.Is(err, ErrNotFound) {
		return nil, mesh.Errorf(mesh.CodeNotFound, "the blob %s is named by a declaration of node %s and is not there; write the declaration again", sha256, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return r, nil
}

// event makes an event of the control plane itself.
func (c *Control) event(name string, kind mesh.EventKind, detail string) EventView {
	now := c.now()
	return EventView{Event: mesh.Event{Kind: kind, Detail: detail, At: now}, Node: name, Received: now}
}

// raise stores an event of the control plane itself.
func (c *Control) raise(ctx context.Context, name string, kind mesh.EventKind, detail string) error {
	if _, err := c.store.StoreEvent(ctx, EventTx{Event: c.event(name, kind, detail)}); err != nil {
		return fmt.Errorf("store event of %s: %w", name, err)
	}
	return nil
}
