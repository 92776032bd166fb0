package file

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A memory holds the digests of files that were read, so that a file which
// cannot have changed since is not read again. It lives as long as the process.
//
// What makes it safe to believe: the time of the last change of the inode
// (ctime) cannot be set from outside, so that a restored modification time
// fools nobody; device, inode, time of birth and mount tell a file from another
// one in its place; a file whose ctime is younger than ctimeSlack when it is
// read is never believed, because the kernel's clock for it is coarse; before a
// file is read its dirty pages are written out, so that a later write through
// an old mapping moves ctime too; only file systems of which all of this is
// known count; and after readAgain everything is read once more.
type memory struct {
	seen map[string]seen
	// kinds holds by device whether its file system keeps what the above needs.
	kinds map[uint64]bool
}

// trust says whether a reading may take a digest from memory.
type trust string

const (
	// trustNothing reads the file.
	trustNothing trust = ""
	// trustQuiet takes the digest of a file that cannot have changed.
	trustQuiet trust = "quiet"
)

const (
	// ctimeSlack is how old a change must be to be told from a later one.
	ctimeSlack = 2 * time.Second
	// readAgain is how long a digest is believed without reading.
	readAgain = time.Hour
	// memoryLimit bounds how many files are remembered.
	memoryLimit = 100_000
)

// print identifies a file at a moment. Equal prints of a quiet file mean equal
// content.
type print struct {
	dev, ino, mount     uint64
	size                uint64
	mtime, ctime, birth unix.StatxTimestamp
	uid, gid            uint32
	mode                uint16
}

func printOf(st unix.Statx_t) print {
	return print{
		dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino, mount: st.Mnt_id, size: st.Size,
		mtime: st.Mtime, ctime: st.Ctime, birth: st.Btime, uid: st.Uid, gid: st.Gid, mode: st.Mode,
	}
}

// seen is what was read of a quiet file, and when: a later change would have
// another print.
type seen struct {
	print  print
	sha256 string
	at     time.Time
}

func (m *memory) keep(path string, s seen) {
	if m.seen == nil || len(m.seen) >= memoryLimit {
		m.seen = make(map[string]seen)
	}
	m.seen[path] = s
}

func (m *memory) forget(path string) { delete(m.seen, path) }

func (m *memory) recall(path string, now print, at time.Time) (sum string, ok bool) {
	s, ok := m.seen[path]
	if !ok || s.print != now {
		return "", false
	}
	age := at.Sub(s.at)
	return s.sha256, age >= 0 && age < readAgain
}

// quiet reports whether a file that is about to be read will show every later
// change in its print.
func (m *memory) quiet(f *os.File, p print, now time.Time) bool {
	changed := time.Unix(p.ctime.Sec, int64(p.ctime.Nsec))
	if now.Sub(changed) < ctimeSlack || !m.keepsTimes(f, p.dev) {
		return false
	}
	// Pages that a mapping has made dirty can be written again without a trace
	// until they are clean. Nothing has to be durable for that.
	const clean = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	return unix.SyncFileRange(int(f.Fd()), 0, 0, clean) == nil
}

// keepsTimes reports whether the file system gives every change, a write
// through a mapping included, a new ctime. It holds for those listed; of others
// it is not known, or, as with tmpfs, known not to be so.
func (m *memory) keepsTimes(f *os.File, dev uint64) bool {
	known, ok := m.kinds[dev]
	if ok {
		return known
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		known = true
	}
	if m.kinds == nil {
		m.kinds = make(map[uint64]bool)
	}
	m.kinds[dev] = known
	return known
}
