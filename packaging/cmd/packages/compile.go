package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/meshctl/mesh/packaging"
)

const versionVariable = "github.com/meshctl/mesh/internal/version.Version"

// compile builds the binaries of one architecture and returns their directory.
// They are static, so that one file runs on every distribution, and names of
// users and groups are read without the machine's libc.
func compile(ctx context.Context, s settings, version, arch string) (string, error) {
	dir := filepath.Join(filepath.Dir(filepath.Clean(s.out)), "bin", arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory of binaries: %w", err)
	}
	compiler, err := compilerFor(arch)
	if err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, name := range packaging.Names() {
		if len(s.only) > 0 && !slices.Contains(s.only, name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "compile %s %s for %s\n", name, version, arch)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
			"-tags", "netgo osusergo sqlite_omit_load_extension",
			"-ldflags", "-s -w -buildid= -linkmode external -extldflags -static -X "+versionVariable+"="+version,
			"-o", filepath.Join(absolute, name), "./cmd/"+name)
		cmd.Dir = s.source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux", "GOARCH="+arch, "CC="+compiler)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("compile %s for %s: %w", name, arch, err)
		}
		if err := checkStatic(filepath.Join(absolute, name)); err != nil {
			return "", fmt.Errorf("compile %s for %s: %w", name, arch, err)
		}
	}
	return dir, nil
}

func compilerFor(arch string) (string, error) {
	if cc := os.Getenv("CC"); cc != "" && arch == runtime.GOARCH {
		return cc, nil
	}
	name, ok := map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}[arch]
	if !ok {
		return "", fmt.Errorf("architecture %q: want amd64 or arm64", arch)
	}
	candidates := []string{name}
	if arch == runtime.GOARCH {
		candidates = append(candidates, "gcc", "cc")
	}
	for _, c := range candidates {
		if _, err := exec.LookPath(c); err == nil {
			return c, nil
		}
	}
	return "", fmt.Errorf("no C compiler for %s: install %s", arch, map[string]string{"amd64": "gcc-x86-64-linux-gnu", "arm64": "gcc-aarch64-linux-gnu"}[arch])
}

// checkStatic makes sure that a binary needs no loader and no library.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read binary: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(p.Open())
			return errors.Join(fmt.Errorf("%s is not static: it wants the loader %s", path, bytes.TrimRight(loader, "\x00")), err)
		}
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read libraries of binary: %w", err)
	}
	if len(libraries) > 0 {
		return fmt.Errorf("%s is not static: it wants %s", path, strings.Join(libraries, ", "))
	}
	return nil
}

// git runs a git command in the project's directory and returns its one line.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", dir}, args...)...)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
