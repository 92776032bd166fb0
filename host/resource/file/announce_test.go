package file_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
)

// dying is a store whose process dies when it is about to store that something
// was changed.
type dying struct{ reconcile.Store }

var errDied = errors.New("the process died")

func (d dying) Record(ctx context.Context, records []reconcile.Record) error {
	for _, r := range records {
		if r.Result.Status == mesh.StatusChanged {
			return errDied
		}
	}
	return d.Store.Record(ctx, records)
}

// declareAndDie makes a pass that ends after the write and before its read-back
// is stored, and starts a new process.
func (s *site) declareAndDie(resources ...mesh.Resource) {
	s.t.Helper()
	s.resources = resources
	s.generation++
	r := reconcile.New(reconcile.Config{
		Store: dying{s.store}, Providers: []resource.Provider{file.New(s.cfg)}, Now: time.Now, Log: s.cfg.Logger,
	})
	d := mesh.Declaration{Node: "n", Generation: s.generation, Resources: resources}
	if _, err := r.Run(s.t.Context(), d, mesh.TriggerDeclared, func() bool { return false }); !errors.Is(err, errDied) {
		s.t.Fatalf("the pass ended with %v", err)
	}
	s.restart()
}

// Shows: M5, M6
func TestWhatWasWrittenBeforeACrashIsOursAndNobodyElses(t *testing.T) {
	for _, before := range []string{"", "original"} {
		s := newSite(t)
		if before != "" {
			s.put("t", before, 0o640)
		}
		s.declare(s.file("t", "A"))
		s.declareAndDie(s.file("t", "B"))
		s.is("t", "B")
		s.declareAndDie(s.file("t", "C"))
		s.is("t", "C")
		s.declare()
		s.says("t", mesh.StatusRemoved, "")
		if before == "" {
			s.gone("t")
		} else {
			s.is("t", before)
			s.standsAs("t", "-rw-r----- 0:0")
		}
	}
}

// Shows: M5
func TestAWriteThatACrashCutOffIsNotToldAsSomebodysEdit(t *testing.T) {
	s := newSite(t)
	s.declare(s.file("t", "A"))
	s.declareAndDie(s.file("t", "B"))
	s.declare(s.file("t", "C"))
	if r := s.result("t"); r.Status != mesh.StatusChanged || r.Detail != "" || len(s.events) > 0 {
		t.Errorf("it says %q and tells %+v", r.Detail, s.events)
	}
	s.settled()
}

// Shows: M5
func TestAModeThatACrashLeftIsNotToldAsSomebodysEdit(t *testing.T) {
	s := newSite(t)
	wants := func(mode string) (mesh.Resource, mesh.Resource) {
		f, d := s.file("t", "A"), directory(s.path("d"))
		f.File.Mode, d.File.Mode = mode, mode
		return f, d
	}
	s.declare(wants("0755"))
	s.declareAndDie(wants("0700"))
	s.declare(wants("0750"))
	for _, name := range []string{"t", "d"} {
		if r := s.result(name); r.Status != mesh.StatusChanged || r.Detail != "" || len(s.events) > 0 {
			t.Errorf("of %s it says %q and tells %+v", name, r.Detail, s.events)
		}
	}
	s.settled()
	// What somebody changes is told all the same.
	if err := os.Chmod(s.path("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.declare(wants("0755"))
	s.notes("t", "mode 0600 instead of 0750")
}

// Shows: M6
func TestWhatSomebodyMakesAfterAFailedAttemptIsTheirs(t *testing.T) {
	t.Run("made new", func(t *testing.T) {
		s := newSite(t)
		f := s.file("t", "A")
		f.File.Owner = "ghost-of-nobody"
		s.declare(f)
		s.says("t", mesh.StatusFailed, mesh.ReasonAccount)
		s.put("t", "A", 0o644)
		s.declare(s.file("t", "A"))
		s.says("t", mesh.StatusOK, "")
		s.declare()
		s.is("t", "A")
	})
	t.Run("edited", func(t *testing.T) {
		s := newSite(t)
		s.put("t", "before", 0o644)
		f := s.file("t", "A")
		f.File.Owner = "ghost-of-nobody"
		s.declare(f)
		s.says("t", mesh.StatusFailed, mesh.ReasonAccount)
		s.put("t", "edited by the admin", 0o600)
		s.declare(s.file("t", "A"))
		s.says("t", mesh.StatusChanged, "")
		s.declare()
		s.is("t", "edited by the admin")
		s.standsAs("t", "-rw------- 0:0")
	})
	t.Run("edited while the host was dead", func(t *testing.T) {
		s := newSite(t)
		s.put("t", "before", 0o644)
		s.declareAndDie(s.file("t", "A"))
		s.put("t", "edited by the admin", 0o600)
		s.declare(s.file("t", "B"))
		s.says("t", mesh.StatusChanged, "")
		s.declare()
		s.is("t", "edited by the admin")
	})
}

// Shows: M6
func TestAConflictStaysOneAndTheChangedFileStays(t *testing.T) {
	s := newSite(t)
	s.declare(s.file("t", "A"), s.file("gone", "A"))
	s.put("t", "edited", 0o644)
	if err := os.Remove(s.path("gone")); err != nil {
		t.Fatal(err)
	}
	same := s.untouched()
	s.declare()
	same()
	s.says("t", mesh.StatusConflict, mesh.ReasonModified)
	s.says("gone", mesh.StatusRemoved, "")
	s.settled()
}
