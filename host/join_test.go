package host_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
)

var token = mesh.Token{Addresses: []string{"control:7022"}, Fingerprint: [32]byte{1}, Secret: [20]byte{2}}.String()

func document(names ...string) mesh.Document {
	d := mesh.Document{Declaration: "bundle"}
	for _, n := range names {
		d.Resources = append(d.Resources, mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindPackage, Name: n, Package: &mesh.PackageSpec{}}})
	}
	return d
}

// Shows: M27
func TestABundleIsHeldAndAppliedAndItsEndIsTheAnswer(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		b.bundles.doc = document("mesh-control")
		s, err := b.host.Apply(b.t.Context(), "/bundle")
		if err != nil || s.Held != 1 || s.Applied != 1 || s.Trigger != mesh.TriggerAsked || s.State != mesh.NodeHosted {
			t.Errorf("the answer is %+v, %v", s, err)
		}
		synctest.Wait()
		if n := len(b.passes.list()); n != 1 {
			t.Errorf("%d passes for one bundle", n)
		}
		d, err := b.store.Declaration(b.t.Context())
		if err != nil || len(d.Resources) != 1 || d.Resources[0].From != "bundle" || len(d.Released) != 0 {
			t.Errorf("it holds %+v, %v", d, err)
		}

		if err := b.store.Recover(b.t.Context(), []mesh.Owned{{Resource: "package:mesh-control"}, {Resource: "package:old"}}); err != nil {
			t.Fatal(err)
		}
		b.bundles.doc = document("mesh-control", "more")
		if s, err := b.host.Apply(b.t.Context(), "/bundle"); err != nil || s.Held != 2 {
			t.Errorf("a second bundle is answered with %+v, %v", s, err)
		}
		d, err = b.store.Declaration(b.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "released", d.Released, []mesh.ResourceID{"package:old"})
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestABundleThatCannotBeTakenChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		bundles bundles
		code    mesh.Code
		says    string
	}{
		"unreadable": {bundles{err: mesh.Errorf(mesh.CodeNotFound, "there is no bundle")}, mesh.CodeNotFound, "there is no bundle"},
		"faults":     {bundles{doc: document("no such name")}, mesh.CodeInvalid, "nothing was done"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, host.Settings{}, func(b *bench) {
				*b.bundles = c.bundles
				b.start()
				_, err := b.host.Apply(b.t.Context(), "/bundle")
				if mesh.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
					t.Errorf("it is answered with %v", err)
				}
				if d, _ := b.store.Declaration(b.t.Context()); d != nil || len(b.passes.list()) != 0 {
					t.Errorf("it holds %+v after %d passes", d, len(b.passes.list()))
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestABundleIsRefusedOnANode(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		b.start()
		b.bundles.doc = document("p")
		if _, err := b.host.Apply(b.t.Context(), "/bundle"); mesh.CodeOf(err) != mesh.CodeConflict || !strings.Contains(err.Error(), "web-1") {
			t.Errorf("it is answered with %v", err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Shows: M25, M27
func TestEnrolmentTellsEverythingFirstAndThenMakesTheLink(t *testing.T) {
	in(t, host.Settings{DriftInterval: host.Duration(1e11)}, func(b *bench) {
		b.start()
		b.bundles.doc = document("mesh-control")
		if _, err := b.host.Apply(b.t.Context(), "/bundle"); err != nil {
			t.Fatal(err)
		}
		if err := b.store.Recover(b.t.Context(), []mesh.Owned{{Resource: "package:mesh-control", Made: mesh.MadeCreated}}); err != nil {
			t.Fatal(err)
		}
		if len(b.links) != 0 {
			t.Fatalf("a machine that belongs to no mesh dials %+v", b.links)
		}
		answer, err := b.host.Enrol(b.t.Context(), token)
		if err != nil || answer.Node != "web-1" {
			t.Fatalf("it is answered with %+v, %v", answer, err)
		}
		synctest.Wait()
		e := b.control.seen[0]
		if e.Profile.Arch == "" || len(e.Inventory.Units) == 0 || len(e.Briefing.Lines) == 0 || e.Held != 1 || len(e.Owned) != 1 || e.Bundle == nil || e.Bundle.Declaration != "bundle" || e.HostVersion != "1.0" {
			t.Errorf("the control plane was told %+v", e)
		}
		want := enrolled
		want.DriftInterval = host.Duration(1e11)
		if len(b.saved) != 1 || b.saved[0].Node != "web-1" || b.saved[0].Fingerprint != want.Fingerprint || b.saved[0].DriftInterval != want.DriftInterval {
			t.Errorf("saved are %+v", b.saved)
		}
		if len(b.links) != 1 || b.links[0].settings.Node != "web-1" {
			t.Errorf("the links are %+v", b.links)
		}
		if s := b.status(); s.State != mesh.NodeEnrolled || s.Node != "web-1" {
			t.Errorf("the status is %+v", s)
		}
		if _, err := b.host.Enrol(b.t.Context(), token); mesh.CodeOf(err) != mesh.CodeConflict {
			t.Errorf("a node that enrols again is told %v", err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnEnrolmentThatCouldNotBeWrittenCanBeRepeated(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		b.saveErr = errors.New("no space left on device")
		_, err := b.host.Enrol(b.t.Context(), token)
		if !errors.Is(err, b.saveErr) || !strings.Contains(err.Error(), "run the same command again") {
			t.Errorf("it is answered with %v", err)
		}
		synctest.Wait()
		if s := b.status(); s.State != mesh.NodeHosted || len(b.links) != 0 {
			t.Errorf("the state is %s with %d links", s.State, len(b.links))
		}
		b.saveErr = nil
		if e, err := b.host.Enrol(b.t.Context(), token); err != nil || e.Node != "web-1" {
			t.Errorf("run again it is answered with %+v, %v", e, err)
		}
		synctest.Wait()
		if s := b.status(); s.State != mesh.NodeEnrolled {
			t.Errorf("the state is %s", s.State)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnEnrolmentThatIsRefusedLeavesTheMachineAsItWas(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		if _, err := b.host.Enrol(b.t.Context(), "mesh1-cut"); mesh.CodeOf(err) != mesh.CodeInvalid || len(b.control.seen) != 0 {
			t.Errorf("a damaged token is answered with %v after %d attempts", err, len(b.control.seen))
		}
		b.control.err = mesh.Errorf(mesh.CodeDenied, "the token expired")
		if _, err := b.host.Enrol(b.t.Context(), token); mesh.CodeOf(err) != mesh.CodeDenied {
			t.Errorf("it is answered with %v", err)
		}
		if s := b.status(); s.State != mesh.NodeHosted || len(b.saved) != 0 {
			t.Errorf("the state is %s, saved are %+v", s.State, b.saved)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestABundleDoesNotComeBetweenWhatAnEnrolmentSaidAndItsAnswer(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.start()
		b.bundles.doc = document("p")
		var applied, enrolledTwice error
		b.control.during = func() {
			_, applied = b.host.Apply(b.t.Context(), "/bundle")
			_, enrolledTwice = b.host.Enrol(b.t.Context(), token)
		}
		if _, err := b.host.Enrol(b.t.Context(), token); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"a bundle": applied, "another enrolment": enrolledTwice} {
			if mesh.CodeOf(err) != mesh.CodeUnavailable {
				t.Errorf("%s in the middle of an enrolment is answered with %v", what, err)
			}
		}
		if d, _ := b.store.Declaration(b.t.Context()); d != nil {
			t.Errorf("it holds %+v", d)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A machine whose briefing cannot be made is not enrolled as one without lines.
func TestAMachineThatCannotBeLookedAtIsNotEnrolled(t *testing.T) {
	in(t, host.Settings{}, func(b *bench) {
		b.cfg.Describer = machine{err: errors.New("read the machine id")}
		b.start()
		if _, err := b.host.Enrol(b.t.Context(), token); err == nil || len(b.control.seen) != 0 {
			t.Errorf("it is answered with %v", err)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}
