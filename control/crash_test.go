//go:build fault

package control_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/store"
	"github.com/meshctl/mesh/internal/fault"
)

// envSweepDir makes a test process sweep the named directory and end.
const envSweepDir = "CONTROL_TEST_SWEEP_DIR"

// sweepAt is when the process that is killed sweeps: 100 days after newPlane.
var sweepAt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).Add(100 * day)

func TestMain(m *testing.M) {
	dir := os.Getenv(envSweepDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := sweepIn(context.Background(), dir); err != nil {
		slog.Error("sweep", "error", err)
		os.Exit(3)
	}
	os.Exit(0)
}

func sweepIn(ctx context.Context, dir string) error {
	s, err := store.Open(ctx, filepath.Join(dir, "control.db"))
	if err != nil {
		return err
	}
	blobs, err := store.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		return err
	}
	c, err := control.New(ctx, control.Config{Store: s, Blobs: blobs, Keep: short, Now: func() time.Time { return sweepAt }})
	if err != nil {
		return err
	}
	_, err = c.Sweep(ctx)
	return err
}

func TestAKillAtAnyPointOfASweepTakesNothingThatIsKeptAndTheNextSweepGoesOn(t *testing.T) {
	for _, point := range []string{
		"sweep.between", "sweep.after-audit", "sweep.after-tokens", "sweep.after-revisions", "sweep.after-sequences",
		"sweep.half-node", "sweep.after-nodes", "sweep.before-blob", "sweep.after-blob",
	} {
		t.Run(point, func(t *testing.T) {
			p := newPlane(t)
			p.keep = short
			p.restart()
			stays, gone := join(p, "stays-1", nil), join(p, "gone-1", nil)
			var named []string
			for i := range 12 {
				r, sum := large("/srv/data", fmt.Sprint("version ", i))
				p.declare(doc("data", "", r))
				stays.apply()
				gone.apply()
				named = append(named, sum)
			}
			r := mesh.Report{Generation: gone.held, State: mesh.GenerationApplied}
			for i := range 600 { // more than fits into one part
				r.Results = append(r.Results, mesh.Result{Resource: mesh.ResourceID(fmt.Sprint("file:/old/", i)), Status: mesh.StatusOK})
			}
			gone.say(mesh.FrameReport, r)
			if err := p.Revoke(t.Context(), root, "gone-1"); err != nil {
				t.Fatal(err)
			}
			orphan, sum := large("/x", "orphan")
			if err := p.PutBlob(t.Context(), root, sum, bytes.NewReader(orphan.File.Content)); err != nil {
				t.Fatal(err)
			}
			p.age()
			p.stop()

			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), envSweepDir+"="+p.dir, fault.EnvPoint+"="+point)
			out, err := child.CombinedOutput()
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != -1 {
				t.Fatalf("the sweep was not killed at %s: %v\n%s", point, err, out)
			}

			p.start()
			kept := func(when string) {
				t.Helper()
				for i, sum := range named[12-8:] {
					if !p.has(sum) {
						t.Errorf("%s the content of version %d, which a generation names, is gone", when, i+4)
					}
				}
				for _, n := range []int64{10, 11, 12} {
					if _, err := p.Declaration(t.Context(), "data", n); err != nil {
						t.Errorf("%s revision %d gave %v", when, n, err)
					}
				}
				if d := stays.detail(); len(d.Results) != 1 || len(d.Owned) != 1 || d.Applied != stays.held {
					t.Errorf("%s the node that stays is known as %+v", when, d)
				}
				if _, err := p.NodeByKey(t.Context(), gone.key); mesh.CodeOf(err) != mesh.CodeDenied {
					t.Errorf("%s the revoked key gave %v", when, err)
				}
			}
			kept("after the kill")
			p.later(100 * day)
			p.sweep()
			kept("after the next sweep")
			if again := p.sweep(); again != (control.Swept{}) {
				t.Errorf("a sweep after that still finds %+v", again)
			}
			if d := gone.detail(); len(d.Results) != 0 || d.Declared != 0 {
				t.Errorf("of the node that left is known %+v", d)
			}
			if _, err := p.Declaration(t.Context(), "data", 9); mesh.CodeOf(err) != mesh.CodeNotFound {
				t.Errorf("an old revision gave %v", err)
			}
			if p.has(sum) || p.has(named[3]) {
				t.Error("content that nothing names is still there")
			}
		})
	}
}
