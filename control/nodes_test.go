package control_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func failedResult(id mesh.ResourceID, g mesh.Generation) mesh.Result {
	return mesh.Result{Resource: id, Status: mesh.StatusFailed, Reason: mesh.ReasonNotAvailable, Detail: "no repository has it", Generation: g}
}

// Shows: M9
func TestUndeliveredDeliveredAndFailedAreCountedSeparately(t *testing.T) {
	p := newPlane(t)
	var hosts []*host
	for _, name := range []string{"applied", "away", "busy", "failed"} {
		hosts = append(hosts, join(p, name, nil))
	}
	applied, away, busy, failed := hosts[0], hosts[1], hosts[2], hosts[3]
	away.disconnect()
	p.declare(doc("web", "", file("/a", "1")))
	applied.apply()
	busy.receive()
	d := failed.receive()
	failed.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationFailed, Results: []mesh.Result{failedResult("file:/a", d.Generation)}})

	for _, tt := range []struct {
		h           *host
		state       mesh.NodeState
		applied     mesh.Generation
		outstanding control.OutstandingView
		failed      int
	}{
		{applied, mesh.NodeEnrolled, 1, control.OutstandingView{}, 0},
		{away, mesh.NodeDisconnected, 0, control.OutstandingView{Undelivered: 1}, 0},
		{busy, mesh.NodeEnrolled, 0, control.OutstandingView{Delivered: 1}, 0},
		{failed, mesh.NodeEnrolled, 0, control.OutstandingView{}, 1},
	} {
		row := tt.h.row()
		if row.State != tt.state || row.Applied != tt.applied || row.Outstanding != tt.outstanding || len(row.Failed) != tt.failed || row.Declared != 1 {
			t.Errorf("%s shows as %+v", tt.h.name, row)
		}
	}
	progress, err := p.Progress(context.Background(), "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	failures := progress.Failures
	progress.Failures = nil
	want := control.Progress{Declaration: "web", Revision: 1, Nodes: 4, Applied: 1, Outstanding: 2, Undelivered: 1, Failed: 1}
	if fmt.Sprint(progress) != fmt.Sprint(want) {
		t.Errorf("progress is %+v, want %+v", progress, want)
	}
	if len(failures) != 1 || failures[0].Node != "failed" || failures[0].Resource != "file:/a" || failures[0].Reason != mesh.ReasonNotAvailable {
		t.Errorf("failures are %+v", failures)
	}
}

// Shows: M8, M9
func TestProgressIsAboutTheNodesOfTheDeclarationAndOfItsRevision(t *testing.T) {
	p := newPlane(t)
	web := join(p, "web-1", map[string]string{"role": "web"})
	db := join(p, "db-1", map[string]string{"role": "db"})
	p.declare(doc("web", `labels.role == "web"`, file("/a", "1")))
	p.declare(doc("db", `labels.role == "db"`, file("/a", "1")))
	web.apply()
	check := func(when string, revision int64, nodes, applied int) {
		t.Helper()
		got, err := p.Progress(context.Background(), "web", revision)
		if err != nil || got.Nodes != nodes || got.Applied != applied {
			t.Errorf("%s: %+v, %v; want %d nodes, %d applied", when, got, err, nodes, applied)
		}
	}
	check("revision 1", 0, 1, 1)
	p.declare(doc("web", `labels.role == "nothing"`, file("/a", "1")))
	check("a node that is no longer selected and has not removed it", 0, 1, 0)
	web.apply()
	check("and has", 0, 1, 1)
	check("revision 1, superseded", 1, 1, 1)
	db.apply()
	check("after another declaration was applied", 0, 1, 1)
	if _, err := p.Progress(context.Background(), "none", 0); mesh.CodeOf(err) != mesh.CodeNotFound {
		t.Errorf("progress of nothing gave %v", err)
	}
}

