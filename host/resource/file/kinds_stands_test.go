package file_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"golang.org/x/sys/unix"
)

// rootsOwn puts the directories of a test where only root can place names, so
// that links on the way are believed.
func rootsOwn(t *testing.T) { t.Setenv("TMPDIR", "/var/lib") }

// Shows: M4, M6
func TestWhatIsOursBecomesAnotherTypeAndWhatIsNotStays(t *testing.T) {
	rows(t, []row{
		{"a file becomes a link, a directory and a file again", func(_ *testing.T, s *site) {
			s.put("t", "original", 0o640)
			s.declare(s.file("t", "A"))
			for _, r := range []mesh.Resource{symlink(s.path("t"), "elsewhere"), directory(s.path("t")), s.file("t", "B"), directory(s.path("t")), symlink(s.path("t"), "x"), s.open("t", "C")} {
				s.declare(r)
				s.says("t", mesh.StatusChanged, "")
				s.settled()
			}
			s.is("t", "C")
			s.standsAs("t", "-rw-r--r-- 0:0")
			s.notes("t")
			s.declare()
			s.says("t", mesh.StatusRemoved, "")
			s.is("t", "original")
			s.standsAs("t", "-rw-r----- 0:0")
		}},
		{"what somebody edited does not", func(_ *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			s.put("t", "edited", 0o644)
			same := s.untouched()
			s.declare(symlink(s.path("t"), "elsewhere"))
			same()
			s.says("t", mesh.StatusFailed, mesh.ReasonWrongType)
			s.is("t", "edited")
		}},
		{"a directory with somebody's file in it does not", func(_ *testing.T, s *site) {
			s.declare(directory(s.path("d")))
			s.put("d/theirs", "x", 0o644)
			same := s.untouched()
			s.declare(s.file("d", "A"))
			s.says("d", mesh.StatusConflict, mesh.ReasonNotEmpty)
			s.declare(symlink(s.path("d"), "x"))
			s.says("d", mesh.StatusConflict, mesh.ReasonNotEmpty)
			same()
		}},
		{"a directory whose files go in the same pass does", func(_ *testing.T, s *site) {
			s.declare(directory(s.path("d")), s.file("d/x", "x"))
			s.declare(s.file("d", "A"))
			s.says("d", mesh.StatusChanged, "")
			s.says("d/x", mesh.StatusRemoved, "")
			s.is("d", "A")
		}},
		{"a directory that was there comes back after it was a link", func(_ *testing.T, s *site) {
			s.mkdir("d", 0o750)
			s.chown("d", 1234, 2345)
			s.declare(mesh.Resource{Kind: mesh.KindFile, Name: s.path("d"), File: &mesh.FileSpec{Type: mesh.FileDirectory}})
			s.says("d", mesh.StatusOK, "")
			s.declare(symlink(s.path("d"), "x"))
			s.says("d", mesh.StatusChanged, "")
			s.declare()
			s.standsAs("d", "drwxr-x--- 1234:2345")
		}},
		{"somebody puts a directory in the place of a file, and takes it away", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			if err := os.Remove(s.path("t")); err != nil {
				t.Fatal(err)
			}
			s.mkdir("t", 0o755)
			same := s.untouched()
			s.drift()
			same()
			s.says("t", mesh.StatusFailed, mesh.ReasonWrongType)
			if err := os.Remove(s.path("t")); err != nil {
				t.Fatal(err)
			}
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
		{"somebody puts a link in the place of a file, and it is not declared any more", func(t *testing.T, s *site) {
			s.put("precious", "theirs", 0o600)
			s.declare(s.file("t", "A"))
			if err := os.Remove(s.path("t")); err != nil {
				t.Fatal(err)
			}
			s.link("t", s.path("precious"))
			same := s.untouched()
			s.drift()
			s.says("t", mesh.StatusFailed, mesh.ReasonSymlink)
			s.declare()
			same()
			s.says("t", mesh.StatusConflict, mesh.ReasonModified)
		}},
	})
}

// Shows: M4, M6
func TestAPlaceHasOneNameAndLinksOnTheWayAreSeenThrough(t *testing.T) {
	rootsOwn(t)
	rows(t, []row{
		{"one place under two names", func(_ *testing.T, s *site) {
			s.mkdir("lib", 0o755)
			s.link("usr", "lib")
			for _, order := range [][]mesh.Resource{
				{s.file("lib/t", "A"), s.file("usr/t", "B")},
				{s.file("usr/t", "B"), s.file("lib/t", "A")},
			} {
				s.declare(order...)
				s.says("usr/t", mesh.StatusFailed, mesh.ReasonTwice)
				s.notes("usr/t", s.path("lib/t"))
				s.is("lib/t", "A")
				s.settled()
			}
		}},
		{"one place under two names, both through links", func(_ *testing.T, s *site) {
			s.mkdir("lib", 0o755)
			s.link("one", "lib")
			s.link("two", "lib")
			s.declare(s.file("one/t", "A"), s.file("two/t", "B"))
			s.says("one/t", mesh.StatusChanged, "")
			s.says("two/t", mesh.StatusFailed, mesh.ReasonTwice)
			s.is("lib/t", "A")
		}},
		{"a file that is declared under its other name from now on", func(_ *testing.T, s *site) {
			s.mkdir("lib", 0o755)
			s.link("usr", "lib")
			s.declare(s.file("usr/t", "A"))
			s.declare(s.file("lib/t", "A"))
			s.says("lib/t", mesh.StatusOK, "")
			s.says("usr/t", mesh.StatusConflict, mesh.ReasonTwice)
			s.is("lib/t", "A")
		}},
		{"and the other way round", func(_ *testing.T, s *site) {
			s.mkdir("lib", 0o755)
			s.link("usr", "lib")
			s.declare(s.file("lib/t", "A"))
			s.declare(s.file("usr/t", "B"))
			s.says("usr/t", mesh.StatusChanged, "")
			s.says("lib/t", mesh.StatusConflict, mesh.ReasonModified)
			s.is("lib/t", "B")
		}},
		{"a file through a link that is declared too", func(_ *testing.T, s *site) {
			s.declare(s.file("current/t", "A"), symlink(s.path("current"), "releases/1"), directory(s.path("releases")), directory(s.path("releases/1")))
			s.says("current/t", mesh.StatusChanged, "")
			s.is("releases/1/t", "A")
			s.settled()
			s.declare()
			onlyNames(s.t, s.dir)
		}},
		{"links that lead in a circle", func(_ *testing.T, s *site) {
			s.link("one", "two")
			s.link("two", "one")
			same := s.untouched()
			s.declare(s.file("one/t", "A"), absent(s.path("two/t")))
			same()
			s.says("one/t", mesh.StatusFailed, mesh.ReasonSymlinkInPath)
			s.says("two/t", mesh.StatusFailed, mesh.ReasonSymlinkInPath)
			s.notes("one/t", "in a circle")
		}},
		{"a link to a directory that is not there", func(_ *testing.T, s *site) {
			s.link("data", "/nowhere/fx")
			same := s.untouched()
			s.declare(s.file("data/t", "A"), absent(s.path("data/u")))
			same()
			s.says("data/t", mesh.StatusFailed, mesh.ReasonParent)
			s.says("data/u", mesh.StatusOK, "")
		}},
		{"the directory stands behind its files in the list", func(_ *testing.T, s *site) {
			s.declare(s.file("a/b/t", "A"), symlink(s.path("a/l"), "b"), directory(s.path("a/b")), directory(s.path("a")))
			for _, name := range []string{"a", "a/b", "a/b/t", "a/l"} {
				s.says(name, mesh.StatusChanged, "")
			}
			s.settled()
			s.declare(absent(s.path("a")), absent(s.path("a/b")), absent(s.path("a/l")), absent(s.path("a/b/t")))
			s.says("a", mesh.StatusChanged, "")
			onlyNames(s.t, s.dir)
			s.settled()
			// All of it comes back, since it was there before it had to be absent.
			s.declare()
			onlyNames(s.t, s.dir)
		}},
		{"what it lies in appears later in the pass", func(_ *testing.T, s *site) {
			// As a package does that brings the directory.
			s.cfg.PackageOf = func(context.Context, string) string {
				if _, err := os.Lstat(s.path("brought")); err != nil {
					s.mkdir("brought", 0o755)
				}
				return ""
			}
			s.restart()
			s.put("pkg", "old", 0o644)
			follows := s.file("follows", "A")
			follows.Requires = []mesh.ResourceID{mesh.NewResourceID(mesh.KindFile, s.path("brought/t"))}
			s.declare(s.file("brought/t", "A"), follows, s.file("pkg", "new"))
			s.says("brought/t", mesh.StatusChanged, "")
			s.says("follows", mesh.StatusChanged, "")
		}},
		{"a tree that had to be absent comes back in one pass", func(_ *testing.T, s *site) {
			for _, d := range []string{"d", "d/e", "d/e/f"} {
				s.mkdir(d, 0o750)
			}
			s.put("d/e/f/t", "theirs", 0o640)
			s.put("d/t", "theirs", 0o640)
			before := s.everything()
			s.declare(absent(s.path("d")), absent(s.path("d/e")), absent(s.path("d/e/f")), absent(s.path("d/e/f/t")), absent(s.path("d/t")))
			onlyNames(s.t, s.dir)
			s.declare()
			if after := s.everything(); after != before {
				s.t.Errorf("before\n%s\nafter\n%s", before, after)
			}
			if len(s.out.Removed) != 5 || s.out.State != mesh.GenerationApplied {
				s.t.Errorf("the pass is %s, and removed %+v", s.out.State, s.out.Removed)
			}
		}},
		{"absent is the link and not what it points at", func(_ *testing.T, s *site) {
			s.mkdir("full", 0o755)
			s.put("full/t", "theirs", 0o644)
			s.link("to", "full/")
			s.declare(absent(s.path("to")))
			s.says("to", mesh.StatusChanged, "")
			s.is("full/t", "theirs")
			s.settled()
			s.declare()
			s.standsAs("to", "Lrwxrwxrwx 0:0 -> full/")
		}},
		{"absent is no directory with something in it", func(_ *testing.T, s *site) {
			s.mkdir("full", 0o755)
			s.put("full/t", "theirs", 0o644)
			same := s.untouched()
			s.declare(absent(s.path("full")))
			same()
			s.says("full", mesh.StatusConflict, mesh.ReasonNotEmpty)
		}},
		{"an absent directory with something mounted on it", func(t *testing.T, s *site) {
			s.mkdir("d", 0o755)
			s.mkdir("x", 0o755)
			bind(t, s.path("x"), s.path("d"))
			same := s.untouched()
			s.declare(absent(s.path("d")))
			same()
			s.says("d", mesh.StatusFailed, mesh.ReasonMountPoint)
		}},
	})
}

// Shows: M4
func TestLinksAndNamesAreTakenLetterByLetter(t *testing.T) {
	rows(t, []row{
		{"targets of links", func(t *testing.T, s *site) {
			targets := []string{
				"relative", "../up", "trailing/", "./dot", "double//slash", "/absolute/nowhere", "self", " leading space", "with\nnewline", "naïve-ﬁ",
				strings.Repeat("x/", 2047) + "x",
			}
			var declared []mesh.Resource
			for i, target := range targets {
				declared = append(declared, symlink(s.path("l"+string(rune('a'+i))), target))
			}
			declared = append(declared, symlink(s.path("self"), "self"))
			s.declare(declared...)
			for i, target := range targets {
				name := "l" + string(rune('a'+i))
				s.says(name, mesh.StatusChanged, "")
				if got, err := os.Readlink(s.path(name)); err != nil || got != target {
					t.Errorf("%s points at %.40q, %v", name, got, err)
				}
			}
			s.settled()
			// Another target of the same meaning is another target.
			same := s.path("la")
			s.declare(symlink(same, "./relative"))
			s.says("la", mesh.StatusChanged, "")
			if got, err := os.Readlink(same); err != nil || got != "./relative" {
				t.Errorf("it points at %q, %v", got, err)
			}
			s.gone("self")
		}},
		{"the owner of a link is its own", func(_ *testing.T, s *site) {
			s.put("t", "A", 0o644)
			l := symlink(s.path("l"), "t")
			l.File.Owner, l.File.Group = "1234", "2345"
			s.declare(l)
			s.standsAs("l", "Lrwxrwxrwx 1234:2345")
			s.standsAs("t", "-rw-r--r-- 0:0")
			s.settled()
			s.chown("l", 7, 7)
			s.drift()
			s.drifted("owner 7:7")
			s.standsAs("l", "Lrwxrwxrwx 1234:2345")
			s.standsAs("t", "-rw-r--r-- 0:0")
		}},
		{"names with what shells and lists stumble over", func(_ *testing.T, s *site) {
			names := []string{"with space", " leading", "trailing ", "-rf", "*", "a'b\"c", "$HOME", "back\\slash", "…", "..hidden", "tab\there", "e\u0301", "\u00e9", "%s", "colon:name", "#x"}
			var declared []mesh.Resource
			for _, n := range names {
				declared = append(declared, s.file(n, n))
			}
			s.declare(declared...)
			for _, n := range names {
				s.says(n, mesh.StatusChanged, "")
				s.is(n, n)
			}
			s.settled()
			s.declare()
			onlyNames(s.t, s.dir)
		}},
		{"a path as long as the kernel takes", func(t *testing.T, s *site) {
			var declared []mesh.Resource
			deep := ""
			for len(s.path(deep))+202 < 4095 {
				deep = filepath.Join(deep, strings.Repeat("d", 200))
				declared = append(declared, directory(s.path(deep)))
			}
			last := filepath.Join(deep, strings.Repeat("t", 4095-len(s.path(deep))-1))
			declared = append(declared, s.file(last, "A"))
			s.declare(declared...)
			s.says(last, mesh.StatusChanged, "")
			s.settled()
			s.declare()
			s.says(last, mesh.StatusRemoved, "")
			onlyNames(t, s.dir)
		}},
		{"a name that looks like one of our temporaries", func(_ *testing.T, s *site) {
			s.put(".t.mesh-notours", "theirs", 0o644)
			s.put(".t.mesh-0123456789abcdef", "theirs", 0o644)
			s.declare(s.file("t", "A"))
			s.is(".t.mesh-notours", "theirs")
			s.is(".t.mesh-0123456789abcdef", "theirs")
			for _, n := range []string{".t.mesh-notours", ".t.mesh-0123456789abcdef"} {
				if err := unix.Unlink(s.path(n)); err != nil {
					s.t.Fatal(err)
				}
			}
		}},
	})
}
