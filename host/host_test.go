package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
)

// in runs a test in a bubble of its own time.
func in(t *testing.T, settings host.Settings, test func(b *bench)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { test(newBench(t, dir, settings)) })
}

func same[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
}

// Shows: M1
func TestADeclarationIsOnDiskBeforeItIsAnsweredAndAppliedAtOnce(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		before := time.Now()
		r, err := b.host.Declare(b.t.Context(), mesh.Declaration{Node: "web-1", Generation: 3}, noContent)
		if err != nil || r.Held != 3 || r.Refused != "" {
			t.Errorf("the answer is %+v, %v", r, err)
		}
		if d, err := b.store.Declaration(b.t.Context()); err != nil || d == nil || d.Generation != 3 {
			t.Errorf("on disk there is %+v, %v", d, err)
		}
		synctest.Wait()
		made := b.passes.list()
		if len(made) != 1 || made[0].generation != 3 || made[0].trigger != mesh.TriggerDeclared || !made[0].at.Equal(before) {
			t.Errorf("the passes are %+v, and it was declared at %s", made, before)
		}
		if reports := b.messages(mesh.FrameReport); len(reports) != 1 {
			t.Errorf("%d reports wait to be delivered", len(reports))
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M7
func TestADeclarationThatCannotBeTakenIsRefusedAndSaid(t *testing.T) {
	bad := mesh.Declaration{Node: "web-1", Generation: 9, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "relative", File: &mesh.FileSpec{SHA256: "x"}}}}
	for name, c := range map[string]struct {
		declaration mesh.Declaration
		kind        mesh.EventKind
		why         string
	}{
		"older":       {mesh.Declaration{Node: "web-1", Generation: 4}, mesh.EventRefused, "this node holds g5, and generations only grow"},
		"not for us":  {mesh.Declaration{Node: "web-2", Generation: 9}, mesh.EventRefused, `it is for node "web-2" and this is "web-1"`},
		"with faults": {bad, mesh.EventInvalid, "resources[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, enrolled, func(b *bench) {
				b.start()
				b.declare(5)
				r, err := b.host.Declare(b.t.Context(), c.declaration, noContent)
				synctest.Wait()
				if err != nil || r.Held != 5 || r.Generation != c.declaration.Generation || !strings.Contains(r.Refused, c.why) {
					t.Errorf("the answer is %+v, %v", r, err)
				}
				events := b.messages(mesh.FrameEvent)
				if len(events) != 1 {
					t.Fatalf("%d events", len(events))
				}
				var e mesh.Event
				if err := json.Unmarshal(events[0].Body, &e); err != nil || e.Kind != c.kind || !strings.Contains(e.Detail, c.why) {
					t.Errorf("the event is %+v, %v", e, err)
				}
				if n := len(b.passes.list()); n != 1 {
					t.Errorf("%d passes were made", n)
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestADeclarationThatIsHeldAlreadyIsAnsweredAgainAndNotAppliedAgain(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.declare(5)
		if r := b.declare(5); r.Refused != "" || r.Held != 5 {
			t.Errorf("the answer is %+v", r)
		}
		if len(b.passes.list()) != 1 || len(b.messages(mesh.FrameEvent)) != 0 {
			t.Errorf("passes %+v", b.passes.list())
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestADeclarationIsHeldOnlyWithAllItsContent(t *testing.T) {
	content := "hello"
	spec := &mesh.FileSpec{Type: mesh.FileRegular}
	spec.SetContent([]byte(content))
	spec.Content = nil
	d := mesh.Declaration{Node: "web-1", Generation: 1, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "/a", File: spec}}}
	in(t, enrolled, func(b *bench) {
		b.start()
		for name, fetch := range map[string]func(context.Context, string, io.Writer) error{
			"nothing comes": noContent,
			"other content": func(_ context.Context, _ string, w io.Writer) error { _, err := io.WriteString(w, "hullo"); return err },
		} {
			if _, err := b.host.Declare(b.t.Context(), d, fetch); err == nil {
				t.Errorf("%s, and it is answered as received", name)
			}
		}
		if held, err := b.store.Declaration(b.t.Context()); held != nil || err != nil {
			t.Errorf("without its content it is held: %+v, %v", held, err)
		}
		fetched := 0
		fetch := func(_ context.Context, sum string, w io.Writer) error {
			fetched++
			if sum != spec.SHA256 {
				return fmt.Errorf("nobody declared %s", sum)
			}
			_, err := io.WriteString(w, content)
			return err
		}
		if r, err := b.host.Declare(b.t.Context(), d, fetch); err != nil || r.Held != 1 || fetched != 1 {
			t.Errorf("the answer is %+v, %v, after %d fetches", r, err, fetched)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M32
func TestAHostWithoutALinkGoesOnApplyingTheDeclarationItHolds(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		if err := b.store.Hold(b.t.Context(), mesh.Declaration{Node: "web-1", Generation: 4}); err != nil {
			t.Fatal(err)
		}
		b.cfg.Dial = func(host.Settings, *host.Host) host.Link { return &link{up: false} }
		b.start()
		same(t, "triggers", b.passes.triggers(), []mesh.Trigger{mesh.TriggerResumed})
		b.wait(31 * time.Minute)
		same(t, "triggers", b.passes.triggers(), []mesh.Trigger{mesh.TriggerResumed, mesh.TriggerDrift, mesh.TriggerDrift})
		if r := b.declare(3); r.Refused == "" {
			t.Error("after a restart an older generation is taken")
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M2
func TestTheTimerLooksForDriftAndNothingElseRepeats(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.wait(time.Hour)
		if n := len(b.passes.list()); n != 0 {
			t.Errorf("without a declaration %d passes were made", n)
		}
		b.declare(1)
		began := time.Now()
		b.wait(61 * time.Minute)
		var after []time.Duration
		for _, m := range b.passes.list() {
			after = append(after, m.at.Sub(began))
		}
		same(t, "passes after the declaration", after, []time.Duration{0, 15 * time.Minute, 30 * time.Minute, 45 * time.Minute, time.Hour})
		same(t, "triggers", b.passes.triggers()[1:], []mesh.Trigger{mesh.TriggerDrift, mesh.TriggerDrift, mesh.TriggerDrift, mesh.TriggerDrift})
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheAdminSetsHowOftenDriftIsLookedFor(t *testing.T) {
	settings := enrolled
	settings.DriftInterval = host.Duration(time.Minute)
	in(t, settings, func(b *bench) {
		b.start()
		b.declare(1)
		b.wait(3*time.Minute + time.Second)
		if n := len(b.passes.list()); n != 4 {
			t.Errorf("%d passes in three minutes", n)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatIsDeferredIsTriedAgainMoreAndMoreRarelyUntilItWorks(t *testing.T) {
	settings := enrolled
	settings.DriftInterval = host.Duration(100 * time.Hour)
	in(t, settings, func(b *bench) {
		var deferred atomic.Bool
		deferred.Store(true)
		b.passes.make = func(context.Context, mesh.Declaration, func() bool) (reconcile.Outcome, error) {
			if deferred.Load() {
				return reconcile.Outcome{State: mesh.GenerationOutstanding, Results: []mesh.Result{{Resource: "package:p", Status: mesh.StatusDeferred}}}, nil
			}
			return reconcile.Outcome{State: mesh.GenerationApplied}, nil
		}
		b.start()
		b.declare(1)
		b.wait(time.Hour)
		made := b.passes.list()
		var gaps []time.Duration
		for i := range made[1:] {
			gaps = append(gaps, made[i+1].at.Sub(made[i].at))
			if made[i+1].trigger != mesh.TriggerRetry {
				t.Errorf("pass %d was made because of %s", i+1, made[i+1].trigger)
			}
		}
		same(t, "waits", gaps[:8], []time.Duration{15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute})
		deferred.Store(false)
		b.wait(time.Hour)
		n := len(b.passes.list())
		b.wait(time.Hour)
		if again := len(b.passes.list()) - n; again != 0 {
			t.Errorf("after it worked %d more passes were made", again)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAFullDiskIsSaidAndTriedAgainAndEndsNothing(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		full := errors.New("database or disk is full")
		var working atomic.Bool
		b.passes.make = func(context.Context, mesh.Declaration, func() bool) (reconcile.Outcome, error) {
			if working.Load() {
				return reconcile.Outcome{State: mesh.GenerationApplied}, nil
			}
			return reconcile.Outcome{}, full
		}
		b.start()
		b.declare(1)
		b.wait(time.Second)
		if s := b.status(); !strings.Contains(s.Working, full.Error()) {
			t.Errorf("the status says %q", s.Working)
		}
		if _, err := b.host.Look(b.t.Context()); !errors.Is(err, full) {
			t.Errorf("an admin who asks is told %v", err)
		}
		b.wait(10 * time.Minute)
		if n := len(b.passes.list()); n < 4 || n > 10 {
			t.Errorf("%d passes in ten minutes: neither never nor in a loop is right", n)
		}
		working.Store(true)
		b.wait(10 * time.Minute)
		if s := b.status(); s.Working != "" || s.Last != mesh.GenerationApplied {
			t.Errorf("after there was room again the status is %+v", s)
		}
		if err := b.stop(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
}

func TestADamagedStoreEndsTheDaemonSoThatItsNextLifeMovesItAside(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.passes.make = func(context.Context, mesh.Declaration, func() bool) (reconcile.Outcome, error) {
			return reconcile.Outcome{}, fmt.Errorf("record: %w", host.ErrStoreDamaged)
		}
		b.start()
		b.declare(1)
		if err := <-b.ended; !errors.Is(err, host.ErrStoreDamaged) {
			t.Errorf("the daemon ended with %v", err)
		}
		if _, err := b.host.Look(b.t.Context()); mesh.CodeOf(err) != mesh.CodeUnavailable {
			t.Errorf("who asks a daemon that has ended is told %v", err)
		}
		b.ended <- nil
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M7
func TestANewerDeclarationInTheMiddleOfAPassIsAppliedNext(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.passes.make = func(ctx context.Context, d mesh.Declaration, superseded func() bool) (reconcile.Outcome, error) {
			for range 10 { // resources of ten seconds each
				if superseded() {
					return reconcile.Outcome{State: mesh.GenerationOutstanding, Superseded: true, Drifted: []mesh.ResourceID{"file:/a"}}, nil
				}
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
					return reconcile.Outcome{}, ctx.Err()
				}
			}
			return reconcile.Outcome{State: mesh.GenerationApplied}, nil
		}
		b.start()
		began := time.Now()
		b.declare(1)
		b.wait(15 * time.Second)
		b.declare(2)
		b.declare(3)
		b.wait(10 * time.Minute)
		made := b.passes.list()
		if len(made) != 2 || made[1].generation != 3 || made[1].at.Sub(began) != 20*time.Second {
			t.Errorf("the passes are %+v", made)
		}
		s := b.status()
		if s.Applied != 3 || s.Drift != 1 {
			t.Errorf("applied %s with %d found changed", s.Applied, s.Drift)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestStoppingInTheMiddleOfAPassIsNoError(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.passes.make = func(ctx context.Context, _ mesh.Declaration, _ func() bool) (reconcile.Outcome, error) {
			<-ctx.Done()
			return reconcile.Outcome{}, errors.New("interrupted") // as a database says it
		}
		b.start()
		b.declare(1)
		if err := b.stop(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
}

func TestAnAdminWhoAsksGetsTheStateRightAfterThePass(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.declare(1)
		s, err := b.host.Look(b.t.Context())
		if err != nil || s.Trigger != mesh.TriggerAsked || s.Last != mesh.GenerationApplied || s.Working != "" {
			t.Errorf("the answer is %+v, %v", s, err)
		}
		gone, cancel := context.WithCancel(b.t.Context())
		cancel()
		if _, err := b.host.Look(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("who went away is told %v", err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheStatusNamesTheStateOfTheNode(t *testing.T) {
	for name, c := range map[string]struct {
		settings host.Settings
		up       bool
		want     mesh.NodeState
	}{
		"no mesh":   {host.Settings{}, false, mesh.NodeHosted},
		"link up":   {enrolled, true, mesh.NodeEnrolled},
		"link down": {enrolled, false, mesh.NodeDisconnected},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, c.settings, func(b *bench) {
				b.cfg.Dial = func(host.Settings, *host.Host) host.Link { return &link{up: c.up} }
				b.start()
				if s := b.status(); s.State != c.want {
					t.Errorf("the state is %s", s.State)
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestTheHelloSaysWhereThisHostIs(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.declare(6)
		hello, err := b.host.Hello(b.t.Context())
		if err != nil || hello.Node != "web-1" || hello.Held != 6 || hello.Applied != 6 || hello.StoreID != b.store.ID() || hello.BootID != "boot" || hello.MachineIDHash != "m" || hello.ProfileDigest == "" || hello.InventoryDigest == "" {
			t.Errorf("hello %+v, %v", hello, err)
		}
		beat, err := b.host.Heartbeat(b.t.Context())
		if err != nil || beat.Held != 6 || beat.Applied != 6 || beat.Ledger != hello.Ledger || beat.Pending != 1 {
			t.Errorf("heartbeat %+v, %v", beat, err)
		}
		for want, kind := range map[string]mesh.FrameType{mesh.WantProfile: mesh.FrameProfile, mesh.WantInventory: mesh.FrameInventory, mesh.WantBriefing: mesh.FrameBriefing} {
			if body, got, err := b.host.Describe(b.t.Context(), want); err != nil || got != kind || body == nil {
				t.Errorf("%s is described as %s, %v", want, got, err)
			}
		}
		if _, _, err := b.host.Describe(b.t.Context(), "the weather"); err == nil {
			t.Error("what there is not is described")
		}
		if err := b.host.Want(b.t.Context(), []string{mesh.WantReport, mesh.WantOwned}); err != nil {
			t.Error(err)
		}
		if reports, owned := b.messages(mesh.FrameReport), b.messages(mesh.FrameOwned); len(reports) != 2 || len(owned) != 1 {
			t.Errorf("%d reports and %d copies wait", len(reports), len(owned))
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M29
func TestARecoveryCopyIsTakenOverAndEverythingLookedAtAnew(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		b.bundles.doc = document("p")
		if _, err := b.host.Apply(b.t.Context(), "/bundle"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.host.Enrol(b.t.Context(), token); err != nil {
			t.Fatal(err)
		}
		// This machine takes the place of another, whose copy comes in two parts.
		for _, id := range []mesh.ResourceID{"file:/a", "file:/b"} {
			part := mesh.Recover{Owned: []mesh.Owned{{Resource: id, Made: mesh.MadeCreated, Generation: 1}}, More: id == "file:/a"}
			if err := b.host.Recover(b.t.Context(), part); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if copied, err := b.store.RecoveryCopy(b.t.Context()); err != nil || len(copied) != 2 || copied[0].Made != mesh.MadeCreated {
			t.Errorf("it owns %+v, %v", copied, err)
		}
		if n := len(b.passes.list()); n != 3 {
			t.Errorf("%d passes, want one for the bundle and one for each part of the copy", n)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M6, M29
func TestARecoveryCopyThatIsOlderThanTheStoreIsNotTakenOver(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		now := mesh.Owned{Resource: "file:/a", Made: mesh.MadeReplaced, Generation: 1}
		if err := b.host.Recover(b.t.Context(), mesh.Recover{Owned: []mesh.Owned{now}}); err != nil {
			t.Fatal(err)
		}
		b.declare(1)
		// A control plane that was put back from a backup hands over what it had.
		before := []mesh.Owned{{Resource: "file:/a", Made: mesh.MadeCreated}, {Resource: "package:given-up", Made: mesh.MadeCreated}}
		if err := b.host.Recover(b.t.Context(), mesh.Recover{Owned: before}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		owned, err := b.store.RecoveryCopy(b.t.Context())
		if err != nil || len(owned) != 1 || owned[0].Resource != now.Resource || owned[0].Made != now.Made {
			t.Errorf("it owns %+v, %v; want what it owned before", owned, err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M6, M29
func TestARecoveryCopyThatComesInTheMiddleOfAPassIsNotOverwrittenByIt(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		b.bundles.doc = document("p")
		if _, err := b.host.Apply(b.t.Context(), "/bundle"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.host.Enrol(b.t.Context(), token); err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{})
		b.passes.make = func(ctx context.Context, _ mesh.Declaration, _ func() bool) (reconcile.Outcome, error) {
			<-goOn
			// What the pass finds it takes for what there always was.
			found := mesh.Owned{Resource: "file:/a", Made: mesh.MadeExisted, Generation: 1}
			return reconcile.Outcome{State: mesh.GenerationApplied}, b.store.Record(ctx, []reconcile.Record{{
				Result: mesh.Result{Resource: found.Resource, Status: mesh.StatusOK, Generation: 1}, Owned: &found,
			}})
		}
		b.wait(16 * time.Minute)
		recovered := make(chan error, 1)
		go func() {
			recovered <- b.host.Recover(b.t.Context(), mesh.Recover{Owned: []mesh.Owned{{Resource: "file:/a", Made: mesh.MadeReplaced, Generation: 1}}})
		}()
		synctest.Wait()
		b.passes.make = nil
		close(goOn)
		if err := <-recovered; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		owned, err := b.store.RecoveryCopy(b.t.Context())
		if err != nil || len(owned) != 1 || owned[0].Made != mesh.MadeReplaced {
			t.Errorf("it owns %+v, %v; the copy says that it replaced the file", owned, err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAHostThatCannotLearnWhatItsEarlierLifeLeftAppliesWhatItCan(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.cfg.Settle = func(context.Context) error { return errors.New("the service manager does not answer") }
		b.start()
		b.declare(1)
		if s := b.status(); s.Applied != 1 || !strings.Contains(b.log.String(), "the service manager does not answer") {
			t.Errorf("the status is %+v, and the log %s", s, b.log)
		}
		if err := b.stop(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
}