// Shows: M4
func TestNothingIsShownAsAppliedWithoutAReportThatSaysSoAndIsConsistent(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	d := h.receive()
	h.say(mesh.FrameHeartbeat, mesh.Heartbeat{Held: 1, Applied: 1, Ledger: "x"})
	hello := h.hello()
	hello.Applied = 1
	if _, _, err := p.Connect(context.Background(), h.name, hello, &link{}); err != nil {
		t.Fatal(err)
	}
	if row := h.row(); row.Applied != 0 || row.Outstanding.Delivered != 1 {
		t.Errorf("without a report the row is %+v", row)
	}
	h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied, Results: []mesh.Result{failedResult("file:/a", 1)}})
	if row := h.row(); row.Applied != 0 || len(row.Failed) != 1 {
		t.Errorf("a report that contradicts itself shows as %+v", row)
	}
	h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied, Results: []mesh.Result{{Resource: "file:/a", Status: mesh.StatusOK}}})
	if row := h.row(); row.Applied != 1 || len(row.Failed) != 0 {
		t.Errorf("a report that says so shows as %+v", row)
	}
	p.declare(doc("web", "", file("/a", "2")))
	if row := h.row(); row.Applied != 1 || row.Declared != 2 || row.Outstanding.Undelivered != 1 {
		t.Errorf("after the next write the row is %+v", row)
	}
}

// Shows: M10
func TestLastContactComesFromAnyFrameAndHasNoThreshold(t *testing.T) {
	p := newPlane(t)
	h := join(p, "laptop", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	p.later(time.Hour)
	seen := p.clock()
	h.say(mesh.FrameHeartbeat, mesh.Heartbeat{Drift: 3})
	h.disconnect()
	p.later(21 * 24 * time.Hour)
	row := h.row()
	if !row.LastContact.Equal(seen) || row.State != mesh.NodeDisconnected {
		t.Errorf("after three weeks the row is %+v", row)
	}
	if row.Applied != 1 || row.Outstanding != (control.OutstandingView{}) || len(row.Failed) != 0 || !row.Eligible {
		t.Errorf("silence counts against the node: %+v", row)
	}
}

// Shows: M22
func TestANodeIsEnrolledOrDisconnectedAndAfterARestartAllAreDisconnected(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", map[string]string{"role": "web"})
	p.declare(doc("web", "", file("/a", "1")))
	h.apply()
	before := h.detail()
	p.restart()
	after := h.detail()
	if before.State != mesh.NodeEnrolled || after.State != mesh.NodeDisconnected {
		t.Errorf("states are %s and %s", before.State, after.State)
	}
	before.State, before.LedgerAgrees = after.State, after.LedgerAgrees
	if fmt.Sprintf("%+v", before) != fmt.Sprintf("%+v", after) {
		t.Errorf("a restart changed what is known\nfrom %+v\nto   %+v", before, after)
	}
}

func TestAMessageThatComesTwiceIsRecordedOnceAlsoAfterARestart(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	frame, err := mesh.NewFrame(mesh.FrameEvent, 5, mesh.Event{Kind: mesh.EventDrift, Resource: "file:/a", Detail: "d"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := p.Handle(context.Background(), h.name, h.store, frame); err != nil {
			t.Errorf("a message that came again gave %v", err)
		}
		p.restart()
	}
	kinds := h.events()
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return k != string(mesh.EventDrift) })
	if len(kinds) != 1 {
		t.Errorf("the event was recorded %d times", len(kinds))
	}
}

func TestTheLedgerAgreesWhenTheHeartbeatHasTheDigestOfTheResultsHere(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	results := []mesh.Result{{Resource: "file:/a", Status: mesh.StatusOK}}
	h.say(mesh.FrameReport, mesh.Report{State: mesh.GenerationApplied, Results: results})
	h.say(mesh.FrameHeartbeat, mesh.Heartbeat{Ledger: mesh.LedgerDigest(results), Drift: 4})
	if d := h.detail(); !d.LedgerAgrees || d.Drift != 4 {
		t.Errorf("with the right digest: %+v", d)
	}
	h.say(mesh.FrameHeartbeat, mesh.Heartbeat{Ledger: mesh.LedgerDigest(nil)})
	if d := h.detail(); d.LedgerAgrees {
		t.Error("with another digest the ledger still agrees")
	}
}

// countingStore counts the writes of last contacts.
type countingStore struct {
	control.Store
	mu       sync.Mutex
	contacts int
}

