package file_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

// Shows: M2, M4, M6
func TestContentNamesAndDriftAreJudgedByWhatStandsThere(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	exactly := func(contents ...string) func(t *testing.T, s *site) {
		return func(_ *testing.T, s *site) {
			for _, c := range contents {
				s.declare(s.file("t", c))
				s.is("t", c)
				s.says("t", mesh.StatusChanged, "")
				s.settled()
				s.restart()
				s.settled()
			}
		}
	}
	rows(t, []row{
		{"O-034", exactly(string(all), "\x05\x02\x00\x00\x00\xf5\xff\xfekeytab\x80")},
		{"O-035", func(_ *testing.T, s *site) {
			s.put("nul", "a\x00b", 0o644)
			s.put("byte", "\xf5", 0o644)
			same := s.untouched()
			s.declare(s.file("nul", "a\x00b"), s.file("byte", "\xf5"))
			same()
			s.says("nul", mesh.StatusOK, "")
			s.says("byte", mesh.StatusOK, "")
		}},
		{"O-036", exactly("x", "x\n", "x\n\n", "\n", "")},
		{"O-037", exactly("a\r\nb\r\n", "a\r\nb\nc\rd", "\xef\xbb\xbfa\r\n")},
		{"O-038", func(t *testing.T, s *site) {
			t.Setenv("LC_ALL", "C")
			composed, apart := "na\u00efve-\u0444\u0430\u0439\u043b", "nai\u0308ve-\u0444\u0430\u0438\u0306\u043b"
			s.declare(s.file(composed, "A"), s.file(apart, "B"))
			s.says(composed, mesh.StatusChanged, "")
			s.says(apart, mesh.StatusChanged, "")
			s.is(composed, "A")
			s.is(apart, "B")
			onlyNames(t, s.dir, apart, composed)
		}},
		{"O-041", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			tomorrow := time.Now().Add(24 * time.Hour)
			if err := os.Chtimes(s.path("t"), tomorrow, tomorrow); err != nil {
				t.Fatal(err)
			}
			same := s.untouched()
			s.drift()
			same()
			s.says("t", mesh.StatusOK, "")
			if len(s.events) > 0 {
				t.Errorf("a timestamp is told as %+v", s.events)
			}
		}},
		{"O-042", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			if err := os.Rename(s.path("t"), s.path("t~")); err != nil {
				t.Fatal(err)
			}
			s.put("t", "edited", 0o644)
			s.drift()
			s.drifted("size 6 instead of 1")
			s.says("t", mesh.StatusChanged, "")
			s.is("t", "A")
			s.is("t~", "A")
		}},
		{"O-043", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			s.put("t", "U", 0o644)
			s.declare(s.file("t", "B"))
			s.says("t", mesh.StatusChanged, "")
			s.notes("t", "had been changed", sumOf("U"))
			s.drifted(sumOf("U"))
			s.is("t", "B")
			s.settled()
			// Nobody changed anything: then nothing of the kind is said.
			s.declare(s.file("t", "C"))
			if r := s.result("t"); r.Status != mesh.StatusChanged || r.Detail != "" || len(s.events) > 0 {
				t.Errorf("an ordinary change says %q and tells %+v", r.Detail, s.events)
			}
		}},
		{"O-044", func(t *testing.T, s *site) {
			s.put("twin", "A", 0o644)
			s.declare(s.file("t", "A"), s.file("stays", "A"))
			s.put("later", "A", 0o644)
			s.declare(s.file("stays", "A"))
			s.says("t", mesh.StatusRemoved, "")
			onlyNames(t, s.dir, "later", "stays", "twin")
			if n := len(s.out.Removed) + len(s.out.Results); n != 2 {
				t.Errorf("the report speaks of %d files", n)
			}
		}},
		{"O-045", func(_ *testing.T, s *site) {
			s.declare(s.file("a", "A"), s.file("b", "B"))
			s.restart()
			s.declare(s.file("a", "A"))
			s.says("b", mesh.StatusRemoved, "")
			s.gone("b")
			s.says("a", mesh.StatusOK, "")
		}},
		{"O-046", func(t *testing.T, s *site) {
			tree, last := directory(s.path("a")), s.file("a/t", "A")
			tree.File.Owner, last.File.Owner = "ghost-of-nobody", "ghost-of-nobody"
			last.Requires = []mesh.ResourceID{tree.ID()}
			s.declare(tree, last)
			s.says("a", mesh.StatusFailed, mesh.ReasonAccount)
			s.says("a/t", mesh.StatusSkipped, mesh.ReasonDependency)
			onlyNames(t, s.dir)
			s.settled()
			// A directory that is declared by itself stays; it goes when it is not
			// declared any more, with what somebody put there left alone.
			tree.File.Owner = "root"
			s.declare(tree, last)
			s.says("a/t", mesh.StatusFailed, mesh.ReasonAccount)
			s.put("a/theirs", "x", 0o644)
			s.declare()
			s.says("a", mesh.StatusConflict, mesh.ReasonNotEmpty)
			s.notes("a", "not empty")
			if err := os.Remove(s.path("a/theirs")); err != nil {
				t.Fatal(err)
			}
			s.drift()
			s.gone("a")
		}},
		{"O-047", func(t *testing.T, s *site) {
			const secret = "SECRET-123"
			for _, content := range []string{"a\n" + secret + "\nb\n", "a2\n" + secret + "\nb\n"} {
				f := s.file("t", content)
				f.File.Sensitive, f.File.Mode = true, "0600"
				s.declare(f)
				s.says("t", mesh.StatusChanged, "")
				s.put("t", content+"edited "+secret, 0o600)
				s.drift()
				s.says("t", mesh.StatusChanged, "")
				s.put("t", strings.Replace(content, "b", "c", 1), 0o600)
				s.drift()
				s.drifted("other content")
				for _, digest := range []string{sumOf(content), sumOf(strings.Replace(content, "b", "c", 1))} {
					if strings.Contains(s.events[0].Detail, digest) {
						t.Errorf("the drift names a digest of the secret content: %s", s.events[0].Detail)
					}
				}
			}
			s.restart() // Everything is in the file, not beside it.
			held, err := os.ReadFile(filepath.Join(s.state, "store.db"))
			if err != nil {
				t.Fatal(err)
			}
			commands, err := exec.CommandContext(t.Context(), "ps", "axeww").Output()
			if err != nil {
				t.Fatal(err)
			}
			for where, text := range map[string]string{"log": s.log.String(), "messages": s.frames.String(), "store": string(held), "process list": string(commands)} {
				if strings.Contains(text, secret) {
					t.Errorf("the secret is in the %s", where)
				}
			}
		}},
		{"O-048", func(t *testing.T, s *site) {
			s.mkdir("run", 0o755)
			fresh := func() {
				if err := unix.Mount("mesh-test", s.path("run"), "tmpfs", 0, "size=64k,mode=755"); err != nil {
					t.Fatal(err)
				}
			}
			fresh()
			t.Cleanup(func() { _ = unix.Unmount(s.path("run"), unix.MNT_DETACH) })
			s.declare(s.file("run/t", "A"))
			s.says("run/t", mesh.StatusChanged, "")
			s.notes("run/t", "in memory")
			if err := unix.Unmount(s.path("run"), 0); err != nil {
				t.Fatal(err)
			}
			fresh()
			s.restart()
			s.pass(mesh.TriggerResumed)
			s.drifted("it was gone")
			s.says("run/t", mesh.StatusChanged, "")
			s.is("run/t", "A")
		}},
		{"O-049", func(t *testing.T, s *site) {
			s.put("t", "drifted", 0o666)
			watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(watch)
			const writes = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_CLOSE_WRITE
			if _, err := unix.InotifyAddWatch(watch, s.dir, writes); err != nil {
				t.Fatal(err)
			}
			same := s.untouched()
			p := file.New(file.Config{})
			diff, err := p.Check(t.Context(), s.file("t", "A"))
			if err != nil || diff.Zero() {
				t.Errorf("looking found %q, %v", diff, err)
			}
			if _, err := p.Capture(t.Context(), s.file("t", "A")); err != nil {
				t.Error(err)
			}
			same()
			if n, err := unix.Read(watch, make([]byte, 4096)); n > 0 {
				t.Errorf("looking wrote something: %d bytes of events, %v", n, err)
			}
		}},
	})
}

