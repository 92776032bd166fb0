package control_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/store"
)

// leave applies a final declaration as a host does, says so, and says goodbye.
func (h *host) leave(d *mesh.Declaration) {
	h.p.t.Helper()
	r := mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied}
	for _, id := range d.Released {
		r.Results = append(r.Results, mesh.Result{Resource: id, Status: mesh.StatusRemoved, Generation: d.Generation})
		r.Gone = append(r.Gone, id)
	}
	h.say(mesh.FrameOwned, mesh.OwnedChange{Gone: d.Released})
	h.say(mesh.FrameReport, r)
	h.say(mesh.FrameGoodbye, mesh.Goodbye{Generation: d.Generation})
}

func (p *plane) retire(name string) control.Retiring {
	p.t.Helper()
	answer, err := p.Retire(context.Background(), root, name)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer
}

// Shows: M30
func TestANodeRetiresWithAFinalDeclarationThatIsVerifiedBeforeItLeaves(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a"), file("/etc/b", "b")))
	h.apply()
	if got := p.retire("web-1"); got.Generation != 2 || got.Resources != 2 || !got.Changed {
		t.Errorf("the answer is %+v", got)
	}
	if again := p.retire("web-1"); again.Changed || again.Generation != 2 {
		t.Errorf("asked again, the answer is %+v", again)
	}
	p.restart()
	h.connect()
	if got := p.declare(doc("web", "", file("/etc/a", "other"))); got.Nodes != 0 {
		t.Errorf("a node that retires was given what was declared later")
	}
	d := h.receive()
	if got := ids(d); got != "g2 [] released [file:/etc/a file:/etc/b]" || !d.Final {
		t.Fatalf("pushed %s, final %v", got, d.Final)
	}
	if row := h.row(); row.State != mesh.NodeEnrolled || !row.Retiring || row.Outstanding.Delivered != 1 {
		t.Errorf("before it is done the row is %+v", row)
	}
	h.leave(d)
	if !strings.HasPrefix(h.link.reasons(), control.ReasonRetired) {
		t.Errorf("the link was closed with %q", h.link.reasons())
	}
	for range 2 {
		row := h.row()
		if row.State != mesh.NodeRetired || row.Applied != 2 || row.Outstanding != (control.OutstandingView{}) || row.Retiring {
			t.Errorf("the row is %+v", row)
		}
		if events := h.events(); events[0] != string(control.EventRetired) {
			t.Errorf("events are %v", events)
		}
		_, err := p.NodeByKey(context.Background(), h.key)
		wantCode(t, "the key of a node that left", err, mesh.CodeRetired)
		p.restart()
	}
	_, err := p.Retire(context.Background(), root, "web-1")
	wantCode(t, "retiring again", err, mesh.CodeConflict, "retired already")
}

// Shows: M30
func TestAGoodbyeIsBelievedOnlyWhenEverythingRecordedAgrees(t *testing.T) {
	for name, say := range map[string]func(h *host, d *mesh.Declaration){
		"nothing was reported": func(h *host, d *mesh.Declaration) {
			h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true})
		},
		"a conflict was reported": func(h *host, d *mesh.Declaration) {
			h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true})
			h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/etc/a", Status: mesh.StatusConflict, Reason: mesh.ReasonModified}}})
		},
		"the recovery copy is not empty": func(h *host, d *mesh.Declaration) {
			h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied})
		},
		"something is kept": func(h *host, d *mesh.Declaration) {
			h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true})
			h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied, Kept: []mesh.ResourceID{"file:/etc/a"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			h := join(p, "web-1", nil)
			p.declare(doc("web", "", file("/etc/a", "a")))
			h.apply()
			p.retire("web-1")
			d := h.receive()
			say(h, d)
			h.say(mesh.FrameGoodbye, mesh.Goodbye{Generation: d.Generation})
			if row := h.row(); row.State != mesh.NodeEnrolled || !row.Retiring {
				t.Errorf("the row is %+v", row)
			}
			if _, err := p.NodeByKey(context.Background(), h.key); err != nil {
				t.Errorf("its key is refused: %v", err)
			}
		})
	}
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a")))
	d := h.apply()
	h.say(mesh.FrameGoodbye, mesh.Goodbye{Generation: d.Generation})
	if row := h.row(); row.State != mesh.NodeEnrolled {
		t.Errorf("a goodbye that nobody asked for made the node %s", row.State)
	}
}

