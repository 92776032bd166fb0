package repo

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// tree writes files that nobody sees yet and syncs them all at the end, which
// costs one wait of the disk instead of one for every file.
type tree struct {
	root  string
	files []string
	dirs  map[string]bool // absolute paths that got a new entry
}

func newTree(root string) (*tree, error) {
	if err := os.RemoveAll(root); err != nil {
		return nil, fmt.Errorf("clear what an earlier attempt left: %w", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return &tree{root: root, dirs: map[string]bool{root: true, filepath.Dir(root): true}}, nil
}

func (t *tree) path(rel string) string { return filepath.Join(t.root, filepath.FromSlash(rel)) }

func (t *tree) parent(rel string) error {
	dir := filepath.Dir(t.path(rel))
	if t.dirs[dir] {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	for d := dir; d != t.root && !t.dirs[d]; d = filepath.Dir(d) {
		t.dirs[d] = true
	}
	return nil
}

// write writes a file out of pieces.
func (t *tree) write(rel string, pieces ...[]byte) error {
	if err := t.parent(rel); err != nil {
		return err
	}
	f, err := os.OpenFile(t.path(rel), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", rel, err)
	}
	w := bufio.NewWriterSize(f, 64<<10)
	for _, b := range pieces {
		if _, err := w.Write(b); err != nil {
			f.Close()
			return fmt.Errorf("write %s: %w", rel, err)
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", rel, err)
	}
	t.files = append(t.files, t.path(rel))
	return nil
}

// link gives from, an absolute path, a second name in the tree.
func (t *tree) link(from, rel string) error {
	if err := t.parent(rel); err != nil {
		return err
	}
	if err := os.Link(from, t.path(rel)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link %s: %w", rel, err)
	}
	return nil
}

func (t *tree) symlink(target, rel string) error {
	if err := t.parent(rel); err != nil {
		return err
	}
	if err := os.Symlink(target, t.path(rel)); err != nil {
		return fmt.Errorf("link %s: %w", rel, err)
	}
	return nil
}

// sync makes everything that was written durable.
func (t *tree) sync() error {
	var g errgroup.Group
	g.SetLimit(8)
	for _, f := range t.files {
		g.Go(func() error { return syncPath(f) })
	}
	for d := range t.dirs {
		g.Go(func() error { return syncPath(d) })
	}
	return g.Wait()
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// sumFile returns size and SHA-256 of a file as it stands on the disk.
func sumFile(path string) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	// Without the wrapping the file would bring a buffer of its own.
	br := buffered(struct{ io.Reader }{f})
	defer release(br)
	n, err := br.WriteTo(h)
	if err != nil {
		return 0, "", err
	}
	return n, hex.EncodeToString(h.Sum(nil)), nil
}
