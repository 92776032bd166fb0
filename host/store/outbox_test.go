package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/internal/frame"
)

func TestMessagesStayInOrderUntilTheyAreAcknowledgedAndNumbersAreNeverUsedAgain(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	for i := range 4 {
		must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift, Detail: fmt.Sprint(i)}))
	}
	st = reopen(t, st, dir)
	frames := next(t, st)
	if len(frames) != 4 {
		t.Fatalf("%d messages are left", len(frames))
	}
	for i, f := range frames {
		if e := body[mesh.Event](t, f); e.Detail != fmt.Sprint(i) || f.Type != mesh.FrameEvent || (i > 0 && f.Seq <= frames[i-1].Seq) {
			t.Errorf("message %d is %+v with number %d", i, e, f.Seq)
		}
	}
	last := frames[3].Seq
	must(t, st.Acked(t.Context(), frames[1].Seq))
	if left := next(t, st); len(left) != 2 || left[0].Seq != frames[2].Seq {
		t.Errorf("after an ack of the second there are %+v", left)
	}
	if some, err := st.Next(t.Context(), frames[2].Seq, 10); err != nil || len(some) != 1 {
		t.Errorf("after the third there are %+v, %v", some, err)
	}
	must(t, st.Acked(t.Context(), last))
	st = reopen(t, st, dir)
	must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift}))
	if f := next(t, st); len(f) != 1 || f[0].Seq <= last {
		t.Errorf("after all were acknowledged up to %d there is %+v", last, f)
	}
}

func TestMessagesThatWaitAreSignalledAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	<-st.Changed()
	must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift}))
	must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift}))
	select {
	case <-st.Changed():
	default:
		t.Error("a message was added and nobody is woken")
	}
	st = reopen(t, st, dir)
	select {
	case <-st.Changed():
	default:
		t.Error("messages of an earlier life wait and nobody is woken")
	}
}

func TestAFullReportSaysEverythingAndWhatFollowsOnlyWhatChanged(t *testing.T) {
	st := open(t, t.TempDir())
	pass(t, st, decided("file:/a", mesh.StatusOK), decided("file:/b", mesh.StatusOK))
	drain(t, st)
	must(t, st.AddFullReport(t.Context()))
	frames := drain(t, st)
	full := body[mesh.Report](t, frames[0])
	if len(frames) != 1 || !full.Full || len(full.Results) != 2 || full.State != mesh.GenerationApplied {
		t.Fatalf("the full report is %+v", full)
	}
	pass(t, st, decided("file:/a", mesh.StatusOK), decided("file:/b", mesh.StatusOK))
	if frames := drain(t, st); len(frames) != 0 {
		t.Errorf("nothing changed and %s is said", frames[0].Body)
	}
	pass(t, st, decided("file:/a", mesh.StatusOK), decided("file:/b", mesh.StatusChanged))
	r := body[mesh.Report](t, drain(t, st)[0])
	if r.Full || len(r.Results) != 1 || r.Results[0].Resource != "file:/b" {
		t.Errorf("one resource changed and %+v is said", r)
	}
}

func TestAFullReportInTheMiddleOfAPassDoesNotHideItsEnd(t *testing.T) {
	st := open(t, t.TempDir())
	pass(t, st, decided("file:/a", mesh.StatusOK))
	drain(t, st)
	n, err := st.BeginPass(t.Context(), pending("file:/a"), nil)
	must(t, err)
	must(t, st.AddFullReport(t.Context()))
	if r := body[mesh.Report](t, drain(t, st)[0]); r.Results[0].Status != mesh.StatusPending {
		t.Errorf("the report in the middle says %+v", r.Results)
	}
	must(t, st.Record(t.Context(), []reconcile.Record{decided("file:/a", mesh.StatusOK)}))
	must(t, st.EndPass(t.Context(), reconcile.End{Pass: n, Generation: 1, Trigger: mesh.TriggerDrift, State: mesh.GenerationApplied}))
	frames := drain(t, st)
	if len(frames) != 1 {
		t.Fatalf("%d messages at the end", len(frames))
	}
	if r := body[mesh.Report](t, frames[0]); len(r.Results) != 1 || r.Results[0].Status != mesh.StatusOK {
		t.Errorf("the end says %+v", r.Results)
	}
}

// Shows: M29
func TestTheRecoveryCopyTravelsInChangesAndComesBackWhole(t *testing.T) {
	st := open(t, t.TempDir())
	first := mesh.Owned{Resource: "file:/a", Made: mesh.MadeReplaced, Generation: 1, Wrote: []byte(`"w"`), Undo: []byte(`"u"`)}
	second := mesh.Owned{Resource: "file:/b", Made: mesh.MadeCreated, Generation: 1}
	a, b := decided("file:/a", mesh.StatusChanged), decided("file:/b", mesh.StatusChanged)
	a.Owned, b.Owned = &first, &second
	pass(t, st, a, b)
	copied := map[mesh.ResourceID]mesh.Owned{}
	take := func() {
		for _, f := range drain(t, st) {
			if f.Type != mesh.FrameOwned {
				continue
			}
			change := body[mesh.OwnedChange](t, f)
			if change.Full {
				clear(copied)
			}
			for _, o := range change.Owned {
				copied[o.Resource] = o
			}
			for _, id := range change.Gone {
				delete(copied, id)
			}
		}
	}
	take()
	gone := decided("file:/b", mesh.StatusRemoved)
	gone.Forget = true
	pass(t, st, decided("file:/a", mesh.StatusOK), gone)
	take()
	if _, still := copied["file:/b"]; still || len(copied) != 1 {
		t.Fatalf("the copy holds %v", copied)
	}

	other := open(t, t.TempDir())
	wrong := mesh.Owned{Resource: "file:/a", Made: mesh.MadeExisted, Generation: 9}
	r := decided("file:/a", mesh.StatusOK)
	r.Owned = &wrong
	pass(t, other, r)
	must(t, other.Recover(t.Context(), []mesh.Owned{copied["file:/a"]}))
	got, err := other.Owned(t.Context(), "file:/a")
	must(t, err)
	if got.Made != mesh.MadeReplaced || string(got.Undo) != `"u"` || string(got.Wrote) != `"w"` || got.Generation != 1 {
		t.Errorf("after the store was lost and recovered it holds %+v", got)
	}
}

