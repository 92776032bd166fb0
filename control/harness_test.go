package control_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/store"
)

var root = control.Caller{Name: "root", Door: control.DoorSocket, Role: control.RoleAdmin}

// plane is a control plane over a real store in a directory of the test.
type plane struct {
	*control.Control
	t     *testing.T
	dir   string
	store *store.Store
	blobs *store.Blobs
	wrap  func(control.Store) control.Store
	// readers makes the repository readable by nodes alone.
	readers control.Grants
	keep    control.Keep

	mu  sync.Mutex
	now time.Time
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, dir: t.TempDir(), now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *plane) start() {
	p.t.Helper()
	var err error
	if p.store, err = store.Open(context.Background(), filepath.Join(p.dir, "control.db")); err != nil {
		p.t.Fatal(err)
	}
	if p.blobs, err = store.OpenBlobs(filepath.Join(p.dir, "blobs")); err != nil {
		p.t.Fatal(err)
	}
	var s control.Store = p.store
	if p.wrap != nil {
		s = p.wrap(s)
	}
	var grants []control.Grants
	if p.readers != nil {
		grants = []control.Grants{p.readers}
	}
	p.Control, err = control.New(context.Background(), control.Config{
		Grants: grants, Readers: p.readers, Keep: p.keep,
		Store: s, Blobs: p.blobs, Now: p.clock, Addresses: []string{"control.example:7022"},
		Fingerprint: sha256.Sum256([]byte("host key")), RepositoryURL: "http://control.example:7080",
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) stop() {
	if err := errors.Join(p.store.Close(), p.blobs.Close()); err != nil {
		p.t.Errorf("close: %v", err)
	}
}

func (p *plane) restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

func (p *plane) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *plane) later(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

// token issues a token and returns the hash of its secret.
func (p *plane) token(req control.TokenRequest) string {
	p.t.Helper()
	issued, err := p.IssueToken(context.Background(), root, req)
	if err != nil {
		p.t.Fatal(err)
	}
	token, err := mesh.ParseToken(issued.Token)
	if err != nil {
		p.t.Fatal(err)
	}
	return mesh.SecretHash(token.SecretText())
}

// host is a machine as the control plane sees it.
type host struct {
	p     *plane
	key   string
	e     mesh.Enrol
	name  string
	store string
	boot  string
	seq   uint64
	held  mesh.Generation
	owned []mesh.Owned
	link  *link
}

func machine(p *plane, hostname string) *host {
	blob := base64.StdEncoding.EncodeToString([]byte("key of " + hostname))
	return &host{
		p: p, key: "ssh-ed25519 " + blob, store: "store of " + hostname, boot: "boot of " + hostname,
		e: mesh.Enrol{
			ProtocolMin: 1, ProtocolMax: 1, HostVersion: "1.0", Hostname: hostname,
			Profile:   mesh.Profile{OS: mesh.OS{ID: "debian", Version: "12", Family: "debian"}, Arch: "amd64", MachineIDHash: "machine of " + hostname},
			Inventory: mesh.Inventory{Units: []string{"ssh.service"}},
			Briefing:  mesh.Briefing{Lines: []mesh.Line{{Check: "systemd is PID 1", Outcome: mesh.OutcomePass, Detail: "it is"}}},
		},
	}
}

func (h *host) enrol(req control.TokenRequest) (mesh.Enrolled, error) {
	h.p.t.Helper()
	return h.enrolWith(h.p.token(req))
}

func (h *host) enrolWith(hash string) (mesh.Enrolled, error) {
	answer, err := h.p.Enrol(context.Background(), h.key, hash, "192.0.2.1:4000", h.e)
	if err == nil {
		h.name = answer.Node
	}
	return answer, err
}

// join enrols a machine with labels and connects it.
func join(p *plane, hostname string, labels map[string]string) *host {
	p.t.Helper()
	h := machine(p, hostname)
	if _, err := h.enrol(control.TokenRequest{Labels: labels}); err != nil {
		p.t.Fatal(err)
	}
	h.connect()
	return h
}

// link is a fake of a live link that remembers what it was told.
type link struct {
	mu     sync.Mutex
	woken  int
	closed []string
	told   []string
}

func (l *link) Tell(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, message)
}

func (l *link) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken++
}

func (l *link) Close(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = append(l.closed, reason)
}

func (l *link) reasons() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.closed, "; ")
}

func (l *link) wakes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.woken
}

func (h *host) hello() mesh.Hello {
	return mesh.Hello{
		ProtocolMin: 1, ProtocolMax: 1, Node: h.name, HostVersion: "1.0", BootID: h.boot, MachineIDHash: h.e.Profile.MachineIDHash,
		StoreID: h.store, Sequence: h.seq, Held: h.held, Ledger: mesh.LedgerDigest(nil), OwnedDigest: mesh.OwnedDigest(h.owned),
		ProfileDigest: h.e.Profile.Digest(), InventoryDigest: h.e.Inventory.Digest(),
	}
}

func (h *host) tryConnect() (mesh.Welcome, *mesh.Recover, error) {
	h.link = &link{}
	return h.p.Connect(context.Background(), h.name, h.hello(), h.link)
}

