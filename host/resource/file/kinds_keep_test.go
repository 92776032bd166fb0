package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"golang.org/x/sys/unix"
)

func lstat(t *testing.T, path string) syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// hung returns what hangs on a file or directory: access lists, attributes,
// capabilities.
func hung(t *testing.T, path string) string {
	t.Helper()
	return run(t, "getfacl", "-pn", path) + run(t, "getfattr", "-d", "-m", ".*", path)
}

const capability = "0sAQAAAgAEAAAAAAAAAAAAAAAAAAA="

// Shows: M4, M6
func TestOwnerAndModeAloneAreChangedInPlace(t *testing.T) {
	inPlace := func(s *site, name string, want func(*mesh.FileSpec)) syscall.Stat_t {
		s.t.Helper()
		before := lstat(s.t, s.path(name))
		f := s.file(name, "A")
		want(f.File)
		s.declare(f)
		s.says(name, mesh.StatusChanged, "")
		after := lstat(s.t, s.path(name))
		if after.Ino != before.Ino || after.Mtim != before.Mtim {
			s.t.Errorf("the content was right, and the file was written: inode %d and %d, time %v and %v", before.Ino, after.Ino, before.Mtim, after.Mtim)
		}
		return after
	}
	rows(t, []row{
		{"mode", func(t *testing.T, s *site) {
			s.put("t", "A", 0o600)
			inPlace(s, "t", func(f *mesh.FileSpec) { f.Mode = "0755" })
			s.standsAs("t", "-rwxr-xr-x 0:0")
			s.settled()
			s.declare()
			s.standsAs("t", "-rw------- 0:0")
		}},
		{"owner, with set-id bits", func(t *testing.T, s *site) {
			s.put("t", "A", 0o644)
			st := inPlace(s, "t", func(f *mesh.FileSpec) { f.Owner, f.Group, f.Mode = "1234", "2345", "6711" })
			if st.Mode&0o7777 != 0o6711 || st.Uid != 1234 || st.Gid != 2345 {
				t.Errorf("it is %o of %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
			}
		}},
		{"owner, with capabilities and an access list", func(t *testing.T, s *site) {
			s.put("t", "A", 0o750)
			run(t, "setfattr", "-n", "security.capability", "-v", capability, s.path("t"))
			run(t, "setfacl", "-m", "u:77:rx", s.path("t"))
			inPlace(s, "t", func(f *mesh.FileSpec) { f.Owner, f.Group, f.Mode = "1234", "2345", "0710" })
			if got := hung(t, s.path("t")); !strings.Contains(got, "security.capability="+capability) || !strings.Contains(got, "user:77:r-x") || !strings.Contains(got, "mask::--x") {
				t.Errorf("something of it is lost:\n%s", got)
			}
		}},
		{"drift of the mode", func(t *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			if err := os.Chmod(s.path("t"), 0o640); err != nil {
				t.Fatal(err)
			}
			before := lstat(t, s.path("t"))
			s.drift()
			s.drifted("mode 0640 instead of 0644")
			s.says("t", mesh.StatusChanged, "")
			if after := lstat(t, s.path("t")); after.Ino != before.Ino {
				t.Error("the content was right, and the file was written")
			}
		}},
		{"a file that somebody may hold open for writing is replaced", func(t *testing.T, s *site) {
			s.put("all", "A", 0o666)
			s.put("group", "A", 0o664)
			s.put("owner", "A", 0o644)
			s.chown("owner", 7, 7)
			s.chown("group", 0, 7)
			for _, name := range []string{"all", "group", "owner"} {
				f, err := os.OpenFile(s.path(name), os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				defer func() {
					if _, err := f.WriteAt([]byte("X"), 0); err != nil {
						t.Error(err)
					}
					s.is(name, "A")
				}()
			}
			group := s.file("group", "A")
			group.File.Mode = "0664"
			s.declare(s.file("all", "A"), s.file("owner", "A"), group)
			for _, name := range []string{"all", "group", "owner"} {
				s.says(name, mesh.StatusChanged, "")
			}
		}},
		{"a file with another name is replaced, and the other name keeps its own", func(t *testing.T, s *site) {
			s.put("theirs", "A", 0o600)
			s.chown("theirs", 7, 7)
			if err := os.Link(s.path("theirs"), s.path("t")); err != nil {
				t.Fatal(err)
			}
			f := s.file("t", "A")
			f.File.Owner, f.File.Mode = "1234", "0644"
			s.declare(f)
			s.says("t", mesh.StatusChanged, "")
			s.notes("t", "other names")
			s.standsAs("t", "-rw-r--r-- 1234:0")
			s.standsAs("theirs", "-rw------- 7:7")
		}},
		{"on a full file system", func(t *testing.T, s *site) {
			s.mkdir("small", 0o755)
			if err := unix.Mount("mesh-test", s.path("small"), "tmpfs", 0, "size=64k,mode=755"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(s.path("small"), unix.MNT_DETACH) })
			s.put("small/t", "A", 0o600)
			_ = os.WriteFile(s.path("small/filler"), make([]byte, 1<<20), 0o600)
			s.declare(s.file("small/t", "A"), s.file("small/u", "B"))
			s.says("small/t", mesh.StatusChanged, "")
			s.says("small/u", mesh.StatusFailed, mesh.ReasonNoSpace)
			s.standsAs("small/t", "-rw-r--r-- 0:0")
		}},
		{"of a file that is too large to be kept", func(t *testing.T, s *site) {
			big := strings.Repeat("A", 65<<20)
			s.put("big", big, 0o600)
			f := s.file("big", "")
			f.File.Content, f.File.SHA256, f.File.Size = nil, sumOf(big), int64(len(big))
			s.declare(f)
			s.says("big", mesh.StatusChanged, "")
			s.standsAs("big", "-rw-r--r-- 0:0")
			s.settled()
			// Its content was there before the mesh, and there is no way back to it.
			same := s.untouched()
			s.declare(s.file("big", "B"))
			same()
			s.says("big", mesh.StatusFailed, mesh.ReasonTooLarge)
			s.declare()
			s.says("big", mesh.StatusRemoved, "")
			s.standsAs("big", "-rw------- 0:0")
		}},
		{"a directory and what hangs on it", func(t *testing.T, s *site) {
			s.mkdir("d", 0o777|os.ModeSetgid)
			s.chown("d", 0, 2345)
			run(t, "setfacl", "-d", "-m", "u:77:rx", s.path("d"))
			before := hung(t, s.path("d"))
			d := directory(s.path("d"))
			d.File.Mode, d.File.Owner = "0700", "1234"
			s.declare(d)
			s.standsAs("d", "drwx------ 1234:2345")
			s.settled()
			s.declare()
			if after := hung(t, s.path("d")); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
		}},
	})
}

// Shows: M6
func TestWhatWasTakenAwayComesBackWithAllThatHungOnIt(t *testing.T) {
	needRoot(t)
	for _, kind := range []string{"file", "directory", "directory in one that hands lists down"} {
		t.Run(kind, func(t *testing.T) {
			s := newSite(t)
			path := s.path("t")
			if kind == "file" {
				s.put("t", "A", 0o640)
				run(t, "setfattr", "-n", "security.capability", "-v", capability, path)
			} else {
				s.mkdir("t", 0o750|os.ModeSticky)
			}
			run(t, "setfacl", "-m", "u:1234:rx,g:77:r", path)
			if kind == "directory" {
				run(t, "setfacl", "-d", "-m", "u:1234:rx", path)
			}
			run(t, "setfattr", "-n", "user.note", "-v", "kept", path)
			if kind == "directory in one that hands lists down" {
				run(t, "setfacl", "-d", "-m", "u:99:rwx", s.dir)
			}
			before := hung(t, path)
			s.declare(absent(path))
			s.gone("t")
			s.declare()
			s.says("t", mesh.StatusRemoved, "")
			if after := hung(t, path); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
		})
	}
}

// Shows: M4, M5
func TestWhatACrashLeavesBesideAFileGoesWithTheNextPass(t *testing.T) {
	cut := func(s *site, id mesh.ResourceID) {
		s.t.Helper()
		s.put(".t.mesh-0123456789ab", "half a SECRET", 0o600)
		if err := s.store.Intend(s.t.Context(), []reconcile.Intent{{Resource: id}}); err != nil {
			s.t.Fatal(err)
		}
		s.restart()
	}
	rows(t, []row{
		{"when it is declared as it was", func(_ *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			cut(s, "file:"+mesh.ResourceID(s.path("t")))
			s.declare(s.file("t", "A"))
			onlyNames(s.t, s.dir, "t")
		}},
		{"when it is not declared any more, and was never written", func(_ *testing.T, s *site) {
			gone := s.file("t", "A")
			s.declare(gone)
			if err := os.Remove(s.path("t")); err != nil {
				s.t.Fatal(err)
			}
			cut(s, gone.ID())
			s.declare()
			onlyNames(s.t, s.dir)
		}},
		{"when it is declared otherwise", func(_ *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			cut(s, "file:"+mesh.ResourceID(s.path("t")))
			s.declare(s.file("t", "B"))
			onlyNames(s.t, s.dir, "t")
		}},
	})
}

// Shows: M4
func TestFileSystemsThatCannotDoEverythingAreNoReasonToFail(t *testing.T) {
	label := func(s *site) {
		s.cfg.Label = func(context.Context, string, string, string) (string, error) { return "system_u:object_r:fx_t:s0", nil }
		s.restart()
	}
	over := func(t *testing.T, s *site) {
		for _, d := range []string{"lower", "upper", "work", "merged"} {
			s.mkdir(d, 0o755)
		}
		s.put("lower/t", "old", 0o640)
		s.put("lower/same", "A", 0o640)
		s.mkdir("lower/d", 0o755)
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", s.path("lower"), s.path("upper"), s.path("work"))
		if err := unix.Mount("mesh-test", s.path("merged"), "overlay", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("merged"), unix.MNT_DETACH) })
	}
	rows(t, []row{
		{"labels and attributes on one that has none", func(t *testing.T, s *site) {
			s.mkdir("ram", 0o755)
			if err := unix.Mount("mesh-test", s.path("ram"), "ramfs", 0, "mode=755"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(s.path("ram"), unix.MNT_DETACH) })
			label(s)
			s.put("ram/t", "old", 0o644)
			s.declare(s.file("ram/t", "A"), s.file("ram/new", "A"), directory(s.path("ram/d")), symlink(s.path("ram/l"), "x"))
			for _, name := range []string{"ram/t", "ram/new", "ram/d", "ram/l"} {
				s.says(name, mesh.StatusChanged, "")
			}
		}},
		{"a link has the label of links", func(t *testing.T, s *site) {
			label(s)
			s.declare(symlink(s.path("l"), "x"))
			if got := string(attribute(t, s.path("l"), "security.selinux")); got != "system_u:object_r:fx_t:s0\x00" {
				t.Errorf("the link is labelled %q", got)
			}
		}},
		{"one over another: replaced, set in place, taken away and given back", func(t *testing.T, s *site) {
			over(t, s)
			same := s.file("merged/same", "A")
			s.declare(s.file("merged/t", "new"), same, absent(s.path("merged/d")), directory(s.path("merged/made")))
			for _, name := range []string{"merged/t", "merged/same", "merged/d", "merged/made"} {
				s.says(name, mesh.StatusChanged, "")
			}
			s.is("lower/t", "old")
			s.settled()
			s.declare(directory(s.path("merged/t")), same, s.file("merged/made", "A"))
			s.says("merged/t", mesh.StatusChanged, "")
			s.says("merged/made", mesh.StatusChanged, "")
			s.settled()
			s.declare()
			s.is("merged/t", "old")
			s.standsAs("merged/t", "-rw-r----- 0:0")
			s.standsAs("merged/same", "-rw-r----- 0:0")
			s.standsAs("merged/d", "drwxr-xr-x 0:0")
			s.gone("merged/made")
		}},
	})
}

