package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	mesh "github.com/meshctl/mesh"
	"golang.org/x/sys/unix"
)

// fileType is what stands at a path.
type fileType string

const (
	typeNone      fileType = "none"
	typeRegular            = fileType(mesh.FileRegular)
	typeDirectory          = fileType(mesh.FileDirectory)
	typeSymlink            = fileType(mesh.FileSymlink)
	// typeOther is a pipe, a socket or a device.
	typeOther fileType = "special file"
)

func (t fileType) orEmpty() fileType {
	if t == typeNone {
		return ""
	}
	return t
}

// state is what stands at a path. It is stored: as what was written, and as
// what was there before.
type state struct {
	// Type is empty in a record of what was only announced.
	Type fileType `json:"type"`
	// SHA256 and Size are of a regular file. SHA256 is empty when nobody hashed.
	SHA256 string `json:"sha256,omitempty"`
	Size   int64  `json:"size,omitempty"`
	// Target is of a symlink.
	Target string `json:"target,omitempty"`
	UID    uint32 `json:"uid,omitempty"`
	GID    uint32 `json:"gid,omitempty"`
	// Mode holds the permission bits with set-id and sticky.
	Mode uint32 `json:"mode,omitempty"`
	// Content is of a regular file that was captured. Nil with TooLarge.
	Content  []byte `json:"content,omitempty"`
	TooLarge bool   `json:"too_large,omitempty"`
	// Attributes are extended attributes, access lists and labels among them.
	Attributes map[string][]byte `json:"attributes,omitempty"`
	// print identifies the file as it was looked at. It is not stored.
	print print
	// links is how many names a regular file has. It is not stored.
	links uint32
	// mount: something is mounted at the path itself. It is not stored.
	mount bool
	// real is the path without the links that lead there. Empty: nothing leads
	// there. It is not stored.
	real string
	// sensitive: neither the content nor its digest is told. It is not stored.
	sensitive bool
}

// same reports whether two states hold the same thing: type, content, target.
// Owner and mode do not count. A file that nobody hashed is the same as none.
func (s state) same(o state) bool {
	if s.Type == typeRegular && s.SHA256 == "" {
		return false
	}
	return s.Type == o.Type && s.SHA256 == o.SHA256 && s.Target == o.Target
}

// equal is same, with owner and mode.
func (s state) equal(o state) bool {
	if !s.same(o) {
		return false
	}
	if s.Type == typeNone {
		return true
	}
	return s.UID == o.UID && s.GID == o.GID && (s.Type == typeSymlink || s.Mode == o.Mode)
}

// still reports whether nobody touched what stood there between two looks. Of a
// directory only the type counts. Where a file lies does not: there are file
// systems that number it anew for each look.
func (s state) still(before state) bool {
	if s.Type != before.Type || s.Type == typeNone || s.Type == typeDirectory {
		return s.Type == before.Type
	}
	a, b := s.print, before.print
	return a.size == b.size && a.mtime == b.mtime && a.ctime == b.ctime && a.uid == b.uid && a.gid == b.gid && a.mode == b.mode
}

// becomes reports whether a regular file can be given the owner and mode of o
// and stay the file that it is: its content is right, it has no other name, and
// nobody loses the right to write to it, who might hold it open.
func (s state) becomes(o state) bool {
	loses := s.Mode&0o022&^o.Mode != 0 || (s.UID != 0 && s.UID != o.UID) || (s.Mode&0o020 != 0 && s.GID != o.GID)
	return s.Type == typeRegular && s.same(o) && s.links == 1 && !loses
}

// digestOf writes a digest of what is or should be there, where it may be told.
func (s state) digestOf(sum string) string {
	if s.sensitive {
		return "other content"
	}
	return "sha256 " + sum
}

// reading says how closely to look.
type reading struct {
	// hash: compute the digest of a regular file.
	hash bool
	// sizes: only when it has one of these lengths in bytes, whatever else is
	// asked; of another length it cannot be what is looked for. Nil: always.
	sizes []int64
	// content: keep the bytes, up to OriginalLimit. Hashes too.
	content bool
	// attributes: read extended attributes.
	attributes bool
	// memory: take the digest of the last look where the file cannot have
	// changed since.
	memory trust
}

// ofSizes lists the lengths of these states for a reading.
func ofSizes(states ...state) []int64 {
	sizes := make([]int64, 0, len(states))
	for _, s := range states {
		if s.Type == typeRegular {
			sizes = append(sizes, s.Size)
		}
	}
	return sizes
}

func (r reading) wantsHash(size int64) bool {
	return r.hash && (r.sizes == nil || slices.Contains(r.sizes, size))
}

// lookAt looks at a path. That a directory on the way is missing means that
// nothing stands there.
func (p *Provider) lookAt(ctx context.Context, path string, r reading) (state, error) {
	at, err := locate(path, toLook)
	if err != nil {
		var pe *pathError
		if errors.As(err, &pe) && pe.why != faultLink && pe.why != faultCircle {
			return state{Type: typeNone}, nil
		}
		return state{}, err
	}
	defer at.close()
	s, err := p.look(ctx, at, r)
	s.real = at.real
	return s, err
}

