package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/store"
)

const (
	databaseName = "control.db"
	// endName is the last entry of a backup, empty. An archive that was cut
	// between two entries looks whole to tar.
	endName   = "end-of-backup"
	lockName  = "control.lock"
	blobsName = "blobs"
	keysName  = "keys"
	// What begins so is removed by the next start, when whoever made it is gone.
	backupPrefix  = ".backup-"
	restorePrefix = ".restore-"
)

// What of a state directory stands in a backup, apart from the database. The
// generations of the repository come before the pool that they refer to.
var (
	keptAlways   = []string{keysName, blobsName}
	keptPackages = []string{"public", "pool"}
)

// unfinished names what a backup leaves out: what was not whole when it was made.
func unfinished(rel string) bool {
	return rel == "blobs/incoming" || rel == "pool/.incoming"
}

// writeBackup writes the state of a control plane, which may be running, as a tar
// archive: the database as it is at one moment, the keys, and the content that the
// database refers to.
func writeBackup(ctx context.Context, state string, parts []string, out io.Writer) (err error) {
	if _, err := os.Stat(filepath.Join(state, databaseName)); err != nil {
		return mesh.Errorf(mesh.CodeNotFound, "there is no control plane in %s: %w", state, err)
	}
	if _, err := os.Stat(filepath.Join(state, keysName)); err != nil {
		return mesh.Errorf(mesh.CodeNotFound, "%s holds no keys, and without them nothing can be restored: %w; no backup was made", state, err)
	}
	// No content is removed from here on, so that what the database names at the
	// moment of the copy is still there when its turn comes. A restore that is
	// under way is waited for.
	hold, err := store.AwaitContent(ctx, filepath.Join(state, blobsName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Close()) }()
	// In the state directory there is room for what it holds, and its owner alone
	// can read it.
	spool, err := os.MkdirTemp(state, backupPrefix)
	if err != nil {
		return fmt.Errorf("make room for a copy of the database: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(spool)) }()
	database := filepath.Join(spool, databaseName)
	if err := store.Copy(ctx, filepath.Join(state, databaseName), database); err != nil {
		return err
	}
	w := tar.NewWriter(out)
	if err := addFile(w, database, databaseName); err != nil {
		return err
	}
	for _, part := range parts {
		if err := addTree(ctx, w, state, part); err != nil {
			return err
		}
	}
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: endName, Mode: 0o600}), w.Close()); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

func addTree(ctx context.Context, w *tar.Writer, state, part string) error {
	root := filepath.Join(state, part)
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was replaced meanwhile, or never was
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(state, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.IsDir() && unfinished(rel):
			return fs.SkipDir
		case d.IsDir():
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return fs.SkipDir
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: rel + "/", Mode: int64(info.Mode().Perm())})
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(file)
			if err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: rel, Linkname: target, Mode: 0o777})
		case d.Type().IsRegular():
			return addFile(w, file, rel)
		}
		return nil
	})
}

func addFile(w *tar.Writer, file, name string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if err := w.WriteHeader(h); err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	if _, err := io.CopyN(w, f, info.Size()); err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	return nil
}

