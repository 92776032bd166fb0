package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// aPackage builds a deb of the host with a program of one line.
func aPackage(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range map[string]string{
		"DEBIAN/control":            "Package: mesh-host\nVersion: " + version + "\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n",
		"usr/bin/mesh-host":         "program of " + version + "\n",
		"usr/lib/mesh-host/version": version + "\n",
		"usr/share/doc/x":           "read by people\n",
	} {
		file := filepath.Join(dir, "tree", path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "mesh-host.deb")
	if text, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", filepath.Join(dir, "tree"), out).CombinedOutput(); err != nil {
		t.Fatalf("build a package: %v\n%s", err, text)
	}
	return out
}

func aKit(t *testing.T, version string) kit {
	t.Helper()
	k := kit{dir: filepath.Join(t.TempDir(), "kit"), family: Deb}
	if err := k.make(version, aPackage(t, version), []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	return k
}

// Shows: M18
func TestAKitThatCouldNotPutTheConfirmedVersionBackSaysWhy(t *testing.T) {
	if err := aKit(t, "1-1").check(t.Context()); err != nil {
		t.Fatalf("a whole kit: %v", err)
	}
	for what, spoil := range map[string]func(k kit) error{
		"no version is confirmed": func(k kit) error { return os.RemoveAll(k.dir) },
		"could not be obtained":   func(k kit) error { return os.Remove(k.packageFile()) },
		"not what was kept":       func(k kit) error { return os.WriteFile(k.packageFile(), []byte("half"), 0o600) },
		"does not list":           func(k kit) error { return os.WriteFile(filepath.Join(k.dir, kitSums), nil, 0o600) },
		"damaged":                 func(k kit) error { return os.Remove(filepath.Join(k.dir, kitScript)) },
		"and 9-1 is confirmed":    func(k kit) error { return os.WriteFile(filepath.Join(k.dir, kitConfirmed), []byte("9-1\n"), 0o600) },
	} {
		k := aKit(t, "1-1")
		if err := spoil(k); err != nil {
			t.Fatal(err)
		}
		if err := k.check(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("want that it says %q, and it says: %v", what, err)
		}
	}
}

func TestAKitIsReplacedWholeAndItsSumsAreThoseThatTheScriptChecks(t *testing.T) {
	k := aKit(t, "1-1")
	if err := k.make("2-1", aPackage(t, "2-1"), []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	if got := k.confirmed(); got != "2-1" {
		t.Errorf("version %q is confirmed", got)
	}
	cmd := exec.Command("sha256sum", "-c", kitSums)
	cmd.Dir = k.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the sums: %v\n%s", err, out)
	}
	if left, err := filepath.Glob(k.dir + ".*"); err != nil || len(left) > 0 {
		t.Errorf("there is left over: %v, %v", left, err)
	}
}

func TestAPackageIsComparedWithWhatRunsAndNotWithWhatIsRead(t *testing.T) {
	file, root := aPackage(t, "1-1"), t.TempDir()
	if out, err := exec.Command("dpkg-deb", "--extract", file, root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(root, "usr/share/doc/x")); err != nil {
		t.Fatal(err)
	}
	if err := Deb.sameAsInstalled(t.Context(), file, root); err != nil {
		t.Fatalf("installed without its documentation: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/mesh-host"), []byte("another\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Deb.sameAsInstalled(t.Context(), file, root); err == nil || !strings.Contains(err.Error(), "/usr/bin/mesh-host") {
		t.Errorf("with another program it says: %v", err)
	}
}
