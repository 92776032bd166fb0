package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

// watched is a provider that has read a file and knows it, on a file system of
// its own, with a clock that stands in the future so that the file is old.
type watched struct {
	t     *testing.T
	disk  disk
	path  string
	want  mesh.Resource
	p     *file.Provider
	later time.Duration
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	needRoot(t)
	w := &watched{t: t, disk: newDisk(t), later: time.Minute}
	w.path = filepath.Join(w.disk.dir, "t")
	put(t, w.path, "declared", 0o644)
	w.want = regular(w.path, "declared")
	w.p = file.New(file.Config{Now: func() time.Time { return time.Now().Add(w.later) }})
	w.look()
	return w
}

// look looks twice, so that what can be remembered is.
func (w *watched) look() {
	w.t.Helper()
	for range 2 {
		if d, err := w.p.Check(w.t.Context(), w.want); err != nil || !d.Zero() {
			w.t.Fatalf("Check says %q, %v", d, err)
		}
	}
}

// times returns what can be set of a file from outside.
func (w *watched) times() unix.Stat_t {
	w.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(w.path, &st); err != nil {
		w.t.Fatal(err)
	}
	return st
}

func (w *watched) restoreTimes(st unix.Stat_t) {
	w.t.Helper()
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, w.path, []unix.Timespec{st.Atim, st.Mtim}, 0); err != nil {
		w.t.Fatal(err)
	}
}

// Shows: M2
func TestAFileThatWasReadAndCannotHaveChangedIsNotReadAgain(t *testing.T) {
	w := newWatched(t)
	var before, after unix.Statx_t
	atime := func(st *unix.Statx_t) {
		t.Helper()
		if err := unix.Statx(unix.AT_FDCWD, w.path, 0, unix.STATX_ATIME, st); err != nil {
			t.Fatal(err)
		}
	}
	atime(&before)
	// A file that only the reading of would show: the disk alters a byte under it.
	w.disk.alter(t, "declared", "declareX")
	if d, err := w.p.Check(t.Context(), w.want); err != nil || !d.Zero() {
		t.Errorf("it was read again: %q, %v", d, err)
	}
	atime(&after)
	if before.Atime != after.Atime {
		t.Error("the time of the last access was changed by looking")
	}
	w.later += time.Hour
	if d, err := w.p.Check(t.Context(), w.want); err != nil || d.Zero() {
		t.Errorf("after an hour it was not read again: %q, %v", d, err)
	}
}

// alter changes bytes on the disk, past the file system, and has the kernel
// forget what it holds of it.
func (d disk) alter(t *testing.T, old, now string) {
	t.Helper()
	unix.Sync()
	data, err := os.ReadFile(d.image)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(data), old)
	if at < 0 {
		t.Fatalf("%q is not on the disk", old)
	}
	loop := strings.Fields(run(t, "findmnt", "-no", "SOURCE", d.dir))[0]
	f, err := os.OpenFile(loop, os.O_WRONLY|unix.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(now), int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
}

// Shows: M2
func TestARestoredTimestampHidesNoChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, w *watched)
	}{
		{"written in place", func(t *testing.T, w *watched) {
			put(t, w.path, "altered!", 0o644)
		}},
		{"replaced by another file", func(t *testing.T, w *watched) {
			put(t, w.path+".new", "altered!", 0o644)
			if err := os.Rename(w.path+".new", w.path); err != nil {
				t.Fatal(err)
			}
		}},
		{"removed and made again in its inode", func(t *testing.T, w *watched) {
			if err := os.Remove(w.path); err != nil {
				t.Fatal(err)
			}
			put(t, w.path, "altered!", 0o644)
		}},
		{"hidden by a mount", func(t *testing.T, w *watched) {
			put(t, w.path+".other", "altered!", 0o644)
			bind(t, w.path+".other", w.path)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatched(t)
			st := w.times()
			c.change(t, w)
			w.restoreTimes(st)
			if d, err := w.p.Check(t.Context(), w.want); err != nil || d.Zero() {
				t.Errorf("Check says %q, %v", d, err)
			}
		})
	}
}

// Shows: M2
func TestAWriteThroughAnOldMappingIsSeen(t *testing.T) {
	w := newWatched(t)
	f, err := os.OpenFile(w.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(page) }()
	// Dirty, and as declared: the page can now be written without a fault.
	copy(page, "declared")
	w.look()
	copy(page, "altered!")
	if d, err := w.p.Check(t.Context(), w.want); err != nil || d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
}

// Shows: M2
func TestAFileThatChangedAMomentAgoIsReadEachTime(t *testing.T) {
	w := newWatched(t)
	w.later = 0
	w.p = file.New(file.Config{})
	for i := range 20 {
		st := w.times()
		put(t, w.path, "declared", 0o644)
		w.look()
		put(t, w.path, "altered!", 0o644)
		w.restoreTimes(st)
		if d, err := w.p.Check(t.Context(), w.want); err != nil || d.Zero() {
			t.Fatalf("change %d was not seen: %q, %v", i, d, err)
		}
	}
}

// Shows: M2
func TestOnAFileSystemInMemoryEveryFileIsRead(t *testing.T) {
	needRoot(t)
	dir := mount(t, "tmpfs", "mesh-test", "size=64k,mode=755")
	path := filepath.Join(dir, "t")
	put(t, path, "declared", 0o644)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(page) }()
	copy(page, "declared")
	p := file.New(file.Config{Now: func() time.Time { return time.Now().Add(time.Minute) }})
	want := regular(path, "declared")
	for range 2 {
		if d, err := p.Check(t.Context(), want); err != nil || !d.Zero() {
			t.Fatalf("Check says %q, %v", d, err)
		}
	}
	copy(page, "altered!")
	if d, err := p.Check(t.Context(), want); err != nil || d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
}
