package file

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// location is a name in an open directory.
type location struct {
	// dir is the directory, open for reading or, of a location that is only
	// looked at, as a mere place.
	dir  *os.File
	name string
	// path is the name as it was declared, for people.
	path string
	// real is the path without the links that lead there.
	real string
}

func (l *location) close() {
	// Nothing was written through this descriptor.
	_ = l.dir.Close()
}

func (l *location) fd() int { return int(l.dir.Fd()) }

// pathError says that the directory of a path cannot be reached.
type pathError struct {
	part string
	why  pathFault
}

type pathFault string

const (
	faultMissing pathFault = "does not exist"
	faultNotDir  pathFault = "is not a directory"
	faultLink    pathFault = "is a link that an unprivileged user could have placed"
	faultCircle  pathFault = "is a link that leads in a circle"
)

func (e *pathError) Error() string { return fmt.Sprintf("%s %s", e.part, e.why) }

// linksLimit is how many links a path may lead through, as in the kernel.
const linksLimit = 40

// purpose says what a location is for.
type purpose string

const (
	toLook  purpose = "look"
	toWrite purpose = "write"
)

// locate opens the directory of a clean absolute path. Where no link leads
// there, the kernel walks it in one call that refuses links.
func locate(p string, why purpose) (*location, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return nil, fmt.Errorf("%q is not a clean absolute path", p)
	}
	cut := strings.LastIndexByte(p, '/')
	dir, name := p[:max(cut, 1)], p[cut+1:]
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	if why == toWrite {
		how.Flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &how)
	if err == nil {
		return &location{dir: os.NewFile(uintptr(fd), dir), name: name, path: p, real: p}, nil
	}
	// A link, a fault that has to be named, or a kernel that lacks the call.
	return walk(p)
}

// walk opens the directory of a path one component at a time and never following
// a link by itself. A link is followed only when it belongs to root and every
// directory down to it belongs to root and nobody else may write there: then
// only root can have placed it.
func walk(p string) (*location, error) {
	rest := strings.Split(p[1:], "/")
	name := rest[len(rest)-1]
	rest = rest[:len(rest)-1]

	dir, trusted, err := openRoot()
	if err != nil {
		return nil, err
	}
	walked := "/"
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			continue
		}
		at := path.Join(walked, part)
		next, err := unix.Openat(dir, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			closeFD(dir)
			if errors.Is(err, unix.ENOENT) {
				return nil, &pathError{part: at, why: faultMissing}
			}
			return nil, fmt.Errorf("open directory %s: %w", at, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			closeFD(next)
			closeFD(dir)
			return nil, fmt.Errorf("look at directory %s: %w", at, err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			closeFD(dir)
			dir, walked = next, at
			trusted = trusted && onlyRootWrites(st)
		case unix.S_IFLNK:
			target, err := readLink(next, "")
			closeFD(next)
			if err != nil {
				closeFD(dir)
				return nil, fmt.Errorf("read link %s: %w", at, err)
			}
			if !trusted || st.Uid != 0 {
				closeFD(dir)
				return nil, &pathError{part: at, why: faultLink}
			}
			if links++; links > linksLimit {
				closeFD(dir)
				return nil, &pathError{part: at, why: faultCircle}
			}
			if path.IsAbs(target) {
				closeFD(dir)
				if dir, trusted, err = openRoot(); err != nil {
					return nil, err
				}
				walked = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		default:
			closeFD(next)
			closeFD(dir)
			return nil, &pathError{part: at, why: faultNotDir}
		}
	}
	defer closeFD(dir)
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", walked, err)
	}
	return &location{dir: os.NewFile(uintptr(fd), walked), name: name, path: p, real: path.Join(walked, name)}, nil
}

func openRoot() (fd int, trusted bool, err error) {
	fd, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, false, fmt.Errorf("open the root directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return -1, false, fmt.Errorf("look at the root directory: %w", err)
	}
	return fd, onlyRootWrites(st), nil
}

// onlyRootWrites reports whether nobody but root can place a name in the
// directory. An access list that lets others write shows in the group's bits.
func onlyRootWrites(st unix.Stat_t) bool {
	return st.Uid == 0 && st.Mode&0o022 == 0
}

func readLink(dir int, name string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	if n == len(buf) {
		return "", unix.ENAMETOOLONG
	}
	return string(buf[:n]), nil
}

func closeFD(fd int) {
	// Descriptors that only name a place have nothing to lose.
	_ = unix.Close(fd)
}
