// Package document reads named declarations as people and pipelines write
// them: strict YAML, with every finding at once and where it stands.
//
// It evaluates nothing. Expressions are text here, and whether two declarations
// contradict each other is not seen from one of them.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
)

const (
	// Limit is the greatest length in bytes of a document, sources apart.
	Limit = 1 << 20
	// SourceLimit is the greatest length in bytes of one file that a document
	// takes content from.
	SourceLimit = 64 << 20
	// findingsLimit bounds how many findings are listed.
	findingsLimit = 100
)

// Source returns the content that a document names with "source:".
type Source func(name string) ([]byte, error)

// File is a document together with where everything stands in it.
type File struct {
	// Name under which it was read.
	Name     string
	Document mesh.Document
	places   map[string]place
}

type place struct{ line, column int }

// Load reads the document at path; sources are read relative to its directory.
// The error is mesh.Problems when the document was read and has faults.
func Load(path string) (mesh.Document, error) {
	f, err := Open(path)
	if err != nil {
		return mesh.Document{}, err
	}
	return f.Document, nil
}

// Open is Load for callers that want to say where later findings stand.
func Open(path string) (*File, error) {
	data, err := readBounded(path, Limit)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	return Parse(path, data, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return readBounded(name, SourceLimit)
	})
}

func readBounded(path string, limit int64) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory, not a file", path)
	}
	data, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return data, nil
}

// Parse reads a document from memory. Name stands in the findings. The error
// is mesh.Problems when the document has faults.
func Parse(name string, data []byte, source Source) (*File, error) {
	f := &File{Name: name, places: make(map[string]place)}
	d := &decoder{file: f, source: source}
	if d.document(data) {
		d.validate()
	}
	if len(d.problems) == 0 {
		return f, nil
	}
	slices.SortStableFunc(d.problems, func(a, b mesh.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if more := len(d.problems) - findingsLimit; more > 0 {
		d.problems = append(d.problems[:findingsLimit:findingsLimit], mesh.Problem{File: name, Message: fmt.Sprintf("and %d more findings", more)})
	}
	return nil, d.problems
}

// Locate gives findings, which know only their path, the place in the file. A
// finding about something that is not written there gets the place of what it
// would stand in.
func (f *File) Locate(ps mesh.Problems) mesh.Problems {
	located := make(mesh.Problems, len(ps))
	for i, p := range ps {
		located[i] = p
		if p.File != "" || (p.Path == "" && p.Line == 0) {
			// Without a path the finding is about something outside the file.
			continue
		}
		located[i].File = f.Name
		for path := p.Path; ; path = parent(path) {
			if at, known := f.places[path]; known {
				located[i].Line, located[i].Column = at.line, at.column
				break
			}
			if path == "" {
				break
			}
		}
	}
	return located
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// Detach takes out of a document the content that does not travel inline, and
// returns it by its SHA-256. The document that was given stays as it is.
func Detach(doc mesh.Document) (mesh.Document, map[string][]byte) {
	blobs := make(map[string][]byte)
	doc.Resources = slices.Clone(doc.Resources)
	for i, r := range doc.Resources {
		if r.File == nil || len(r.File.Content) <= mesh.InlineLimit {
			continue
		}
		file := *r.File
		file.SetContent(file.Content)
		blobs[file.SHA256] = file.Content
		file.Content = nil
		doc.Resources[i].File = &file
	}
	return doc, blobs
}

// ForBundle returns what keeps a document from being applied by a host alone:
// whatever only a control plane can evaluate.
func ForBundle(doc mesh.Document) mesh.Problems {
	var ps mesh.Problems
	if doc.Select != "" {
		ps.Add("select", "a bundle is for the machine that it is applied on; leave select out")
	}
	for i, r := range doc.Resources {
		if r.When != "" {
			ps.Add(fmt.Sprintf("resources[%d].when", i), "a host evaluates no expressions; leave when out of a bundle")
		}
		if r.Template {
			ps.Add(fmt.Sprintf("resources[%d].template", i), "a host fills in no templates; leave template out of a bundle")
		}
	}
	return ps
}

// validate adds what is wrong with the values, apart from what follows from a
// finding that is there already.
func (d *decoder) validate() {
	found := d.problems
	for _, p := range d.file.Locate(d.file.Document.Validate()) {
		if p.Path == "declaration" && d.file.Document.Declaration == "" && len(found) > 0 {
			continue
		}
		if !slices.ContainsFunc(found, func(o mesh.Problem) bool { return o.Path != "" && (within(o.Path, p.Path) || within(p.Path, o.Path)) }) {
			d.problems = append(d.problems, p)
		}
	}
}

// within reports whether path is outer, or leads to something inside it.
func within(path, outer string) bool {
	rest, found := strings.CutPrefix(path, outer)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// document reads the one document that the data must hold. It returns false
// when there are no values to look at.
func (d *decoder) document(data []byte) bool {
	switch {
	case len(data) > Limit:
		d.add(nil, "", fmt.Sprintf("the document has %d bytes; the limit is %d", len(data), Limit))
		return false
	case !utf8.Valid(data):
		d.add(nil, "", "the document is not UTF-8 text")
		return false
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	var top yaml.Node
	switch err := in.Decode(&top); {
	case errors.Is(err, io.EOF):
		d.add(nil, "", "the document is empty")
		return false
	case err != nil:
		d.syntax(data, err)
		return false
	}
	var more yaml.Node
	if err := in.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			d.syntax(data, err)
			return false
		}
		d.add(&more, "", "a second document begins here; write each declaration into a file of its own")
		return false
	}
	if len(top.Content) != 1 {
		d.add(&top, "", "the document is empty")
		return false
	}
	return d.top(top.Content[0])
}
