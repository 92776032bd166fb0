// Package bundle takes what a machine needs before it knows a mesh: a directory
// or a tar that holds declaration.yaml and the package files that it names.
//
// It applies nothing. It trusts the files as root carried them here: that is
// how the first node of a mesh begins, before there is a key to check against.
package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/document"
	"github.com/meshctl/mesh/internal/pkgversion"
)

// DeclarationFile is the name of the document in a bundle.
const DeclarationFile = "declaration.yaml"

const (
	maxFiles     = 256
	maxFileBytes = 2 << 30
	askTimeout   = 30 * time.Second
	// documentLimit bounds the document as it travels when the machine enrols,
	// in bytes, with the content of its files in it. It leaves room in a frame for
	// what else a machine says of itself.
	documentLimit = 12 << 20
)

// Format is the format of package files that this machine can install.
type Format string

// The formats.
const (
	Deb Format = "deb"
	RPM Format = "rpm"
)

// Store keeps the package files of the last bundle, so that what it declares
// can be installed again after a restart.
type Store struct {
	dir    string
	format Format

	mu    sync.Mutex
	index map[key]string // guarded by mu; path of each package file
}

type key struct{ name, version string }

// Open opens the store in dir, which need not exist. Format is empty on a
// machine without a package manager; no package file is then of use.
func Open(ctx context.Context, dir string, format Format) (*Store, error) {
	s := &Store{dir: dir, format: format}
	if err := s.putBack(); err != nil {
		return nil, fmt.Errorf("put back the bundle that was being replaced: %w", err)
	}
	index, err := s.read(ctx, dir)
	if err != nil {
		return nil, err
	}
	s.index = index
	return s, nil
}

// Path returns the package file that a bundle brought for name in version; an
// empty version: in the newest that it brought.
func (s *Store) Path(name, version string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version != "" {
		path, ok := s.index[key{name, version}]
		return path, ok
	}
	newest, path := "", ""
	for k, p := range s.index {
		if k.name == name && (path == "" || s.format.compare(k.version, newest) > 0) {
			newest, path = k.version, p
		}
	}
	return path, path != ""
}

// compare orders versions as the package manager does.
func (f Format) compare(a, b string) int {
	if f == RPM {
		return pkgversion.CompareRPM(a, b)
	}
	return pkgversion.CompareDeb(a, b)
}

