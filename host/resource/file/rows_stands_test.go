package file_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"golang.org/x/sys/unix"
)

// Shows: M4, M6
func TestSomethingUnexpectedAtThePathIsNeitherFollowedNorReplaced(t *testing.T) {
	rows(t, []row{
		{"O-001", func(_ *testing.T, s *site) {
			s.put("other", "A", 0o644)
			s.link("my.cnf", s.path("other"))
			same := s.untouched()
			s.declare(s.file("my.cnf", "A"))
			same()
			s.says("my.cnf", mesh.StatusFailed, mesh.ReasonSymlink)
		}},
		{"O-002", func(_ *testing.T, s *site) {
			s.link("d", s.path("nowhere"))
			same := s.untouched()
			s.declare(s.file("d", "A"))
			same()
			s.gone("nowhere")
			s.says("d", mesh.StatusFailed, mesh.ReasonSymlink)
		}},
		{"O-003", func(t *testing.T, s *site) {
			s.put("t", "A", 0o644)
			s.put("behind", "A", 0o644)
			s.link("l", s.path("behind"))
			same := s.untouched()
			s.declare(s.file("t", "A"), symlink(s.path("l"), s.path("behind")))
			same()
			s.says("t", mesh.StatusOK, "")
			s.says("l", mesh.StatusOK, "")
			if r := s.result("t"); r.Detail != "" {
				t.Errorf("nothing was done, and it says %q", r.Detail)
			}
		}},
		{"O-004", func(_ *testing.T, s *site) {
			s.mkdir("shared", 0o755)
			s.put("shared/99-fx.conf", "B", 0o644)
			s.link("99-fx.conf", "shared/99-fx.conf")
			same := s.untouched()
			s.declare(s.file("99-fx.conf", "A"))
			same()
			s.says("99-fx.conf", mesh.StatusFailed, mesh.ReasonSymlink)
		}},
		{"O-005", func(_ *testing.T, s *site) {
			s.mkdir("home", 0o755)
			s.chown("home", 1234, 1234)
			s.mkdir("fxsecret", 0o700)
			s.put("fxsecret/key", "root's", 0o600)
			s.link("home/.fx", s.path("fxsecret"))
			s.chown("home/.fx", 1234, 1234)
			s.link("home/key", s.path("fxsecret/key"))
			s.chown("home/key", 1234, 1234)
			same := s.untouched()
			through, last := s.file("home/.fx/key", "A"), s.file("home/key", "A")
			through.File.Owner, last.File.Owner = "1234", "1234"
			s.declare(through, last)
			same()
			s.says("home/.fx/key", mesh.StatusFailed, mesh.ReasonSymlinkInPath)
			s.says("home/key", mesh.StatusFailed, mesh.ReasonSymlink)
		}},
		{"O-006", func(t *testing.T, s *site) {
			s.mkdir("home", 0o755)
			s.put("target", "t", 0o644)
			s.link("home/linked", s.path("target"))
			s.put("home/.env", "other", 0o644)
			s.put("home/plain", "other", 0o666)
			caught := spy(t, s.path("home"), "SECRET")
			for range 40 {
				linked, env, plain := s.file("home/linked", "SECRET"), s.file("home/.env", "SECRET"), s.file("home/plain", "SECRET")
				linked.File.Mode, env.File.Mode, plain.File.Mode = "0600", "0600", "0600"
				s.declare(linked, env, plain)
				s.put("home/.env", "other", 0o644)
			}
			s.declare(s.resources...)
			caught()
			s.is("target", "t")
			s.says("home/linked", mesh.StatusFailed, mesh.ReasonSymlink)
			s.says("home/.env", mesh.StatusChanged, "")
			s.standsAs("home/.env", "-rw------- 0:0")
			s.is("home/.env", "SECRET")
		}},
		{"O-007", func(t *testing.T, s *site) {
			s.mkdir("full", 0o755)
			s.put("full/member", "m", 0o644)
			if err := unix.Mkfifo(s.path("pipe"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mknod(s.path("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			// The path of a socket is short.
			t.Chdir(s.dir)
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "socket"}); err != nil {
				t.Fatal(err)
			}
			same := s.untouched()
			s.declare(s.file("full", "A"), s.file("pipe", "A"), s.file("device", "A"), s.file("socket", "A"), absent(s.path("pipe")+"/x"))
			same()
			for _, name := range []string{"full", "pipe", "device", "socket"} {
				s.says(name, mesh.StatusFailed, mesh.ReasonWrongType)
			}
			s.notes("full", "directory")
			s.notes("pipe", "special file")
		}},
		{"O-008", func(_ *testing.T, s *site) {
			s.declare(directory(s.path("dir")))
			s.put("dir/theirs", "x", 0o644)
			same := s.untouched()
			s.declare()
			same()
			s.says("dir", mesh.StatusConflict, mesh.ReasonNotEmpty)
		}},
		{"O-009", func(_ *testing.T, s *site) {
			same := s.untouched()
			s.declare(s.file("a/b/t", "A"))
			same()
			s.says("a/b/t", mesh.StatusFailed, mesh.ReasonParent)
			s.declare(directory(s.path("a")), directory(s.path("a/b")), s.file("a/b/t", "A"))
			s.standsAs("a", "drwxr-xr-x 0:0")
			s.standsAs("a/b", "drwxr-xr-x 0:0")
			s.standsAs("a/b/t", "-rw-r--r-- 0:0")
			s.says("a/b/t", mesh.StatusChanged, "")
		}},
		{"O-010", func(_ *testing.T, s *site) {
			dir, t := directory(s.path("a")), s.file("a/t", "A")
			dir.File.Owner, t.File.Owner = "1234", "1234"
			s.declare(dir, t)
			s.standsAs("a", "drwxr-xr-x 1234:0")
			s.standsAs("a/t", "-rw-r--r-- 1234:0")
			s.says("a", mesh.StatusChanged, "")
			s.settled()
			s.declare()
			s.says("a", mesh.StatusRemoved, "")
			s.gone("a")
		}},
	})
}

// spy reads, as another user, whatever can be read below a directory, until the
// judgement that it returns is called.
func spy(t *testing.T, dir, secret string) (judge func()) {
	t.Helper()
	var stop, caught atomic.Bool
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		// The thread stays another user's, so it ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Setgroups(nil); err != nil {
			ready <- err
			return
		}
		if _, err := unix.SetfsgidRetGid(4321); err != nil {
			ready <- err
			return
		}
		if _, err := unix.SetfsuidRetUid(4321); err != nil {
			ready <- err
			return
		}
		ready <- nil
		for !stop.Load() {
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			for _, e := range entries {
				data, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err == nil && strings.Contains(string(data), secret) {
					caught.Store(true)
				}
			}
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("become another user: %v", err)
	}
	return func() {
		t.Helper()
		stop.Store(true)
		<-done
		if caught.Load() {
			t.Error("another user has read the secret")
		}
	}
}

// Shows: M4
func TestOwnerModeAndSpecialBitsAreAsDeclaredAfterOnePass(t *testing.T) {
	rows(t, []row{
		{"O-011", func(t *testing.T, s *site) {
			known := false
			s.cfg.Getent = func(_ context.Context, database, name string) (uint32, bool, error) {
				return 4711, known && database == "passwd" && name == "ghost", nil
			}
			s.restart()
			s.put("there", "B", 0o600)
			same := s.untouched()
			a, b := s.file("absent", "A"), s.file("there", "A")
			a.File.Owner, b.File.Owner = "ghost", "ghost"
			dir := directory(s.path("dir"))
			dir.File.Owner = "ghost"
			s.declare(a, b, dir)
			same()
			for _, name := range []string{"absent", "there", "dir"} {
				s.says(name, mesh.StatusFailed, mesh.ReasonAccount)
				s.notes(name, "ghost")
			}
			s.settled()
			known = true
			s.drift()
			s.says("absent", mesh.StatusChanged, "")
			s.standsAs("absent", "-rw-r--r-- 4711:0")
			s.is("absent", "A")
			s.standsAs("there", "-rw-r--r-- 4711:0")
			s.is("there", "A")
			s.settled()
			s.declare()
			s.gone("absent")
			s.is("there", "B")
			s.standsAs("there", "-rw------- 0:0")
		}},
		{"O-012", func(_ *testing.T, s *site) {
			s.cfg.Getent = func(_ context.Context, _, name string) (uint32, bool, error) {
				return 1234, name == "fx-pri" || name == "fx-sec", nil
			}
			s.restart()
			f := s.file("t", "A")
			f.File.Owner = "fx-sec"
			s.declare(f)
			s.says("t", mesh.StatusChanged, "")
			s.standsAs("t", "-rw-r--r-- 1234:0")
			s.settled()
			f.File.Owner = "fx-pri"
			same := s.untouched()
			s.declare(f)
			same()
			s.says("t", mesh.StatusOK, "")
		}},
		{"O-013", func(t *testing.T, s *site) {
			s.put("t", "A", 0o755|os.ModeSetuid)
			s.chown("t", 1234, 1234)
			s.mkdir("d", 0o755)
			suid, sgid, sticky := s.file("t", "A"), s.file("new", "A"), directory(s.path("d"))
			suid.File.Mode, sgid.File.Mode, sticky.File.Mode = "4755", "6711", "3775"
			sgid.File.Owner, sgid.File.Group, sticky.File.Owner, sticky.File.Group = "1234", "2345", "1234", "2345"
			s.declare(suid, sgid, sticky)
			s.says("t", mesh.StatusChanged, "")
			for name, want := range map[string]uint32{"t": 0o4755, "new": 0o6711, "d": 0o3775} {
				var st syscall.Stat_t
				if err := syscall.Lstat(s.path(name), &st); err != nil || st.Mode&0o7777 != want {
					t.Errorf("%s has mode %o after one pass, %v; want %o", name, st.Mode&0o7777, err, want)
				}
			}
			s.standsAs("t", "urwxr-xr-x 0:0")
		}},
		{"O-014", func(_ *testing.T, s *site) {
			s.put("t", "A", 0o664)
			s.chown("t", 1234, 2345)
			s.put("secret", "A", 0o600)
			s.declare(s.open("t", "B"), s.open("secret", "B"))
			s.says("t", mesh.StatusChanged, "")
			s.is("t", "B")
			s.standsAs("t", "-rw-rw-r-- 1234:2345")
			s.standsAs("secret", "-rw------- 0:0")
			s.settled()
			// What was found is held from then on, also through another content.
			if err := os.Chmod(s.path("secret"), 0o666); err != nil {
				s.t.Fatal(err)
			}
			s.drift()
			s.drifted("mode 0666 instead of 0600")
			s.standsAs("secret", "-rw------- 0:0")
			if err := os.Remove(s.path("t")); err != nil {
				s.t.Fatal(err)
			}
			s.declare(s.open("t", "C"), s.open("secret", "B"))
			s.standsAs("t", "-rw-rw-r-- 1234:2345")
		}},
		{"O-015", func(t *testing.T, s *site) {
			old := syscall.Umask(0)
			defer syscall.Umask(old)
			caught := spy(t, s.dir, "SECRET")
			for range 40 {
				f := s.file("t", "SECRET")
				f.File.Mode = "0600"
				s.declare(f)
				s.says("t", mesh.StatusChanged, "")
				s.declare()
				s.gone("t")
			}
			f := s.file("t", "SECRET")
			f.File.Mode = "0600"
			s.declare(f)
			caught()
			s.standsAs("t", "-rw------- 0:0")
		}},
		{"O-016", func(_ *testing.T, s *site) {
			for _, mask := range []int{0, 0o077, 0o777} {
				old := syscall.Umask(mask)
				s.declare(s.open("t", "A"), mesh.Resource{Kind: mesh.KindFile, Name: s.path("d"), File: &mesh.FileSpec{Type: mesh.FileDirectory}})
				syscall.Umask(old)
				s.says("t", mesh.StatusChanged, "")
				s.notes("t", "owner root", "mode 0644")
				s.standsAs("t", "-rw-r--r-- 0:0")
				s.standsAs("d", "drwxr-xr-x 0:0")
				s.settled()
				s.declare()
				s.gone("t")
			}
		}},
		{"O-018", func(_ *testing.T, s *site) {
			s.mkdir("web", 0o755|os.ModeSetgid)
			s.chown("web", 0, 2345)
			s.declare(s.open("web/t", "A"), directory(s.path("web/d")))
			s.standsAs("web/t", "-rw-r--r-- 0:0")
			s.standsAs("web/d", "drwxr-xr-x 0:0")
			s.settled()
			s.declare(s.open("web/t", "B"), directory(s.path("web/d")))
			s.says("web/t", mesh.StatusChanged, "")
			s.standsAs("web/t", "-rw-r--r-- 0:0")
		}},
		{"O-019", func(t *testing.T, s *site) {
			s.put("t", "A", 0o644)
			s.put("appended", "A", 0o644)
			s.mkdir("d", 0o755)
			s.put("d/t", "A", 0o644)
			for name, flag := range map[string]string{"t": "i", "appended": "a", "d": "i"} {
				run(t, "chattr", "+"+flag, s.path(name))
				t.Cleanup(func() { run(t, "chattr", "-"+flag, s.path(name)) })
			}
			s.declare(s.file("t", "B"), s.file("appended", "B"), s.file("d/t", "B"), s.file("d/new", "B"), s.file("next", "B"))
			for _, name := range []string{"t", "appended", "d/t"} {
				s.says(name, mesh.StatusFailed, mesh.ReasonImmutable)
				s.is(name, "A")
			}
			s.says("d/new", mesh.StatusFailed, mesh.ReasonImmutable)
			s.says("next", mesh.StatusChanged, "")
			if out := run(t, "lsattr", s.path("t")); !strings.Contains(strings.Fields(out)[0], "i") {
				t.Errorf("the flag is gone: %s", out)
			}
			onlyNames(t, s.dir, "appended", "d", "next", "t")
		}},
		{"O-020", func(t *testing.T, s *site) {
			s.mkdir("x", 0o755)
			s.put("x/t", "A", 0o644)
			s.mkdir("ro", 0o755)
			if err := unix.Mount(s.path("x"), s.path("ro"), "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(s.path("ro"), unix.MNT_DETACH) })
			if err := unix.Mount("", s.path("ro"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			s.declare(s.file("ro/t", "B"), s.file("ro/new", "B"), absent(s.path("ro/t")+"x"), s.file("rw", "B"))
			s.says("ro/t", mesh.StatusFailed, mesh.ReasonReadOnly)
			s.says("ro/new", mesh.StatusFailed, mesh.ReasonReadOnly)
			s.says("rw", mesh.StatusChanged, "")
			if s.out.State != mesh.GenerationFailed {
				t.Errorf("the pass ended %s", s.out.State)
			}
			s.is("x/t", "A")
		}},
	})
}