// Shows: M29
func TestWhatIsTooLargeToTravelIsMarkedAndStaysOnTheHost(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	large := json.RawMessage(`"` + strings.Repeat("u", 5<<20) + `"`)
	middling := json.RawMessage(`"` + strings.Repeat("u", 3<<20) + `"`)
	var records []reconcile.Record
	for i, undo := range []json.RawMessage{large, middling, middling, middling, middling} {
		r := decided(mesh.ResourceID(fmt.Sprintf("file:/%d", i)), mesh.StatusChanged)
		r.Owned = &mesh.Owned{Resource: r.Result.Resource, Made: mesh.MadeReplaced, Generation: 1, Undo: undo}
		records = append(records, r)
	}
	pass(t, st, records...)
	var owned []mesh.Owned
	for _, f := range drain(t, st) {
		fits(t, f)
		if f.Type == mesh.FrameOwned {
			owned = append(owned, body[mesh.OwnedChange](t, f).Owned...)
		}
	}
	partial := 0
	for _, o := range owned {
		if o.Partial {
			partial++
		}
	}
	if len(owned) != 5 || partial != 1 || !owned[0].Partial || len(owned[0].Undo) != 0 {
		t.Errorf("%d travelled, %d of them partial", len(owned), partial)
	}
	whole, err := st.RecoveryCopy(t.Context())
	must(t, err)
	size := 0
	for _, o := range whole {
		size += len(o.Undo)
		if o.Partial != (len(o.Undo) == 0) {
			t.Errorf("%s: partial %v with %d bytes", o.Resource, o.Partial, len(o.Undo))
		}
	}
	if len(whole) != 5 || size > 9<<20 {
		t.Errorf("the copy in one piece has %d resources and %d bytes", len(whole), size)
	}
	state, err := st.State(t.Context())
	must(t, err)
	held, err := st.Owned(t.Context(), state.Owned[0].Resource)
	must(t, err)
	if !bytes.Equal(held.Undo, large) {
		t.Error("the host itself no longer holds the original")
	}

	other := open(t, t.TempDir())
	must(t, other.Recover(t.Context(), owned[:1]))
	if state, err := other.State(t.Context()); err != nil || !state.Owned[0].Partial {
		t.Errorf("it is forgotten that the copy is partial: %+v, %v", state.Owned, err)
	}
}

func fits(t *testing.T, f mesh.Frame) {
	t.Helper()
	var buf bytes.Buffer
	if err := frame.Write(&buf, f); err != nil {
		t.Errorf("a message of type %s cannot be sent: %v", f.Type, err)
	}
}

func TestEveryMessageFitsInAFrameHoweverMuchThereIsToSay(t *testing.T) {
	st := open(t, t.TempDir())
	var records []reconcile.Record
	for i := range 200 {
		r := decided(mesh.ResourceID(fmt.Sprintf("package:p%03d", i)), mesh.StatusFailed)
		r.Result.Output = strings.Repeat("\x01", 16<<10) // six bytes each as JSON
		r.Owned = &mesh.Owned{Resource: r.Result.Resource, Made: mesh.MadeCreated, Generation: 1, Wrote: []byte(`"` + strings.Repeat("w", 120<<10) + `"`)}
		records = append(records, r)
	}
	pass(t, st, records...)
	must(t, st.AddFullReport(t.Context()))
	must(t, st.AddFullOwned(t.Context()))
	var results, owned []mesh.ResourceID
	reports := 0
	var last mesh.Report
	for _, f := range drain(t, st) {
		fits(t, f)
		switch f.Type {
		case mesh.FrameReport:
			r := body[mesh.Report](t, f)
			if r.Full {
				reports++
				results = nil
			}
			if last.State == mesh.GenerationApplied && !r.Full {
				t.Error("a part said how the pass ended before everything was said")
			}
			for _, one := range r.Results {
				results = append(results, one.Resource)
			}
			last = r
		case mesh.FrameOwned:
			o := body[mesh.OwnedChange](t, f)
			if o.Full {
				owned = nil
			}
			for _, one := range o.Owned {
				owned = append(owned, one.Resource)
			}
		}
	}
	slices.Sort(results)
	slices.Sort(owned)
	if len(slices.Compact(results)) != 200 || len(slices.Compact(owned)) != 200 || reports != 2 || last.State != mesh.GenerationApplied {
		t.Errorf("%d results and %d owned arrived in %d full reports, the last part says %s", len(results), len(owned), reports, last.State)
	}
}

func TestTheGreatestNumberOfAMessageIsKnownAlsoWhenAllWereAcknowledged(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	sequence := func() uint64 {
		t.Helper()
		sum, err := st.Summary(t.Context())
		must(t, err)
		return sum.Sequence
	}
	if got := sequence(); got != 0 {
		t.Errorf("a new store has given number %d", got)
	}
	must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift}))
	must(t, st.AddEvent(t.Context(), mesh.Event{Kind: mesh.EventDrift}))
	waiting := next(t, st)
	last := waiting[len(waiting)-1].Seq
	must(t, st.Acked(t.Context(), last))
	st = reopen(t, st, dir)
	if got := sequence(); got != last {
		t.Errorf("the greatest number is %d, and the last message had %d", got, last)
	}
}