// Shows: M2, M6
func TestAFileThatAPackageShipsTooIsTakenOverNamedAndGivenBack(t *testing.T) {
	rows(t, []row{
		{"O-050", func(_ *testing.T, s *site) {
			s.cfg.PackageOf = shippedBy("fx")
			s.restart()
			s.put("fx.conf", "P", 0o640)
			s.declare(s.file("fx.conf", "A"))
			s.says("fx.conf", mesh.StatusChanged, "")
			s.notes("fx.conf", "package fx", "comes back")
			s.settled()
			s.restart()
			s.declare()
			s.says("fx.conf", mesh.StatusRemoved, "")
			s.is("fx.conf", "P")
			s.standsAs("fx.conf", "-rw-r----- 0:0")
		}},
		{"O-052", func(t *testing.T, s *site) {
			s.cfg.PackageOf = shippedBy("fx")
			s.restart()
			s.put("fx.conf", "P", 0o644)
			s.declare(absent(s.path("fx.conf")))
			s.says("fx.conf", mesh.StatusChanged, "")
			s.gone("fx.conf")
			// The package's upgrade makes it again.
			s.put("fx.conf", "P2", 0o644)
			s.drift()
			s.drifted("had appeared", "package fx")
			s.says("fx.conf", mesh.StatusChanged, "")
			s.gone("fx.conf")
			// After it is not declared any more, one that appears is the package's.
			s.declare()
			s.is("fx.conf", "P")
			s.put("fx.conf", "P3", 0o644)
			s.drift()
			s.is("fx.conf", "P3")
			if len(s.events) > 0 {
				t.Errorf("told %+v", s.events)
			}
		}},
		{"O-053", func(t *testing.T, s *site) {
			s.declare(s.file("fx.yml", "A"))
			if err := os.Rename(s.path("fx.yml"), s.path("fx.yml.rpmsave")); err != nil {
				t.Fatal(err)
			}
			s.put("fx.yml", "the package's default", 0o644)
			s.drift()
			s.drifted("size 21 instead of 1")
			s.says("fx.yml", mesh.StatusChanged, "")
			s.is("fx.yml", "A")
			s.is("fx.yml.rpmsave", "A")
		}},
	})
}

func shippedBy(name string) func(context.Context, string) string {
	return func(context.Context, string) string { return name }
}
