package control

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

// The events that the control plane raises itself.
const (
	EventEnrolled      mesh.EventKind = "enrolled"
	EventReplaced      mesh.EventKind = "identity-replaced"
	EventRevoked       mesh.EventKind = "identity-revoked"
	EventCloned        mesh.EventKind = "identity-used-twice"
	EventMachineShared mesh.EventKind = "machine-id-shared"
	EventAhead         mesh.EventKind = "generation-ahead"
	EventConfirmed     mesh.EventKind = "generation-confirmed"
	EventBundle        mesh.EventKind = "bundle-not-taken"
	EventRetiring      mesh.EventKind = "retiring"
	EventStays         mesh.EventKind = "retiring-cancelled"
	EventRetired       mesh.EventKind = "retired"
	EventLabels        mesh.EventKind = "labels-changed"
	EventEligible      mesh.EventKind = "eligible"
	EventIneligible    mesh.EventKind = "ineligible"
	EventPutBack       mesh.EventKind = "store-put-back"
	EventDropped       mesh.EventKind = "message-dropped"
)

// BootstrapDeclaration is the name under which the declaration of the first
// node's bundle is taken over.
const BootstrapDeclaration = "bootstrap"

// checkMachine is the briefing line that the control plane adds.
const checkMachine = "machine id is this node's alone"

// CheckToken tells whether a secret is worth an enrolment. A token that was
// used passes here: Enrol knows who used it, and can say so.
func (c *Control) CheckToken(ctx context.Context, secretHash string) error {
	token, err := c.store.Token(ctx, secretHash)
	if errors.Is(err, ErrNotFound) {
		return noToken()
	}
	if err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	if token.Used.IsZero() && !c.now().Before(token.Expires) {
		return expired(token)
	}
	return nil
}

func noToken() error {
	return mesh.Errorf(mesh.CodeDenied, "this control plane knows no such token: another issued it, or it expired more than %d days ago; issue another with meshctl token issue", int(tokensFor/(24*time.Hour)))
}

func expired(token TokenRecord) error {
	return mesh.Errorf(mesh.CodeDenied, "the token expired at %s; issue another with meshctl token issue", token.Expires.UTC().Format(time.RFC3339))
}

// Enrol decides about a machine that has proved its key and its token, and
// stores the decision with identity, facts, recovery copy and first generation
// in one transaction. The key is a line of an authorized_keys file without a
// comment. The same key with the same token gets the same answer again.
func (c *Control) Enrol(ctx context.Context, key, secretHash, remote string, e mesh.Enrol) (mesh.Enrolled, error) {
	if _, err := protocol(e.ProtocolMin, e.ProtocolMax); err != nil {
		return mesh.Enrolled{}, err
	}
	if err := checkEnrol(e); err != nil {
		return mesh.Enrolled{}, err
	}
	key = strings.TrimSpace(key)
	if err := c.enter(ctx); err != nil {
		return mesh.Enrolled{}, err
	}
	defer c.leave()

	token, err := c.store.Token(ctx, secretHash)
	if errors.Is(err, ErrNotFound) {
		return mesh.Enrolled{}, noToken()
	}
	if err != nil {
		return mesh.Enrolled{}, fmt.Errorf("read token: %w", err)
	}
	c.mu.Lock()
	identity, known := c.keys[key]
	c.mu.Unlock()
	if !token.Used.IsZero() {
		return c.enrolledBefore(token, identity, key)
	}
	now := c.now()
	if !now.Before(token.Expires) {
		return mesh.Enrolled{}, expired(token)
	}
	if known {
		if !identity.Revoked.IsZero() {
			return mesh.Enrolled{}, mesh.Errorf(mesh.CodeConflict, "the key of this machine was revoked; move its identity directory away, so that it makes a new key, and enrol again")
		}
		if identity.Node != token.Replaces {
			return mesh.Enrolled{}, mesh.Errorf(mesh.CodeConflict, "the key of this machine belongs to node %s already; issue a token with --replaces %s to enrol it again", identity.Node, identity.Node)
		}
	}
	tx, faults, source, err := c.enrolment(ctx, token, key, remote, e, now)
	if err != nil {
		return mesh.Enrolled{}, err
	}
	if err := c.store.Enrol(ctx, tx); err != nil {
		return mesh.Enrolled{}, fmt.Errorf("store enrolment: %w", err)
	}
	c.enrolled(ctx, tx, faults, source)
	c.log.Info("node enrolled", "node", tx.Node.Name, "remote", remote, "eligible", tx.Node.Briefing.Eligible())
	return answer(tx.Node), nil
}

