package apt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"golang.org/x/sys/unix"
)

// databaseLimit bounds one file of the database.
const databaseLimit = 512 << 20

// stamp tells one version of a file from another.
type stamp struct {
	inode uint64
	size  int64
	mtime time.Time
}

// cache is the database as last read, with the stamps of what it was read from.
type cache struct {
	status, extended stamp
	entries          []pkg.Installed
}

func unreadable(err error) error {
	return resource.Unknown(mesh.ReasonDatabase, err, "dpkg's database could not be read, so nothing is installed or removed: %v", err)
}

// Architecture is the one of dpkg itself; before the database was read, the
// one that this program was built for.
func (m *Manager) Architecture() string {
	if m.native != "" {
		return m.native
	}
	switch runtime.GOARCH {
	case "386":
		return "i386"
	case "arm":
		return "armhf"
	case "ppc64le":
		return "ppc64el"
	}
	return runtime.GOARCH
}

// Installed reads dpkg's status file, with what dpkg has in its journal, and
// the marks of apt. Packages of which only configuration files are left are not
// installed.
func (m *Manager) Installed(context.Context) ([]pkg.Installed, error) {
	statusFile := filepath.Join(m.c.AdminDir, "status")
	extendedFile := filepath.Join(m.c.StateDir, "extended_states")
	status, err := stampOf(statusFile)
	if err != nil {
		return nil, unreadable(err)
	}
	extended, err := stampOf(extendedFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, unreadable(err)
	}
	updates, err := m.updates()
	if err != nil {
		return nil, unreadable(err)
	}
	if len(updates) == 0 && m.cache.entries != nil && m.cache.status == status && m.cache.extended == extended {
		return slices.Clone(m.cache.entries), nil
	}
	entries, err := m.load(statusFile, extendedFile, updates)
	if err != nil {
		return nil, unreadable(err)
	}
	if again, err := stampOf(statusFile); err == nil && again == status && len(updates) == 0 {
		m.cache = cache{status: status, extended: extended, entries: slices.Clone(entries)}
	}
	return entries, nil
}

func stampOf(file string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return stamp{}, fmt.Errorf("look at %s: %w", file, err)
	}
	return stamp{inode: st.Ino, size: st.Size, mtime: time.Unix(st.Mtim.Unix())}, nil
}

// updates lists dpkg's journal: entries that it has not merged yet, in order.
func (m *Manager) updates() ([]string, error) {
	dir := filepath.Join(m.c.AdminDir, "updates")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var files []string
	for _, e := range entries {
		if name := e.Name(); strings.Trim(name, "0123456789") == "" {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files, nil
}

type entryKey struct{ name, arch string }

func (m *Manager) load(statusFile, extendedFile string, updates []string) ([]pkg.Installed, error) {
	var order []entryKey
	rows := make(map[entryKey]row)
	for _, file := range append([]string{statusFile}, updates...) {
		data, err := readBounded(file)
		if err != nil {
			return nil, err
		}
		if file == statusFile && len(data) == 0 {
			return nil, fmt.Errorf("%s is empty", file)
		}
		err = eachParagraph(data, func(fields paragraph) error {
			r, err := parseRow(fields)
			if err != nil {
				return err
			}
			key := entryKey{r.Name, r.Arch}
			if _, known := rows[key]; !known {
				order = append(order, key)
			}
			rows[key] = r
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	auto, err := readMarks(extendedFile)
	if err != nil {
		return nil, err
	}
	native := ""
	for key := range rows {
		if key.name == "dpkg" {
			native = key.arch
		}
	}
	m.native = native
	var entries []pkg.Installed
	for _, key := range order {
		r := rows[key]
		if r.gone {
			continue
		}
		e := r.Installed
		e.Protected = e.Protected || m.runsKernel(e.Name)
		e.Mark = pkg.MarkManual
		// apt notes a package for all architectures under the machine's own.
		if auto[key] || key.arch == "all" && auto[entryKey{key.name, m.Architecture()}] {
			e.Mark = pkg.MarkAuto
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// runsKernel reports whether a package is the kernel that runs, or its modules.
func (m *Manager) runsKernel(name string) bool {
	for _, prefix := range []string{"linux-image-", "linux-image-unsigned-", "linux-modules-"} {
		if rest, found := strings.CutPrefix(name, prefix); found && rest == m.c.Kernel {
			return true
		}
	}
	return false
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, databaseLimit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(data) > databaseLimit {
		return nil, fmt.Errorf("read %s: it is larger than %d bytes", file, databaseLimit)
	}
	return data, nil
}

// row is one paragraph of the status file.
type row struct {
	pkg.Installed
	// gone: not installed, or only configuration files are left.
	gone bool
}

func parseRow(fields paragraph) (row, error) {
	var r row
	r.Name, r.Arch, r.Version = fields["package"], fields["architecture"], fields["version"]
	words := strings.Fields(fields["status"])
	if r.Name == "" || len(words) != 3 {
		return r, fmt.Errorf("the entry of %q has no status of three words", r.Name)
	}
	want, flag, state := words[0], words[1], words[2]
	switch state {
	case "not-installed", "config-files":
		r.gone = true
		return r, nil
	case "installed":
	case "half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending":
		r.State = state
	default:
		return r, fmt.Errorf("the entry of %s has the unknown state %q", r.Name, state)
	}
	if flag != "ok" {
		r.State = state + ", " + flag
	}
	if r.Version == "" && state != "half-installed" {
		return r, fmt.Errorf("the entry of %s has no version", r.Name)
	}
	r.Held = want == "hold"
	r.Broken = strings.Contains(flag, "reinst") || state == "half-installed"
	r.Protected = fields["essential"] == "yes" || fields["protected"] == "yes" || fields["priority"] == "required"
	return r, nil
}

// paragraph holds the fields that matter, by lower-case name.
type paragraph map[string]string

var wantedFields = []string{"package", "architecture", "version", "status", "essential", "protected", "priority", "auto-installed"}

// eachParagraph calls do for each paragraph. Anything that is not a field, a
// continuation or an empty line is an error, and so is a file that is cut off.
func eachParagraph(data []byte, do func(paragraph) error) error {
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return errors.New("the last line is cut off")
	}
	fields := paragraph{}
	flush := func() error {
		if len(fields) == 0 {
			return nil
		}
		err := do(fields)
		fields = paragraph{}
		return err
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		switch {
		case len(bytes.TrimSpace(line)) == 0:
			if err := flush(); err != nil {
				return err
			}
			continue
		case line[0] == ' ', line[0] == '\t':
			continue
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found || len(name) == 0 || bytes.ContainsAny(name, " \t\x00") {
			return fmt.Errorf("the line %.60q is no field", line)
		}
		key := strings.ToLower(string(name))
		if slices.Contains(wantedFields, key) {
			fields[key] = string(bytes.TrimSpace(value))
		}
	}
	return flush()
}

// readMarks reads which packages are marked as automatically installed.
func readMarks(file string) (map[entryKey]bool, error) {
	auto := make(map[entryKey]bool)
	data, err := readBounded(file)
	if errors.Is(err, os.ErrNotExist) {
		return auto, nil
	}
	if err != nil {
		return nil, err
	}
	err = eachParagraph(data, func(fields paragraph) error {
		if fields["auto-installed"] == "1" {
			auto[entryKey{fields["package"], fields["architecture"]}] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return auto, nil
}
