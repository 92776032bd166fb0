// Package host is the daemon's core: one goroutine owns the reconcile loop,
// fed by the link, by timers and by the admin at the machine; it keeps the
// state that the others ask for, and beats the watchdog only while its loops
// turn.
//
// It applies no resource, speaks no protocol and stores nothing itself: the
// reconciler, the link and the store are given to it.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
)

// ErrStoreDamaged: the store cannot be used any more. Opening it anew, when the
// daemon is started again, moves it aside and begins a new one.
var ErrStoreDamaged = errors.New("the store is damaged")

// ErrHandOver: another version of this host is installed and sound, and this
// one ends so that the service manager starts it.
var ErrHandOver = errors.New("this version hands over to the one that is installed")

// Upgrader is the host's own upgrade. It is called from the reconcile loop.
// Each method may return ErrHandOver; any other error is logged, and what it is
// about is tried again at the next call.
type Upgrader interface {
	// PassEnded is called after each pass that ended, and once when the host has
	// started and there is nothing to reconcile. A version that is on trial is
	// confirmed by it.
	PassEnded(ctx context.Context) error
	// Turn is called again and again while the loop is idle.
	Turn(ctx context.Context) error
	// Facts says how the host stands with its own version; from any goroutine.
	Facts(ctx context.Context) mesh.HostUpgrade
	// Changes counts what may have changed the facts.
	Changes() uint64
}

// Store is what the host keeps. An error that is ErrStoreDamaged ends the
// daemon; any other, such as a full disk, is tried again. Each method is one transaction, durable when it
// returns nil.
type Store interface {
	Declaration(ctx context.Context) (*mesh.Declaration, error)
	// Hold refuses a generation that is not greater than the one held.
	Hold(ctx context.Context, d mesh.Declaration) error
	HasBlob(sum string) bool
	AddBlob(ctx context.Context, sum string, write func(context.Context, io.Writer) error) error
	Summary(ctx context.Context) (Summary, error)
	AddEvent(ctx context.Context, e mesh.Event) error
	AddFullReport(ctx context.Context) error
	AddFullOwned(ctx context.Context) error
	// AddGoodbye does nothing while a goodbye waits to be delivered.
	AddGoodbye(ctx context.Context, g mesh.Goodbye) error
	// Leave forgets everything that belongs to the mesh, and remembers that this
	// host is leaving until Left.
	Leave(ctx context.Context) error
	Leaving(ctx context.Context) (bool, error)
	Left(ctx context.Context) error
	RecoveryCopy(ctx context.Context) ([]mesh.Owned, error)
	Recover(ctx context.Context, copied []mesh.Owned) error
	SetBundle(ctx context.Context, d mesh.Document) error
	Bundle(ctx context.Context) (*mesh.Document, error)
}

// Summary is what the store holds at one moment.
type Summary struct {
	StoreID string
	// Sequence is the greatest number that was given to a message.
	Sequence uint64
	Held     mesh.Generation
	Applied  mesh.Generation
	// LastPass is the last pass that ended. Zero: there was none.
	LastPass       uint64
	LastGeneration mesh.Generation
	LastTrigger    mesh.Trigger
	LastState      mesh.GenerationState
	LastEnded      time.Time
	Kept           []mesh.ResourceID
	Ledger         []mesh.Result
	LedgerDigest   string
	OwnedDigest    string
	// Pending counts messages that the control plane has not acknowledged.
	Pending int
}

// Reconciler makes one pass.
type Reconciler interface {
	Run(ctx context.Context, d mesh.Declaration, t mesh.Trigger, superseded func() bool) (reconcile.Outcome, error)
}

// Describer looks at the machine.
type Describer interface {
	Profile(ctx context.Context) (mesh.Profile, error)
	Inventory(ctx context.Context) (mesh.Inventory, error)
	Briefing(ctx context.Context) (mesh.Briefing, error)
}

// Link is the connection to the control plane, made by Config.Dial.
type Link interface {
	// Run dials, and dials again, until ctx ends.
	Run(ctx context.Context) error
	// Status says in one sentence how the link is, and whether it is up.
	Status() (sentence string, up bool)
}

// Enroller makes this machine a node.
type Enroller interface {
	Enrol(ctx context.Context, token mesh.Token, e mesh.Enrol) (mesh.Enrolled, error)
}

