package repo

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"
)

// Snapshot is one generation as a reader sees it. A reader that asks one
// snapshot for several files gets files that belong together, for as long as
// the generation is kept.
type Snapshot struct {
	r *Repo
	s *state
}

// Snapshot returns the published generation.
func (r *Repo) Snapshot() Snapshot { return Snapshot{r: r, s: r.state.Load()} }

// Generation returns the snapshot's number.
func (s Snapshot) Generation() uint64 { return s.s.generation }

// File is one open file of the tree. The caller closes it.
type File struct {
	*os.File
	Size     int64
	Modified time.Time // whole seconds; grows when the file behind a path changes
	Tag      string    // names these bytes; the same path never has the same tag for others
	// Immutable says that the path will never name other bytes.
	Immutable bool
}

var (
	poolFile  = regexp.MustCompile(`^pool/([0-9a-f]{2})/([0-9a-f]{64})/([A-Za-z0-9][A-Za-z0-9.+~^_-]*\.(?:deb|rpm))$`)
	byHash    = regexp.MustCompile(`/by-hash/SHA256/[0-9a-f]{64}$`)
	checksumd = regexp.MustCompile(`^repodata/[0-9a-f]{64}-[a-z]+\.xml\.gz$`)
)

// Open opens a file by its path under the root of the tree, without a leading
// slash. The error holds fs.ErrNotExist when there is no such file.
func (s Snapshot) Open(path string) (*File, error) {
	missing := fmt.Errorf("open %q: %w", clip(path), fs.ErrNotExist)
	if !fs.ValidPath(path) {
		return nil, missing
	}
	area, rest, _ := strings.Cut(path, "/")
	if area == "pool" {
		return s.r.openPool(path, missing)
	}
	suite, rest, _ := strings.Cut(rest, "/")
	format := Deb
	switch area {
	case "dists":
	case "rpm":
		format = RPM
		if strings.HasPrefix(rest, "pool/") {
			return s.r.openPool(rest, missing)
		}
	default:
		return nil, missing
	}
	p := s.s.parts[partKey{suite, format}]
	if p == nil || rest == "" {
		return nil, missing
	}
	f, err := openRegular(s.r.public("parts", p.dir, "tree", rest), missing)
	if err != nil {
		return nil, err
	}
	f.Modified, f.Tag = p.modified, p.dir
	if byHash.MatchString(rest) || checksumd.MatchString(rest) {
		f.Immutable = true
		f.Tag = rest[strings.LastIndexByte(rest, '/')+1:]
	}
	return f, nil
}

func (r *Repo) openPool(path string, missing error) (*File, error) {
	m := poolFile.FindStringSubmatch(path)
	if m == nil || m[1] != m[2][:2] {
		return nil, missing
	}
	f, err := openRegular(r.pool(m[1], m[2], m[3]), missing)
	if err != nil {
		return nil, err
	}
	f.Immutable, f.Tag = true, m[2]
	return f, nil
}

func openRegular(path string, missing error) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		if os.IsPermission(err) {
			return nil, err
		}
		return nil, missing
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, missing
	}
	return &File{File: f, Size: st.Size(), Modified: st.ModTime().Truncate(time.Second)}, nil
}