// open opens what stands there for reading, whatever it is but a link, and
// without waiting for the other end of a pipe.
func (l *location) open() (*os.File, error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(l.fd(), l.name, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = unix.Openat(l.fd(), l.name, flags, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", l.path, err)
	}
	return os.NewFile(uintptr(fd), l.path), nil
}

// stat fills in what the kernel says about a file without opening it.
func (s *state) stat(dir int, name string, flags int) error {
	const mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags, mask, &st); err != nil {
		return err
	}
	*s = state{UID: st.Uid, GID: st.Gid, Mode: uint32(st.Mode) & 0o7777, links: st.Nlink, print: printOf(st), mount: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		s.Type, s.Mode = typeSymlink, 0
	case unix.S_IFDIR:
		s.Type = typeDirectory
	case unix.S_IFREG:
		s.Type, s.Size = typeRegular, int64(st.Size)
	default:
		s.Type = typeOther
	}
	return nil
}

// look reads what stands there, from a descriptor of its own.
func (p *Provider) look(ctx context.Context, l *location, r reading) (state, error) {
	var s state
	err := s.stat(l.fd(), l.name, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return state{Type: typeNone}, nil
	}
	if err != nil {
		return state{}, fmt.Errorf("look at %s: %w", l.path, err)
	}
	switch s.Type {
	case typeSymlink:
		if s.Target, err = readLink(l.fd(), l.name); err != nil {
			return state{}, fmt.Errorf("read link %s: %w", l.path, err)
		}
		return s, nil
	case typeDirectory:
		if r.attributes {
			return s, s.readDirectoryAttributes(l)
		}
		return s, nil
	case typeOther:
		return s, nil
	}
	if r.memory != trustNothing && !r.content && !r.attributes {
		if sum, ok := p.memory.recall(l.path, s.print, p.now()); ok {
			s.SHA256 = sum
			return s, nil
		}
	}
	if !r.wantsHash(s.Size) && !r.content && !r.attributes {
		return s, nil
	}
	return p.read(ctx, l, r)
}

// read opens a regular file and reads what is asked for.
func (p *Provider) read(ctx context.Context, l *location, r reading) (state, error) {
	f, err := l.open()
	if err != nil {
		return state{}, err
	}
	defer f.Close()
	var s state
	if err := s.stat(int(f.Fd()), "", unix.AT_EMPTY_PATH); err != nil {
		return state{}, fmt.Errorf("look at %s: %w", l.path, err)
	}
	if s.Type != typeRegular {
		return state{}, fmt.Errorf("look at %s: it was replaced meanwhile", l.path)
	}
	if r.attributes {
		if s.Attributes, err = readAttributes(int(f.Fd())); err != nil {
			return state{}, fmt.Errorf("read extended attributes of %s: %w", l.path, err)
		}
	}
	switch {
	case r.content && s.Size <= OriginalLimit:
		return s, s.readContent(p.reader(ctx, f), l.path)
	case r.content:
		s.TooLarge = true
	}
	if !r.wantsHash(s.Size) {
		return s, nil
	}
	quiet := r.memory == trustQuiet && p.memory.quiet(f, s.print, p.now())
	if s.SHA256, err = p.digest(ctx, f); err != nil {
		return state{}, fmt.Errorf("read %s: %w", l.path, err)
	}
	if quiet {
		var after state
		if err := after.stat(int(f.Fd()), "", unix.AT_EMPTY_PATH); err == nil && after.print == s.print {
			p.memory.keep(l.path, seen{print: s.print, sha256: s.SHA256, at: p.now()})
		}
	}
	return s, nil
}

func (s *state) readDirectoryAttributes(l *location) error {
	f, err := l.open()
	if err != nil {
		return err
	}
	defer f.Close()
	if s.Attributes, err = readAttributes(int(f.Fd())); err != nil {
		return fmt.Errorf("read extended attributes of %s: %w", l.path, err)
	}
	return nil
}

func (s *state) readContent(f io.Reader, path string) error {
	data, err := io.ReadAll(io.LimitReader(f, OriginalLimit+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(data)) != s.Size {
		return fmt.Errorf("read %s: it changed while it was read", path)
	}
	sum := sha256.Sum256(data)
	s.Content, s.SHA256 = data, hex.EncodeToString(sum[:])
	return nil
}

func (p *Provider) digest(ctx context.Context, r io.Reader) (string, error) {
	if p.buffer == nil {
		p.buffer = make([]byte, 128<<10)
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, p.reader(ctx, r), p.buffer); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// contextReader ends a long read when its context ends, and counts its turns. It
// lives for one call.
type contextReader struct {
	ctx   context.Context
	r     io.Reader
	turns *atomic.Uint64
}

func (p *Provider) reader(ctx context.Context, r io.Reader) contextReader {
	return contextReader{ctx, r, &p.turns}
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	c.turns.Add(1)
	return c.r.Read(p)
}