// Bundles reads a bundle: a document and the package files beside it.
type Bundles interface {
	// Take copies the package files to where the package resource finds them,
	// and returns the document.
	Take(ctx context.Context, path string) (mesh.Document, error)
}

// Config is what a Host is made of. Every field is needed unless it says
// otherwise.
type Config struct {
	Store      Store
	Reconciler Reconciler
	Describer  Describer
	Enroller   Enroller
	Bundles    Bundles
	// Settings are read before the daemon starts; Save makes them durable.
	Settings Settings
	Save     func(Settings) error
	// Forget drops the identity of this machine and makes a new one, both durable.
	// It may be called again.
	Forget func() error
	// Dial makes the link of an enrolled host. The host is what the link talks to.
	Dial func(Settings, *Host) Link
	// Upgrader of this host. Nil: it is not upgraded by declaration.
	Upgrader Upgrader
	// Settle waits for what an earlier life of this daemon left running. The error
	// means that it could not be learned whether there is anything.
	Settle func(ctx context.Context) error
	// Notify reports to the service manager.
	Notify  Notifier
	Version string
	BootID  string
	Now     func() time.Time
	Log     *slog.Logger
	// Beats proves that loops turn.
	Beats *Beats
}

// Notifier is the service manager that started this daemon, if one did.
type Notifier interface {
	Ready() error
	Ping() error
	Status(string) error
	Stopping() error
	// Watchdog is how often a ping is expected at the least. Zero: never.
	Watchdog() time.Duration
}

// Host is the daemon. Make it with New, then call Run once.
type Host struct {
	cfg Config

	held      atomic.Uint64 // newest generation on disk
	drift     atomic.Uint64 // resources found changed since the start
	heartbeat atomic.Uint64
	declared  chan struct{} // room for one: a declaration was stored
	asks      chan ask
	ended     chan struct{} // closed when the reconcile loop has ended
	relink    chan struct{} // room for one: settings changed
	retired   chan struct{} // room for one: the control plane has committed the goodbye
	// joining holds one ticket, for whoever changes what this machine belongs
	// to: an enrolment or a bundle.
	joining chan struct{}

	described described // of the reconcile loop

	mu       sync.Mutex
	settings Settings // guarded by mu
	link     Link     // guarded by mu; nil while there is none
	working  string   // guarded by mu; what the loop does now, empty when idle
}

// ask is something that has to be done between two passes.
type ask struct {
	do func(ctx context.Context) error
	// then is the trigger of the pass that follows. Empty, noPass: none does.
	then mesh.Trigger
	done chan answer // room for one
}

const noPass mesh.Trigger = ""

// answer is how the host was right after the pass that was asked for. Without a
// pass the status is zero.
type answer struct {
	status Status
	err    error
}

// New makes a Host.
func New(cfg Config) *Host {
	return &Host{
		cfg:      cfg,
		settings: cfg.Settings,
		declared: make(chan struct{}, 1),
		asks:     make(chan ask),
		ended:    make(chan struct{}),
		joining:  make(chan struct{}, 1),
		relink:   make(chan struct{}, 1),
		retired:  make(chan struct{}, 1),
	}
}