// readBackup puts a backup into a state directory in which no control plane is,
// or moves aside what is there when aside says so. It returns where that went;
// empty: nothing was there.
func readBackup(ctx context.Context, state string, aside bool, in io.Reader) (movedTo string, err error) {
	lock, err := lockState(state)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	hold, err := store.LockContent(filepath.Join(state, blobsName), false)
	if errors.Is(err, store.ErrLocked) {
		return "", mesh.Errorf(mesh.CodeConflict, "a backup of %s is being made; wait for its end, nothing was done", state)
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, hold.Close()) }()
	there, err := present(state)
	if err != nil {
		return "", err
	}
	if len(there) > 0 && !aside {
		return "", mesh.Errorf(mesh.CodeConflict, "%s holds a control plane already (%s); with --aside it is moved aside, nothing was done", state, strings.Join(there, ", "))
	}
	fresh, err := os.MkdirTemp(state, restorePrefix)
	if err != nil {
		return "", fmt.Errorf("make room for the backup: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }()
	names, err := unpack(ctx, fresh, in)
	if err != nil {
		return "", err
	}
	if !slices.Contains(names, databaseName) || !slices.Contains(names, keysName) {
		return "", mesh.Errorf(mesh.CodeInvalid, "this is not a backup of a control plane, or not a whole one; nothing was done")
	}
	if err := store.Restored(ctx, filepath.Join(fresh, databaseName)); err != nil {
		return "", mesh.Errorf(mesh.CodeInvalid, "the database in this backup cannot be used: %w; nothing was done", err)
	}
	if len(there) > 0 {
		if movedTo, err = moveAside(state, there); err != nil {
			return "", err
		}
	}
	// The database comes last: without it there is no control plane.
	slices.SortFunc(names, func(a, b string) int {
		switch {
		case a == b:
			return 0
		case a == databaseName:
			return 1
		case b == databaseName:
			return -1
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		if err := os.Rename(filepath.Join(fresh, name), filepath.Join(state, name)); err != nil {
			return movedTo, fmt.Errorf("put %s in its place: %w", name, err)
		}
	}
	return movedTo, syncDir(state)
}

// lockState makes sure that no other control plane uses the directory, until the
// file is closed.
func lockState(state string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(state, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(mesh.Errorf(mesh.CodeConflict, "a control plane runs in %s already, or one is being restored there; stop it first with `systemctl stop mesh-control`; nothing was done: %w", state, err), lock.Close())
	}
	return lock, nil
}

// present lists what of a control plane is in the directory.
func present(state string) ([]string, error) {
	var there []string
	for _, name := range slices.Concat([]string{databaseName, databaseName + "-wal", databaseName + "-shm"}, keptAlways, keptPackages) {
		_, err := os.Lstat(filepath.Join(state, name))
		if err == nil {
			there = append(there, name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for an earlier control plane: %w", err)
		}
	}
	return there, nil
}

func moveAside(state string, names []string) (string, error) {
	for n := 1; ; n++ {
		to := filepath.Join(state, "aside-"+strconv.Itoa(n))
		err := os.Mkdir(to, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("make a place for what is there: %w", err)
		}
		for _, name := range names {
			if err := os.Rename(filepath.Join(state, name), filepath.Join(to, name)); err != nil {
				return to, fmt.Errorf("move %s aside: %w", name, err)
			}
		}
		return to, nil
	}
}

// unpack writes an archive into an empty directory and returns the names at its
// top. Nothing is written outside of it, whatever the archive says.
func unpack(ctx context.Context, dir string, in io.Reader) (names []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the place for the backup: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, mesh.Errorf(mesh.CodeInvalid, "this is not a backup of a control plane, or not a whole one: it ends before its end; nothing was done")
		}
		if err != nil {
			return nil, mesh.Errorf(mesh.CodeInvalid, "this backup cannot be read: %w; nothing was done", err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		if name == endName {
			return names, nil
		}
		top, _, _ := strings.Cut(name, "/")
		if !filepath.IsLocal(name) || top != databaseName && !slices.Contains(keptAlways, top) && !slices.Contains(keptPackages, top) {
			return nil, mesh.Errorf(mesh.CodeInvalid, "%q is not part of a backup of a control plane; nothing was done", h.Name)
		}
		if !slices.Contains(names, top) {
			names = append(names, top)
		}
		if err := unpackOne(root, name, h, r); err != nil {
			return nil, mesh.Errorf(mesh.CodeInvalid, "this backup cannot be unpacked: %s: %w; nothing was done", name, err)
		}
	}
}

func unpackOne(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, fs.FileMode(h.Mode).Perm()|0o700); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(h.Mode).Perm()&0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("it is of type %q", h.Typeflag)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