func (s *countingStore) StoreContacts(_ context.Context, contacts []control.Contact) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contacts += len(contacts)
	return nil
}

// memoryStore gives New one node, and nothing else.
func (s *countingStore) Nodes(context.Context) ([]control.NodeRecord, error) {
	return []control.NodeRecord{{Name: "web-1", State: mesh.NodeEnrolled}}, nil
}
func (s *countingStore) Identities(context.Context) ([]control.IdentityRecord, error) {
	return nil, nil
}
func (s *countingStore) Crowded() <-chan struct{}                                    { return nil }
func (s *countingStore) Operators(context.Context) ([]control.OperatorRecord, error) { return nil, nil }
func (s *countingStore) Declarations(context.Context) ([]control.Revision, error)    { return nil, nil }

// Shows: M3
func TestHeartbeatsAreStoredAtMostOnceAMinuteAndOnceMoreAtTheEnd(t *testing.T) {
	p := newPlane(t)
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{}
		c, err := control.New(t.Context(), control.Config{Store: s, Blobs: p.blobs})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		beat, err := mesh.NewFrame(mesh.FrameHeartbeat, 0, mesh.Heartbeat{})
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			time.Sleep(7 * time.Second)
			if err := c.Handle(t.Context(), "web-1", "s", beat); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the end gave %v", err)
		}
		if s.contacts != 3 {
			t.Errorf("25 heartbeats in just under three minutes were stored %d times, want 2 and once at the end", s.contacts)
		}
	})
}

// linkStore counts the writes of what nodes say of themselves by the way, and
// how often it is asked for what a node gets.
type linkStore struct {
	control.Store
	written, asked *int
}

func (s linkStore) StoreLink(ctx context.Context, tx control.LinkTx) error {
	*s.written++
	return s.Store.StoreLink(ctx, tx)
}

func (s linkStore) Compiled(ctx context.Context, node string, generation mesh.Generation) (mesh.Declaration, error) {
	*s.asked++
	return s.Store.Compiled(ctx, node, generation)
}

func TestOnlyForALinkThatCameLaterIsTheStoreAskedWhatANodeGets(t *testing.T) {
	p := newPlane(t)
	written, asked := 0, 0
	p.wrap = func(s control.Store) control.Store { return linkStore{s, &written, &asked} }
	p.restart()
	h := join(p, "web-1", nil)
	h.connect()
	p.declare(doc("web", "", file("/a", "1"), file("/b", "2")))
	wantPending(t, h, "g1 [file:/a file:/b] released []")
	p.declare(doc("web", "", file("/a", "1")))
	wantPending(t, h, "g2 [file:/a] released []")
	if asked != 0 {
		t.Errorf("for an open link the store was asked %d times what was written a moment ago", asked)
	}

	h.disconnect()
	h.connect()

	wantPending(t, h, "g2 [file:/a] released []")
	if asked != 1 {
		t.Errorf("for a link that came later the store was asked %d times, want once", asked)
	}
}