// Shows: M30
func TestARetirementCanBeTakenBackUntilTheNodeHasLeft(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a")))
	h.apply()
	_, err := p.Keep(context.Background(), root, "web-1")
	wantCode(t, "taking nothing back", err, mesh.CodeConflict, "not being retired")
	p.retire("web-1")
	if _, err := p.Keep(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	p.restart()
	h.connect()
	d := h.apply()
	if got := ids(d); got != "g3 [file:/etc/a] released []" || d.Final {
		t.Errorf("pushed %s, final %v", got, d.Final)
	}
	h.say(mesh.FrameGoodbye, mesh.Goodbye{Generation: 2})
	if row := h.row(); row.State != mesh.NodeEnrolled || row.Retiring || row.Applied != 3 {
		t.Errorf("the row is %+v", row)
	}
}

// Shows: M30
func TestTheMachineOfTheControlPlaneDoesNotRetire(t *testing.T) {
	p := newPlane(t)
	h := machine(p, "first")
	h.e.Owned = []mesh.Owned{{Resource: "package:mesh-control", Made: mesh.MadeCreated}}
	if _, err := h.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := p.Retire(context.Background(), root, "first")
	wantCode(t, "retiring the control plane's own machine", err, mesh.CodeConflict, "control plane itself")
}

// Shows: M28, M30
func TestAPlaceThatWasLeftIsTakenWithoutTheFinalDeclarationOfTheFormer(t *testing.T) {
	p := newPlane(t)
	former := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a")))
	former.apply()
	p.retire("web-1")
	former.leave(former.receive())

	fresh := machine(p, "fresh")
	fresh.e.Briefing = mesh.Briefing{Lines: []mesh.Line{{Check: "c", Outcome: mesh.OutcomeFail}}}
	if _, err := fresh.enrol(control.TokenRequest{Replaces: "web-1"}); err != nil {
		t.Fatal(err)
	}
	p.restart()
	fresh.connect()
	wantPending(t, fresh, "nothing")
	fresh.say(mesh.FrameBriefing, mesh.Briefing{Lines: []mesh.Line{{Check: "c", Outcome: mesh.OutcomePass}}})
	wantPending(t, fresh, "g3 [file:/etc/a] released []")
	if events := fresh.events(); !slices.Contains(events, string(control.EventEligible)) {
		t.Errorf("events are %v", events)
	}
}

func TestLabelsCanChangeAndWhatANodeGetsChangesWithThem(t *testing.T) {
	p := newPlane(t)
	h := join(p, "n-1", map[string]string{"role": "web", "zone": "a"})
	p.declare(doc("web", `labels.role == "web"`, file("/etc/web", "x")))
	p.declare(doc("db", `labels.role == "db"`, file("/etc/db", "x")))
	h.apply()
	ctx := context.Background()
	got, err := p.Label(ctx, root, "n-1", map[string]string{"role": "db"}, []string{"zone", "none"})
	if err != nil || !maps.Equal(got, map[string]string{"role": "db"}) {
		t.Errorf("the labels are %v, %v", got, err)
	}
	wantPending(t, h, "g2 [file:/etc/db] released [file:/etc/web]")
	p.restart()
	if d := h.detail(); d.Labels["role"] != "db" || len(d.Labels) != 1 || d.Declared != 2 {
		t.Errorf("after a restart the node is %+v", d)
	}
	if _, err := p.Label(ctx, root, "n-1", map[string]string{"role": "db"}, nil); err != nil || h.row().Declared != 2 {
		t.Errorf("the same labels again gave %v and %s", err, h.row().Declared)
	}
	_, err = p.Label(ctx, root, "n-1", map[string]string{"1x": "a"}, nil)
	wantCode(t, "a wrong label", err, mesh.CodeInvalid, `"1x"`)
	_, err = p.Label(ctx, root, "nobody", map[string]string{"a": "b"}, nil)
	wantCode(t, "a label of nobody", err, mesh.CodeNotFound)

	p.declare(doc("db2", `labels.role == "db2"`, file("/etc/db", "y")))
	p.declare(doc("more", `labels.more == "yes"`, file("/etc/db", "z")))
	_, err = p.Label(ctx, root, "n-1", map[string]string{"more": "yes"}, nil)
	wantCode(t, "labels with which declarations contradict each other", err, mesh.CodeConflict, "/etc/db", "no label was changed")
	if d := h.detail(); d.Labels["more"] != "" {
		t.Errorf("a change that was refused left %v", d.Labels)
	}
}

func TestEveryRevisionIsListedComparedAndWrittenAgain(t *testing.T) {
	p := newPlane(t)
	secret := func(content string) mesh.DocumentResource {
		r := file("/etc/key", content)
		r.File.Sensitive = true
		return r
	}
	p.declare(doc("web", "", file("/etc/a", "one"), secret("very-secret-1")))
	p.declare(doc("web", "", file("/etc/a", "two"), secret("very-secret-2")))
	ctx := context.Background()
	c, err := p.Compare(ctx, "web", 0, 0)
	if err != nil || c.From.Revision != 1 || c.To.Revision != 2 || !slices.Equal(c.Hidden, []mesh.ResourceID{"file:/etc/key"}) {
		t.Errorf("compared, they are %+v, %v", c, err)
	}
	for _, d := range []*mesh.Document{c.From.Document, c.To.Document} {
		if f := d.Resources[1].File; f.Content != nil || f.SHA256 != "" || f.Size != 0 {
			t.Errorf("sensitive content is shown: %+v", f)
		}
		if d.Resources[0].File.Content == nil {
			t.Error("what is not sensitive is left out")
		}
	}
	// What stops being sensitive was a secret, and is compared as one.
	p.declare(doc("web", "", file("/etc/a", "two"), file("/etc/key", "very-secret-2")))
	if c, err = p.Compare(ctx, "web", 2, 3); err != nil || len(c.Hidden) != 0 || c.To.Document.Resources[1].File.Content != nil {
		t.Errorf("compared, they are %+v, %v", c, err)
	}

	back, err := p.Revert(ctx, root, "web", 1)
	if err != nil || back.Revision != 4 || !back.Changed {
		t.Errorf("reverting is answered with %+v, %v", back, err)
	}
	if c, err = p.Compare(ctx, "web", 1, 4); err != nil || len(c.Hidden) != 0 {
		t.Errorf("revision 4 differs from 1: %+v, %v", c, err)
	}
	if _, err := p.RemoveDeclaration(ctx, root, "web"); err != nil {
		t.Fatal(err)
	}
	if back, err = p.Revert(ctx, root, "web", 0); err != nil || back.Revision != 6 {
		t.Errorf("reverting a removal is answered with %+v, %v", back, err)
	}
	if back, err = p.Revert(ctx, root, "web", 5); err != nil || back.Revision != 7 {
		t.Errorf("reverting to a removal is answered with %+v, %v", back, err)
	}
	list, err := p.History(ctx, "web")
	if err != nil || len(list) != 7 || list[0].Revision != 7 || !list[0].Removed || list[6].Resources != 2 {
		t.Errorf("the history is %+v, %v", list, err)
	}
	p.declare(doc("new", "", file("/etc/a", "one")))
	_, err = p.Compare(ctx, "new", 0, 0)
	wantCode(t, "comparing the first revision", err, mesh.CodeInvalid, "none before it")
	_, err = p.Revert(ctx, root, "new", 0)
	wantCode(t, "reverting the first revision", err, mesh.CodeInvalid, "one revision only")
	_, err = p.History(ctx, "nobody")
	wantCode(t, "the history of nothing", err, mesh.CodeNotFound)
	_, err = p.Compare(ctx, "web", 1, 99)
	wantCode(t, "a revision that never was", err, mesh.CodeNotFound)
}

// Shows: M29
func TestAfterARestoreNothingIsWrittenForANodeBeforeItSaidWhatItHolds(t *testing.T) {
	p := newPlane(t)
	same, ahead := join(p, "same", nil), join(p, "ahead", nil)
	p.declare(doc("web", "", file("/a", "1")))
	same.apply()
	ahead.apply()
	unused := p.token(control.TokenRequest{Name: "later"})
	p.stop()
	if err := store.Restored(context.Background(), filepath.Join(p.dir, "control.db")); err != nil {
		t.Fatal(err)
	}
	p.start()
	wantCode(t, "a token that may have been used since", p.CheckToken(context.Background(), unused), mesh.CodeDenied)
	if got := p.declare(doc("web", "", file("/a", "2"))); got.Nodes != 0 {
		t.Errorf("%d generations were written blindly", got.Nodes)
	}
	for _, h := range []*host{same, ahead} {
		if row := h.row(); row.Outstanding.Undelivered != 1 || !strings.Contains(row.Note, "restored") {
			t.Errorf("the row is %+v", row)
		}
	}
	_, err := p.Retire(context.Background(), root, "same")
	wantCode(t, "retiring blindly", err, mesh.CodeUnavailable, "restored")

	same.connect()
	wantPending(t, same, "g2 [file:/a] released []")
	// This one got another g2 before the control plane was lost.
	ahead.held = 2
	ahead.connect()
	wantPending(t, ahead, "nothing")
	progress, err := p.Progress(context.Background(), "web", 0)
	if err != nil || progress.Nodes != 2 || progress.Undelivered != 2 {
		t.Errorf("progress is %+v, %v", progress, err)
	}
	p.restart()
	ahead.connect()
	wantPending(t, ahead, "nothing")
	if _, err := p.Recover(context.Background(), root, "ahead"); err != nil {
		t.Fatal(err)
	}
	wantPending(t, ahead, "g3 [file:/a] released []")
}

// A node that no declaration selects keeps what it has: no declaration known is
// something else than an empty declaration.
func TestARestoredControlPlaneWithoutDeclarationsEmptiesNoNode(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	h.disconnect()
	h.held = 7
	h.connect()
	h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true, Owned: []mesh.Owned{{Resource: "file:/a", Made: mesh.MadeCreated}}})
	got, err := p.Recover(context.Background(), root, "web-1")
	if err != nil || got.Generation != 0 {
		t.Errorf("it is answered with %+v, %v", got, err)
	}
	wantPending(t, h, "nothing")
}

