package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"strconv"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// want is a specification as it is worked with.
type want struct {
	kind      mesh.FileType
	absent    bool
	inline    []byte
	hasInline bool
	sha256    string
	size      int64
	target    string
	owner     string // empty: left open
	group     string // empty: left open
	mode      uint32
	hasMode   bool
	sensitive bool
}

var emptySum = hex.EncodeToString(sha256.New().Sum(nil))

func wanted(r mesh.Resource) (want, error) {
	if r.Kind != mesh.KindFile || r.File == nil {
		return want{}, resource.Failed(mesh.ReasonInternal, nil, "%s is no file resource", r.ID())
	}
	f := r.File
	if f.Absent {
		return want{absent: true}, nil
	}
	w := want{kind: f.Type, sha256: f.SHA256, size: f.Size, target: f.Target, owner: f.Owner, group: f.Group, sensitive: f.Sensitive}
	if w.kind == "" {
		w.kind = mesh.FileRegular
	}
	if f.Mode != "" {
		bits, err := strconv.ParseUint(f.Mode, 8, 12)
		if err != nil {
			return want{}, resource.Failed(mesh.ReasonInternal, err, "%q is no mode", f.Mode)
		}
		w.mode, w.hasMode = uint32(bits), true
	}
	if w.kind != mesh.FileRegular {
		return w, nil
	}
	switch {
	case f.Content != nil:
		w.inline, w.hasInline = f.Content, true
		w.size = int64(len(f.Content))
		if w.sha256 == "" {
			sum := sha256.Sum256(f.Content)
			w.sha256 = hex.EncodeToString(sum[:])
		}
	case f.SHA256 == emptySum:
		w.hasInline, w.size = true, 0
	case f.SHA256 == "":
		return want{}, resource.Failed(mesh.ReasonInternal, nil, "%s has neither content nor a digest", r.ID())
	}
	return w, nil
}

// meant is what is wanted, without accounts.
func (w want) meant() state {
	if w.absent {
		return state{Type: typeNone}
	}
	return state{Type: fileType(w.kind), SHA256: w.sha256, Size: w.size, Target: w.target}
}

// reading is what Check needs: a regular file of another size is not hashed.
func (w want) reading() reading {
	return reading{hash: !w.absent && w.kind == mesh.FileRegular, sizes: []int64{w.size}, memory: trustQuiet}
}

// defaultMode is the mode of something new for which none is declared.
func (w want) defaultMode() uint32 {
	if w.kind == mesh.FileDirectory {
		return 0o755
	}
	return 0o644
}

// admits refuses to take over something of another type.
func (w want) admits(path string, have fileType) error {
	if have == typeNone {
		return nil
	}
	if w.absent {
		if have == typeOther {
			return resource.Failed(mesh.ReasonWrongType, nil, "%s is neither a file, a directory nor a link; it could not be put back, so it is not removed", path)
		}
		return nil
	}
	if have == fileType(w.kind) {
		return nil
	}
	if have == typeSymlink {
		return resource.Failed(mesh.ReasonSymlink, nil, "%s is a symbolic link; it and what it points at stay as they are", path)
	}
	return resource.Failed(mesh.ReasonWrongType, nil, "%s is a %s, not a %s; it stays as it is", path, have, w.kind)
}

// source opens the bytes of a regular file: inline, from what stands there when
// only owner or mode is wrong, or from the content that arrived.
func (p *Provider) source(w want, at *location, have state) (io.ReadCloser, error) {
	if w.hasInline {
		return io.NopCloser(bytes.NewReader(w.inline)), nil
	}
	if have.Type == typeRegular && have.SHA256 == w.sha256 {
		if f, err := at.open(); err == nil {
			return f, nil
		}
	}
	if p.content == nil {
		return nil, resource.Deferred(mesh.ReasonContent, nil, "the content of %s has not arrived", at.path)
	}
	r, err := p.content.Open(w.sha256)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, resource.Deferred(mesh.ReasonContent, err, "the content of %s has not arrived", at.path)
	case err != nil:
		return nil, resource.Failed(mesh.ReasonContent, err, "the content of %s could not be opened", at.path)
	}
	return r, nil
}