// Run runs the daemon until ctx ends or one of its loops cannot go on.
func (h *Host) Run(ctx context.Context) error {
	d, err := h.cfg.Store.Declaration(ctx)
	if err != nil {
		return fmt.Errorf("read the declaration held: %w", err)
	}
	if d != nil {
		h.held.Store(uint64(d.Generation))
	}
	if err := h.finishLeaving(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops := []func(context.Context) error{h.reconcileLoop, h.linkLoop, h.watchdogLoop}
	errs := make(chan error, len(loops))
	for _, loop := range loops {
		go func() { errs <- loop(ctx) }()
	}
	if err := h.cfg.Notify.Ready(); err != nil {
		h.cfg.Log.WarnContext(ctx, "the service manager was not told that this host is ready", "error", err)
	}
	var all error
	for range loops {
		err := <-errs
		cancel()
		switch {
		case errors.Is(err, ErrHandOver):
			h.cfg.Log.InfoContext(ctx, "this version ends; the service manager starts the one that is installed")
		case err != nil && !errors.Is(err, context.Canceled):
			all = errors.Join(all, err)
		}
	}
	return all
}

// reconcileLoop owns every pass.
func (h *Host) reconcileLoop(ctx context.Context) error {
	defer close(h.ended)
	beat := h.cfg.Beats.Loop("reconcile")
	h.setWorking("waiting for what an earlier life of this host left running")
	if err := h.cfg.Settle(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h.cfg.Log.WarnContext(ctx, "whether a package transaction of an earlier life still runs could not be learned; it is looked for again before the next one", "error", err)
	}
	h.setWorking("")
	drift := time.NewTimer(h.driftInterval())
	defer drift.Stop()
	turn := time.NewTicker(turnInterval)
	defer turn.Stop()
	retry := newRetry()
	defer retry.stop()
	var err error
	if h.held.Load() > 0 {
		err = h.pass(ctx, mesh.TriggerResumed, beat, retry)
	} else {
		err = h.upgraded(ctx, Upgrader.PassEnded)
	}
	for {
		beat()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrStoreDamaged) || errors.Is(err, ErrHandOver) {
			return err
		}
		if err != nil {
			h.goOn(ctx, err, retry)
		}
		err = nil
		select {
		case <-ctx.Done():
		case <-turn.C:
			err = h.upgraded(ctx, Upgrader.Turn)
		case <-h.declared:
			err = h.pass(ctx, mesh.TriggerDeclared, beat, retry)
			drift.Reset(h.driftInterval())
		case <-drift.C:
			drift.Reset(h.driftInterval())
			err = h.pass(ctx, mesh.TriggerDrift, beat, retry)
		case <-retry.due():
			err = h.pass(ctx, mesh.TriggerRetry, beat, retry)
		case a := <-h.asks:
			var out answer
			if out.err = a.do(ctx); out.err == nil && a.then != noPass {
				err = h.pass(ctx, a.then, beat, retry)
				out.err = err
				if errors.Is(err, ErrHandOver) {
					out.err = nil
				}
				if out.err == nil {
					out.status, out.err = h.Status(ctx)
				}
			}
			a.done <- out
		}
	}
}

// goOn has a pass that could not be stored tried again. A full disk is no
// reason for this host to end: it would be started again, and put back to an
// earlier version in the end, and the disk would still be full.
func (h *Host) goOn(ctx context.Context, err error, retry *retry) {
	retry.after(somethingDeferred)
	h.cfg.Log.ErrorContext(ctx, "a pass could not be made; it is tried again", "error", err)
	h.setWorking("a pass could not be made, and is tried again soon: " + err.Error())
}

// turnInterval is how often an idle loop turns to prove that it can.
const turnInterval = 5 * time.Second

func (h *Host) driftInterval() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings.DriftInterval.orDefault(defaultDrift)
}

// pass makes passes until none is superseded.
func (h *Host) pass(ctx context.Context, trigger mesh.Trigger, beat func(), retry *retry) error {
	defer h.setWorking("")
	for {
		// What was stored until now is read below; it needs no pass of its own.
		select {
		case <-h.declared:
		default:
		}
		d, err := h.cfg.Store.Declaration(ctx)
		if err != nil {
			return fmt.Errorf("read the declaration held: %w", err)
		}
		if d == nil {
			h.tellChanges(ctx, trigger, reconcile.Outcome{})
			return nil
		}
		h.setWorking(fmt.Sprintf("applying %s (%s)", d.Generation, trigger))
		superseded := func() bool {
			beat()
			return h.held.Load() > uint64(d.Generation)
		}
		out, err := h.cfg.Reconciler.Run(ctx, *d, trigger, superseded)
		if err != nil {
			return fmt.Errorf("apply %s: %w", d.Generation, err)
		}
		h.drift.Add(uint64(len(out.Drifted)))
		if out.Superseded {
			h.cfg.Log.InfoContext(ctx, "a newer declaration supersedes the one being applied", "generation", d.Generation)
			trigger = mesh.TriggerDeclared
			continue
		}
		h.logOutcome(ctx, *d, trigger, out)
		if err := h.sayGoodbye(ctx, *d, out); err != nil {
			return err
		}
		over := h.upgraded(ctx, Upgrader.PassEnded)
		h.tellChanges(ctx, trigger, out)
		if out.Count(mesh.StatusDeferred) > 0 {
			retry.after(somethingDeferred)
		} else {
			retry.after(nothingDeferred)
		}
		return over
	}
}

