package host_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
)

// passes is a reconciler that notes each pass and comes out as it is told.
type passes struct {
	mu   sync.Mutex
	made []madePass // guarded by mu
	// make comes in the place of a pass that finds everything right. Nil: that.
	make func(ctx context.Context, d mesh.Declaration, superseded func() bool) (reconcile.Outcome, error)
	// store keeps the end of each pass. Nil: it is not stored.
	store *store.Store
}

type madePass struct {
	generation mesh.Generation
	trigger    mesh.Trigger
	at         time.Time
}

func (p *passes) Run(ctx context.Context, d mesh.Declaration, t mesh.Trigger, superseded func() bool) (reconcile.Outcome, error) {
	p.mu.Lock()
	p.made = append(p.made, madePass{d.Generation, t, time.Now()})
	p.mu.Unlock()
	out := reconcile.Outcome{State: mesh.GenerationApplied}
	if p.make != nil {
		var err error
		if out, err = p.make(ctx, d, superseded); err != nil {
			return out, err
		}
	}
	if p.store == nil || out.Superseded {
		return out, nil
	}
	n, err := p.store.BeginPass(ctx, nil, nil)
	if err != nil {
		return out, err
	}
	return out, p.store.EndPass(ctx, reconcile.End{Pass: n, Generation: d.Generation, Trigger: t, State: out.State})
}

func (p *passes) list() []madePass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.made)
}

func (p *passes) triggers() []mesh.Trigger {
	var out []mesh.Trigger
	for _, m := range p.list() {
		out = append(out, m.trigger)
	}
	return out
}

type machine struct{ err error }

func (m machine) Profile(context.Context) (mesh.Profile, error) {
	return mesh.Profile{Arch: "amd64", MachineIDHash: "m"}, m.err
}

func (m machine) Inventory(context.Context) (mesh.Inventory, error) {
	return mesh.Inventory{Units: []string{"ssh.service"}}, m.err
}

func (m machine) Briefing(context.Context) (mesh.Briefing, error) {
	return mesh.Briefing{Lines: []mesh.Line{{Check: "init", Outcome: mesh.OutcomePass}}}, m.err
}

// serviceManager notes what the daemon tells it.
type serviceManager struct {
	mu       sync.Mutex
	ready    bool
	pings    []time.Time // guarded by mu
	status   []string    // guarded by mu
	watchdog time.Duration
}

func (s *serviceManager) Ready() error            { s.ready = true; return nil }
func (s *serviceManager) Stopping() error         { return nil }
func (s *serviceManager) Watchdog() time.Duration { return s.watchdog }

func (s *serviceManager) Ping() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pings = append(s.pings, time.Now())
	return nil
}

func (s *serviceManager) Status(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = append(s.status, text)
	return nil
}

func (s *serviceManager) pingsSince(at time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.pings {
		if p.After(at) {
			n++
		}
	}
	return n
}

// link notes that it was made, and is up or not.
type link struct {
	settings host.Settings
	up       bool
	beat     func() // nil: it has no loop
}

func (l *link) Run(ctx context.Context) error {
	for l.beat != nil {
		l.beat()
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

func (l *link) Status() (string, bool) { return "as the test says", l.up }

// control enrols.
type control struct {
	mu   sync.Mutex
	seen []mesh.Enrol // guarded by mu
	err  error
	// during is called in the middle of an enrolment. Nil: nothing is.
	during func()
}

func (c *control) Enrol(_ context.Context, _ mesh.Token, e mesh.Enrol) (mesh.Enrolled, error) {
	c.mu.Lock()
	c.seen = append(c.seen, e)
	c.mu.Unlock()
	if c.during != nil {
		c.during()
	}
	return mesh.Enrolled{Node: "web-1", Eligible: true}, c.err
}

type bundles struct {
	doc mesh.Document
	err error
}

func (b *bundles) Take(context.Context, string) (mesh.Document, error) { return b.doc, b.err }

// bench is a host in a bubble of its own time, with a real store.
type bench struct {
	t       *testing.T
	cfg     host.Config
	host    *host.Host
	store   *store.Store
	passes  *passes
	manager *serviceManager
	control *control
	bundles *bundles
	saved   []host.Settings
	saveErr error
	forgot  int
	links   []*link
	log     *bytes.Buffer
	cancel  context.CancelFunc
	ended   chan error
}

func newBench(t *testing.T, dir string, settings host.Settings) *bench {
	t.Helper()
	st, _, err := store.Open(t.Context(), dir, false, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, store: st, passes: &passes{store: st}, manager: &serviceManager{}, control: &control{}, bundles: &bundles{}, log: &bytes.Buffer{},
	}
	b.cfg = host.Config{
		Store: st, Reconciler: b.passes, Describer: machine{}, Enroller: b.control, Bundles: b.bundles, Settings: settings,
		Save: func(s host.Settings) error {
			if b.saveErr == nil {
				b.saved = append(b.saved, s)
			}
			return b.saveErr
		},
		Forget: func() error { b.forgot++; return nil },
		Dial: func(s host.Settings, _ *host.Host) host.Link {
			l := &link{settings: s, up: true}
			b.links = append(b.links, l)
			return l
		},
		Settle: func(context.Context) error { return nil },
		Notify: b.manager, Version: "1.0", BootID: "boot", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(b.log, nil)), Beats: host.NewBeats(time.Now),
	}
	return b
}

// start runs the daemon; what it does at the start is done when this returns.
func (b *bench) start() {
	b.t.Helper()
	b.host = host.New(b.cfg)
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel, b.ended = cancel, make(chan error, 1)
	go func() { b.ended <- b.host.Run(ctx) }()
	synctest.Wait()
}

// stop ends the daemon and the store, and returns how the daemon ended.
func (b *bench) stop() error {
	b.t.Helper()
	b.cancel()
	err := <-b.ended
	if err := b.store.Close(); err != nil {
		b.t.Error(err)
	}
	return err
}

// wait lets time pass.
func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) declare(g mesh.Generation) mesh.Received {
	b.t.Helper()
	r, err := b.host.Declare(b.t.Context(), mesh.Declaration{Node: "web-1", Generation: g}, noContent)
	if err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
	return r
}

func (b *bench) status() host.Status {
	b.t.Helper()
	s, err := b.host.Status(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// messages returns what waits to be delivered, of one type.
func (b *bench) messages(kind mesh.FrameType) []mesh.Frame {
	b.t.Helper()
	frames, err := b.store.Next(b.t.Context(), 0, 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(frames, func(f mesh.Frame) bool { return f.Type != kind })
}

func noContent(context.Context, string, io.Writer) error { return errors.New("there is no content") }

var enrolled = host.Settings{Node: "web-1", Addresses: []string{"control:7022"}, Fingerprint: mesh.FingerprintText([32]byte{1})}
