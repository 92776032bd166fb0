package file_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/resource/resourcetest"
)

// blobs hands out content by digest. What it lacks has not arrived.
type blobs map[string]string

func (b blobs) Open(sum string) (io.ReadCloser, error) {
	data, ok := b[sum]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(data)), nil
}

func sumOf(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:])
}

func regular(path, content string) mesh.Resource {
	f := &mesh.FileSpec{Type: mesh.FileRegular, Mode: "0644"}
	f.SetContent([]byte(content))
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: f}
}

func directory(path string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: &mesh.FileSpec{Type: mesh.FileDirectory, Mode: "0755"}}
}

func symlink(path, target string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: &mesh.FileSpec{Type: mesh.FileSymlink, Target: target}}
}

func absent(path string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: &mesh.FileSpec{Absent: true}}
}

// machine is a directory of a real file system.
type machine struct {
	dir  string
	kind func(path string) (want mesh.Resource, other func(t *testing.T))
}

func (m machine) Provider(*testing.T) resource.Provider {
	return file.NewPatient(file.New(file.Config{}), file.Patience, func() {})
}

func (m machine) Missing(*testing.T) mesh.Resource {
	want, _ := m.kind(filepath.Join(m.dir, "missing"))
	return want
}

func (m machine) Present(t *testing.T) mesh.Resource {
	want, _ := m.kind(filepath.Join(m.dir, "present"))
	if err := m.Provider(t).Apply(t.Context(), want, resource.Diff{}); err != nil {
		t.Fatal(err)
	}
	return want
}

func (m machine) Other(t *testing.T) mesh.Resource {
	want, other := m.kind(filepath.Join(m.dir, "other"))
	other(t)
	return want
}

func (m machine) Look(t *testing.T, want mesh.Resource) string { return describe(t, want.Name) }

func (m machine) Writes(t *testing.T) string {
	var all strings.Builder
	err := filepath.WalkDir(m.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintln(&all, path, st.Ino, st.Mtim, st.Ctim)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// describe says what stands at a path, in words that are equal when it is.
func describe(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	about := fmt.Sprintf("%s %d:%d", info.Mode(), st.Uid, st.Gid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		return about + " -> " + target
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %.80q sha256 %s", about, data, sumOf(string(data)))
	}
	return about
}

type changeable struct{ machine }

func (c changeable) Change(t *testing.T, want mesh.Resource) {
	put(t, filepath.Join(want.Name), "somebody's own work\n", 0o600)
}

// Shows: M4, M6
func TestFilesKeepTheContractOfAResource(t *testing.T) {
	needRoot(t)
	t.Run("regular", func(t *testing.T) {
		resourcetest.Run(t, func(t *testing.T) resourcetest.Machine {
			return changeable{machine{t.TempDir(), func(path string) (mesh.Resource, func(*testing.T)) {
				return regular(path, "wanted\n"), func(t *testing.T) {
					put(t, path, "original\x00\xff\n", 0o640)
					if err := os.Chown(path, 1234, 2345); err != nil {
						t.Fatal(err)
					}
				}
			}}}
		})
	})
	t.Run("directory", func(t *testing.T) {
		resourcetest.Run(t, func(t *testing.T) resourcetest.Machine {
			return machine{t.TempDir(), func(path string) (mesh.Resource, func(*testing.T)) {
				return directory(path), func(t *testing.T) {
					if err := os.Mkdir(path, 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}}
		})
	})
	t.Run("symlink", func(t *testing.T) {
		resourcetest.Run(t, func(t *testing.T) resourcetest.Machine {
			return machine{t.TempDir(), func(path string) (mesh.Resource, func(*testing.T)) {
				return symlink(path, "/wanted"), func(t *testing.T) {
					if err := os.Symlink("/original", path); err != nil {
						t.Fatal(err)
					}
				}
			}}
		})
	})
}

// Shows: M6
func TestWhatWasThereComesBackAfterItWasDeclaredAbsent(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name string
		make func(path string) error
	}{
		{"regular", func(path string) error { return os.WriteFile(path, []byte("original"), 0o604) }},
		{"empty directory", func(path string) error { return os.Mkdir(path, 0o711) }},
		{"symlink", func(path string) error { return os.Symlink("nowhere", path) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "thing")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			before := describe(t, path)
			p := file.New(file.Config{})
			owned := manage(t, p, absent(path))
			if got := describe(t, path); got != "nothing" {
				t.Fatalf("declared absent and there is %s", got)
			}
			if err := p.Remove(t.Context(), owned); err != nil {
				t.Fatal(err)
			}
			if after := describe(t, path); after != before {
				t.Errorf("it was %s and came back as %s", before, after)
			}
		})
	}
}

// manage captures, applies and reads back.
func manage(t *testing.T, p *file.Provider, want mesh.Resource) mesh.Owned {
	t.Helper()
	owned, err := p.Capture(t.Context(), want)
	if err != nil {
		t.Fatalf("Capture(%s): %v", want.Name, err)
	}
	if err := p.Apply(t.Context(), want, resource.Diff{}); err != nil {
		t.Fatalf("Apply(%s): %v", want.Name, err)
	}
	if d, err := p.Check(t.Context(), want); err != nil || !d.Zero() {
		t.Fatalf("Check(%s) after Apply: %s, %v", want.Name, d, err)
	}
	if owned.Wrote, err = p.Wrote(t.Context(), want); err != nil {
		t.Fatalf("Wrote(%s): %v", want.Name, err)
	}
	return owned
}

func put(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("must run as root: the host gives files to other users, and only root can")
	}
}

// wantError asserts status and reason of an error.
func wantError(t *testing.T, err error, status mesh.Status, reason mesh.Reason) {
	t.Helper()
	var e *resource.Error
	if !errors.As(err, &e) || e.Status != status || e.Reason != reason {
		t.Errorf("the error is %v; want %s (%s)", err, status, reason)
	}
}

// onlyNames asserts what a directory holds, temporaries included.
func onlyNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q; want %q", dir, got, want)
	}
}
