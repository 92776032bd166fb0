package store

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func openHere(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestAWriteWhoseCallerGoesAwayHalfWaySaysWhatBecameOfIt(t *testing.T) {
	s := openHere(t)
	ctx, leave := context.WithCancel(t.Context())
	entry := control.AuditEntry{At: time.Unix(1, 0), Who: "anna", What: "declaration written"}

	err := s.write(ctx, func(w *writer) error {
		leave()
		return w.audit(entry)
	})

	written, readErr := s.Audit(t.Context(), 10)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if (err == nil) != (len(written) == 1) {
		t.Errorf("the write returned %v and %d entries are stored; a caller that is told otherwise keeps in memory what the store does not hold", err, len(written))
	}
}

func TestAFullDiskIsSaidAndWhatWasWrittenBeforeStays(t *testing.T) {
	s := openHere(t)
	// The file may not grow any more: to SQLite that is a full disk.
	full := func(w *writer) error {
		var pages int
		if err := w.row("PRAGMA page_count", nil, &pages); err != nil {
			return err
		}
		return w.row("PRAGMA max_page_count = 1", nil, &pages)
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{At: time.Unix(1, 0), What: "before"}); err != nil {
		t.Fatal(err)
	}
	if err := s.write(t.Context(), full); err != nil {
		t.Fatal(err)
	}

	err := s.RecordAudit(t.Context(), control.AuditEntry{At: time.Unix(2, 0), What: "after", Detail: strings.Repeat("x", 1<<20)})

	if mesh.CodeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), "disk of the control plane is full") {
		t.Errorf("a write on a full disk gave %v", err)
	}
	if err := s.write(t.Context(), func(w *writer) error { return w.row("PRAGMA max_page_count = 100000", nil, new(int)) }); err != nil {
		t.Fatal(err)
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{At: time.Unix(3, 0), What: "again"}); err != nil {
		t.Errorf("with room again a write gave %v", err)
	}
	entries, err := s.Audit(t.Context(), 10)
	if err != nil || len(entries) != 2 || entries[0].What != "again" || entries[1].What != "before" {
		t.Errorf("the store holds %+v, %v", entries, err)
	}
}

func TestWhatToolsWroteIsDroppedBeforeItFillsTheDiskAndWhatFailedStays(t *testing.T) {
	s := openHere(t)
	now := time.Unix(1, 0)
	if err := s.IssueToken(t.Context(), control.TokenRecord{Hash: "h", Issued: now, Expires: now}, control.AuditEntry{At: now}); err != nil {
		t.Fatal(err)
	}
	if err := s.Enrol(t.Context(), control.EnrolTx{TokenHash: "h", Key: "k", Node: control.NodeRecord{Name: "n", State: mesh.NodeEnrolled}, At: now}); err != nil {
		t.Fatal(err)
	}
	output := strings.Repeat("x", 1<<20)
	for i := range outputKept>>20 + 1 {
		r := mesh.Report{State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: mesh.ResourceID(fmt.Sprint("file:/", i)), Status: mesh.StatusFailed, Detail: "why", Output: output}}}
		if _, err := s.StoreReport(t.Context(), control.ReportTx{Node: "n", Report: r, State: r.State, At: now}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if results, err := s.Results(t.Context(), "n"); err != nil || results[0].Output != output {
				t.Fatalf("the first result is not kept whole, %v", err)
			}
		}
	}
	results, err := s.Results(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, r := range results {
		kept += len(r.Output)
		if r.Detail != "why" {
			t.Errorf("%s lacks why it failed", r.Resource)
		}
	}
	if len(results) != outputKept>>20+1 || kept > outputKept {
		t.Errorf("%d results are kept, with %d bytes of what tools wrote", len(results), kept)
	}
}

func TestADatabaseThatCannotBeWrittenIsSaidAndIsReadOn(t *testing.T) {
	s := openHere(t)
	if err := s.RecordAudit(t.Context(), control.AuditEntry{At: time.Unix(1, 0), What: "before"}); err != nil {
		t.Fatal(err)
	}
	readOnly := func(w *writer) error { return w.exec("PRAGMA query_only = 1") }
	if err := s.write(t.Context(), readOnly); err != nil && mesh.CodeOf(err) != mesh.CodeUnavailable {
		t.Fatal(err) // the commit after it may be refused already
	}

	err := s.RecordAudit(t.Context(), control.AuditEntry{At: time.Unix(2, 0), What: "after"})

	if mesh.CodeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("a write gave %v", err)
	}
	entries, err := s.Audit(t.Context(), 10)
	if err != nil || len(entries) != 1 || entries[0].What != "before" {
		t.Errorf("the store holds %+v, %v", entries, err)
	}
}
