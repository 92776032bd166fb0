package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
)

func openTrial(t *testing.T, dir, version string) *store.Store {
	t.Helper()
	st, lost, err := store.OpenTrial(t.Context(), dir, version, "1-1", true, clock)
	if err != nil || lost != nil {
		t.Fatalf("open the trial copy: %v, lost %+v", err, lost)
	}
	return st
}

func hold(t *testing.T, st *store.Store, g mesh.Generation) {
	t.Helper()
	if err := st.Hold(t.Context(), mesh.Declaration{Node: "n", Generation: g}); err != nil {
		t.Fatal(err)
	}
}

func held(t *testing.T, st *store.Store) mesh.Generation {
	t.Helper()
	d, err := st.Declaration(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d == nil {
		return 0
	}
	return d.Generation
}

func settle(t *testing.T, dir, version string) *store.Store {
	t.Helper()
	if err := store.Settle(t.Context(), dir, version); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func shut(t *testing.T, st *store.Store) {
	t.Helper()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// beginning is a store that the version 1-1 left with generation 1 and a message.
func beginning(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	st, _, err := store.Open(t.Context(), dir, false, clock)
	if err != nil {
		t.Fatal(err)
	}
	hold(t, st, 1)
	if err := st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift, Detail: "from the first", At: noon}); err != nil {
		t.Fatal(err)
	}
	shut(t, st)
	return dir
}

// Shows: M20
func TestAVersionThatIsPutBackFindsItsStoreAsItLeftItWhateverTheOtherDid(t *testing.T) {
	dir := beginning(t)
	other := openTrial(t, dir, "2-1")
	hold(t, other, 7)
	shut(t, other)

	if got := held(t, settle(t, dir, "1-1")); got != 1 {
		t.Errorf("it finds generation %d, and left generation 1", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "trial")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy of the other version is still there: %v", err)
	}
}

func TestTheCopyOfAVersionThatWasConfirmedBecomesTheStore(t *testing.T) {
	dir := beginning(t)
	st := openTrial(t, dir, "2-1")
	hold(t, st, 2)
	// It is ended without a chance to close, and its last writes are in the journal.
	if got := held(t, st); got != 2 {
		t.Fatalf("the copy holds generation %d", got)
	}
	shut(t, st)
	st = openTrial(t, dir, "2-1")
	if got := held(t, st); got != 2 {
		t.Fatalf("a second start of the same version finds generation %d, not its own 2", got)
	}
	shut(t, st)
	if got := held(t, settle(t, dir, "2-1")); got != 2 {
		t.Errorf("after the confirmation the store holds generation %d, not 2", got)
	}
}

func TestNothingLeavesTheStoreOfAVersionThatIsNotConfirmed(t *testing.T) {
	dir := beginning(t)
	st := openTrial(t, dir, "2-1")
	defer shut(t, st)
	if frames, err := st.Next(t.Context(), 0, 10); err != nil || len(frames) != 0 {
		t.Fatalf("before the confirmation there are messages: %v, %v", frames, err)
	}
	st.Confirm()
	if frames, err := st.Next(t.Context(), 0, 10); err != nil || len(frames) != 1 {
		t.Errorf("after the confirmation there are %d messages, not the one that the earlier version left: %v", len(frames), err)
	}
}

func TestEachVersionThatIsTriedGetsACopyOfItsOwn(t *testing.T) {
	dir := beginning(t)
	second := openTrial(t, dir, "2-1")
	hold(t, second, 9)
	shut(t, second)
	third := openTrial(t, dir, "3-1")
	defer shut(t, third)
	if got := held(t, third); got != 1 {
		t.Errorf("the third version begins with generation %d of the second, not with that of the confirmed one", got)
	}
}

func TestTheCopyForTheNextVersionIsThatOfTheConfirmedOneWhereverItWas(t *testing.T) {
	dir := beginning(t)
	second := openTrial(t, dir, "2-1")
	hold(t, second, 5)
	second.Confirm()
	shut(t, second)
	// The second version was confirmed and not started anew since.
	third, lost, err := store.OpenTrial(t.Context(), dir, "3-1", "2-1", true, clock)
	if err != nil || lost != nil {
		t.Fatalf("open the trial copy: %v, lost %+v", err, lost)
	}
	if got := held(t, third); got != 5 {
		t.Errorf("the third version begins with generation %d, and the confirmed one holds 5", got)
	}
	shut(t, third)
	if got := held(t, settle(t, dir, "2-1")); got != 5 {
		t.Errorf("put back, the second version finds generation %d, and left 5", got)
	}
}

// Shows: M5, M6
func TestWhatAVersionThatIsPutBackWroteIsKnownToTheConfirmedOne(t *testing.T) {
	for _, next := range []string{"put back", "another version is tried"} {
		t.Run(next, func(t *testing.T) {
			dir := beginning(t)
			st := openTrial(t, dir, "2-1")
			_, err := st.BeginPass(t.Context(), pending("file:/replaced", "file:/cut"), nil)
			must(t, err)
			original := mesh.Owned{Resource: "file:/replaced", Made: mesh.MadeReplaced, Generation: 1, Undo: []byte(`"the admin's"`)}
			cut := mesh.Owned{Resource: "file:/cut", Made: mesh.MadeCreated, Generation: 1}
			must(t, st.Intend(t.Context(), []reconcile.Intent{{Resource: original.Resource, Owned: &original}, {Resource: cut.Resource, Owned: &cut}}))
			done := decided(original.Resource, mesh.StatusChanged)
			done.Units = []reconcile.UnitAction{{Resource: original.Resource, Unit: "web.service", Verb: "restart"}}
			must(t, st.Record(t.Context(), []reconcile.Record{done}))
			shut(t, st) // and it does not live

			if next != "put back" {
				shut(t, openTrial(t, dir, "3-1"))
			}
			st = settle(t, dir, "1-1")
			state, err := st.State(t.Context())
			must(t, err)
			whole, err := st.Owned(t.Context(), original.Resource)
			if err != nil || string(whole.Undo) != string(original.Undo) || len(state.Owned) != 2 {
				t.Errorf("what stood there before is not known any more: %+v, %v; owned %+v", whole, err, state.Owned)
			}
			if len(state.Ledger) != 1 || state.Ledger[0].Resource != cut.Resource || !state.Ledger[0].Writing || state.Ledger[0].Status != mesh.StatusPending {
				t.Errorf("of the write that was cut off the ledger says %+v", state.Ledger)
			}
			if len(state.Units) != 1 || state.Units[0] != done.Units[0] {
				t.Errorf("the units that were to be told are %+v", state.Units)
			}
		})
	}
}

func TestACopyThatCannotBeReadKeepsNoConfirmedVersionFromStarting(t *testing.T) {
	dir := beginning(t)
	shut(t, openTrial(t, dir, "2-1"))
	must(t, os.WriteFile(filepath.Join(dir, "trial", "store.db"), []byte("no database"), 0o600))
	if got := held(t, settle(t, dir, "1-1")); got != 1 {
		t.Errorf("it finds generation %d, and left generation 1", got)
	}
	aside := store.UnreadTrial(dir)
	if data, err := os.ReadFile(filepath.Join(aside, "store.db")); err != nil || string(data) != "no database" {
		t.Errorf("what could not be read is %q at %q, %v; want it kept aside", data, aside, err)
	}
}
