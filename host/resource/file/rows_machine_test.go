package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/store"
	"golang.org/x/sys/unix"
)

// Shows: M5, M6, M9
func TestALostOrDamagedMemoryNeverTouchesTheMachine(t *testing.T) {
	damages := map[string]func(data []byte) []byte{
		"empty": func([]byte) []byte { return nil },
		"cut":   func(data []byte) []byte { return data[:len(data)/2] },
		"zeros": func(data []byte) []byte { return make([]byte, len(data)) },
		"other": func(data []byte) []byte { return bytes.Repeat([]byte("no database "), 1000) },
	}
	rows(t, []row{
		{"O-143", func(t *testing.T, s *site) {
			for name, damage := range damages {
				s.put(name, "before", 0o644)
				s.declare(s.file(name, "A"), s.file(name+"-made", "A"))
				same := s.untouched()
				kept := s.breakStore(damage)
				if kept == "" && name != "empty" {
					t.Errorf("%s: the damaged store is not kept", name)
				}
				// What was declared is not declared any more, and released: without
				// a memory nothing is known to be ours.
				before := s.resources
				s.resources = nil
				s.released = nil
				for _, r := range before {
					s.released = append(s.released, r.ID())
				}
				s.drift()
				same()
				s.is(name, "A")
				s.is(name+"-made", "A")
			}
		}},
		{"O-144", func(t *testing.T, s *site) {
			s.put("replaced", "before", 0o644)
			s.declare(s.file("replaced", "A"), s.file("made", "A"))
			copied, err := s.store.RecoveryCopy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.store.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(s.state); err != nil {
				t.Fatal(err)
			}
			st, lost, err := store.Open(t.Context(), s.state, true, time.Now)
			if err != nil || lost == nil {
				t.Fatalf("a missing store is not said to be lost: %v", err)
			}
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			s.start()
			same := s.untouched()
			s.declare()
			same()
			if s.events[0].Kind != mesh.EventStoreLost {
				t.Errorf("told %+v", s.events)
			}
			// With what the control plane kept it goes on as if nothing had been.
			if err := s.store.Recover(t.Context(), copied); err != nil {
				t.Fatal(err)
			}
			s.drift()
			s.gone("made")
			s.is("replaced", "before")
		}},
		{"O-146", func(t *testing.T, s *site) {
			free := s.fullStore()
			s.resources = []mesh.Resource{s.file("t", "B"), s.file("new", "B")}
			s.generation++
			same := s.untouched()
			for range 3 {
				d := mesh.Declaration{Node: "n", Generation: s.generation, Resources: s.resources}
				if _, err := s.r.Run(t.Context(), d, mesh.TriggerDeclared, never); err == nil {
					t.Error("a pass of which nothing could be stored ended well")
				}
			}
			same()
			free()
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
		{"O-147", func(t *testing.T, s *site) {
			free := s.fullStore()
			s.resources = []mesh.Resource{s.file("t", "B"), s.file("new", "B")}
			s.generation++
			d := mesh.Declaration{Node: "n", Generation: s.generation, Resources: s.resources}
			if _, err := s.r.Run(t.Context(), d, mesh.TriggerDeclared, never); err == nil {
				t.Error("a pass of which nothing could be stored ended well")
			}
			free()
			s.restart()
			s.drift()
			s.says("t", mesh.StatusChanged, "")
			s.says("new", mesh.StatusChanged, "")
			s.is("t", "B")
		}},
		{"O-148", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			for range 2 {
				_, _, err := store.Open(t.Context(), s.state, false, time.Now)
				var inUse *store.InUseError
				if !errors.As(err, &inUse) || inUse.PID == "" {
					t.Errorf("a second one on the same state is told %v", err)
				}
			}
			s.declare(s.file("t", "B"))
			s.says("t", mesh.StatusChanged, "")
		}},
		{"O-149", func(t *testing.T, s *site) {
			for _, which := range []string{"second", "third"} {
				if _, _, err := store.Open(t.Context(), s.state, false, time.Now); err == nil {
					t.Errorf("the %s one started beside the first", which)
				}
			}
			s.declare(s.file("t", "A"))
			s.says("t", mesh.StatusChanged, "")
			// Killed, it leaves no lock behind.
			s.restart()
		}},
	})
}

func never() bool { return false }

// breakStore damages the store as an accident would, and starts a new process
// on it. It returns where the damaged file is kept.
func (s *site) breakStore(damage func([]byte) []byte) string {
	s.t.Helper()
	if err := s.store.Close(); err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.state, "store.db")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, damage(data), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	st, lost, err := store.Open(s.t.Context(), s.state, true, time.Now)
	if err != nil || lost == nil {
		s.t.Fatalf("a damaged store is not said to be lost: %v", err)
	}
	s.store = st
	s.r = reconcile.New(reconcile.Config{Store: st, Providers: []resource.Provider{file.New(s.cfg)}, Now: time.Now, Log: s.cfg.Logger})
	return lost.MovedTo
}

