package host_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
)

func (b *bench) retire(g mesh.Generation) {
	b.t.Helper()
	r, err := b.host.Declare(b.t.Context(), mesh.Declaration{Node: "web-1", Generation: g, Final: true}, noContent)
	if err != nil || r.Refused != "" {
		b.t.Fatalf("the final declaration is answered with %+v, %v", r, err)
	}
	synctest.Wait()
}

// Shows: M30
func TestAHostSaysGoodbyeAfterTheFinalDeclarationAndLeavesWhenItIsTold(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.declare(1)
		if n := len(b.messages(mesh.FrameGoodbye)); n != 0 {
			t.Fatalf("an ordinary declaration ended with %d goodbyes", n)
		}
		b.retire(2)
		b.wait(time.Hour) // drift passes do not pile up goodbyes
		if n := len(b.messages(mesh.FrameGoodbye)); n != 1 {
			t.Fatalf("%d goodbyes wait", n)
		}
		if s := b.status(); s.State != mesh.NodeEnrolled || s.Held != 2 || b.forgot != 0 {
			t.Errorf("before it is told the host is %+v", s)
		}
		b.host.Retired(b.t.Context(), "as the test says")
		synctest.Wait()
		s := b.status()
		if s.State != mesh.NodeHosted || s.Node != "" || s.Held != 0 || s.Pending != 0 || len(s.Results) != 0 {
			t.Errorf("after it is told the host is %+v", s)
		}
		if last := b.saved[len(b.saved)-1]; b.forgot != 1 || last.Enrolled() || last.Fingerprint != "" || len(last.Addresses) != 0 {
			t.Errorf("identities dropped: %d, settings %+v", b.forgot, last)
		}
		if e, err := b.host.Enrol(b.t.Context(), token); err != nil || e.Node != "web-1" {
			t.Errorf("joining anew is answered with %+v, %v", e, err)
		}
		synctest.Wait()
		if s := b.status(); s.State != mesh.NodeEnrolled {
			t.Errorf("the host is %+v", s)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M30
func TestAHostThatCouldNotRemoveEverythingKeepsItsIdentity(t *testing.T) {
	for name, outcome := range map[string]reconcile.Outcome{
		"conflict": {State: mesh.GenerationFailed},
		"deferred": {State: mesh.GenerationOutstanding},
		"kept":     {State: mesh.GenerationApplied, Kept: []mesh.ResourceID{"file:/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, enrolled, func(b *bench) {
				b.passes.make = func(context.Context, mesh.Declaration, func() bool) (reconcile.Outcome, error) { return outcome, nil }
				b.start()
				b.retire(1)
				if n := len(b.messages(mesh.FrameGoodbye)); n != 0 {
					t.Errorf("%d goodbyes wait", n)
				}
				if s := b.status(); s.State != mesh.NodeEnrolled || b.forgot != 0 {
					t.Errorf("the host is %+v", s)
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAHostDoesNotLeaveWithWorkLeftToDoWhateverItIsTold(t *testing.T) {
	for name, prepare := range map[string]func(b *bench){
		"its declaration is not final": func(b *bench) { b.declare(1) },
		"it owns something": func(b *bench) {
			if err := b.store.Recover(b.t.Context(), []mesh.Owned{{Resource: "file:/a"}}); err != nil {
				b.t.Fatal(err)
			}
			b.retire(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, enrolled, func(b *bench) {
				b.start()
				prepare(b)
				b.host.Retired(b.t.Context(), "as the test says")
				synctest.Wait()
				if s := b.status(); s.State != mesh.NodeEnrolled || s.Held != 1 || b.forgot != 0 || len(b.saved) != 0 {
					t.Errorf("the host is %+v", s)
				}
				if len(b.links) != 2 {
					t.Errorf("it made %d links; it goes on dialling", len(b.links))
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A machine that has nothing to apply would otherwise never say that a line of
// its briefing passes now.
func TestAMachineWithoutADeclarationIsLookedAtAllTheSame(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		l := &listening{wants: make(chan string, 100)}
		b.cfg.Dial = func(host.Settings, *host.Host) host.Link { return l }
		b.start()
		b.wait(20 * time.Minute)
		if len(l.wants) == 0 {
			t.Error("nothing was sent again after the time for a look")
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}
