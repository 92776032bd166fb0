package apt

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// IndexFile is one file that a Release promises.
type IndexFile struct {
	Path   string // relative to the Release file's directory, with slashes
	Size   int64  // bytes
	SHA256 string // lower-case hexadecimal
}

// Release is the content of a suite's Release file.
type Release struct {
	Origin, Label, Suite, Codename string
	Description                    string // empty: left out
	Date                           time.Time
	ValidUntil                     time.Time // zero: never expires
	Architectures                  []string
	Components                     []string
	ByHash                         bool // whether by-hash/SHA256 names are served
	Files                          []IndexFile
}

// dateLayout ends in the literal UTC: apt refuses other zone names.
const dateLayout = "Mon, 02 Jan 2006 15:04:05 UTC"

// Bytes returns the Release file.
func (r *Release) Bytes() []byte {
	var b bytes.Buffer
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	line("Origin", r.Origin)
	line("Label", r.Label)
	line("Suite", r.Suite)
	line("Codename", r.Codename)
	line("Date", r.Date.UTC().Format(dateLayout))
	if !r.ValidUntil.IsZero() {
		line("Valid-Until", r.ValidUntil.UTC().Format(dateLayout))
	}
	line("Architectures", strings.Join(r.Architectures, " "))
	line("Components", strings.Join(r.Components, " "))
	if r.ByHash {
		line("Acquire-By-Hash", "yes")
	}
	line("Description", r.Description)
	b.WriteString("SHA256:\n")
	for _, f := range slices.SortedFunc(slices.Values(r.Files), func(a, b IndexFile) int { return strings.Compare(a.Path, b.Path) }) {
		fmt.Fprintf(&b, " %s %d %s\n", f.SHA256, f.Size, f.Path)
	}
	return b.Bytes()
}

// ParseRelease reads a Release file: the read-back of Bytes, and strict.
func ParseRelease(text []byte) (*Release, error) {
	r := &Release{}
	inFiles := false
	seen := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			if !inFiles {
				return nil, fmt.Errorf("release file: continuation line outside the list of files")
			}
			f := strings.Fields(line)
			if len(f) != 3 {
				return nil, fmt.Errorf("release file: list line %q", clip(line))
			}
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || n < 0 || len(f[0]) != 64 {
				return nil, fmt.Errorf("release file: list line %q", clip(line))
			}
			r.Files = append(r.Files, IndexFile{Path: f[2], Size: n, SHA256: f[0]})
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !validFieldName(name) {
			return nil, fmt.Errorf("release file: line %q", clip(line))
		}
		if seen[name] {
			return nil, fmt.Errorf("release file: field %s twice", name)
		}
		seen[name], inFiles = true, false
		value = strings.TrimSpace(value)
		var err error
		switch name {
		case "Origin":
			r.Origin = value
		case "Label":
			r.Label = value
		case "Suite":
			r.Suite = value
		case "Codename":
			r.Codename = value
		case "Description":
			r.Description = value
		case "Date":
			r.Date, err = time.Parse(dateLayout, value)
		case "Valid-Until":
			r.ValidUntil, err = time.Parse(dateLayout, value)
		case "Architectures":
			r.Architectures = strings.Fields(value)
		case "Components":
			r.Components = strings.Fields(value)
		case "Acquire-By-Hash":
			r.ByHash = value == "yes"
		case "SHA256":
			inFiles = true
		}
		if err != nil {
			return nil, fmt.Errorf("release file: field %s: %w", name, err)
		}
	}
	if r.Date.IsZero() || len(r.Files) == 0 {
		return nil, fmt.Errorf("release file: no Date or no list of files")
	}
	return r, nil
}

// Entry is what a Packages index promises about one package.
type Entry struct {
	Name, Version, Architecture string
	Filename                    string
	Size                        int64
	SHA256                      string
}

// maxIndexLine bounds one line of an index; a long Depends has a few KiB.
const maxIndexLine = 4 << 20

// ReadPackages reads a Packages index and calls each for every paragraph, in
// order. An error of each ends the reading and is returned.
func ReadPackages(r io.Reader, each func(Entry) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxIndexLine)
	var e Entry
	open := false
	end := func() error {
		if !open {
			return nil
		}
		if e.Name == "" || e.Version == "" || e.Architecture == "" || e.Filename == "" || len(e.SHA256) != 64 {
			return fmt.Errorf("package index: the paragraph of %q is not complete", clip(e.Name))
		}
		err := each(e)
		e, open = Entry{}, false
		return err
	}
	for sc.Scan() {
		line := sc.Bytes()
		if len(line) == 0 {
			if err := end(); err != nil {
				return err
			}
			continue
		}
		open = true
		if line[0] == ' ' || line[0] == '\t' {
			continue
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return fmt.Errorf("package index: line %q", clip(string(line)))
		}
		value = bytes.TrimSpace(value)
		switch string(name) {
		case "Package":
			e.Name = string(value)
		case "Version":
			e.Version = string(value)
		case "Architecture":
			e.Architecture = string(value)
		case "Filename":
			e.Filename = string(value)
		case "SHA256":
			e.SHA256 = string(value)
		case "Size":
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("package index: size %q", clip(string(value)))
			}
			e.Size = n
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("package index: %w", err)
	}
	return end()
}
