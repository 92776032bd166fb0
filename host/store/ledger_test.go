package store_test

import (
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
)

func entry(t *testing.T, st reconcile.Store, id mesh.ResourceID) reconcile.Entry {
	t.Helper()
	state, err := st.State(t.Context())
	must(t, err)
	i := slices.IndexFunc(state.Ledger, func(e reconcile.Entry) bool { return e.Resource == id })
	if i < 0 {
		t.Fatalf("%s is not in the ledger", id)
	}
	return state.Ledger[i]
}

// Shows: M5
func TestWhatWasDecidedStaysReadableUntilItIsDecidedAnew(t *testing.T) {
	st := open(t, t.TempDir())
	pass(t, st, decided("file:/a", mesh.StatusOK))
	for range 2 { // the second pass begins after the first died
		_, err := st.BeginPass(t.Context(), []mesh.Result{{Resource: "file:/a", Status: mesh.StatusPending, Generation: 2, Want: "other", At: noon}}, nil)
		must(t, err)
		if e := entry(t, st, "file:/a"); e.Status != mesh.StatusPending || e.Before != mesh.StatusOK || e.BeforeWant != "w" || e.Want != "other" {
			t.Errorf("the entry is %+v", e)
		}
	}
}

// Shows: M5
func TestAnAnnouncedWriteIsKnownUntilItsEndIs(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	_, err := st.BeginPass(t.Context(), pending("file:/a"), nil)
	must(t, err)
	owned := mesh.Owned{Resource: "file:/a", Made: mesh.MadeCreated, Generation: 1}
	event := mesh.Event{Kind: mesh.EventDrift, Resource: "file:/a", At: noon}
	must(t, st.Intend(t.Context(), []reconcile.Intent{{Resource: "file:/a", Owned: &owned, Event: &event}}))

	st = reopen(t, st, dir)
	if frames := next(t, st); len(frames) != 1 || frames[0].Type != mesh.FrameEvent {
		t.Errorf("the event is not among the messages: %+v", frames)
	}
	state, err := st.State(t.Context())
	must(t, err)
	if !state.Ledger[0].Writing || len(state.Owned) != 1 {
		t.Errorf("after the announcement there is %+v", state)
	}
	_, err = st.BeginPass(t.Context(), pending("file:/a"), nil)
	must(t, err)
	unclear := decided("file:/a", mesh.StatusUnknown)
	unclear.Unfinished = true
	must(t, st.Record(t.Context(), []reconcile.Record{unclear}))
	if !entry(t, st, "file:/a").Writing {
		t.Error("a write is forgotten although its end is not known")
	}
	must(t, st.Record(t.Context(), []reconcile.Record{decided("file:/a", mesh.StatusChanged)}))
	if entry(t, st, "file:/a").Writing {
		t.Error("a write that was read back counts as unfinished")
	}
}

func TestPassesAreCountedAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	for want := uint64(1); want <= 3; want++ {
		n, err := st.BeginPass(t.Context(), nil, nil)
		must(t, err)
		if n != want {
			t.Errorf("pass %d is counted as %d", want, n)
		}
		st = reopen(t, st, dir)
	}
}

func TestForgettingDropsEverythingAboutAResourceButWhatFollowsFromIt(t *testing.T) {
	st := open(t, t.TempDir())
	r := decided("file:/a", mesh.StatusChanged)
	r.Owned = &mesh.Owned{Resource: "file:/a", Made: mesh.MadeCreated, Generation: 1}
	r.Units = []reconcile.UnitAction{{Resource: "file:/a", Unit: "a.service", Verb: "restart"}}
	pass(t, st, r)
	reread := reconcile.UnitAction{Resource: "file:/a", Verb: "daemon-reload"}
	must(t, st.Record(t.Context(), []reconcile.Record{{Result: decided("file:/a", mesh.StatusRemoved).Result, Forget: true, Units: []reconcile.UnitAction{reread}}}))
	state, err := st.State(t.Context())
	must(t, err)
	if len(state.Ledger) != 0 || len(state.Owned) != 0 || !slices.Equal(state.Units, []reconcile.UnitAction{reread}) {
		t.Errorf("there is still %+v", state)
	}
	must(t, st.UnitDone(t.Context(), reread))
	if state, err := st.State(t.Context()); err != nil || len(state.Units) != 0 {
		t.Errorf("an action that was done is still there: %+v, %v", state.Units, err)
	}
}
