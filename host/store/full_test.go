package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/internal/sqlite"
)

// smallDisk mounts a file system of 2 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("mesh-test", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("a file system that can be filled needs root and the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no byte free, and returns what frees them again.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	must(t, err)
	block := bytes.Repeat([]byte{1}, 4096)
	for {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk ended with %v", err)
	}
	must(t, f.Close())
	return func() { must(t, os.Remove(name)) }
}

// Cases: O-146, O-147
func TestAFullDiskLeavesNothingHalfWrittenAndTheStoreUsable(t *testing.T) {
	dir := smallDisk(t)
	st := open(t, dir)
	must(t, st.Hold(t.Context(), declaration(1)))
	pass(t, st, decided("file:/a", mesh.StatusOK))
	before, err := st.State(t.Context())
	must(t, err)
	messages := len(next(t, st))

	free := fill(t, dir)
	undo := bytes.Repeat([]byte("1"), 300<<10) // a number, as JSON goes
	big := mesh.Owned{Resource: "file:/b", Made: mesh.MadeReplaced, Undo: undo}
	r := decided("file:/b", mesh.StatusChanged)
	r.Owned = &big
	for name, write := range map[string]func() error{
		"Record": func() error {
			return st.Record(t.Context(), []reconcile.Record{r, decided("file:/a", mesh.StatusFailed)})
		},
		"Intend": func() error {
			return st.Intend(t.Context(), []reconcile.Intent{{Resource: "file:/a"}, {Resource: "file:/b", Owned: &big}})
		},
		"Hold": func() error {
			d := declaration(2)
			d.Resources = []mesh.Resource{{Kind: mesh.KindFile, Name: "/x", File: &mesh.FileSpec{Content: undo}}}
			return st.Hold(t.Context(), d)
		},
		"AddBlob": func() error { return st.AddBlob(t.Context(), sum(undo), writes(undo)) },
	} {
		err := write()
		if err == nil || errors.Is(err, host.ErrStoreDamaged) {
			t.Errorf("%s on a full disk: %v", name, err)
		}
		if name != "AddBlob" && !sqlite.IsFull(err) {
			t.Errorf("%s does not say that the disk is full: %v", name, err)
		}
	}
	after, err := st.State(t.Context())
	must(t, err)
	if !reflect.DeepEqual(before, after) {
		t.Errorf("something was half written: %+v", after)
	}
	if d, err := st.Declaration(t.Context()); err != nil || d.Generation != 1 {
		t.Errorf("it holds %+v, %v", d, err)
	}
	if s, err := st.Summary(t.Context()); err != nil || s.Pending != messages {
		t.Errorf("the summary of a store on a full disk is %+v, %v", s, err)
	}
	if st.HasBlob(sum(undo)) {
		t.Error("content that did not fit is there")
	}

	free()
	must(t, st.Record(t.Context(), []reconcile.Record{r}))
	must(t, st.AddBlob(t.Context(), sum(undo), writes(undo)))
	must(t, st.Hold(t.Context(), declaration(2)))
	st = reopen(t, st, dir)
	if state, err := st.State(t.Context()); err != nil || len(state.Owned) != 1 {
		t.Errorf("after there was room again: %+v, %v", state.Owned, err)
	}
}

func TestAStoreOnAFullDiskIsNotTakenForADamagedOne(t *testing.T) {
	dir := smallDisk(t)
	must(t, open(t, dir).Close())
	free := fill(t, dir)
	st, lost, err := store.Open(t.Context(), dir, true, clock)
	if lost != nil {
		t.Errorf("it was moved aside: %+v", lost)
	}
	if err == nil {
		must(t, st.Close())
	}
	t.Logf("opening a store on a full disk answers: %v", err)
	free()
	st, lost, err = store.Open(t.Context(), dir, true, clock)
	if err != nil || lost != nil {
		t.Fatalf("after there was room again: %v, lost %+v", err, lost)
	}
	must(t, st.Close())
}
