package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// found is what the tests say of cases, by number.
type found struct {
	// tests are written as `directory`: function.
	tests map[string][]string
	// notRun are the entries of the maps called rowsNotRun.
	notRun map[string]string
}

var (
	number = regexp.MustCompile(`^O-[0-9]{3}\b`)
	marker = regexp.MustCompile(`^// Cases: (O-[0-9]{3}(, O-[0-9]{3})*)$`)
)

// scan reads every test file below root. A test runs a case when the number
// stands in it as a text or begins one, as the name of a subtest does, or when
// the line "// Cases: O-001, O-002" stands directly above it.
func scan(root fs.FS) (found, error) {
	f := found{tests: map[string][]string{}, notRun: map[string]string{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name == "out" || base == "testdata" || name != "." && (base[0] == '.' || base[0] == '_') || name == "internal/tool/cases" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		return f.file(root, name)
	})
	if err != nil {
		return f, fmt.Errorf("read the tests: %w", err)
	}
	return f, nil
}

func (f found) file(root fs.FS, name string) error {
	text, err := fs.ReadFile(root, name)
	if err != nil || !bytes.Contains(text, []byte("O-")) {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			shown := fmt.Sprintf("`%s`: %s", path.Dir(name), d.Name.Name)
			if d.Doc != nil {
				for _, c := range d.Doc.List {
					if m := marker.FindStringSubmatch(c.Text); m != nil {
						for n := range strings.SplitSeq(m[1], ", ") {
							f.tests[n] = append(f.tests[n], shown)
						}
					}
				}
			}
			f.texts(d, shown)
		case *ast.GenDecl:
			if !f.reasons(d) {
				f.texts(d, fmt.Sprintf("`%s`", name))
			}
		}
	}
	return nil
}

// texts notes every number that begins a text below node.
func (f found) texts(node ast.Node, shown string) {
	ast.Inspect(node, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				if m := number.FindString(text); m != "" {
					f.tests[m] = append(f.tests[m], shown)
				}
			}
		}
		return true
	})
}

// reasons reads a declaration of rowsNotRun, and reports whether it is one.
func (f found) reasons(d *ast.GenDecl) bool {
	is := false
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || len(v.Names) != 1 || v.Names[0].Name != "rowsNotRun" || len(v.Values) != 1 {
			continue
		}
		is = true
		values, ok := v.Values[0].(*ast.CompositeLit)
		if !ok {
			continue
		}
		for _, e := range values.Elts {
			pair, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			f.notRun[literal(pair.Key)] = literal(pair.Value)
		}
	}
	return is
}

// literal returns a text, also one that is joined from several.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// unknown lists what is said of cases that are none.
func (f found) unknown() []string {
	known := map[string]bool{}
	for _, k := range list {
		for _, c := range k.cases {
			known[c.number] = true
		}
	}
	var wrong []string
	for _, n := range slices.Sorted(maps.Keys(f.tests)) {
		if !known[n] {
			wrong = append(wrong, fmt.Sprintf("%s is no case, and %s names it", n, f.tests[n][0]))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(f.notRun)) {
		if !known[n] || f.notRun[n] == "" {
			wrong = append(wrong, fmt.Sprintf("rowsNotRun has %q, which is no case or has no reason", n))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(holds)) {
		if !known[n] {
			wrong = append(wrong, fmt.Sprintf("holds has %q, which is no case", n))
		}
	}
	return wrong
}