// checkEnrol refuses what no honest host says.
func checkEnrol(e mesh.Enrol) error {
	if len(e.Owned) > resultsLimit {
		return mesh.Errorf(mesh.CodeInvalid, "a recovery copy has at most %d entries", resultsLimit)
	}
	if err := checkOwned(e.Owned); err != nil {
		return err
	}
	if err := counted(uint64(e.Held)); err != nil {
		return err
	}
	if err := checkSize("profile", e.Profile, profileLimit); err != nil {
		return err
	}
	if err := checkSize("briefing", e.Briefing, briefingLimit); err != nil {
		return err
	}
	return checkSize("inventory", e.Inventory, inventoryLimit)
}

// enrolledBefore answers a token that was used.
func (c *Control) enrolledBefore(token TokenRecord, identity IdentityRecord, key string) (mesh.Enrolled, error) {
	n, known := c.snapshot(token.Node)
	if token.UsedBy == key && known && identity.Node == token.Node && identity.Revoked.IsZero() {
		return answer(n.NodeRecord), nil
	}
	return mesh.Enrolled{}, mesh.Errorf(mesh.CodeDenied, "the token was used already, at %s for node %s; issue another with meshctl token issue", token.Used.UTC().Format(time.RFC3339), token.Node)
}

func answer(n NodeRecord) mesh.Enrolled {
	e := mesh.Enrolled{Node: n.Name, Eligible: n.Briefing.Eligible()}
	for _, line := range n.Briefing.Failed() {
		e.Why = append(e.Why, line.Check+": "+line.Detail)
	}
	if len(n.Briefing.Lines) == 0 {
		e.Why = append(e.Why, "the briefing has no lines: nobody looked")
	}
	return e
}

