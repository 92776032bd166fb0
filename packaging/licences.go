package packaging

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// thirdPartyLicences is the text of the licences of every module that a binary
// was linked from, as they stand in the module cache. A file that is not a Go
// binary has none.
func thirdPartyLicences(ctx context.Context, binary string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("This program is linked statically. It holds code of the Go distribution and of\nthe following modules.\n")
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		b.WriteString("\n(none: not built by Go)\n")
		return b.Bytes(), nil
	}
	where, err := run(ctx, "go", "env", "GOMODCACHE", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := strings.Split(strings.TrimSpace(string(where)), "\n")
	if len(dirs) != 2 {
		return nil, fmt.Errorf("go env answered %q", where)
	}
	if err := appendLicences(&b, "Go "+info.GoVersion, dirs[1]); err != nil && !errors.Is(err, errNoLicence) {
		return nil, err
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		path, err := module.EscapePath(dep.Path)
		if err != nil {
			return nil, err
		}
		version, err := module.EscapeVersion(dep.Version)
		if err != nil {
			return nil, err
		}
		if err := appendLicences(&b, dep.Path+" "+dep.Version, filepath.Join(dirs[0], path+"@"+version)); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

var errNoLicence = errors.New("no licence file")

// appendLicences adds the licence and notice files at the top of a directory.
func appendLicences(b *bytes.Buffer, title, dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	var found []string
	for _, n := range names {
		upper := strings.ToUpper(n.Name())
		for _, prefix := range []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"} {
			if n.Type().IsRegular() && strings.HasPrefix(upper, prefix) {
				found = append(found, n.Name())
				break
			}
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s: %w in %s", title, errNoLicence, dir)
	}
	slices.Sort(found)
	for _, name := range found {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		fmt.Fprintf(b, "\n%s\n%s (%s)\n%s\n\n%s\n", strings.Repeat("=", 72), title, name, strings.Repeat("=", 72), bytes.TrimSpace(text))
	}
	return nil
}
