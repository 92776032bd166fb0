package bundle_test

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/bundle"
	"github.com/meshctl/mesh/repo/repotest"
)

const declaration = `declaration: first
resources:
  - package: hello
    version: "1.0"
  - file: /etc/hello
    source: hello.conf
`

// buildDeb makes a package with the distribution's own tool.
func buildDeb(t *testing.T, name, version, arch string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.MkdirAll(filepath.Join(root, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	control := "Package: " + name + "\nVersion: " + version + "\nArchitecture: " + arch + "\nMaintainer: a <a@example.org>\nDescription: a package\n"
	if err := os.WriteFile(filepath.Join(root, "DEBIAN", "control"), []byte(control), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name+"_"+arch+".deb")
	if out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", root, file).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// contents are the files of a bundle that is right.
func contents(t *testing.T) map[string]string {
	t.Helper()
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	return map[string]string{
		bundle.DeclarationFile: declaration, "hello.conf": "hello\n",
		"hello.deb":   read(t, buildDeb(t, "hello", "1.0", runtime.GOARCH)),
		"all.deb":     read(t, buildDeb(t, "for-all", "2:1.0-1", "all")),
		"foreign.deb": read(t, buildDeb(t, "foreign", "1.0", other)),
		"hello.rpm":   "not for this machine",
	}
}

func asDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func asTar(t *testing.T, files map[string]string, more ...tar.Header) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bundle.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	put := func(h tar.Header, content string) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	put(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		put(tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name]))}, files[name])
	}
	for _, h := range more {
		put(h, strings.Repeat("x", int(h.Size)))
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t *testing.T, dir string) *bundle.Store {
	t.Helper()
	s, err := bundle.Open(t.Context(), dir, bundle.Deb)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABundleIsTakenFromADirectoryAndFromATarAndKeptAcrossARestart(t *testing.T) {
	files := contents(t)
	for name, path := range map[string]string{"directory": asDir(t, files), "tar": asTar(t, files)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bundle")
			doc, err := open(t, dir).Take(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if doc.Declaration != "first" || len(doc.Resources) != 2 || string(doc.Resources[1].File.Content) != "hello\n" {
				t.Errorf("the document is %+v", doc)
			}
			if err := os.RemoveAll(path); err != nil { // the medium is taken away
				t.Fatal(err)
			}
			s := open(t, dir)
			for _, p := range [][2]string{{"hello", "1.0"}, {"for-all", "2:1.0-1"}} {
				file, ok := s.Path(p[0], p[1])
				if !ok || filepath.Dir(file) != dir {
					t.Errorf("%s %s is at %q, found %v", p[0], p[1], file, ok)
				}
			}
			for _, p := range [][2]string{{"foreign", "1.0"}, {"hello", "2.0"}} {
				if file, ok := s.Path(p[0], p[1]); ok {
					t.Errorf("%s %s is found at %s", p[0], p[1], file)
				}
			}
		})
	}
}

func TestANewBundleTakesThePlaceOfTheOneBefore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	s := open(t, dir)
	files := contents(t)
	if _, err := s.Take(t.Context(), asDir(t, files)); err != nil {
		t.Fatal(err)
	}
	delete(files, "all.deb")
	files["hello.deb"] = read(t, buildDeb(t, "hello", "1.1", runtime.GOARCH))
	if _, err := s.Take(t.Context(), asDir(t, files)); err != nil {
		t.Fatal(err)
	}
	_, old := s.Path("hello", "1.0")
	_, all := s.Path("for-all", "2:1.0-1")
	_, current := s.Path("hello", "1.1")
	if old || all || !current {
		t.Errorf("of the old bundle it finds %v and %v, of the new one %v", old, all, current)
	}
	if left, _ := filepath.Glob(dir + ".*"); len(left) != 0 {
		t.Errorf("beside the bundle there are %v", left)
	}
}

func TestOfSeveralVersionsInABundleTheNewestIsTakenWhenNoneIsNamed(t *testing.T) {
	for _, c := range []struct {
		format   bundle.Format
		build    func(repotest.Spec) []byte
		versions []string
		newest   string
	}{
		// The two orders differ in each row.
		{bundle.Deb, repotest.Deb, []string{"1.9-1", "1.10~rc1-1", "1.10.a1-1", "1.10a2-1"}, "1.10.a1-1"},
		{bundle.RPM, repotest.RPM, []string{"1.9-1", "1.10~rc1-1", "1.10^git1-1", "1.10.1-1"}, "1.10.1-1"},
	} {
		files := map[string]string{bundle.DeclarationFile: declaration, "hello.conf": "hello\n"}
		for _, version := range c.versions {
			files["hello-"+version+"."+string(c.format)] = string(c.build(repotest.Spec{Name: "hello", Version: version}))
		}
		s, err := bundle.Open(t.Context(), filepath.Join(t.TempDir(), "bundle"), c.format)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(t.Context(), asDir(t, files)); err != nil {
			t.Fatal(err)
		}
		for _, version := range c.versions {
			if file, ok := s.Path("hello", version); !ok || filepath.Base(file) != "hello-"+version+"."+string(c.format) {
				t.Errorf("%s of %s is %q, found %v", version, c.format, file, ok)
			}
		}
		for range 20 {
			if file, ok := s.Path("hello", ""); !ok || filepath.Base(file) != "hello-"+c.newest+"."+string(c.format) {
				t.Fatalf("the newest of %s is %q, found %v", c.format, file, ok)
			}
		}
	}
}

