package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

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
	// Links is how many names a regular file has. It is not stored.
	Links uint64 `json:"-"`
}

// same reports whether two states hold the same thing: type, content, target.
// Owner and mode do not count.
func (s state) same(o state) bool {
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

// reading says how closely to look.
type reading struct {
	// hash: compute the digest of a regular file.
	hash bool
	// sizeMatters: only when it has onlySize bytes.
	sizeMatters bool
	onlySize    int64
	// content: keep the bytes, up to OriginalLimit. Hashes too.
	content bool
	// attributes: read extended attributes.
	attributes bool
}

// lookAt looks at a path. That a directory on the way is missing means that
// nothing stands there.
func lookAt(ctx context.Context, path string, r reading) (state, error) {
	at, err := locate(path)
	if err != nil {
		var pe *pathError
		if errors.As(err, &pe) && pe.why != faultLink {
			return state{Type: typeNone}, nil
		}
		return state{}, err
	}
	defer at.close()
	return at.look(ctx, r)
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

// look reads what stands there, from a descriptor of its own.
func (l *location) look(ctx context.Context, r reading) (state, error) {
	var st unix.Stat_t
	err := unix.Fstatat(l.fd(), l.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return state{Type: typeNone}, nil
	}
	if err != nil {
		return state{}, fmt.Errorf("look at %s: %w", l.path, err)
	}
	s := state{UID: st.Uid, GID: st.Gid, Mode: st.Mode & 0o7777}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		s.Type, s.Mode = typeSymlink, 0
		if s.Target, err = readLink(l.fd(), l.name); err != nil {
			return state{}, fmt.Errorf("read link %s: %w", l.path, err)
		}
		return s, nil
	case unix.S_IFDIR:
		s.Type = typeDirectory
		return s, nil
	case unix.S_IFREG:
	default:
		s.Type = typeOther
		return s, nil
	}
	s.Type, s.Size, s.Links = typeRegular, st.Size, uint64(st.Nlink)
	needHash := r.hash && (!r.sizeMatters || r.onlySize == s.Size)
	if !needHash && !r.content && !r.attributes {
		return s, nil
	}
	f, err := l.open()
	if err != nil {
		return state{}, err
	}
	defer f.Close()
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		return state{}, fmt.Errorf("look at %s: %w", l.path, err)
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG {
		return state{}, fmt.Errorf("look at %s: it was replaced meanwhile", l.path)
	}
	s.UID, s.GID, s.Mode, s.Size, s.Links = now.Uid, now.Gid, now.Mode&0o7777, now.Size, uint64(now.Nlink)
	if r.attributes {
		if s.Attributes, err = readAttributes(int(f.Fd())); err != nil {
			return state{}, fmt.Errorf("read extended attributes of %s: %w", l.path, err)
		}
	}
	switch {
	case r.content && s.Size <= OriginalLimit:
		return s, s.readContent(ctx, f, l.path)
	case r.content:
		s.TooLarge = true
		needHash = true
	}
	if needHash {
		if s.SHA256, err = digest(ctx, f); err != nil {
			return state{}, fmt.Errorf("read %s: %w", l.path, err)
		}
	}
	return s, nil
}

func (s *state) readContent(ctx context.Context, f io.Reader, path string) error {
	data, err := io.ReadAll(io.LimitReader(contextReader{ctx, f}, OriginalLimit+1))
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

func digest(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, contextReader{ctx, r}, make([]byte, 128<<10)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// contextReader ends a long read when its context ends. It lives for one call.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
