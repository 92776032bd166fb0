package file_test

import (
	"os"
	"testing"

	mesh "github.com/meshctl/mesh"
)

// Shows: M6
func TestWhatIsNotDeclaredAnyMoreGoesAfterWhateverOthersDidToIt(t *testing.T) {
	remove := func(s *site, name string) {
		s.t.Helper()
		if err := os.RemoveAll(s.path(name)); err != nil {
			s.t.Fatal(err)
		}
	}
	rows(t, []row{
		{"a new file that somebody deleted", func(_ *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			remove(s, "t")
			same := s.untouched()
			s.declare()
			same()
			s.says("t", mesh.StatusRemoved, "")
		}},
		{"a replaced file that somebody deleted", func(_ *testing.T, s *site) {
			s.put("t", "original", 0o640)
			s.declare(s.file("t", "A"))
			remove(s, "t")
			s.declare()
			s.says("t", mesh.StatusRemoved, "")
			s.is("t", "original")
			s.standsAs("t", "-rw-r----- 0:0")
		}},
		{"a replaced file that somebody edited", func(_ *testing.T, s *site) {
			s.put("t", "original", 0o640)
			s.declare(s.file("t", "A"))
			s.put("t", "edited", 0o600)
			same := s.untouched()
			s.declare()
			same()
			s.says("t", mesh.StatusConflict, mesh.ReasonModified)
			s.settled()
			// Once the edit is gone the original comes back.
			remove(s, "t")
			s.drift()
			s.says("t", mesh.StatusRemoved, "")
			s.is("t", "original")
		}},
		{"a replaced file that somebody put back by hand", func(_ *testing.T, s *site) {
			s.put("t", "original", 0o640)
			s.declare(s.file("t", "A"))
			remove(s, "t")
			s.put("t", "original", 0o640)
			same := s.untouched()
			s.declare()
			same()
			s.says("t", mesh.StatusRemoved, "")
		}},
		{"what somebody gave another owner and mode", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"), directory(s.path("d")), symlink(s.path("l"), "x"))
			for _, name := range []string{"t", "d", "l"} {
				s.chown(name, 7, 7)
			}
			if err := os.Chmod(s.path("d"), 0o700); err != nil {
				t.Fatal(err)
			}
			s.declare()
			onlyNames(t, s.dir)
		}},
		{"a link that somebody made lead elsewhere", func(_ *testing.T, s *site) {
			s.declare(symlink(s.path("l"), "x"))
			remove(s, "l")
			s.link("l", "theirs")
			same := s.untouched()
			s.declare()
			same()
			s.says("l", mesh.StatusConflict, mesh.ReasonModified)
		}},
		{"a directory that somebody put a file in the place of", func(_ *testing.T, s *site) {
			s.declare(directory(s.path("d")))
			remove(s, "d")
			s.put("d", "theirs", 0o644)
			same := s.untouched()
			s.declare()
			same()
			s.says("d", mesh.StatusConflict, mesh.ReasonModified)
		}},
		{"files whose directory somebody deleted", func(_ *testing.T, s *site) {
			s.mkdir("d", 0o755)
			s.put("d/replaced", "original", 0o640)
			s.declare(s.file("d/new", "A"), s.file("d/replaced", "A"))
			remove(s, "d")
			same := s.untouched()
			s.declare()
			same()
			s.says("d/new", mesh.StatusRemoved, "")
			s.says("d/replaced", mesh.StatusFailed, mesh.ReasonParent)
			s.settled()
			s.mkdir("d", 0o755)
			s.drift()
			s.says("d/replaced", mesh.StatusRemoved, "")
			s.is("d/replaced", "original")
		}},
		{"what was there as it was declared, and was changed later", func(_ *testing.T, s *site) {
			s.put("t", "A", 0o640)
			s.declare(s.open("t", "A"))
			s.says("t", mesh.StatusOK, "")
			s.declare(s.file("t", "B"))
			s.declare()
			s.is("t", "A")
			s.standsAs("t", "-rw-r----- 0:0")
		}},
		{"a file of whose directory another file is still declared", func(_ *testing.T, s *site) {
			s.declare(directory(s.path("d")), s.file("d/stays", "A"))
			s.declare(s.file("d/stays", "A"))
			s.says("d", mesh.StatusConflict, mesh.ReasonNotEmpty)
			s.says("d/stays", mesh.StatusOK, "")
			s.declare()
			onlyNames(s.t, s.dir)
		}},
	})
}
