package packaging

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// BundleDeclaration is the declaration of the bundle that raises the first node
// of a mesh: the three packages, in one version.
func BundleDeclaration(version string) string {
	var b strings.Builder
	b.WriteString("declaration: bootstrap\nresources:\n")
	for _, name := range Names() {
		fmt.Fprintf(&b, "  - package: %s\n    version: \"%s-%s\"\n", name, version, Release)
	}
	return b.String()
}

// WriteBundle makes the directory dir a bundle: declaration.yaml and copies of
// the package files.
func WriteBundle(dir, version string, files []string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear the bundle: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the bundle: %w", err)
	}
	for _, file := range files {
		if err := copyFile(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			return fmt.Errorf("put %s into the bundle: %w", filepath.Base(file), err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "declaration.yaml"), []byte(BundleDeclaration(version)), 0o644)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
