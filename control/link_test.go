package control_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Shows: M7
func TestOnlyTheNewestGenerationIsHandedOutUntilTheNodeHoldsIt(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	p.declare(doc("web", "", file("/a", "2")))
	p.declare(doc("web", "", file("/a", "3")))
	wantPending(t, h, "g3 [file:/a] released []")
	// Another link of the node, which is ending, may be who asked.
	wantPending(t, h, "g3 [file:/a] released []")
	h.receive()
	wantPending(t, h, "nothing")
	h.disconnect()
	h.connect()
	wantPending(t, h, "nothing")
}

// Shows: M29
func TestAHostThatLostItsStoreGetsTheRecoveryCopyAndCannotMakeItForget(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a"), file("/etc/b", "b")))
	h.apply()
	h.disconnect()

	h.store, h.seq, h.held, h.owned = "new store", 0, 0, nil
	for range 2 {
		// The link breaks before the host has taken it over: it comes again.
		_, recovery := h.connect()
		if recovery == nil || len(recovery.Owned) != 2 {
			t.Fatalf("the recovery copy is %+v", recovery)
		}
		h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true})
		h.disconnect()
		p.restart()
	}
	if owned := h.detail().Owned; len(owned) != 2 {
		t.Errorf("an empty store made the recovery copy forget: %v", owned)
	}
	h.connect()
	d := h.receive()
	if got := ids(d); got != "g1 [file:/etc/a file:/etc/b] released []" {
		t.Errorf("pushed %s", got)
	}
	h.disconnect()
	welcome, recovery := h.connect()
	if recovery != nil || !slices.Contains(welcome.Want, mesh.WantOwned) {
		t.Errorf("a host that has taken the copy over is given %+v and asked for %v", recovery, welcome.Want)
	}
	h.say(mesh.FrameOwned, mesh.OwnedChange{Full: true, Owned: []mesh.Owned{{Resource: "file:/etc/a", Made: mesh.MadeCreated}}})
	if owned := h.detail().Owned; !slices.Equal(owned, []mesh.ResourceID{"file:/etc/a"}) {
		t.Errorf("the recovery copy is %v", owned)
	}
}

// Shows: M7
func TestANodeThatHoldsMoreThanIsKnownHereIsNotPushedToUntilSomebodyConfirms(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	h.disconnect()
	h.held = 7
	h.connect()
	h.say(mesh.FrameOwned, mesh.OwnedChange{Owned: []mesh.Owned{{Resource: "file:/newer", Made: mesh.MadeCreated}}})
	wantPending(t, h, "nothing")
	if !slices.Contains(h.events(), string(control.EventAhead)) {
		t.Errorf("events are %v", h.events())
	}
	p.restart()
	h.connect()
	if n := strings.Count(strings.Join(h.events(), " "), string(control.EventAhead)); n != 1 {
		t.Errorf("the event was raised %d times", n)
	}
	p.declare(doc("web", "", file("/a", "2")))
	wantPending(t, h, "nothing")
	if row := h.row(); row.Outstanding.Undelivered != 1 || !strings.Contains(row.Note, "mesh-control recover web-1") {
		t.Errorf("the row is %+v", row)
	}
	got, err := p.Recover(context.Background(), root, "web-1")
	if err != nil || got.Generation != 8 || got.Held != 7 || len(got.Released) != 1 {
		t.Errorf("confirmed, it is answered with %+v, %v", got, err)
	}
	wantPending(t, h, "g8 [file:/a] released [file:/newer]")
	if row := h.row(); row.Note != "" {
		t.Errorf("after it was confirmed the row says %q", row.Note)
	}
	_, err = p.Recover(context.Background(), root, "web-1")
	wantCode(t, "confirming twice", err, mesh.CodeConflict, "nothing to confirm")
}

