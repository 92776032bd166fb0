package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
	"golang.org/x/sys/unix"
)

const (
	temporaryMark   = ".mesh-"
	temporaryRandom = 6 // bytes, written as hexadecimal digits
	nameLimit       = 255
)

// temporaryPrefix is what the temporaries of a name begin with. It is cut so
// that the whole fits into a directory entry.
func temporaryPrefix(name string) string {
	room := nameLimit - 1 - len(temporaryMark) - 2*temporaryRandom
	if len(name) > room {
		name = name[:room]
	}
	return "." + name + temporaryMark
}

func (p *Provider) temporary(name string) (string, error) {
	b := make([]byte, temporaryRandom)
	if _, err := io.ReadFull(p.random, b); err != nil {
		return "", fmt.Errorf("draw a name: %w", err)
	}
	return temporaryPrefix(name) + hex.EncodeToString(b), nil
}

// sweep removes temporaries that a crash left beside the name. What cannot be
// removed is left: it is in nobody's way.
func (l *location) sweep() {
	prefix := temporaryPrefix(l.name)
	if _, err := l.dir.Seek(0, io.SeekStart); err != nil {
		return
	}
	for {
		names, err := l.dir.Readdirnames(512)
		for _, name := range names {
			tail, ours := strings.CutPrefix(name, prefix)
			if !ours || len(tail) != 2*temporaryRandom || strings.Trim(tail, "0123456789abcdef") != "" {
				continue
			}
			if err := unix.Unlinkat(l.fd(), name, 0); errors.Is(err, unix.EISDIR) {
				_ = unix.Unlinkat(l.fd(), name, unix.AT_REMOVEDIR)
			}
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

// putRegular writes a new file beside the name and renames it into place.
func (p *Provider) putRegular(ctx context.Context, at *location, have, target state, source io.ReadCloser) (err error) {
	defer source.Close()
	temp, err := p.temporary(at.name)
	if err != nil {
		return err
	}
	if err := at.vacant(have.Type); err != nil {
		return at.unwritable("look into the directory", err)
	}
	if err := at.room(target.Size); err != nil {
		return at.unwritable("find room", err)
	}
	fd, err := unix.Openat(at.fd(), temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return at.unwritable("create a temporary", err)
	}
	f := os.NewFile(uintptr(fd), temp)
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = at.unwritable("close the new file", cerr)
		}
		if err != nil {
			_ = unix.Unlinkat(at.fd(), temp, 0)
		}
	}()
	// Until the content is whole and right, the temporary is root's alone.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return at.unwritable("set the mode of the temporary", err)
	}
	fault.Point("file.before-write")
	if err := p.fill(ctx, f, source, target, at.path); err != nil {
		return at.unwritable("write the content", err)
	}
	if err := f.Sync(); err != nil {
		return at.unwritable("bring the content to the disk", err)
	}
	if err := p.verifyTemporary(ctx, at, temp, target); err != nil {
		return at.unwritable("read the new content back", err)
	}
	if err := p.dress(ctx, at, f, have, target); err != nil {
		return at.unwritable("set owner, mode and attributes", err)
	}
	if err := f.Sync(); err != nil {
		return at.unwritable("bring owner and mode to the disk", err)
	}
	fault.Point("file.before-rename")
	if err := at.rename(temp, typeRegular, have); err != nil {
		return at.unwritable("put the new file into place", err)
	}
	fault.Point("file.after-rename")
	if err := at.sync(); err != nil {
		return at.unwritable("bring the directory to the disk", err)
	}
	return nil
}