func TestABundleThatCannotBeTakenLeavesTheOneBefore(t *testing.T) {
	with := func(name, content string) map[string]string {
		files := contents(t)
		files[name] = content
		return files
	}
	without := contents(t)
	delete(without, bundle.DeclarationFile)
	nested := asDir(t, contents(t))
	if err := os.Mkdir(filepath.Join(nested, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	linked := asDir(t, contents(t))
	if err := os.Symlink("/etc/shadow", filepath.Join(linked, "secret")); err != nil {
		t.Fatal(err)
	}
	linkedWithin := asDir(t, contents(t))
	if err := os.Symlink("hello.conf", filepath.Join(linkedWithin, "other.conf")); err != nil {
		t.Fatal(err)
	}
	large := contents(t)
	large["large"] = strings.Repeat("x", 10<<20)
	large[bundle.DeclarationFile] += "  - file: /srv/large\n    source: large\n"
	many := contents(t)
	for n := len(many); n < 257; n++ {
		many[strconv.Itoa(n)] = ""
	}
	whole := asTar(t, contents(t))
	cut := filepath.Join(t.TempDir(), "cut.tar")
	if err := os.WriteFile(cut, []byte(read(t, whole)[:5000]), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		code mesh.Code
	}{
		"not there":             {"/nowhere/bundle", mesh.CodeNotFound},
		"no declaration":        {asDir(t, without), ""},
		"too many files":        {asDir(t, many), mesh.CodeInvalid},
		"a tar of too many":     {asTar(t, many), mesh.CodeInvalid},
		"more than travels":     {asDir(t, large), mesh.CodeInvalid},
		"a faulty declaration":  {asDir(t, with(bundle.DeclarationFile, "declaration: first\nresourcez: []\n")), mesh.CodeInvalid},
		"select":                {asDir(t, with(bundle.DeclarationFile, "declaration: first\nselect: name == \"a\"\nresources: []\n")), mesh.CodeInvalid},
		"a broken package":      {asDir(t, with("hello.deb", "no package")), mesh.CodeInvalid},
		"a directory inside":    {nested, mesh.CodeInvalid},
		"a link that leads out": {linked, mesh.CodeInvalid},
		"a link inside":         {linkedWithin, mesh.CodeInvalid},
		"a tar that was cut":    {cut, mesh.CodeInvalid},
		"a tar that climbs out": {asTar(t, contents(t), tar.Header{Name: "../evil", Typeflag: tar.TypeReg, Size: 1}), mesh.CodeInvalid},
		"a tar with a path":     {asTar(t, contents(t), tar.Header{Name: "/etc/evil", Typeflag: tar.TypeReg, Size: 1}), mesh.CodeInvalid},
		"a tar with a link":     {asTar(t, contents(t), tar.Header{Name: "evil", Typeflag: tar.TypeSymlink, Linkname: "/etc"}), mesh.CodeInvalid},
		"a tar with twins":      {asTar(t, contents(t), tar.Header{Name: "hello.conf", Typeflag: tar.TypeReg, Size: 1}), mesh.CodeInvalid},
		"no tar":                {filepath.Join(nested, "hello.conf"), mesh.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bundle")
			s := open(t, dir)
			if _, err := s.Take(t.Context(), asDir(t, contents(t))); err != nil {
				t.Fatal(err)
			}
			_, err := s.Take(t.Context(), c.path)
			if err == nil || c.code != "" && mesh.CodeOf(err) != c.code {
				t.Errorf("it is answered with %q: %v", mesh.CodeOf(err), err)
			}
			for what, s := range map[string]*bundle.Store{"now": s, "after a restart": open(t, dir)} {
				file, ok := s.Path("hello", "1.0")
				if _, err := os.Stat(file); !ok || err != nil {
					t.Errorf("%s the package of the bundle before is at %q: %v", what, file, err)
				}
			}
		})
	}
}

func TestAnInterruptedReplacementIsUndone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	if _, err := open(t, dir).Take(t.Context(), asDir(t, contents(t))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil { // and then the power went
		t.Fatal(err)
	}
	if _, ok := open(t, dir).Path("hello", "1.0"); !ok {
		t.Error("the bundle before is lost")
	}
}

func TestAMachineWithoutAPackageManagerTakesABundleWithoutReadingItsPackages(t *testing.T) {
	s, err := bundle.Open(t.Context(), filepath.Join(t.TempDir(), "bundle"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(t.Context(), asDir(t, contents(t))); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Path("hello", "1.0"); ok {
		t.Error("it finds a package that it could not install")
	}
}
