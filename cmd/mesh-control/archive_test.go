package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/store"
)

// stateWith is a state directory with a database and some content.
func stateWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), filepath.Join(dir, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestABackupGivesBackWhatIsWholeAndLeavesOutWhatIsNot(t *testing.T) {
	from := stateWith(t, map[string]string{
		"keys/host": "secret", "blobs/ab/abcd": "content", "blobs/incoming/0": "half", "pool/x.deb": "package",
		"pool/.incoming/y": "half", "public/gen/1/Release": "index", "uploads/z": "half",
	})
	if err := os.Symlink("gen/1", filepath.Join(from, "public/current")); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := writeBackup(t.Context(), from, append(keptAlways, keptPackages...), &archive); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(from, ".backup-*")); err != nil || len(left) > 0 {
		t.Errorf("the backup left %v, %v", left, err)
	}
	to := t.TempDir()
	if _, err := readBackup(t.Context(), to, false, &archive); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"keys/host": "secret", "blobs/ab/abcd": "content", "pool/x.deb": "package", "public/current/Release": "index"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"blobs/incoming", "pool/.incoming", "uploads"} {
		if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s came back", name)
		}
	}
	if left, err := filepath.Glob(filepath.Join(to, ".restore-*")); err != nil || len(left) > 0 {
		t.Errorf("the restore left %v, %v", left, err)
	}
}

// The attack: an archive that somebody made writes over files of root, or leaves
// a program where one is run.
func TestAnArchiveThatIsNoBackupChangesNothing(t *testing.T) {
	one := func(h tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h.Mode = 0o4777
		for _, h := range []tar.Header{{Typeflag: tar.TypeDir, Name: "keys", Mode: 0o700}, h} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: endName}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	through := func() []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range []tar.Header{
			{Typeflag: tar.TypeDir, Name: "keys", Mode: 0o700},
			{Typeflag: tar.TypeSymlink, Name: "keys/out", Linkname: "/", Mode: 0o777},
			{Typeflag: tar.TypeReg, Name: "keys/out/tmp/mesh-attack", Mode: 0o600},
			{Typeflag: tar.TypeReg, Name: endName},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, archive := range map[string][]byte{
		"above":          one(tar.Header{Typeflag: tar.TypeReg, Name: "keys/../../escaped", Size: 1}),
		"absolute":       one(tar.Header{Typeflag: tar.TypeReg, Name: "/etc/escaped", Size: 1}),
		"other names":    one(tar.Header{Typeflag: tar.TypeReg, Name: "escaped", Size: 1}),
		"a device":       one(tar.Header{Typeflag: tar.TypeChar, Name: "keys/dev"}),
		"through a link": through(),
		"no database":    one(tar.Header{Typeflag: tar.TypeReg, Name: "keys/host", Size: 1}),
		"not a database": one(tar.Header{Typeflag: tar.TypeReg, Name: databaseName, Size: 4096}),
		"no archive":     []byte(strings.Repeat("x", 4096)),
		"empty":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := readBackup(t.Context(), dir, true, bytes.NewReader(archive)); err == nil {
				t.Error("it was taken")
			}
			there, err := present(dir)
			if err != nil || len(there) > 0 {
				t.Errorf("the state directory holds %v, %v", there, err)
			}
			if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
				t.Errorf("beside it stands %v, %v", entries, err)
			}
		})
	}
	if _, err := os.Lstat("/tmp/mesh-attack"); err == nil {
		t.Error("an archive wrote through a link")
	}
}

func TestABackupThatWasCutIsNotTakenForAWholeOne(t *testing.T) {
	from := stateWith(t, map[string]string{"keys/host": "secret", "blobs/ab/abcd": "content", "blobs/cd/cdef": "more"})
	var archive bytes.Buffer
	if err := writeBackup(t.Context(), from, keptAlways, &archive); err != nil {
		t.Fatal(err)
	}
	const block = 512
	trailer := 2 * block
	for size := 0; size < archive.Len()-trailer; size += block {
		to := t.TempDir()
		if _, err := readBackup(t.Context(), to, false, bytes.NewReader(archive.Bytes()[:size])); mesh.CodeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), "nothing was done") {
			t.Fatalf("of %d bytes the first %d are answered with %v", archive.Len(), size, err)
		}
		if there, err := present(to); err != nil || len(there) > 0 {
			t.Fatalf("of %d bytes the first %d put %v there, %v", archive.Len(), size, there, err)
		}
	}
}

func TestABackupWithADamagedDatabaseIsRefused(t *testing.T) {
	from := stateWith(t, map[string]string{"keys/host": "secret"})
	file := filepath.Join(from, databaseName)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copy(data[len(data)/2:], bytes.Repeat([]byte{0xff}, 4096))
	var archive bytes.Buffer
	if err := writeBackup(t.Context(), from, keptAlways, &archive); err != nil {
		t.Fatal(err)
	}
	whole := archive.Bytes()
	at := bytes.Index(whole, []byte("SQLite format 3"))
	copy(whole[at+len(data)/2:], data[len(data)/2:len(data)/2+4096])

	_, err = readBackup(t.Context(), t.TempDir(), false, bytes.NewReader(whole))

	if mesh.CodeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), "database") {
		t.Errorf("a database with a page of nonsense is answered with %v", err)
	}
}

func TestAControlPlaneThatIsThereIsMovedAsideAndNeverDeleted(t *testing.T) {
	from := stateWith(t, map[string]string{"keys/host": "new"})
	var archive bytes.Buffer
	if err := writeBackup(t.Context(), from, keptAlways, &archive); err != nil {
		t.Fatal(err)
	}
	to := stateWith(t, map[string]string{"keys/host": "old", "pool/x": "old"})
	_, err := readBackup(t.Context(), to, false, bytes.NewReader(archive.Bytes()))
	if mesh.CodeOf(err) != mesh.CodeConflict || !strings.Contains(err.Error(), "--aside") {
		t.Errorf("without saying so it is answered with %v", err)
	}
	moved, err := readBackup(t.Context(), to, true, bytes.NewReader(archive.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"keys/host": "old", "pool/x": "old"} {
		if got, err := os.ReadFile(filepath.Join(moved, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(to, "keys/host")); err != nil || string(got) != "new" {
		t.Errorf("the key is %q, %v", got, err)
	}
	lock, err := lockState(to)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := readBackup(t.Context(), to, true, bytes.NewReader(archive.Bytes())); mesh.CodeOf(err) != mesh.CodeConflict {
		t.Errorf("while a control plane runs it is answered with %v", err)
	}
}