// vacant refuses when a directory that is to be replaced holds something.
func (l *location) vacant(have fileType) error {
	if have != typeDirectory {
		return nil
	}
	dir, err := l.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	if len(names) > 0 {
		return unix.ENOTEMPTY
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// room refuses what cannot fit before anything is written, so that a pass over
// a full file system leaves no trace on it.
func (l *location) room(size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(l.fd(), &st); err != nil || st.Blocks == 0 || st.Bsize <= 0 {
		// Not every file system says; writing will tell.
		return nil
	}
	blocks := (uint64(size) + uint64(st.Bsize) - 1) / uint64(st.Bsize)
	if st.Bfree < blocks || (st.Files > 0 && st.Ffree == 0) {
		return unix.ENOSPC
	}
	return nil
}

// fill copies source into f and refuses anything but the content that was
// meant.
func (p *Provider) fill(ctx context.Context, f *os.File, source io.Reader, target state, path string) error {
	h := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(f, h), p.reader(ctx, io.LimitReader(source, target.Size+1)), make([]byte, 128<<10))
	if err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); n != target.Size || sum != target.SHA256 {
		return resource.Failed(mesh.ReasonContent, nil, "the content for %s is not what was declared (%d bytes, %s); what stood there stays", path, n, target.digestOf(sum))
	}
	return nil
}

// verifyTemporary reads the new file through a descriptor of its own, so that
// what was altered on the way down never gets the name.
func (p *Provider) verifyTemporary(ctx context.Context, at *location, temp string, target state) error {
	beside := location{dir: at.dir, name: temp, path: at.path}
	got, err := p.look(ctx, &beside, reading{hash: true})
	if err != nil {
		return err
	}
	if got.SHA256 != target.SHA256 {
		return resource.Failed(mesh.ReasonReadBack, nil, "what was written for %s reads back as %s, not %s; what stood there stays", at.path, target.digestOf(got.SHA256), target.digestOf(target.SHA256))
	}
	return nil
}

// rename puts the temporary into place, unless what stood there was changed since
// it was looked at. Where nothing stood, it refuses to replace what appeared
// since. Between a directory and something else there is
// no rename in one step, and a directory goes only when it is empty.
func (l *location) rename(temp string, now fileType, have state) error {
	was := have.Type
	if was != typeNone {
		var last state
		if err := last.stat(l.fd(), l.name, unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		} else if err != nil || !last.still(have) {
			return changedJustNow(l.path)
		}
	}
	if was != typeNone && (was == typeDirectory) != (now == typeDirectory) {
		if err := l.remove(was); err != nil {
			return err
		}
		fault.Point("file.between-types")
		was = typeNone
	}
	if was != typeNone {
		return unix.Renameat(l.fd(), temp, l.fd(), l.name)
	}
	err := unix.Renameat2(l.fd(), temp, l.fd(), l.name, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return resource.Conflict(mesh.ReasonSomebodyElse, err, "somebody put something at %s just now; it stays", l.path)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// This file system cannot refuse; a moment ago nothing stood there.
		return unix.Renameat(l.fd(), temp, l.fd(), l.name)
	}
	return err
}

func (l *location) sync() error {
	err := l.dir.Sync()
	if errors.Is(err, unix.EINVAL) {
		// A file system without anything to bring to a disk.
		return nil
	}
	return err
}

// putDirectory makes the directory, or sets owner and mode of the one there. A
// new one gets its name when it is whole.
func (p *Provider) putDirectory(ctx context.Context, at *location, have, target state) (err error) {
	if have.Type == typeDirectory {
		return p.setDirectory(ctx, at, at.name, have, target)
	}
	temp, err := p.temporary(at.name)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(at.fd(), temp, 0o700); err != nil {
		return at.unwritable("make the directory", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(at.fd(), temp, unix.AT_REMOVEDIR)
		}
	}()
	fault.Point("file.after-mkdir")
	if err := p.setDirectory(ctx, at, temp, have, target); err != nil {
		return err
	}
	if err := at.rename(temp, typeDirectory, have); err != nil {
		return at.unwritable("put the directory into place", err)
	}
	if err := at.sync(); err != nil {
		return at.unwritable("bring the directory to the disk", err)
	}
	return nil
}