// Shows: M28
// Cases: O-152, O-153
func TestOneKeyFromTwoMachinesIsRefusedForTheSecond(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	clone := machine(p, "clone")
	clone.name, clone.key = h.name, h.key
	_, _, err := clone.tryConnect()
	wantCode(t, "another machine with the same key", err, mesh.CodeConflict, "machine id", "cloned")
	if h.link.reasons() != "" || h.row().State != mesh.NodeEnrolled {
		t.Errorf("the first link was closed: %q", h.link.reasons())
	}
	if !strings.Contains(strings.Join(h.link.told, ""), "another machine id") {
		t.Errorf("the first machine was told %q", h.link.told)
	}
	_, _, err = clone.tryConnect()
	wantCode(t, "the same again", err, mesh.CodeConflict)
	if n := strings.Count(strings.Join(h.events(), " "), string(control.EventCloned)); n != 1 || len(h.link.told) != 1 {
		t.Errorf("%d events were raised for the same clone and the first was told %d times: %v", n, len(h.link.told), h.events())
	}

	first := h.link
	h.connect()
	if !strings.HasPrefix(first.reasons(), "replaced") {
		t.Errorf("the same machine dialled again and its former link was closed with %q", first.reasons())
	}
	h.p.Disconnect(h.name, first)
	if h.row().State != mesh.NodeEnrolled {
		t.Error("the end of the former link took the newer one with it")
	}

	twin := machine(p, "web-1")
	twin.name, twin.boot = h.name, "another boot"
	twin.connect()
	_, _, err = h.tryConnect()
	wantCode(t, "a boot that was superseded and comes back", err, mesh.CodeConflict, "in turn")
}

// Shows: M31
func TestARevokedNodeIsRefusedEverywhereAndItsLinkIsClosed(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "0")))
	h.apply()
	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	if note := h.row().Note; note != "the machine may still be running g1" {
		t.Errorf("the row says %q", note)
	}
	if !strings.HasPrefix(h.link.reasons(), "revoked") {
		t.Errorf("the link was closed with %q", h.link.reasons())
	}
	for range 2 {
		_, err := p.NodeByKey(context.Background(), h.key)
		wantCode(t, "the key", err, mesh.CodeDenied)
		wantCode(t, "a frame", h.try(mesh.FrameHeartbeat, mesh.Heartbeat{}), mesh.CodeDenied)
		_, _, err = h.tryConnect()
		wantCode(t, "a link", err, mesh.CodeDenied)
		if row := h.row(); row.State != mesh.NodeRevoked {
			t.Errorf("the node is %s", row.State)
		}
		p.restart()
	}
	wantCode(t, "revoking again", p.Revoke(context.Background(), root, "web-1"), mesh.CodeConflict)
	wantCode(t, "revoking nobody", p.Revoke(context.Background(), root, "nobody"), mesh.CodeNotFound)
	if got := p.declare(doc("web", "", file("/a", "1"))); got.Nodes != 0 {
		t.Errorf("a revoked node was given a generation")
	}
}