func TestWhatANodeReceivedIsStoredWithItsLastContactAndNotByItself(t *testing.T) {
	p := newPlane(t)
	written, asked := 0, 0
	p.wrap = func(s control.Store) control.Store { return linkStore{s, &written, &asked} }
	p.restart()
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.connect()
	before := written
	p.later(time.Second)

	h.receive()

	if written != before {
		t.Errorf("a receipt of what was written for the node was stored %d times by itself", written-before)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	p.restart()
	if row := h.row(); row.Held != 1 || row.Outstanding.Delivered != 1 {
		t.Errorf("after a restart the node is shown as %+v, want generation 1 delivered", row)
	}
}

func TestEverythingMayHappenAtTheSameTime(t *testing.T) {
	p := newPlane(t)
	var hosts []*host
	for i := range 8 {
		hosts = append(hosts, join(p, fmt.Sprintf("web-%d", i), map[string]string{"role": "web"}))
	}
	var wg sync.WaitGroup
	for _, h := range hosts {
		wg.Go(func() {
			for range 10 {
				if d := h.pending(); d != nil {
					h.held = d.Generation
					h.say(mesh.FrameReceived, mesh.Received{Generation: d.Generation, Held: d.Generation})
					h.say(mesh.FrameOwned, mesh.OwnedChange{Owned: []mesh.Owned{{Resource: "file:/a", Made: mesh.MadeCreated}}})
					h.say(mesh.FrameReport, mesh.Report{Generation: d.Generation, State: mesh.GenerationApplied, Results: []mesh.Result{{Resource: "file:/a", Status: mesh.StatusOK}}})
				}
				h.say(mesh.FrameHeartbeat, mesh.Heartbeat{})
				h.say(mesh.FrameBriefing, h.e.Briefing)
			}
		})
	}
	wg.Go(func() {
		for i := range 10 {
			if _, err := p.Declare(context.Background(), root, doc("web", `labels.role == "web"`, file("/a", fmt.Sprint(i)))); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range 10 {
			if _, err := p.Nodes(context.Background()); err != nil {
				t.Error(err)
			}
			if _, err := p.Progress(context.Background(), "web", 0); err != nil && mesh.CodeOf(err) != mesh.CodeNotFound {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	for _, h := range hosts {
		if h.row().Outstanding.Undelivered == 1 {
			h.apply()
		}
		if row := h.row(); row.Declared != 10 || row.Applied != 10 {
			t.Errorf("%s ended as %+v", h.name, row)
		}
	}
}

// Shows: M9
func TestAMessageThatCanNeverBeTakenIsAnEventOnceAndNotOnlyALineInALog(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	for range 3 {
		wantCode(t, "a result of no status", h.try(mesh.FrameReport, mesh.Report{State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/a", Status: "splendid"}}}), mesh.CodeInvalid)
	}

	var dropped []control.EventView
	for _, e := range h.detail().Events {
		if e.Kind == control.EventDropped {
			dropped = append(dropped, e)
		}
	}

	if len(dropped) != 1 || !strings.Contains(dropped[0].Detail, "report") || !strings.Contains(dropped[0].Detail, "splendid") {
		t.Errorf("the events of dropped messages are %+v, want one that says what and why", dropped)
	}
}

func TestWhatWasDoneIsInTheAuditLogAlsoWhenNobodyWaitsForTheAnswer(t *testing.T) {
	p := newPlane(t)
	ctx, leave := context.WithCancel(t.Context())
	content := "large"
	sum := sha256.Sum256([]byte(content))

	uploaded := p.PutBlob(ctx, root, hex.EncodeToString(sum[:]), &parting{text: content, leave: leave})
	published := p.RecordRepository(ctx, root, "packages published", "stable: deb fx 1-1 all")

	entries, err := p.Audit(t.Context(), 10)
	if err := errors.Join(uploaded, published, err); err != nil {
		t.Fatal(err)
	}
	var what []string
	for _, e := range entries {
		what = append(what, e.What)
	}
	if got := strings.Join(what, ", "); got != "packages published, content uploaded" {
		t.Errorf("the audit log has %q", got)
	}
}

// parting gives its text, after which whoever sent it has gone.
type parting struct {
	text  string
	leave context.CancelFunc
}

func (r *parting) Read(p []byte) (int, error) {
	if r.text == "" {
		r.leave()
		return 0, io.EOF
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

func TestWhatAToolWroteIsToldOfOneNodeAndNotInTheListOfAll(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/a", "1")))
	h.receive()
	h.say(mesh.FrameReport, mesh.Report{Generation: 1, State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/a", Status: mesh.StatusFailed, Reason: mesh.ReasonIO, Detail: "why", Output: "a page of words", Generation: 1}}})

	progress, err := p.Progress(t.Context(), "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	for where, f := range map[string][]control.FailedView{"the list": h.row().Failed, "progress": progress.Failures} {
		if len(f) != 1 || f[0].Detail != "why" || f[0].Output != "" {
			t.Errorf("%s has %+v, want the reason and not the output", where, f)
		}
	}
	if f := h.detail().Failed; len(f) != 1 || f[0].Output != "a page of words" {
		t.Errorf("the node by itself has %+v, want the output too", f)
	}
}