// setDirectory gives a directory its owner and mode, and a new one its
// attributes.
func (p *Provider) setDirectory(ctx context.Context, at *location, name string, have, target state) error {
	fd, err := unix.Openat(at.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return at.unwritable("open the directory", err)
	}
	dir := os.NewFile(uintptr(fd), at.path)
	defer dir.Close()
	if have.Type != typeDirectory {
		have = state{UID: ^uint32(0)}
		if target.Attributes != nil {
			if err := setAttributes(fd, target.Attributes, true, target.Mode, attributeACL, attributeInherited); err != nil {
				return at.unwritable("set the attributes of the directory", err)
			}
		} else if err := p.setLabel(ctx, at.path, "dir", "", onto(fd)); err != nil {
			return at.unwritable("label the directory", err)
		}
	}
	if err := setOwner(fd, have, target); err != nil {
		return at.unwritable("set owner and mode", err)
	}
	made := location{dir: dir, name: ".", path: at.path}
	if err := made.sync(); err != nil {
		return at.unwritable("bring the directory to the disk", err)
	}
	return nil
}

// setRegular gives the file that stands there, and whose content is right, its
// owner and mode. It must have no other name: that one may be somebody else's.
func (l *location) setRegular(have, target state) error {
	f, err := l.open()
	if err != nil {
		return unreadable(l.path, err)
	}
	defer f.Close()
	var now state
	if err := now.stat(int(f.Fd()), "", unix.AT_EMPTY_PATH); err != nil {
		return unreadable(l.path, err)
	}
	if now.print != have.print || now.links != 1 {
		return resource.Failed(mesh.ReasonReadBack, nil, "%s was replaced or changed just now; it stays", l.path)
	}
	fault.Point("file.before-set")
	if err := setOwner(int(f.Fd()), have, target); err != nil {
		return l.unwritable("set owner and mode", err)
	}
	if value, ok := have.Attributes[attributeCapability]; ok {
		if err := unix.Fsetxattr(int(f.Fd()), attributeCapability, value, 0); err != nil {
			return l.unwritable("keep the capabilities", err)
		}
	}
	if err := f.Sync(); err != nil {
		return l.unwritable("bring owner and mode to the disk", err)
	}
	return nil
}

// setOwner gives what stands there, or was just made, its owner and mode. At no
// moment does it allow what neither the old nor the new mode does, and when it
// fails the old mode is back.
func setOwner(fd int, have, target state) (err error) {
	if narrow := have.Mode & target.Mode; narrow != have.Mode {
		if err := unix.Fchmod(fd, narrow); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = unix.Fchmod(fd, have.Mode)
			}
		}()
	}
	if have.UID != target.UID || have.GID != target.GID {
		if err := unix.Fchown(fd, int(target.UID), int(target.GID)); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, target.Mode)
}

// putSymlink makes the link beside the name and renames it into place.
func (p *Provider) putSymlink(ctx context.Context, at *location, have, target state) error {
	temp, err := p.temporary(at.name)
	if err != nil {
		return err
	}
	if err := at.vacant(have.Type); err != nil {
		return at.unwritable("look into the directory", err)
	}
	if err := unix.Symlinkat(target.Target, at.fd(), temp); err != nil {
		return at.unwritable("make the link", err)
	}
	drop := func(step string, err error) error {
		_ = unix.Unlinkat(at.fd(), temp, 0)
		return at.unwritable(step, err)
	}
	if err := unix.Fchownat(at.fd(), temp, int(target.UID), int(target.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return drop("set the owner", err)
	}
	if err := p.setLabel(ctx, at.path, "link", "", at.ontoLink(temp)); err != nil {
		return drop("label the link", err)
	}
	fault.Point("file.before-rename")
	if err := at.rename(temp, typeSymlink, have); err != nil {
		return drop("put the link into place", err)
	}
	if err := at.sync(); err != nil {
		return at.unwritable("bring the directory to the disk", err)
	}
	return nil
}

// remove takes away what stands there; a directory only when it is empty.
func (l *location) remove(have fileType) error {
	flags := 0
	switch have {
	case typeNone:
		return nil
	case typeDirectory:
		flags = unix.AT_REMOVEDIR
	}
	err := unix.Unlinkat(l.fd(), l.name, flags)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return l.unwritable("remove", err)
	}
	if err := l.sync(); err != nil {
		return l.unwritable("bring the directory to the disk", err)
	}
	return nil
}