// upgraded calls the host's own upgrade. Only ErrHandOver and a store that is
// damaged come back.
func (h *Host) upgraded(ctx context.Context, call func(Upgrader, context.Context) error) error {
	if h.cfg.Upgrader == nil {
		return nil
	}
	before := h.cfg.Upgrader.Changes()
	err := call(h.cfg.Upgrader, ctx)
	if h.cfg.Upgrader.Changes() != before {
		h.mu.Lock()
		link, ok := h.link.(Refresher)
		h.mu.Unlock()
		if ok {
			link.Refresh(mesh.WantInventory)
		}
	}
	if errors.Is(err, ErrHandOver) || errors.Is(err, ErrStoreDamaged) {
		return err
	}
	if err != nil && ctx.Err() == nil {
		h.cfg.Log.ErrorContext(ctx, "a step of this host's own upgrade did not succeed; it is tried again", "error", err)
	}
	return nil
}

func (h *Host) logOutcome(ctx context.Context, d mesh.Declaration, trigger mesh.Trigger, out reconcile.Outcome) {
	level := slog.LevelInfo
	if out.State == mesh.GenerationFailed {
		level = slog.LevelWarn
	}
	h.cfg.Log.Log(ctx, level, "pass ended",
		"generation", d.Generation, "trigger", trigger, "state", out.State,
		"ok", out.Count(mesh.StatusOK), "changed", out.Count(mesh.StatusChanged), "removed", out.Count(mesh.StatusRemoved),
		"failed", out.Count(mesh.StatusFailed), "deferred", out.Count(mesh.StatusDeferred), "unknown", out.Count(mesh.StatusUnknown),
		"conflict", out.Count(mesh.StatusConflict), "skipped", out.Count(mesh.StatusSkipped), "drift", len(out.Drifted))
	for _, r := range out.Results {
		if !r.Status.Good() {
			h.cfg.Log.WarnContext(ctx, "resource is not as declared", "resource", r.Resource, "status", r.Status, "reason", r.Reason, "detail", r.Detail)
		}
	}
}

func (h *Host) setWorking(what string) {
	h.mu.Lock()
	h.working = what
	h.mu.Unlock()
	text := what
	if text == "" {
		text = "watching " + mesh.Generation(h.held.Load()).String()
		if h.held.Load() == 0 {
			text = "no declaration yet"
		}
	}
	if err := h.cfg.Notify.Status(text); err != nil {
		h.cfg.Log.Debug("the service manager was not told the status", "error", err)
	}
}

// inLoop has the reconcile loop call do and then make a pass, waits for both,
// and returns how the host was then.
func (h *Host) inLoop(ctx context.Context, then mesh.Trigger, do func(context.Context) error) (Status, error) {
	a := ask{do: do, then: then, done: make(chan answer, 1)}
	select {
	case h.asks <- a:
	case <-h.ended:
		return Status{}, mesh.Errorf(mesh.CodeUnavailable, "mesh-host is stopping; ask again when it runs")
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
	select {
	case out := <-a.done:
		return out.status, out.err
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
}

// join takes the ticket for changing what this machine belongs to.
func (h *Host) join() (leave func(), err error) {
	select {
	case h.joining <- struct{}{}:
		return func() { <-h.joining }, nil
	default:
		return nil, mesh.Errorf(mesh.CodeUnavailable, "an enrolment or a bundle is being worked on already; try again when it is done")
	}
}

// linkLoop keeps the link of an enrolled host, and begins a new one when the
// settings change.
func (h *Host) linkLoop(ctx context.Context) error {
	for {
		h.mu.Lock()
		settings := h.settings
		h.mu.Unlock()
		if !settings.Enrolled() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-h.relink:
				continue
			}
		}
		link := h.cfg.Dial(settings, h)
		h.mu.Lock()
		h.link = link
		h.mu.Unlock()
		linkCtx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- link.Run(linkCtx) }()
		var err error
		select {
		case err = <-ended:
		case <-h.relink:
			cancel()
			err = <-ended
		case <-h.retired:
			cancel()
			err = <-ended
			h.leave(ctx)
		}
		cancel()
		h.mu.Lock()
		h.link = nil
		h.mu.Unlock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("keep the link: %w", err)
		}
	}
}
