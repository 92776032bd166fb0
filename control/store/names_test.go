package store

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func TestNamesThatNothingRefersToAreForgotten(t *testing.T) {
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
	const each, rounds = 100, 5
	for round := range rounds {
		r := mesh.Report{Full: true, State: mesh.GenerationApplied}
		for i := range each {
			r.Results = append(r.Results, mesh.Result{Resource: mesh.ResourceID(fmt.Sprintf("file:/%d-%d", round, i)), Status: mesh.StatusOK})
		}
		// A name that is only said to be gone is not kept at all.
		r.Gone = []mesh.ResourceID{mesh.ResourceID(fmt.Sprint("file:/never-", round))}
		// As after so many names that it is time to look.
		if err := s.write(t.Context(), func(w *writer) error { w.made = sweepAfter; return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := s.StoreReport(t.Context(), control.ReportTx{Node: "n", Report: r, State: r.State, At: now}); err != nil {
			t.Fatal(err)
		}
	}
	var names, results int
	if err := s.db.QueryRow("SELECT (SELECT count(*) FROM resources), (SELECT count(*) FROM results)").Scan(&names, &results); err != nil {
		t.Fatal(err)
	}
	if results != each || names > 2*each {
		t.Errorf("after %d names that came and went, %d are kept for %d results", rounds*each, names, results)
	}
}