// Take copies the bundle at path, a directory or a tar, into the store, and
// returns its document. When it returns an error the store is as it was.
func (s *Store) Take(ctx context.Context, path string) (mesh.Document, error) {
	aside := s.dir + ".new"
	if err := os.RemoveAll(aside); err != nil {
		return mesh.Document{}, fmt.Errorf("clear half a bundle: %w", err)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return mesh.Document{}, fmt.Errorf("make room for the bundle: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return mesh.Document{}, mesh.Errorf(mesh.CodeNotFound, "there is no bundle at %s: %w", path, err)
	case err != nil:
		return mesh.Document{}, fmt.Errorf("read the bundle: %w", err)
	case info.IsDir():
		err = copyDir(path, aside)
	default:
		err = unpack(path, aside)
	}
	if err != nil {
		return mesh.Document{}, mesh.Errorf(mesh.CodeInvalid, "the bundle at %s cannot be taken; nothing was done: %w", path, err)
	}
	doc, err := document.Load(filepath.Join(aside, DeclarationFile))
	if err != nil {
		return mesh.Document{}, err
	}
	if problems := document.ForBundle(doc); len(problems) > 0 {
		return mesh.Document{}, &mesh.Error{Code: mesh.CodeInvalid, Message: "the bundle's declaration cannot be applied without a control plane; nothing was done", Details: problems}
	}
	travels, err := json.Marshal(doc)
	if err != nil {
		return mesh.Document{}, fmt.Errorf("write the bundle's declaration as it travels: %w", err)
	}
	if len(travels) > documentLimit {
		return mesh.Document{}, mesh.Errorf(mesh.CodeInvalid, "the bundle's declaration comes to %d bytes with the content of its files, and %d is what a control plane can take over when this machine enrols; put large files into a package; nothing was done", len(travels), documentLimit)
	}
	if _, err := s.read(ctx, aside); err != nil {
		return mesh.Document{}, err
	}
	if err := s.replace(aside); err != nil {
		return mesh.Document{}, fmt.Errorf("keep the bundle: %w", err)
	}
	index, err := s.read(ctx, s.dir)
	if err != nil {
		return mesh.Document{}, err
	}
	s.mu.Lock()
	s.index = index
	s.mu.Unlock()
	return doc, nil
}

// replace puts the directory aside in the place of the store, whole or not at
// all.
func (s *Store) replace(aside string) error {
	old := s.dir + oldSuffix
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(s.dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(aside, s.dir); err != nil {
		return errors.Join(err, s.putBack())
	}
	if err := syncDir(filepath.Dir(s.dir)); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// putBack undoes a replacement that was interrupted half way.
func (s *Store) putBack() error {
	if _, err := os.Lstat(s.dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(s.dir+oldSuffix, s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// oldSuffix ends the name of the bundle that is being replaced.
const oldSuffix = ".old"

// read asks the package manager's own reader what the files are. Files for
// another format or architecture are left alone.
func (s *Store) read(ctx context.Context, dir string) (map[key]string, error) {
	index := make(map[key]string)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return index, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the bundle: %w", err)
	}
	for _, e := range entries {
		if s.format == "" || !strings.HasSuffix(e.Name(), "."+string(s.format)) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		name, version, arch, err := s.describe(ctx, path)
		if err != nil {
			return nil, mesh.Errorf(mesh.CodeInvalid, "%s in the bundle is no package that this machine can read: %w", e.Name(), err)
		}
		if fits(arch) {
			index[key{name, version}] = path
		}
	}
	return index, nil
}

func (s *Store) describe(ctx context.Context, path string) (name, version, arch string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	argv := []string{"dpkg-deb", "--show", "--showformat=${Package}\t${Version}\t${Architecture}", path}
	if s.format == RPM {
		argv = []string{"rpm", "-qp", "--nosignature", "--qf", "%{NAME}\t%{EVR}\t%{ARCH}", path}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return "", "", "", fmt.Errorf("ask %s: %w", argv[0], err)
	}
	fields := strings.Split(string(out), "\t")
	if len(fields) != 3 || fields[0] == "" || fields[1] == "" {
		return "", "", "", fmt.Errorf("ask %s: it answers %q", argv[0], out)
	}
	return fields[0], fields[1], fields[2], nil
}

func fits(arch string) bool {
	switch arch {
	case "all", "noarch", runtime.GOARCH:
		return true
	case "x86_64":
		return runtime.GOARCH == "amd64"
	case "aarch64":
		return runtime.GOARCH == "arm64"
	}
	return false
}

func copyDir(from, to string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if len(entries) > maxFiles {
		return fmt.Errorf("it holds more than %d files", maxFiles)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file; a bundle holds nothing else", e.Name())
		}
		f, err := root.Open(e.Name())
		if err != nil {
			return err
		}
		err = store(f, to, e.Name())
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return syncDir(to)
}

func unpack(file, to string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	tr := tar.NewReader(f)
	for n := 0; ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return syncDir(to)
		}
		if err != nil {
			return fmt.Errorf("it is neither a directory nor a whole tar: %w", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir && (name == "" || name == ".") {
			continue
		}
		if h.Typeflag != tar.TypeReg || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
			return fmt.Errorf("%q is not a plain file at the top of the tar; a bundle holds nothing else", h.Name)
		}
		if n++; n > maxFiles {
			return fmt.Errorf("it holds more than %d files", maxFiles)
		}
		if err := store(tr, to, name); err != nil {
			return err
		}
	}
}

func store(r io.Reader, dir, name string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxFileBytes+1))
	if err == nil && n > maxFileBytes {
		err = fmt.Errorf("%s is larger than %d bytes", name, int64(maxFileBytes))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
