package host_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"context"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/store"
)

// Shows: M1, M7, M9
func TestWhatComesHalfAndAClockThatJumpsLeaveTheHostAtItsWork(t *testing.T) {
	t.Run("O-145", func(t *testing.T) {
		in(t, enrolled, func(b *bench) {
			b.start()
			b.declare(5)
			next := mesh.Declaration{Node: "web-1", Generation: 6, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "/t", File: &mesh.FileSpec{
				Type: mesh.FileRegular, SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", Size: 3,
			}}}}
			for name, fetch := range map[string]func(w io.Writer) error{
				"cut short":          func(w io.Writer) error { _, err := io.WriteString(w, "ab"); return err },
				"of no bytes at all": func(io.Writer) error { return nil },
				"altered":            func(w io.Writer) error { _, err := io.WriteString(w, "abX"); return err },
				"never sent":         func(io.Writer) error { return errors.New("the link is gone") },
			} {
				r, err := b.host.Declare(b.t.Context(), next, func(_ context.Context, _ string, w io.Writer) error { return fetch(w) })
				synctest.Wait()
				if err == nil && r.Held != 5 {
					b.t.Errorf("content %s: the answer is %+v", name, r)
				}
				if s := b.status(); s.Held != 5 || s.Applied != 5 {
					b.t.Errorf("content %s: it holds %s and has applied %s", name, s.Held, s.Applied)
				}
			}
			whole := func(_ context.Context, _ string, w io.Writer) error { _, err := io.WriteString(w, "abc"); return err }
			if r, err := b.host.Declare(b.t.Context(), next, whole); err != nil || r.Held != 6 {
				b.t.Errorf("the whole one is answered %+v, %v", r, err)
			}
			synctest.Wait()
			if err := b.stop(); err != nil {
				b.t.Error(err)
			}
		})
	})
	t.Run("O-151", func(t *testing.T) {
		settings := enrolled
		settings.DriftInterval = host.Duration(time.Minute)
		in(t, settings, func(b *bench) {
			var jump time.Duration
			b.cfg.Now = func() time.Time { return time.Now().Add(jump).Round(0) }
			b.start()
			b.declare(1)
			for _, jump = range []time.Duration{0, -time.Hour, 23 * time.Hour, 0} {
				before := len(b.passes.list())
				b.wait(10*time.Minute + time.Second)
				if n := len(b.passes.list()) - before; n != 10 {
					b.t.Errorf("with the clock set off by %v there were %d looks in ten minutes", jump, n)
				}
			}
			if err := b.stop(); err != nil {
				b.t.Error(err)
			}
		})
		clock := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		st, _, err := store.Open(t.Context(), t.TempDir(), false, func() time.Time { return clock })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		if err := st.EndPass(t.Context(), reconcile.End{Pass: 1, Generation: 1, State: mesh.GenerationApplied, Started: clock.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		frames, err := st.Next(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			var r mesh.Report
			if f.Type == mesh.FrameReport {
				err = json.Unmarshal(f.Body, &r)
			}
			if err != nil || r.Ended.Before(r.Started) {
				t.Error(fmt.Errorf("a pass took %v: %w", r.Ended.Sub(r.Started), err))
			}
		}
	})
}