func TestAHostIsAskedForWhatIsHeldDifferently(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	h.disconnect()
	if welcome, _ := h.connect(); len(welcome.Want) != 0 || welcome.Protocol != 1 || welcome.Now.IsZero() {
		t.Errorf("nothing has changed, and the welcome is %+v", welcome)
	}
	hello := h.hello()
	hello.ProfileDigest, hello.InventoryDigest, hello.Ledger, hello.OwnedDigest = "p", "i", "l", "o"
	welcome, _, err := p.Connect(context.Background(), h.name, hello, &link{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{mesh.WantProfile, mesh.WantInventory, mesh.WantBriefing, mesh.WantReport, mesh.WantOwned}
	if !slices.Equal(welcome.Want, want) {
		t.Errorf("everything has changed, and asked for is %v", welcome.Want)
	}
	changed := h.e.Profile
	changed.Kernel = "6.1"
	h.say(mesh.FrameProfile, changed)
	h.e.Profile = changed
	if welcome, _ := h.connect(); slices.Contains(welcome.Want, mesh.WantProfile) {
		t.Errorf("the profile came, and is asked for again: %v", welcome.Want)
	}
}

func TestAHostThatSpeaksNoCommonProtocolIsRefusedWithWhatToDo(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	hello := h.hello()
	hello.ProtocolMin, hello.ProtocolMax = 7, 9
	_, _, err := p.Connect(context.Background(), h.name, hello, &link{})
	wantCode(t, "protocols 7 to 9", err, mesh.CodeInvalid, "upgrade the older")
	hello = h.hello()
	hello.Node = "other"
	_, _, err = p.Connect(context.Background(), h.name, hello, &link{})
	wantCode(t, "another name", err, mesh.CodeInvalid, "other", "web-1")
}

func TestAGenerationThatAHostRefusedIsShownAndNotPushedAgain(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	d := h.pending()
	h.say(mesh.FrameReceived, mesh.Received{Generation: d.Generation, Refused: "resources[0]: fault", Held: 0})
	h.disconnect()
	p.restart()
	h.connect()
	wantPending(t, h, "nothing")
	row := h.row()
	if len(row.Failed) != 1 || !strings.Contains(row.Failed[0].Detail, "fault") || row.Outstanding.Undelivered != 0 {
		t.Errorf("the row is %+v", row)
	}
	p.declare(doc("web", "", file("/a", "2")))
	wantPending(t, h, "g2 [file:/a] released []")
}

func TestHostileFramesAreRefusedAndUnknownOnesIgnored(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	ctx := context.Background()
	wantCode(t, "a body that is no JSON", p.Handle(ctx, h.name, h.store, mesh.Frame{Type: mesh.FrameReport, Seq: 1, Body: []byte("{")}), mesh.CodeInvalid)
	wantCode(t, "a status that is none", h.try(mesh.FrameReport, mesh.Report{State: mesh.GenerationApplied, Results: []mesh.Result{{Resource: "file:/a", Status: "fine"}}}), mesh.CodeInvalid)
	wantCode(t, "a state that is none", h.try(mesh.FrameReport, mesh.Report{State: "great"}), mesh.CodeInvalid)
	wantCode(t, "a digest that is none", h.try(mesh.FrameReport, mesh.Report{State: mesh.GenerationApplied, Results: []mesh.Result{{Resource: "file:/a", Status: mesh.StatusOK, Want: "x"}}}), mesh.CodeInvalid)
	huge := h.e.Profile
	huge.Kernel = strings.Repeat("x", 1<<20)
	wantCode(t, "a profile of a megabyte", h.try(mesh.FrameProfile, huge), mesh.CodeInvalid)
	stranger := machine(p, "stranger")
	stranger.e.Profile = huge
	_, err := stranger.enrol(control.TokenRequest{})
	wantCode(t, "an enrolment with a profile of a megabyte", err, mesh.CodeInvalid)
	if err := p.Handle(ctx, h.name, h.store, mesh.Frame{Type: "telepathy", Body: []byte("{}")}); err != nil {
		t.Errorf("an unknown type gave %v", err)
	}
	if err := p.Handle(ctx, h.name, h.store, mesh.Frame{Type: mesh.FrameEvent, Seq: 99, Body: []byte(`{"kind":"drift","detail":"` + strings.Repeat("x", 1<<20) + `","from_the_future":1}`)}); err != nil {
		t.Errorf("an unknown field and a long detail gave %v", err)
	}
	if detail := h.detail().Events[0].Detail; len(detail) > 4<<10 {
		t.Errorf("%d bytes of detail are kept", len(detail))
	}
}

// stubbornStore does not take the next generations that are written.
type stubbornStore struct {
	control.Store
	refuse *int
}

func (s stubbornStore) WriteGenerations(ctx context.Context, generations []control.GenerationRecord) error {
	if *s.refuse > 0 {
		*s.refuse--
		return errors.New("the disk is full")
	}
	return s.Store.WriteGenerations(ctx, generations)
}

// Shows: M6
func TestWhatFollowsFromAMessageIsDoneAlsoWhenItComesAgain(t *testing.T) {
	old := mesh.ResourceID("file:/old")
	owned := mesh.OwnedChange{Owned: []mesh.Owned{{Resource: old, Made: mesh.MadeCreated}}}
	report := mesh.Report{Generation: 1, State: mesh.GenerationApplied, Kept: []mesh.ResourceID{old}}
	for name, again := range map[string]struct {
		kind mesh.FrameType
		body any
	}{
		"a change of what the node owns": {mesh.FrameOwned, owned},
		"a report of what it kept":       {mesh.FrameReport, report},
	} {
		t.Run(name, func(t *testing.T) {
			refuse := 0
			p := &plane{t: t, dir: t.TempDir(), now: time.Unix(1_800_000_000, 0)}
			p.wrap = func(s control.Store) control.Store { return stubbornStore{s, &refuse} }
			p.start()
			t.Cleanup(p.stop)
			h := join(p, "web-1", nil)
			p.declare(doc("web", "", file("/a", "1")))
			h.apply()

			refuse = 2
			first, second := h.try(mesh.FrameOwned, owned), h.try(mesh.FrameReport, report)
			if first == nil || second == nil {
				t.Fatalf("the messages were taken although nothing could be written: %v, %v", first, second)
			}
			if again.kind == mesh.FrameOwned {
				h.seq -= 2 // neither was acknowledged, and both come again
			} else {
				h.seq--
			}
			h.say(again.kind, again.body)

			wantPending(t, h, "g2 [file:/a] released [file:/old]")
		})
	}
}

func TestNumbersThatNobodyCanHaveCountedAreRefusedAndDoNoHarm(t *testing.T) {
	const beyond = 1 << 63
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	for name, frame := range map[string]struct {
		kind mesh.FrameType
		body any
	}{
		"a receipt of a generation":      {mesh.FrameReceived, mesh.Received{Generation: beyond, Held: beyond}},
		"a refusal of a generation":      {mesh.FrameReceived, mesh.Received{Generation: beyond, Refused: "no"}},
		"a report of a generation":       {mesh.FrameReport, mesh.Report{Generation: beyond, State: mesh.GenerationFailed}},
		"a report of a pass":             {mesh.FrameReport, mesh.Report{Generation: 1, Pass: beyond, State: mesh.GenerationFailed}},
		"a result in a generation":       {mesh.FrameReport, mesh.Report{Generation: 1, State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/b", Status: mesh.StatusFailed, Generation: beyond}}}},
		"something owned since":          {mesh.FrameOwned, mesh.OwnedChange{Owned: []mesh.Owned{{Resource: "file:/b", Generation: beyond}}}},
		"a heartbeat with as much drift": {mesh.FrameHeartbeat, mesh.Heartbeat{Drift: beyond}},
		"a heartbeat that holds":         {mesh.FrameHeartbeat, mesh.Heartbeat{Held: beyond}},
	} {
		wantCode(t, name, h.try(frame.kind, frame.body), mesh.CodeInvalid, "nobody")
	}
	f, err := mesh.NewFrame(mesh.FrameEvent, beyond, mesh.Event{Kind: mesh.EventDrift})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, "an event of that number", p.Handle(t.Context(), h.name, h.store, f), mesh.CodeInvalid, "nobody")
	h.disconnect()
	h.held = beyond
	_, _, err = h.tryConnect()
	wantCode(t, "a hello", err, mesh.CodeInvalid, "nobody")
	newcomer := machine(p, "web-2")
	newcomer.e.Held = beyond
	_, err = newcomer.enrol(control.TokenRequest{})
	wantCode(t, "an enrolment", err, mesh.CodeInvalid, "nobody")

	// What is stored can be read again: contacts, and all at the next start.
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	p.restart()
	h.held = 1
	h.connect()
	if row, detail := h.row(), h.detail(); row.Declared != 1 || len(row.Failed) != 0 || len(detail.Results) != 1 {
		t.Errorf("the node is %+v with results %+v", row, detail.Results)
	}
}

// Shows: M9, M29
func TestWhatTheLinkOfALostStoreHadStillSaidDoesNotCountForTheNewOne(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	p.declare(doc("web", "", file("/a", "2")))
	before := h.store
	h.store, h.seq, h.held, h.owned = "new store", 0, 0, nil
	h.connect()

	late, err := mesh.NewFrame(mesh.FrameReceived, 0, mesh.Received{Generation: 2, Held: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Handle(t.Context(), h.name, before, late); err == nil {
		t.Error("a frame of the store that was lost is taken")
	}

	wantPending(t, h, "g2 [file:/a] released []")
	h.disconnect()
	if _, recovery := h.connect(); recovery == nil {
		t.Error("the new store gets no recovery copy")
	}
}

// Shows: M4, M9
func TestAMachineThatWasPutBackToAnEarlierMomentIsNotCalledAppliedForWhatItSaidLater(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	before := *h
	p.declare(doc("web", "", file("/a", "2")))
	h.apply()
	h.disconnect()

	// The machine comes back as it was: its store holds g1 and goes on numbering
	// where it was then.
	h.held, h.seq, h.owned = before.held, before.seq, before.owned
	h.connect()
	h.receive()
	if row := h.row(); row.Outstanding.Delivered != 1 || row.Applied == 2 {
		t.Errorf("a machine that has only received g2 is shown as %+v", row)
	}
	if !slices.Contains(h.events(), string(control.EventPutBack)) {
		t.Errorf("events are %v", h.events())
	}
	h.say(mesh.FrameReport, mesh.Report{Generation: 2, State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/a", Status: mesh.StatusFailed, Reason: mesh.ReasonIO, Generation: 2}}})
	p.restart()
	if row := h.row(); len(row.Failed) != 1 || row.Outstanding != (control.OutstandingView{}) {
		t.Errorf("after it has failed the machine is shown as %+v", row)
	}
}

// Shows: M4, M9
func TestANodeThatLostItsStoreHasAppliedNothingUntilItSaysSo(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	h.disconnect()

	h.store, h.seq, h.held, h.owned = "new store", 0, 0, nil
	h.connect()
	h.receive()

	if row := h.row(); row.Outstanding.Delivered != 1 || row.Applied != 0 {
		t.Errorf("a node whose new store has only received g1 is shown as %+v", row)
	}
	h.disconnect()
	p.restart()
	if row := h.row(); row.Outstanding.Delivered != 1 || row.Applied != 0 {
		t.Errorf("after a restart it is shown as %+v", row)
	}
}