// fullStore moves the store to a small disk, has a file t with content A
// declared, and fills the disk.
func (s *site) fullStore() (free func()) {
	s.t.Helper()
	if err := s.store.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.state = s.t.TempDir()
	if err := unix.Mount("mesh-test", s.state, "tmpfs", 0, "size=2m"); err != nil {
		s.t.Fatal(err)
	}
	state := s.state
	s.t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	s.start()
	s.declare(s.file("t", "A"))
	filler := filepath.Join(s.state, "filler")
	err := os.WriteFile(filler, make([]byte, 4<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		s.t.Fatalf("filling the disk ended with %v", err)
	}
	return func() {
		if err := os.Remove(filler); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Shows: M4
func TestWhatTheKernelRefusesIsNamedAndLeavesNoTrace(t *testing.T) {
	t.Run("full file system", func(t *testing.T) {
		s := newSite(t)
		s.mkdir("small", 0o755)
		if err := unix.Mount("mesh-test", s.path("small"), "tmpfs", 0, "size=64k,mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("small"), unix.MNT_DETACH) })
		s.put("small/t", "A", 0o644)
		same := s.untouched()
		s.declare(s.file("small/t", strings.Repeat("B", 1<<20)), s.file("small/new", strings.Repeat("B", 1<<20)))
		same()
		s.says("small/t", mesh.StatusFailed, mesh.ReasonNoSpace)
		s.says("small/new", mesh.StatusFailed, mesh.ReasonNoSpace)
		s.settled()
	})
	t.Run("no inodes left", func(t *testing.T) {
		s := newSite(t)
		s.mkdir("small", 0o755)
		if err := unix.Mount("mesh-test", s.path("small"), "tmpfs", 0, "size=64k,mode=755,nr_inodes=2"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("small"), unix.MNT_DETACH) })
		s.put("small/t", "A", 0o644)
		s.declare(s.file("small/t", "B"))
		s.says("small/t", mesh.StatusFailed, mesh.ReasonNoSpace)
		s.settled()
		s.is("small/t", "A")
	})
	t.Run("a path through a file", func(t *testing.T) {
		s := newSite(t)
		s.put("plain", "A", 0o644)
		same := s.untouched()
		s.declare(s.file("plain/t", "B"), absent(s.path("plain/gone")))
		same()
		s.says("plain/t", mesh.StatusFailed, mesh.ReasonParent)
		s.says("plain/gone", mesh.StatusOK, "")
		s.settled()
	})
	t.Run("names as long as they may be", func(t *testing.T) {
		s := newSite(t)
		long, accented := strings.Repeat("n", 255), strings.Repeat("é", 127)
		s.declare(s.file(long, "A"), s.file(accented, "A"), directory(s.path(strings.Repeat("d", 255))))
		s.says(long, mesh.StatusChanged, "")
		s.says(accented, mesh.StatusChanged, "")
		s.settled()
	})
	t.Run("a directory that somebody mounted something on", func(t *testing.T) {
		s := newSite(t)
		s.declare(directory(s.path("d")))
		if err := unix.Mount("mesh-test", s.path("d"), "tmpfs", 0, "size=64k,mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("d"), unix.MNT_DETACH) })
		s.settled()
		s.declare()
		s.says("d", mesh.StatusFailed, mesh.ReasonMountPoint)
		s.settled()
	})
	t.Run("a sticky directory for everybody", func(t *testing.T) {
		s := newSite(t)
		s.mkdir("tmp", 0o777|os.ModeSticky)
		s.put("tmp/theirs", "theirs", 0o666)
		s.chown("tmp/theirs", 1234, 1234)
		s.link("tmp/link", s.path("tmp/theirs"))
		s.chown("tmp/link", 1234, 1234)
		s.mkdir("tmp/dir", 0o755)
		s.link("tmp/to", "dir")
		s.declare(s.file("tmp/theirs", "A"), s.file("tmp/link", "A"), s.file("tmp/to/t", "A"))
		s.says("tmp/theirs", mesh.StatusChanged, "")
		s.standsAs("tmp/theirs", "-rw-r--r-- 0:0")
		s.says("tmp/link", mesh.StatusFailed, mesh.ReasonSymlink)
		s.says("tmp/to/t", mesh.StatusFailed, mesh.ReasonSymlinkInPath)
		s.settled()
	})
}
