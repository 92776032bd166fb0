package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return noon }

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	st, lost, err := store.Open(t.Context(), dir, false, clock)
	if err != nil || lost != nil {
		t.Fatalf("open the store: %v, lost %+v", err, lost)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// reopen closes the store and opens it again, as a restart does.
func reopen(t *testing.T, st *store.Store, dir string) *store.Store {
	t.Helper()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pending(ids ...mesh.ResourceID) []mesh.Result {
	var out []mesh.Result
	for _, id := range ids {
		out = append(out, mesh.Result{Resource: id, Status: mesh.StatusPending, Generation: 1, Want: "w", At: noon})
	}
	return out
}

func decided(id mesh.ResourceID, status mesh.Status) reconcile.Record {
	return reconcile.Record{Result: mesh.Result{Resource: id, Status: status, Generation: 1, Want: "w", At: noon}}
}

// pass makes a whole pass in which every resource comes out as said.
func pass(t *testing.T, st *store.Store, records ...reconcile.Record) {
	t.Helper()
	var ids []mesh.ResourceID
	for _, r := range records {
		ids = append(ids, r.Result.Resource)
	}
	n, err := st.BeginPass(t.Context(), pending(ids...), nil)
	must(t, err)
	must(t, st.Record(t.Context(), records))
	must(t, st.EndPass(t.Context(), reconcile.End{Pass: n, Started: noon, Generation: 1, Trigger: mesh.TriggerDeclared, State: mesh.GenerationApplied}))
}

func next(t *testing.T, st *store.Store) []mesh.Frame {
	t.Helper()
	frames, err := st.Next(t.Context(), 0, 10_000)
	must(t, err)
	return frames
}

// drain acknowledges everything and returns it.
func drain(t *testing.T, st *store.Store) []mesh.Frame {
	t.Helper()
	frames := next(t, st)
	if len(frames) > 0 {
		must(t, st.Acked(t.Context(), frames[len(frames)-1].Seq))
	}
	return frames
}

func body[T any](t *testing.T, f mesh.Frame) T {
	t.Helper()
	var v T
	must(t, json.Unmarshal(f.Body, &v))
	return v
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func writes(data []byte) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(data))
		return err
	}
}

func declaration(g mesh.Generation, blobs ...string) mesh.Declaration {
	d := mesh.Declaration{Node: "web-1", Generation: g}
	for _, b := range blobs {
		d.Resources = append(d.Resources, mesh.Resource{Kind: mesh.KindFile, Name: "/" + b[:8], File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: b, Size: 1}})
	}
	return d
}
