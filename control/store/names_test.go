package store

import (
	"path/filepath"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func TestANameThatIsUsedWhileASweepLooksIsNotForgotten(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	if err := s.IssueToken(t.Context(), control.TokenRecord{Hash: "h", Issued: now, Expires: now}, control.AuditEntry{At: now}); err != nil {
		t.Fatal(err)
	}
	if err := s.Enrol(t.Context(), control.EnrolTx{TokenHash: "h", Key: "k", Node: control.NodeRecord{Name: "n", State: mesh.NodeEnrolled}, Audit: control.AuditEntry{At: now}, At: now}); err != nil {
		t.Fatal(err)
	}
	report := func(full bool, names ...mesh.ResourceID) {
		t.Helper()
		r := mesh.Report{Full: full, State: mesh.GenerationApplied}
		for _, name := range names {
			r.Results = append(r.Results, mesh.Result{Resource: name, Status: mesh.StatusOK})
		}
		if _, err := s.StoreReport(t.Context(), control.ReportTx{Node: "n", Report: r, State: r.State, At: now}); err != nil {
			t.Fatal(err)
		}
	}
	report(true, "file:/comes-back", "file:/gone")
	report(true, "file:/stays")
	if err := s.write(t.Context(), func(w *writer) error { w.used = make(map[int64]struct{}); return nil }); err != nil {
		t.Fatal(err)
	}
	unused, err := s.unusedNames(t.Context())
	if err != nil || len(unused) != 2 {
		t.Fatalf("names that nothing has: %v, %v", unused, err)
	}

	report(false, "file:/comes-back")
	n, err := s.dropNames(t.Context(), unused)

	if err != nil || n != 1 {
		t.Errorf("%d names were forgotten, %v", n, err)
	}
	results, err := s.Results(t.Context(), "n")
	if err != nil || len(results) != 2 {
		t.Errorf("the results are %+v, %v", results, err)
	}
	// References are looked at again.
	if err := s.write(t.Context(), func(w *writer) error {
		return w.exec(`DELETE FROM resources WHERE name = 'file:/stays'`)
	}); err == nil {
		t.Error("a name that a result has can be deleted")
	}
}

func TestManyNewNamesAskForASweepAtOnce(t *testing.T) {
	s := openHere(t)
	if err := s.RecordAudit(t.Context(), control.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Crowded():
		t.Fatal("a sweep is asked for although few names were made")
	default:
	}
	if err := s.write(t.Context(), func(w *writer) error { w.made = crowdedAfter; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Crowded():
	default:
		t.Error("no sweep is asked for")
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Crowded():
		t.Error("a sweep that did not happen is asked for with every write")
	default:
	}
	if _, err := s.ForgetNames(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if err := s.write(t.Context(), func(w *writer) error {
		if w.made != 0 || w.used != nil {
			t.Errorf("after the sweep %d names count as new, and %v as used", w.made, w.used)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
