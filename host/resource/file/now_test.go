package file_test

import (
	"crypto/rand"
	"os"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
)

// meanwhile does something once, in the middle of the next write: when a name for
// the temporary is drawn.
type meanwhile struct {
	do func()
}

func (m *meanwhile) Read(b []byte) (int, error) {
	if m.do != nil {
		m.do()
		m.do = nil
	}
	return rand.Read(b)
}

func (s *site) meanwhile(do func()) {
	s.cfg.Random = &meanwhile{do}
	s.restart()
}

// Shows: M5, M6
func TestWhatSomebodyWritesWhileTheMeshDoesIsNotLost(t *testing.T) {
	rows(t, []row{
		{"over what is managed for the first time", func(_ *testing.T, s *site) {
			s.put("t", "old", 0o600)
			s.meanwhile(func() { s.put("t", "somebody's", 0o640) })
			s.declare(s.file("t", "A"))
			s.says("t", mesh.StatusDeferred, mesh.ReasonModified)
			s.is("t", "somebody's")
			s.drift()
			s.says("t", mesh.StatusChanged, "")
			s.is("t", "A")
			s.declare()
			s.is("t", "somebody's")
			s.standsAs("t", "-rw-r----- 0:0")
		}},
		{"in the place of what is gone in the same moment", func(t *testing.T, s *site) {
			s.put("t", "old", 0o600)
			s.meanwhile(func() {
				if err := os.Remove(s.path("t")); err != nil {
					t.Error(err)
				}
			})
			s.declare(s.file("t", "A"))
			s.says("t", mesh.StatusDeferred, mesh.ReasonModified)
			s.gone("t")
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
		{"over what is put back", func(_ *testing.T, s *site) {
			s.put("t", "old", 0o600)
			s.declare(s.file("t", "A"))
			s.meanwhile(func() { s.put("t", "somebody's", 0o640) })
			s.declare()
			s.says("t", mesh.StatusDeferred, mesh.ReasonModified)
			s.drift()
			s.says("t", mesh.StatusConflict, mesh.ReasonModified)
			s.is("t", "somebody's")
		}},
	})
}

// Shows: M6
func TestWhatIsChangedBetweenTheLookAndTheWriteIsNotWrittenOver(t *testing.T) {
	s := newSite(t)
	s.put("t", "old", 0o600)
	p, want := file.New(s.cfg), s.file("t", "A")
	owned, err := p.Capture(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Announce(t.Context(), want, owned); err != nil {
		t.Fatal(err)
	}
	s.put("t", "new", 0o600)
	if e := resource.AsError(p.Apply(t.Context(), want, resource.Diff{})); e == nil || e.Status != mesh.StatusDeferred {
		t.Errorf("it is written over, and says %v", e)
	}
	s.is("t", "new")
}
