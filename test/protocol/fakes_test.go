package protocol

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	controllink "github.com/meshctl/mesh/control/link"
)

func newKey(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// testLog shows the log of a test that failed.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// policy is a control plane that does as it is told and remembers.
type policy struct {
	mu sync.Mutex
	// nodes by key, secrets and answers of enrolments, under mu like the rest.
	nodes    map[string]string
	secrets  map[string]error
	enrolled mesh.Enrolled
	refuse   error
	// unknown is the answer to a key that is not known. Nil: denied.
	unknown error
	enrols  []mesh.Enrol

	welcome  mesh.Welcome
	recovery *mesh.Recover
	connect  error
	// meeting is called while a link is taken into use, when it can be woken
	// already. Nil: nothing is.
	meeting func(control.Waker)
	pending map[string]*mesh.Declaration
	wakers  map[string]control.Waker
	links   int
	// asked counts the keys that were shown.
	asked int
	// tokens counts the secrets that were shown.
	tokens  int
	dropped int

	// handle is the answer to the next frame. Nil: it is taken. blocked is that to
	// every frame but a heartbeat.
	handle   error
	blocked  error
	recorded map[string]bool
	frames   []mesh.Frame
	received map[string]mesh.Received
	blobs    map[string][]byte
}

func newPolicy() *policy {
	return &policy{
		nodes:    map[string]string{},
		secrets:  map[string]error{},
		pending:  map[string]*mesh.Declaration{},
		wakers:   map[string]control.Waker{},
		recorded: map[string]bool{},
		received: map[string]mesh.Received{},
		blobs:    map[string][]byte{},
	}
}

func (p *policy) know(key ssh.Signer, node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[controllink.AuthorizedKey(key.PublicKey())] = node
}

func (p *policy) CheckToken(_ context.Context, hash string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens++
	answer, known := p.secrets[hash]
	if !known {
		return mesh.Errorf(mesh.CodeDenied, "no such token; it was never issued here, or it expired")
	}
	return answer
}

func (p *policy) Enrol(_ context.Context, key, _, _ string, e mesh.Enrol) (mesh.Enrolled, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enrols = append(p.enrols, e)
	if p.refuse != nil {
		return mesh.Enrolled{}, p.refuse
	}
	p.nodes[key] = p.enrolled.Node
	return p.enrolled, nil
}

func (p *policy) NodeByKey(_ context.Context, key string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	node, known := p.nodes[key]
	if !known && p.unknown != nil {
		return "", p.unknown
	}
	if !known {
		return "", mesh.Errorf(mesh.CodeDenied, "this key belongs to no node; enrol this machine again")
	}
	return node, nil
}

func (p *policy) Connect(_ context.Context, node string, _ mesh.Hello, w control.Waker) (mesh.Welcome, *mesh.Recover, error) {
	if p.meeting != nil {
		p.meeting(w)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connect != nil {
		return mesh.Welcome{}, nil, p.connect
	}
	p.wakers[node] = w
	p.links++
	return p.welcome, p.recovery, nil
}

func (p *policy) Disconnect(node string, w control.Waker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped++
	if p.wakers[node] == w {
		delete(p.wakers, node)
	}
}

func (p *policy) Pending(_ context.Context, node string) (*control.Outgoing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.pending[node]
	if r, there := p.received[node]; d == nil || there && r.Held >= d.Generation {
		return nil, nil
	}
	body, err := json.Marshal(d)
	return &control.Outgoing{Generation: d.Generation, Body: [][]byte{body}}, err
}

func (p *policy) Handle(_ context.Context, node, store string, f mesh.Frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.handle; err != nil {
		p.handle = nil
		return err
	}
	if p.blocked != nil && f.Type != mesh.FrameHeartbeat {
		return p.blocked
	}
	p.frames = append(p.frames, f)
	if f.Type == mesh.FrameReceived {
		var r mesh.Received
		if err := unmarshal(f.Body, &r); err != nil {
			return mesh.Errorf(mesh.CodeInvalid, "received: %w", err)
		}
		p.received[node] = r
	}
	if f.Seq > 0 {
		p.recorded[fmt.Sprintf("%s/%s/%d", node, store, f.Seq)] = true
	}
	return nil
}

func (p *policy) OpenBlob(_ context.Context, _, sum string) (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	content, known := p.blobs[sum]
	if !known {
		return nil, mesh.Errorf(mesh.CodeNotFound, "no declaration of this node names this content")
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// declare makes d pending and wakes the node's link, if it has one.
func (p *policy) declare(d mesh.Declaration) {
	p.mu.Lock()
	p.pending[d.Node] = &d
	w := p.wakers[d.Node]
	p.mu.Unlock()
	if w != nil {
		w.Wake()
	}
}

func (p *policy) close(node, reason string) {
	p.mu.Lock()
	w := p.wakers[node]
	p.mu.Unlock()
	if w != nil {
		w.Close(reason)
	}
}

// look runs f while nothing changes.
func (p *policy) look(f func(*policy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// fakeHost is a host that does as it is told and remembers.
type fakeHost struct {
	// looking is how long it takes to say hello.
	looking time.Duration

	mu        sync.Mutex
	hello     mesh.Hello
	heartbeat mesh.Heartbeat
	// answers to Describe by want, and to Declare by generation.
	bodies   map[string]any
	answers  map[mesh.Generation]mesh.Received
	trouble  error
	declared []mesh.Declaration
	content  map[string][]byte
	recovers []mesh.Recover
	wants    []string
	revoked  string
	// order holds what came, in order.
	order []string
	// hold keeps Declare from returning until its ctx ends. Nil: it does not.
	hold func(mesh.Declaration) bool
}

func newHost(node string) *fakeHost {
	return &fakeHost{
		hello:   mesh.Hello{ProtocolMin: 1, ProtocolMax: 1, Node: node, HostVersion: "1.0.0", StoreID: "s1"},
		bodies:  map[string]any{},
		answers: map[mesh.Generation]mesh.Received{},
		content: map[string][]byte{},
	}
}

func (h *fakeHost) Hello(context.Context) (mesh.Hello, error) {
	time.Sleep(h.looking)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hello, nil
}

func (h *fakeHost) Heartbeat(context.Context) (mesh.Heartbeat, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heartbeat, nil
}

func (h *fakeHost) Describe(_ context.Context, want string) (any, mesh.FrameType, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	body, known := h.bodies[want]
	if !known {
		return nil, "", errors.New("nothing is known about " + want)
	}
	return body, mesh.FrameType(want), nil
}

func (h *fakeHost) Want(_ context.Context, wants []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wants = append(h.wants, wants...)
	return nil
}

func (h *fakeHost) Declare(ctx context.Context, d mesh.Declaration, fetch func(context.Context, string, io.Writer) error) (mesh.Received, error) {
	h.mu.Lock()
	trouble, hold := h.trouble, h.hold
	h.mu.Unlock()
	if trouble != nil {
		return mesh.Received{}, trouble
	}
	if hold != nil && hold(d) {
		<-ctx.Done()
		return mesh.Received{}, ctx.Err()
	}
	for _, sum := range d.Blobs() {
		var content bytes.Buffer
		if err := fetch(ctx, sum, &content); err != nil {
			return mesh.Received{}, err
		}
		h.mu.Lock()
		h.content[sum] = content.Bytes()
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.order = append(h.order, "declare")
	h.declared = append(h.declared, d)
	if answer, told := h.answers[d.Generation]; told {
		return answer, nil
	}
	h.hello.Held = d.Generation
	return mesh.Received{Generation: d.Generation, Held: d.Generation}, nil
}

func (h *fakeHost) Recover(_ context.Context, r mesh.Recover) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.order = append(h.order, "recover")
	h.recovers = append(h.recovers, r)
	return nil
}

func (h *fakeHost) Revoked(_ context.Context, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revoked = reason
}

func (h *fakeHost) look(f func(*fakeHost)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
}

// outbox is an outbox in memory.
type outbox struct {
	mu      sync.Mutex
	frames  []mesh.Frame
	acked   uint64
	changed chan struct{}
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{}, 1)} }

func (o *outbox) add(frames ...mesh.Frame) {
	o.mu.Lock()
	o.frames = append(o.frames, frames...)
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

func (o *outbox) Next(_ context.Context, after uint64, most int) ([]mesh.Frame, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var next []mesh.Frame
	for _, f := range o.frames {
		if f.Seq > after && len(next) < most {
			next = append(next, f)
		}
	}
	return next, nil
}

func (o *outbox) Acked(_ context.Context, seq uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acked = max(o.acked, seq)
	o.frames = slices.DeleteFunc(o.frames, func(f mesh.Frame) bool { return f.Seq <= seq })
	return nil
}

func (o *outbox) Changed() <-chan struct{} { return o.changed }

func (o *outbox) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.frames)
}
