package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/internal/sqlite"
)

func TestWhatIsStoredIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	must(t, st.Hold(t.Context(), declaration(7)))
	owned := mesh.Owned{Resource: "file:/a", Made: mesh.MadeReplaced, Generation: 7, Wrote: []byte(`{"w":1}`), Undo: []byte(`{"u":2}`)}
	r := decided("file:/a", mesh.StatusFailed)
	r.Result.Reason, r.Result.Detail, r.Result.Output = mesh.ReasonTool, "no", "E: no"
	r.Owned, r.Units = &owned, []reconcile.UnitAction{{Resource: "file:/a", Unit: "a.service", Verb: "restart"}}
	pass(t, st, r)
	must(t, st.SetBundle(t.Context(), mesh.Document{Declaration: "first"}))
	id := st.ID()

	st = reopen(t, st, dir)
	state, err := st.State(t.Context())
	must(t, err)
	if len(state.Ledger) != 1 || state.Ledger[0].Result != r.Result {
		t.Errorf("ledger %+v, not %+v", state.Ledger, r.Result)
	}
	held, err := st.Owned(t.Context(), owned.Resource)
	must(t, err)
	if len(state.Owned) != 1 || state.Owned[0].Undo != nil || !reflect.DeepEqual(held, owned) {
		t.Errorf("owned %+v and whole %+v, not %+v", state.Owned, held, owned)
	}
	if !slices.Equal(state.Units, r.Units) {
		t.Errorf("unit actions %+v", state.Units)
	}
	if d, err := st.Declaration(t.Context()); err != nil || d == nil || d.Generation != 7 {
		t.Errorf("declaration %+v, %v", d, err)
	}
	if b, err := st.Bundle(t.Context()); err != nil || b == nil || b.Declaration != "first" {
		t.Errorf("bundle %+v, %v", b, err)
	}
	if st.ID() != id || id == "" {
		t.Errorf("the id was %q and is %q", id, st.ID())
	}
	s, err := st.Summary(t.Context())
	must(t, err)
	if s.Held != 7 || s.Applied != 1 || s.LastPass != 1 || s.LastState != mesh.GenerationApplied || s.Pending != 2 || s.StoreID != id {
		t.Errorf("summary %+v", s)
	}
	if s.OwnedDigest != mesh.OwnedDigest(state.Owned) || s.LedgerDigest != mesh.LedgerDigest([]mesh.Result{r.Result}) {
		t.Error("the digests are not those of what is held")
	}
}

func TestANewStoreHoldsNothingAndSaysNothing(t *testing.T) {
	st := open(t, t.TempDir())
	d, err := st.Declaration(t.Context())
	if d != nil || err != nil {
		t.Errorf("declaration %+v, %v", d, err)
	}
	must(t, st.AddFullReport(t.Context()))
	if frames := next(t, st); len(frames) != 0 {
		t.Errorf("it reports what it never looked at: %+v", frames)
	}
	if b, err := st.Bundle(t.Context()); b != nil || err != nil {
		t.Errorf("bundle %+v, %v", b, err)
	}
}

// Shows: M7
func TestAGenerationThatIsNotNewerIsNotHeld(t *testing.T) {
	st := open(t, t.TempDir())
	must(t, st.Hold(t.Context(), declaration(5)))
	for _, g := range []mesh.Generation{5, 4} {
		if err := st.Hold(t.Context(), declaration(g)); !errors.Is(err, store.ErrOlder) {
			t.Errorf("generation %d: %v", g, err)
		}
	}
	must(t, st.Hold(t.Context(), declaration(9)))
	if d, _ := st.Declaration(t.Context()); d.Generation != 9 {
		t.Errorf("it holds %d", d.Generation)
	}
}

func TestContentIsKeptOnlyWhenItIsWhatWasNamed(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	good := []byte("content")
	if err := st.AddBlob(t.Context(), sum(good), writes([]byte("other"))); err == nil || st.HasBlob(sum(good)) {
		t.Errorf("other content was taken: %v", err)
	}
	half := errors.New("the link broke")
	err := st.AddBlob(t.Context(), sum(good), func(_ context.Context, w io.Writer) error {
		_, err := w.Write(good[:3])
		return errors.Join(err, half)
	})
	if !errors.Is(err, half) || st.HasBlob(sum(good)) {
		t.Errorf("half of it was taken: %v", err)
	}
	if err := st.AddBlob(t.Context(), "../store.db", writes(good)); err == nil {
		t.Error("a path was taken for a digest")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "blobs")); len(left) != 0 {
		t.Errorf("content that was refused is still on disk: %v", left)
	}
	if err := st.Hold(t.Context(), declaration(1, sum(good))); err == nil {
		t.Error("a declaration is held without its content")
	}

	must(t, st.AddBlob(t.Context(), sum(good), writes(good)))
	must(t, st.Hold(t.Context(), declaration(1, sum(good))))
	f, err := st.Open(sum(good))
	must(t, err)
	got, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil || !bytes.Equal(got, good) {
		t.Errorf("it reads %q, %v", got, err)
	}
	if _, err := st.Open("../store.db"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a path is opened as content: %v", err)
	}
}