// enrolment puts the transaction together.
func (c *Control) enrolment(ctx context.Context, token TokenRecord, key, remote string, e mesh.Enrol, now time.Time) (EnrolTx, []assign.Fault, *assign.Source, error) {
	name, err := nameFor(token, e.Hostname)
	if err != nil {
		return EnrolTx{}, nil, nil, err
	}
	former, exists := c.snapshot(name)
	if exists && token.Replaces != name {
		return EnrolTx{}, nil, nil, mesh.Errorf(mesh.CodeConflict, "there is a node %s already; issue a token with --replaces %s if this machine takes its place, or with --name for another name", name, name)
	}
	state, err := mesh.NodeHosted.Step(mesh.NodeEnrolled)
	if err != nil {
		return EnrolTx{}, nil, nil, err
	}
	tx := EnrolTx{
		TokenHash: token.Hash,
		Key:       key,
		Node: NodeRecord{
			Name: name, State: state, Labels: token.Labels, Machine: e.Profile.MachineIDHash, HostVersion: bounded(e.HostVersion, 128),
			Enrolled: now, Profile: e.Profile, ProfileDigest: e.Profile.Digest(), InventoryDigest: e.Inventory.Digest(),
			Briefing: e.Briefing, Floor: e.Held, Held: e.Held, LastContact: now,
		},
		Inventory: e.Inventory,
		Owned:     e.Owned,
		Limit:     copyLimit,
		Audit:     AuditEntry{At: now, Who: "node " + name, Door: "enrol", What: "node enrolled", Detail: fmt.Sprintf("%s from %s with key %s", name, remote, keyFingerprint(key))},
		At:        now,
	}
	event := func(kind mesh.EventKind, detail string) {
		tx.Events = append(tx.Events, EventView{Event: mesh.Event{Kind: kind, Detail: detail, At: now}, Node: name, Received: now})
	}
	event(EventEnrolled, fmt.Sprintf("enrolled from %s with key %s", remote, keyFingerprint(key)))
	if exists {
		c.continueFormer(&tx, former, token)
		event(EventReplaced, fmt.Sprintf("the key of the former machine, %s, is refused from now on", keyFingerprint(former.key)))
	}
	if others := c.sameMachine(name, tx.Node.Machine); len(others) > 0 {
		event(EventMachineShared, "another node has the same machine id: "+strings.Join(others, ", "))
		for _, other := range others {
			detail := "another node has the same machine id: " + name
			tx.Events = append(tx.Events, EventView{Event: mesh.Event{Kind: EventMachineShared, Detail: detail, At: now}, Node: other, Received: now})
		}
	}
	tx.Node.Briefing = c.withMachineLine(tx.Node.Briefing, name, tx.Node.Machine)

	set := c.currentSet()
	source, err := c.takeBundle(ctx, &tx, e, now, event)
	if err != nil {
		return EnrolTx{}, nil, nil, err
	}
	if source != nil {
		set = set.With(source)
	}
	n := node{NodeRecord: tx.Node, key: key}
	n.facts = c.factsOf(ctx, &n)
	owned, err := c.store.OwnedIDs(ctx, []string{name})
	if err != nil {
		return EnrolTx{}, nil, nil, fmt.Errorf("read recovery copy: %w", err)
	}
	ids := owned[name]
	for _, o := range e.Owned {
		ids = append(ids, o.Resource)
	}
	why := occasionLearned
	if n.Declared > 0 && e.Held >= n.Declared {
		why = occasionEnrolled
	}
	record, faults := next(n, set, ids, why, now)
	if record != nil {
		s := c.newStager()
		if record.Resources, err = s.stage(ctx, record.Resources); err != nil {
			return EnrolTx{}, nil, nil, err
		}
		fault, err := s.fits(record.Resources)
		if err != nil {
			return EnrolTx{}, nil, nil, err
		}
		if fault != nil {
			// Adoption completes; the fault is shown with the node.
			return tx, []assign.Fault{*fault}, source, nil
		}
		tx.Generation = record
		tx.Node.Floor = record.Generation
	}
	return tx, faults, source, nil
}

// continueFormer carries over what stays when a machine takes another's place:
// its generations and its recovery copy, not what the former machine reported.
func (c *Control) continueFormer(tx *EnrolTx, former node, token TokenRecord) {
	n := &tx.Node
	if len(token.Labels) == 0 {
		n.Labels = former.Labels
	}
	n.Floor = max(former.Floor, n.Held)
	n.Declared, n.Digest, n.Released = former.Declared, former.Digest, former.Released
	n.StoreID = former.StoreID
	if n.StoreID == "" {
		// Whatever store connects now is another than the one the copy is of.
		n.StoreID = "former"
	}
	if former.key != "" && former.key != tx.Key {
		tx.RevokeKeys = append(tx.RevokeKeys, former.key)
	}
}

// takeBundle makes the declaration of a bundle a named one, when there is none
// of that name.
func (c *Control) takeBundle(ctx context.Context, tx *EnrolTx, e mesh.Enrol, now time.Time, event func(mesh.EventKind, string)) (*assign.Source, error) {
	if e.Bundle == nil {
		return nil, nil
	}
	c.mu.Lock()
	_, exists := c.revisions[BootstrapDeclaration]
	c.mu.Unlock()
	if exists {
		event(EventBundle, "there is a declaration "+BootstrapDeclaration+" already; what this machine applied from a bundle is not taken over")
		return nil, nil
	}
	doc := *e.Bundle
	doc.Resources = slices.Clone(doc.Resources)
	doc.Declaration = BootstrapDeclaration
	doc.Select = fmt.Sprintf("name == %q", tx.Node.Name)
	ps := doc.Validate()
	for i, r := range doc.Resources {
		if r.When != "" || r.Template {
			ps.Add(fmt.Sprintf("resources[%d]", i), "a bundle has no when and no template")
		}
	}
	if len(ps) > 0 {
		return nil, &mesh.Error{Code: mesh.CodeInvalid, Message: "the declaration of the bundle cannot be taken over", Details: ps}
	}
	source, revision, err := c.prepare(ctx, doc)
	if err != nil {
		return nil, err
	}
	revision.Revision, revision.By, revision.Door, revision.At = 1, "node "+tx.Node.Name, "enrol", now
	source.Number(revision.Revision)
	tx.Bootstrap = &revision
	return source, nil
}

