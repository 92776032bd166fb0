package store

import (
	"context"
	"path/filepath"
	"testing"
	"time"

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