func TestContentThatIsNoLongerDeclaredIsDropped(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	a, b := []byte("a"), []byte("b")
	must(t, st.AddBlob(t.Context(), sum(a), writes(a)))
	must(t, st.Hold(t.Context(), declaration(1, sum(a))))
	must(t, st.AddBlob(t.Context(), sum(b), writes(b)))
	must(t, st.Hold(t.Context(), declaration(2, sum(b))))
	if st.HasBlob(sum(a)) || !st.HasBlob(sum(b)) {
		t.Errorf("a is there: %v, b is there: %v", st.HasBlob(sum(a)), st.HasBlob(sum(b)))
	}
	must(t, os.WriteFile(filepath.Join(dir, "blobs", ".new-left"), a, 0o600))
	st = reopen(t, st, dir)
	if _, err := os.Stat(filepath.Join(dir, "blobs", ".new-left")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unfinished content of an earlier life is kept: %v", err)
	}
	if !st.HasBlob(sum(b)) {
		t.Error("declared content was dropped by a restart")
	}
}

// Cases: O-143
func TestADamagedStoreIsKeptAsideAndSaid(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"garbage":       func(f string) error { return os.WriteFile(f, bytes.Repeat([]byte("not a database "), 1000), 0o600) },
		"a broken page": func(f string) error { return overwrite(f, 4096, bytes.Repeat([]byte{0xff}, 3*4096)) },
		"cut short":     func(f string) error { return os.Truncate(f, 3*4096+100) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st := open(t, dir)
			must(t, st.Hold(t.Context(), declaration(7)))
			id := st.ID()
			must(t, st.Close())
			file := filepath.Join(dir, "store.db")
			must(t, damage(file))
			damaged, err := os.ReadFile(file)
			must(t, err)

			st, lost, err := store.Open(t.Context(), dir, true, clock)
			must(t, err)
			defer func() { must(t, st.Close()) }()
			if lost == nil || lost.MovedTo == "" || !strings.Contains(lost.Detail, lost.MovedTo) {
				t.Fatalf("lost is %+v", lost)
			}
			if kept, err := os.ReadFile(lost.MovedTo); err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("the damaged file is not kept as it was: %v", err)
			}
			if d, err := st.Declaration(t.Context()); d != nil || err != nil || st.ID() == id {
				t.Errorf("the new store holds %+v, %v, with the id of the old one: %v", d, err, st.ID() == id)
			}
		})
	}
}

func overwrite(file string, at int64, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, at)
	return errors.Join(err, f.Close())
}

func TestASecondDamagedStoreDoesNotReplaceTheFirst(t *testing.T) {
	dir := t.TempDir()
	var kept []string
	for range 2 {
		must(t, os.WriteFile(filepath.Join(dir, "store.db"), []byte(strings.Repeat("garbage", 1000)), 0o600))
		st, lost, err := store.Open(t.Context(), dir, true, clock)
		must(t, err)
		must(t, st.Close())
		kept = append(kept, lost.MovedTo)
	}
	if kept[0] == kept[1] {
		t.Errorf("both were moved to %s", kept[0])
	}
}

// Cases: O-144
func TestAStoreThatWasExpectedAndIsMissingOrEmptyIsLost(t *testing.T) {
	for name, empty := range map[string]func(string){
		"missing": func(string) {},
		"empty":   func(dir string) { must(t, os.WriteFile(filepath.Join(dir, "store.db"), nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			empty(dir)
			st, lost, err := store.Open(t.Context(), dir, true, clock)
			must(t, err)
			must(t, st.Close())
			if lost == nil || lost.Detail == "" {
				t.Error("nobody is told that the store was lost")
			}
			st, lost, err = store.Open(t.Context(), dir, true, clock)
			must(t, err)
			must(t, st.Close())
			if lost != nil {
				t.Errorf("the new store is lost again: %+v", lost)
			}
		})
	}
}

func TestAStoreOfANewerHostIsRefusedAndNotTouched(t *testing.T) {
	dir := t.TempDir()
	must(t, open(t, dir).Close())
	file := filepath.Join(dir, "store.db")
	db, err := sql.Open("sqlite3", "file:"+file)
	must(t, err)
	_, err = db.Exec("PRAGMA user_version = 99")
	must(t, errors.Join(err, db.Close()))

	_, _, err = store.Open(t.Context(), dir, true, clock)
	var newer *sqlite.NewerError
	if !errors.As(err, &newer) || newer.Have != 99 {
		t.Fatalf("it answers %v", err)
	}
	if left, _ := filepath.Glob(file + ".damaged*"); len(left) != 0 {
		t.Errorf("it was moved aside: %v", left)
	}
}

func TestDamageFoundWhileRunningIsTold(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	r := decided("file:/a", mesh.StatusChanged)
	r.Owned = &mesh.Owned{Resource: "file:/a", Made: mesh.MadeReplaced, Undo: []byte(`"` + strings.Repeat("u", 6<<20) + `"`)}
	pass(t, st, r) // more than is kept in memory
	st = reopen(t, st, dir)
	info, err := os.Stat(filepath.Join(dir, "store.db"))
	must(t, err)
	must(t, overwrite(filepath.Join(dir, "store.db"), 4096, bytes.Repeat([]byte{0xff}, int(info.Size())-4096)))
	_, err = st.Owned(t.Context(), "file:/a")
	if !errors.Is(err, host.ErrStoreDamaged) {
		t.Errorf("a store that is damaged while it is open answers %v", err)
	}
}