// enrolled notes an enrolment that is stored, and ends the former link.
func (c *Control) enrolled(ctx context.Context, tx EnrolTx, faults []assign.Fault, source *assign.Source) {
	n := &node{NodeRecord: tx.Node, key: tx.Key, faults: faults, contact: tx.At, stored: tx.At}
	n.facts = c.factsOf(context.WithoutCancel(ctx), n)
	c.mu.Lock()
	var former Waker
	if old := c.nodes[n.Name]; old != nil && old.live != nil {
		former = old.live.waker
	}
	c.nodes[n.Name] = n
	for _, key := range tx.RevokeKeys {
		id := c.keys[key]
		id.Revoked = tx.At
		c.keys[key] = id
	}
	c.keys[tx.Key] = IdentityRecord{Key: tx.Key, Node: n.Name, Machine: n.Machine}
	if tx.Bootstrap != nil {
		c.revisions[tx.Bootstrap.Name] = *tx.Bootstrap
		c.set = c.set.With(source)
	}
	c.mu.Unlock()
	for _, key := range tx.RevokeKeys {
		c.revokeGrants(context.WithoutCancel(ctx), n.Name, key)
	}
	c.written(tx.Generation)
	if former != nil {
		former.Close("revoked: another machine has taken the place of this node; it is not part of the mesh any more")
	}
}

func nameFor(token TokenRecord, hostname string) (string, error) {
	switch {
	case token.Name != "":
		return token.Name, nil
	case token.Replaces != "":
		return token.Replaces, nil
	}
	var b strings.Builder
	for _, r := range strings.ToLower(hostname) {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') || r == '.' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	name := b.String()
	name = strings.Trim(name[:min(len(name), 63)], "-.")
	if name == "" || name == "localhost" || !mesh.ValidNodeName(name) {
		return "", mesh.Errorf(mesh.CodeInvalid, "the host name %q cannot be the name of a node; issue a token with --name", bounded(hostname, 80))
	}
	return name, nil
}

// sameMachine lists the other enrolled nodes with this machine id.
func (c *Control) sameMachine(name, machine string) []string {
	if machine == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var others []string
	for other, n := range c.nodes {
		if other != name && n.State == mesh.NodeEnrolled && n.Machine == machine {
			others = append(others, other)
		}
	}
	slices.Sort(others)
	return others
}

// withMachineLine adds the line that only the control plane can write.
func (c *Control) withMachineLine(b mesh.Briefing, name, machine string) mesh.Briefing {
	lines := slices.DeleteFunc(slices.Clone(b.Lines), func(l mesh.Line) bool { return l.Check == checkMachine })
	if len(lines) == 0 {
		// A briefing in which nobody looked stays one.
		return mesh.Briefing{}
	}
	line := mesh.Line{Check: checkMachine, Outcome: mesh.OutcomePass, Detail: "no other node has it"}
	if others := c.sameMachine(name, machine); len(others) > 0 {
		line.Outcome = mesh.OutcomeWarn
		line.Detail = "node " + strings.Join(others, ", ") + " has the same machine id: one was cloned from the other; give this machine its own with systemd-machine-id-setup and enrol it again"
	}
	return mesh.Briefing{Lines: append(lines, line)}
}

// keyFingerprint writes the key as ssh-keygen -l does.
func keyFingerprint(key string) string {
	fields := strings.Fields(key)
	if len(fields) < 2 {
		return "-"
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return "-"
	}
	return mesh.FingerprintText(sha256.Sum256(blob))
}

// bounded cuts text that came from outside.
func bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