func (h *host) connect() (mesh.Welcome, *mesh.Recover) {
	h.p.t.Helper()
	welcome, recovery, err := h.tryConnect()
	if err != nil {
		h.p.t.Fatalf("connect %s: %v", h.name, err)
	}
	return welcome, recovery
}

func (h *host) disconnect() { h.p.Disconnect(h.name, h.link) }

// pending returns what the control plane would push now; nil when nothing.
func (h *host) pending() *mesh.Declaration {
	h.p.t.Helper()
	out, err := h.p.Pending(context.Background(), h.name)
	if err != nil {
		h.p.t.Fatal(err)
	}
	if out == nil {
		return nil
	}
	var d mesh.Declaration
	if err := json.Unmarshal(bytes.Join(out.Body, nil), &d); err != nil || d.Generation != out.Generation {
		h.p.t.Fatalf("what travels to %s as generation %s cannot be read: %v: %s", h.name, out.Generation, err, out.Body)
	}
	return &d
}

func (h *host) try(t mesh.FrameType, body any) error {
	h.p.t.Helper()
	var seq uint64
	if t == mesh.FrameReport || t == mesh.FrameOwned || t == mesh.FrameEvent {
		h.seq++
		seq = h.seq
	}
	f, err := mesh.NewFrame(t, seq, body)
	if err != nil {
		h.p.t.Fatal(err)
	}
	return h.p.Handle(context.Background(), h.name, h.store, f)
}

func (h *host) say(t mesh.FrameType, body any) {
	h.p.t.Helper()
	if err := h.try(t, body); err != nil {
		h.p.t.Fatalf("%s says %s: %v", h.name, t, err)
	}
}

// receive takes what is pending onto its disk and says so.
func (h *host) receive() *mesh.Declaration {
	h.p.t.Helper()
	d := h.pending()
	if d == nil {
		h.p.t.Fatalf("nothing is pending for %s", h.name)
	}
	if ps := d.Validate(); len(ps) > 0 {
		h.p.t.Fatalf("what was pushed has faults: %v", ps)
	}
	h.held = d.Generation
	h.say(mesh.FrameReceived, mesh.Received{Generation: d.Generation, Held: d.Generation})
	return d
}

// apply receives, owns and reports everything that is pending as right.
func (h *host) apply() *mesh.Declaration {
	h.p.t.Helper()
	d := h.receive()
	r := mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied, Full: true}
	change := mesh.OwnedChange{Full: true}
	h.owned = nil
	for _, res := range d.Resources {
		r.Results = append(r.Results, mesh.Result{Resource: res.ID(), Status: mesh.StatusChanged, Generation: d.Generation, Want: res.Digest()})
		h.owned = append(h.owned, mesh.Owned{Resource: res.ID(), Made: mesh.MadeCreated, Generation: d.Generation})
	}
	change.Owned = h.owned
	r.Ledger = mesh.LedgerDigest(r.Results)
	h.say(mesh.FrameOwned, change)
	h.say(mesh.FrameReport, r)
	return d
}

func (h *host) row() control.NodeView {
	h.p.t.Helper()
	rows, err := h.p.Nodes(context.Background())
	if err != nil {
		h.p.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Node == h.name {
			return r
		}
	}
	h.p.t.Fatalf("there is no node %s", h.name)
	return control.NodeView{}
}

func (h *host) detail() control.NodeDetail {
	h.p.t.Helper()
	d, err := h.p.Node(context.Background(), h.name)
	if err != nil {
		h.p.t.Fatal(err)
	}
	return d
}

func (h *host) events() []string {
	h.p.t.Helper()
	var kinds []string
	for _, e := range h.detail().Events {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}

func file(path, content string) mesh.DocumentResource {
	spec := &mesh.FileSpec{}
	spec.SetContent([]byte(content))
	return mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec}}
}

func doc(name, selection string, resources ...mesh.DocumentResource) mesh.Document {
	return mesh.Document{Declaration: name, Select: selection, Resources: resources}
}

func (p *plane) declare(d mesh.Document) control.Declared {
	p.t.Helper()
	answer, err := p.Declare(context.Background(), root, d)
	if err != nil {
		p.t.Fatalf("declare %s: %v", d.Declaration, err)
	}
	return answer
}

func ids(d *mesh.Declaration) string {
	if d == nil {
		return "nothing"
	}
	list := []string{}
	for _, r := range d.Resources {
		list = append(list, string(r.ID()))
	}
	slices.Sort(list)
	released := slices.Sorted(slices.Values(d.Released))
	return fmt.Sprintf("%s %v released %v", d.Generation, list, released)
}

func wantPending(t *testing.T, h *host, want string) {
	t.Helper()
	if got := ids(h.pending()); got != want {
		t.Errorf("pending for %s: %s, want %s", h.name, got, want)
	}
}

func wantCode(t *testing.T, what string, err error, code mesh.Code, words ...string) {
	t.Helper()
	if mesh.CodeOf(err) != code {
		t.Errorf("%s gave %v with code %q, want %q", what, err, mesh.CodeOf(err), code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: the message lacks %q: %v", what, w, err)
		}
	}
}
