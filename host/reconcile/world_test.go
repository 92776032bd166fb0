package reconcile_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/store"
)

// world is one machine with its host's reconciler and a real store.
type world struct {
	t        *testing.T
	m        *machine
	files    *provider
	packages *setProvider
	units    *serviceManager
	store    *store.Store
	r        *reconcile.Reconciler
	control  *controlPlane
	dir      string // of the store
	now      func() time.Time
	// step is called before every durable step. Nil: nobody counts.
	step func()
	// released goes into every declaration.
	released   []mesh.ResourceID
	generation mesh.Generation
}

func newWorld(t *testing.T) *world {
	t.Helper()
	m, err := newMachine("")
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	w := &world{
		t: t, m: m, control: newControlPlane(), dir: inMemory(t),
		now:      func() time.Time { clock = clock.Add(time.Second); return clock },
		files:    newProvider(mesh.KindFile, m),
		packages: &setProvider{provider: newProvider(mesh.KindPackage, m)},
		units:    &serviceManager{broken: map[string]bool{}},
	}
	m.step, w.units.step = w.count, w.count
	w.begin()
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// inMemory returns a directory that need not outlive the machine's power: what
// is shown here is what is done in which order.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mesh-reconcile-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// begin begins a life of the host.
func (w *world) begin() {
	w.t.Helper()
	st, lost, err := store.Open(w.t.Context(), w.dir, false, w.now)
	if err != nil || lost != nil {
		w.t.Fatalf("open the store: %v, lost %v", err, lost)
	}
	w.store = st
	w.r = reconcile.New(reconcile.Config{
		Store: stepping{st, w.count}, Providers: []resource.Provider{announcing{w.files}, w.packages}, Units: w.units, Last: "package:mesh-host", Now: w.now, Log: quiet(),
	})
}

// restart ends the life of the host, however far it is, and begins another one.
func (w *world) restart() {
	w.t.Helper()
	if err := w.store.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.begin()
}

func (w *world) count() {
	if w.step != nil {
		w.step()
	}
}

// stepping counts the calls that write.
type stepping struct {
	reconcile.Store
	step func()
}

func (s stepping) BeginPass(ctx context.Context, begin []mesh.Result, drop []mesh.ResourceID) (uint64, error) {
	s.step()
	return s.Store.BeginPass(ctx, begin, drop)
}

func (s stepping) Intend(ctx context.Context, in []reconcile.Intent) error {
	s.step()
	return s.Store.Intend(ctx, in)
}

func (s stepping) Record(ctx context.Context, r []reconcile.Record) error {
	s.step()
	return s.Store.Record(ctx, r)
}

func (s stepping) UnitDone(ctx context.Context, a reconcile.UnitAction) error {
	s.step()
	return s.Store.UnitDone(ctx, a)
}

func (s stepping) EndPass(ctx context.Context, e reconcile.End) error {
	s.step()
	return s.Store.EndPass(ctx, e)
}

func never() bool { return false }

// declare makes a pass over a new generation with these resources.
func (w *world) declare(resources ...mesh.Resource) reconcile.Outcome {
	w.t.Helper()
	w.generation++
	return w.pass(mesh.TriggerDeclared, never, resources...)
}

// again makes a pass over the generation that is held.
func (w *world) again(trigger mesh.Trigger, resources ...mesh.Resource) reconcile.Outcome {
	w.t.Helper()
	return w.pass(trigger, never, resources...)
}

func (w *world) pass(trigger mesh.Trigger, superseded func() bool, resources ...mesh.Resource) reconcile.Outcome {
	w.t.Helper()
	d := mesh.Declaration{Generation: w.generation, Resources: resources, Released: w.released}
	out, err := w.r.Run(w.t.Context(), d, trigger, superseded)
	if err != nil {
		w.t.Fatalf("the pass ended with an error of the store: %v", err)
	}
	w.deliver()
	if !out.Superseded {
		w.agree()
	}
	return out
}

// deliver hands all messages to the control plane and has them acknowledged.
func (w *world) deliver() int {
	w.t.Helper()
	frames, err := w.store.Next(w.t.Context(), 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range frames {
		if err := w.control.take(f); err != nil {
			w.t.Fatal(err)
		}
		if err := w.store.Acked(w.t.Context(), f.Seq); err != nil {
			w.t.Fatal(err)
		}
	}
	return len(frames)
}

// agree judges that the control plane, believing what it was told, holds what
// the host holds.
func (w *world) agree() {
	w.t.Helper()
	sum, err := w.store.Summary(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if got := w.control.ledger(); got != sum.LedgerDigest {
		w.t.Errorf("the control plane was told another ledger than the host holds: %v, and the host holds %v", w.control.results, sum.Ledger)
	}
	if got := w.control.copyDigest(); got != sum.OwnedDigest {
		w.t.Errorf("the recovery copy differs from what the host owns: %v", w.control.owned)
	}
	if n := len(w.control.reports); n > 0 && w.control.reports[n-1].Ledger != sum.LedgerDigest {
		w.t.Error("the last report carries another digest than the ledger has")
	}
}

// result returns what the ledger says of a resource.
func (w *world) result(id mesh.ResourceID) mesh.Result {
	w.t.Helper()
	sum, err := w.store.Summary(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(sum.Ledger, func(r mesh.Result) bool { return r.Resource == id })
	if i < 0 {
		return mesh.Result{}
	}
	return sum.Ledger[i]
}

func (w *world) owned(id mesh.ResourceID) (mesh.Owned, bool) {
	w.t.Helper()
	all, err := w.store.RecoveryCopy(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(o mesh.Owned) bool { return o.Resource == id })
	if i < 0 {
		return mesh.Owned{}, false
	}
	return all[i], true
}

// want judges status and reason of a resource.
func (w *world) want(id mesh.ResourceID, status mesh.Status, reason mesh.Reason) {
	w.t.Helper()
	if r := w.result(id); r.Status != status || r.Reason != reason {
		w.t.Errorf("%s is %s (%s) %q, not %s (%s)", id, r.Status, r.Reason, r.Detail, status, reason)
	}
}

// there judges what stands on the machine; an empty value means nothing.
func (w *world) there(id mesh.ResourceID, value string) {
	w.t.Helper()
	have, there := w.m.things[id]
	if have != value || there != (value != "") {
		w.t.Errorf("%s holds %q (there: %v), not %q", id, have, there, value)
	}
}

func drifts(events []mesh.Event) int {
	n := 0
	for _, e := range events {
		if e.Kind == mesh.EventDrift {
			n++
		}
	}
	return n
}

// file declares a file; what follows its content are names that it requires.
func file(path, content string, requires ...mesh.ResourceID) mesh.Resource {
	spec := &mesh.FileSpec{Type: mesh.FileRegular}
	spec.SetContent([]byte(content))
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec, Requires: requires}
}

func noFile(path string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: &mesh.FileSpec{Absent: true}}
}

func pack(name string, requires ...mesh.ResourceID) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: "1"}, Requires: requires}
}

func restarting(r mesh.Resource, units ...string) mesh.Resource {
	r.OnChange = &mesh.OnChange{Restart: units}
	return r
}

func reloading(r mesh.Resource, units ...string) mesh.Resource {
	r.OnChange = &mesh.OnChange{Reload: units}
	return r
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
