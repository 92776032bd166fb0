//go:build matrix

package lab_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build is one of the real programs, built for a test alone.
type build struct {
	// program is mesh-host or mesh-control.
	program, version string
	// fault compiles the points in, at which a process can be held.
	fault bool
	// overlay has source files, named from the top of the project, hold something
	// else for this build. Nil: none does.
	overlay map[string]string
	// replace has files of the package be something else.
	replace map[string][]byte
}

// make returns the packages of the build, by format.
func (b build) make(t *testing.T) map[string]string {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	argv := []string{"build", "-trimpath", "-buildvcs=false", "-tags", "netgo osusergo sqlite_omit_load_extension"}
	if b.fault {
		argv[len(argv)-1] += " fault"
	}
	replaced := map[string]string{}
	for name, content := range b.overlay {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(top, name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, b.program)
	argv = append(argv, "-overlay", filepath.Join(dir, "overlay.json"),
		"-ldflags", "-s -w -buildid= -linkmode external -extldflags -static -X github.com/meshctl/mesh/internal/version.Version="+b.version,
		"-o", program, "./cmd/"+b.program)
	cmd := exec.Command("go", argv...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	// As the packages are compiled, whose SQLite is in the cache then.
	if cc, err := exec.LookPath("x86_64-linux-gnu-gcc"); err == nil && os.Getenv("CC") == "" {
		cmd.Env = append(cmd.Env, "CC="+filepath.Base(cc))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s %s: %v\n%s", b.program, b.version, err, out)
	}
	return packed(t, b.program, b.version, dir, dir, b.replace)
}

// projectFile reads a source file, named from the top of the project.
func projectFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