func TestWhatDoesNotFitIntoAFrameIsRefusedWhenItIsWritten(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	long := "/" + strings.Repeat(strings.Repeat("d", 200)+"/", 19)
	var one, two []mesh.DocumentResource
	for i := range 1900 {
		one = append(one, file(fmt.Sprintf("%sone-%d", long, i), ""))
		two = append(two, file(fmt.Sprintf("%stwo-%d", long, i), ""))
	}
	p.declare(doc("one", "", one...))
	_, err := p.Declare(context.Background(), root, doc("two", "", two...))
	wantCode(t, "two declarations of 8 MB each", err, mesh.CodeInvalid, "nothing was written", "web-1", "bytes")
	if row := h.row(); row.Declared != 1 {
		t.Errorf("the row is %+v", row)
	}
	if _, err := p.Declaration(context.Background(), "two", 0); mesh.CodeOf(err) != mesh.CodeNotFound {
		t.Errorf("what was refused is stored: %v", err)
	}
}

func TestMoreThanOneDeclarationCanReleaseIsReleasedInParts(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	long := "file:/" + strings.Repeat(strings.Repeat("d", 200)+"/", 15)
	left := map[mesh.ResourceID]bool{}
	for part := range 4 {
		var change mesh.OwnedChange
		for i := range 100 {
			id := mesh.ResourceID(fmt.Sprintf("%s%d-%d", long, part, i))
			left[id] = true
			change.Owned = append(change.Owned, mesh.Owned{Resource: id, Made: mesh.MadeCreated})
		}
		h.say(mesh.FrameOwned, change)
	}
	rounds := 0
	for d := h.pending(); d != nil; d = h.pending() {
		if rounds++; rounds > 20 {
			t.Fatal("releasing comes to no end")
		}
		h.held = d.Generation
		h.say(mesh.FrameReceived, mesh.Received{Generation: d.Generation, Held: d.Generation})
		r := mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied}
		for _, id := range d.Released {
			delete(left, id)
		}
		r.Kept = slices.Sorted(maps.Keys(left))
		h.say(mesh.FrameOwned, mesh.OwnedChange{Gone: d.Released})
		h.say(mesh.FrameReport, r)
	}
	if len(left) != 0 || rounds < 2 {
		t.Errorf("after %d rounds %d resources are left", rounds, len(left))
	}
}