// Shows: M4
func TestWhatIsSensitiveIsNotToldWhenItsContentIsSpoiled(t *testing.T) {
	rows(t, []row{
		{"on its way to the disk", func(_ *testing.T, s *site) {
			f := s.file("t", "0123456789")
			f.File.Content, f.File.Sensitive = nil, true
			s.cfg.Content = spoiled{halves: [2]string{"01234", "56789"}, look: func() {
				temps, err := filepath.Glob(s.path(".t.mesh-*"))
				if err != nil || len(temps) != 1 {
					s.t.Fatalf("the temporaries are %q, %v", temps, err)
				}
				put(s.t, temps[0], "XXXXX", 0o600)
			}}
			s.restart()
			s.declare(f)
			s.says("t", mesh.StatusFailed, mesh.ReasonReadBack)
			if d := s.result("t").Detail; strings.Contains(d, f.File.SHA256) || strings.Contains(d, sumOf("XXXXX56789")) {
				s.t.Errorf("it says %q", d)
			}
			s.cfg.Content = blobs{f.File.SHA256: "0123456789"}
			s.restart()
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
		{"before it came here", func(_ *testing.T, s *site) {
			f := s.file("t", "0123456789")
			f.File.Content, f.File.Sensitive = nil, true
			s.cfg.Content = spoiled{halves: [2]string{"01234", "5678"}, look: func() {}}
			s.restart()
			s.declare(f)
			s.says("t", mesh.StatusFailed, mesh.ReasonContent)
			if d := s.result("t").Detail; strings.Contains(d, sumOf("012345678")) {
				s.t.Errorf("it says %q", d)
			}
			s.gone("t")
			s.cfg.Content = blobs{f.File.SHA256: "0123456789"}
			s.restart()
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
	})
}

// Shows: M4
func TestAccountsAreFoundByWhateverNameTheMachineKnowsThem(t *testing.T) {
	rows(t, []row{
		{"names of a directory, and a number that looks like a name", func(_ *testing.T, s *site) {
			known := map[string]uint32{`CORP\alice`: 70001, "bob@corp.example": 70002, "3com": 70003, "web+x": 70004, "host$": 70005}
			s.cfg.Getent = func(_ context.Context, _, name string) (uint32, bool, error) {
				id, ok := known[name]
				return id, ok, nil
			}
			s.restart()
			var declared []mesh.Resource
			names := []string{`CORP\alice`, "bob@corp.example", "3com", "web+x", "host$", "0", "70006", "4294967294"}
			for i, name := range names {
				f := s.file(fmt.Sprintf("t%d", i), "A")
				f.File.Owner, f.File.Group = name, name
				declared = append(declared, f)
			}
			s.declare(declared...)
			for i, id := range []string{"70001", "70002", "70003", "70004", "70005", "0", "70006", "4294967294"} {
				s.standsAs(fmt.Sprintf("t%d", i), "-rw-r--r-- "+id+":"+id)
			}
		}},
		{"an account that is made anew with another number", func(_ *testing.T, s *site) {
			id := uint32(70001)
			s.cfg.Getent = func(context.Context, string, string) (uint32, bool, error) { return id, true, nil }
			s.restart()
			f := s.file("t", "A")
			f.File.Owner = "fx-account"
			s.declare(f)
			s.standsAs("t", "-rw-r--r-- 70001:0")
			id = 70002
			s.drift()
			s.says("t", mesh.StatusChanged, "")
			s.standsAs("t", "-rw-r--r-- 70002:0")
		}},
	})
}

// Shows: M4
func TestAnOwnerThatTheKernelRefusesLeavesEverythingAsItWas(t *testing.T) {
	rows(t, []row{{"without the right to give files away, as on a file system on a network", func(t *testing.T, s *site) {
		s.put("t", "old", 0o666)
		s.put("same", "A", 0o604)
		s.mkdir("d", 0o777)
		s.patience = 0 // a thread gives its rights up for itself alone
		s.restart()
		without(t, unix.CAP_CHOWN)
		other, same, made, d, made2, l := s.file("t", "A"), s.file("same", "A"), s.file("new", "A"), directory(s.path("d")), directory(s.path("made")), symlink(s.path("l"), "x")
		for _, r := range []mesh.Resource{other, same, made, d, made2, l} {
			r.File.Owner = "1234"
			if r.File.Type != mesh.FileSymlink {
				r.File.Mode = "0700"
			}
		}
		s.declare(other, same, made, d, made2, l, s.file("mine", "A"))
		for _, name := range []string{"t", "same", "new", "d", "made", "l"} {
			s.says(name, mesh.StatusFailed, mesh.ReasonPermission)
		}
		s.says("mine", mesh.StatusChanged, "")
		s.is("t", "old")
		s.standsAs("t", "-rw-rw-rw- 0:0")
		s.standsAs("same", "-rw----r-- 0:0")
		s.standsAs("d", "drwxrwxrwx 0:0")
		onlyNames(t, s.dir, "d", "mine", "same", "t")
		s.declare()
		s.standsAs("same", "-rw----r-- 0:0")
		// What cannot be done leaves traces in times, so there is no second pass.
		s.generation = 0
	}}})
}

// without takes rights from the rest of the test.
func without(t *testing.T, right int) {
	t.Helper()
	// The thread does not get it back, so it ends with this goroutine.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[right/32].Effective &^= 1 << (right % 32)
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}
