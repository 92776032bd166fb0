package reconcile

import (
	"context"
	"time"

	mesh "github.com/meshctl/mesh"
)

// Store is what a pass needs to be durable. Every method is one transaction:
// when it returns nil, what it wrote survives a loss of power; when it returns
// an error, nothing of it was written.
type Store interface {
	// State returns the ledger, what is owned, and the unit actions that still
	// have to be done, as they were left by the last pass or crash.
	State(ctx context.Context) (State, error)
	// Owned returns what is held about one resource, whole. It must be held.
	Owned(ctx context.Context, id mesh.ResourceID) (mesh.Owned, error)
	// BeginPass numbers a pass, sets the entries of begin to pending, and drops
	// the ledger entries of drop. Of one that is owned, Entry.Writing outlives that.
	BeginPass(ctx context.Context, begin []mesh.Result, drop []mesh.ResourceID) (pass uint64, err error)
	// Intend says that the resources are pending and about to be written, stores what is
	// needed to undo that, and puts the events among the messages to be
	// delivered. It is called before anything is written.
	Intend(ctx context.Context, intents []Intent) error
	// Record stores what was seen after the work: results, ownership, and unit
	// actions that follow.
	Record(ctx context.Context, records []Record) error
	// UnitDone drops a unit action that was carried out and read back.
	UnitDone(ctx context.Context, action UnitAction) error
	// EndPass stores how the pass ended and puts the report and the changes to
	// what is owned among the messages to be delivered.
	EndPass(ctx context.Context, end End) error
}

// State is what a store holds between passes.
type State struct {
	Ledger []Entry
	// Owned is without what undoing needs, which may be large: see Store.Owned.
	Owned []mesh.Owned
	Units []UnitAction
}

// Entry is one resource in the ledger. Its status is empty when it is not declared
// and only Writing is known of it.
type Entry struct {
	mesh.Result
	// Writing: a pass said that it was about to write the resource, and what
	// came of it was never learned: the pass died, or could not look.
	Writing bool
	// Before is the last decided status while Status is pending; drift is told
	// from the first apply by it. Empty: never decided.
	Before mesh.Status
	// BeforeWant is the digest of what was wanted then.
	BeforeWant string
}

// Intent announces a write.
type Intent struct {
	Resource mesh.ResourceID
	// Owned is set the first time a resource comes under the mesh, and when what
	// is about to be written has to be known after a crash. Nil leaves it.
	Owned *mesh.Owned
	// Event says why it has to be written, when that is somebody else's doing.
	// Nil: it is not. It is stored before the write, because nothing shows
	// afterwards that something had changed.
	Event *mesh.Event
}

// Record is what became of one resource.
type Record struct {
	Result mesh.Result
	// Owned replaces what is held about the resource. Nil leaves it.
	Owned *mesh.Owned
	// Disown drops what is held about the resource, and keeps its entry: it was
	// to be written, and nothing of it came about.
	Disown bool
	// Forget drops ledger entry, ownership and earlier unit actions: the
	// resource was removed.
	Forget bool
	// Unfinished keeps Entry.Writing: what came of a write is still not known.
	Unfinished bool
	// Units are actions that follow from the change.
	Units []UnitAction
}

// The verbs of a UnitAction.
const (
	verbReload  = "reload"
	verbRestart = "restart"
	// verbReread has the service manager read its unit files again. It has no
	// unit.
	verbReread = "daemon-reload"
)

// UnitAction is what has to be done at the service manager because a resource
// changed.
type UnitAction struct {
	Resource mesh.ResourceID
	// Unit is empty for "daemon-reload".
	Unit string
	// Verb is "reload", "restart" or "daemon-reload".
	Verb string
}

// End is how a pass ended.
type End struct {
	Pass       uint64
	Started    time.Time
	Generation mesh.Generation
	Trigger    mesh.Trigger
	State      mesh.GenerationState
	Kept       []mesh.ResourceID
	// Removed are the results of resources that the ledger no longer holds.
	Removed []mesh.Result
}
