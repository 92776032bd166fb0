// Package arch holds the layering of this repository as rules that a test
// applies to the source files themselves. It reads files and nothing else: it
// does not ask the go command, whose answer would depend on build tags and on
// a cache, and it knows nothing about what the code does when it runs.
package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Module is the path of this repository's Go module.
const Module = "github.com/meshctl/mesh"

// root is the room of the package at the top of the repository.
const root = "."

// Tree is the source of a repository, as far as the rules look at it.
type Tree struct {
	// Files holds every Go file whatever its build tags, in order of path.
	Files []File
	// Scripts holds every shell script whose name ends in .sh.
	Scripts []Script
}

// File is one Go source file.
type File struct {
	// Path is below the repository's root, with slashes.
	Path string
	// Room is the directory of the file; "." for the root.
	Room string
	// Package is the name in the package clause.
	Package string
	Test    bool
	Lines   int
	Imports []Import
	// Doc is the text of the comment on the package clause; empty without one.
	Doc string
	// Sleeps holds the lines that call time.Sleep.
	Sleeps []int
	// Unexplained holds the exported names that have no comment.
	Unexplained []Name
}

// Name is an exported identifier where it is declared.
type Name struct {
	Text string
	Line int
}

// Script is one shell script.
type Script struct {
	Path  string
	Lines int
}

// Import is one import of a file.
type Import struct {
	Path string
	Line int
}

// Ours returns the room that the import names, and whether it is one of ours.
func (i Import) Ours() (string, bool) {
	if i.Path == Module {
		return root, true
	}
	return strings.CutPrefix(i.Path, Module+"/")
}

// Read reads every Go file and shell script below fsys. Directories that the
// go command never builds (testdata, names that begin with a dot or an
// underscore) and the build's own output are left out.
func Read(fsys fs.FS) (*Tree, error) {
	tree := &Tree{}
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name == "out" || base == "testdata" || name != "." && (base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".go":
			file, err := readFile(fsys, name)
			if err != nil {
				return err
			}
			tree.Files = append(tree.Files, file)
		case ".sh":
			text, err := fs.ReadFile(fsys, name)
			if err != nil {
				return err
			}
			tree.Scripts = append(tree.Scripts, Script{Path: name, Lines: bytes.Count(text, []byte("\n"))})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the tree: %w", err)
	}
	return tree, nil
}

func readFile(fsys fs.FS, name string) (File, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return File{}, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return File{}, err
	}
	file := File{
		Path:    name,
		Room:    path.Dir(name),
		Package: parsed.Name.Name,
		Test:    strings.HasSuffix(name, "_test.go"),
		Lines:   bytes.Count(text, []byte("\n")),
	}
	if parsed.Doc != nil {
		// Text leaves out directives, so a lone //go:generate is no comment.
		file.Doc = parsed.Doc.Text()
	}
	file.Unexplained = unexplained(parsed, set)
	clock := ""
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return File{}, err
		}
		file.Imports = append(file.Imports, Import{Path: imported, Line: set.Position(spec.Pos()).Line})
		if imported == "time" {
			clock = "time"
			if spec.Name != nil {
				clock = spec.Name.Name
			}
		}
	}
	if clock != "" {
		file.Sleeps = sleeps(parsed, set, clock)
	}
	return file, nil
}

// sleeps returns the lines that use Sleep of the package imported as clock;
// "." is an import of its names without a qualifier.
func sleeps(parsed *ast.File, set *token.FileSet, clock string) []int {
	var lines []int
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == clock && n.Sel.Name == "Sleep" {
				lines = append(lines, set.Position(n.Pos()).Line)
			}
			return false
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && clock == "." && f.Name == "Sleep" {
				lines = append(lines, set.Position(n.Pos()).Line)
			}
		}
		return true
	})
	return lines
}

// unexplained returns the exported names of a file that have no comment, be it
// of their own or of the group that declares them. Methods that every reader
// knows, and methods of types that are not exported, need none.
func unexplained(parsed *ast.File, set *token.FileSet) []Name {
	var names []Name
	add := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		for _, comment := range comments {
			if comment.Text() != "" {
				return
			}
		}
		names = append(names, Name{Text: name.Name, Line: set.Position(name.Pos()).Line})
	}
	for _, declaration := range parsed.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || exportedReceiver(d.Recv) && !wellKnown[d.Name.Name] {
				add(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, each := range d.Specs {
				switch spec := each.(type) {
				case *ast.TypeSpec:
					add(spec.Name, d.Doc, spec.Doc)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(name, d.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	return names
}

// wellKnown are methods whose contract is that of an interface of the
// standard library.
var wellKnown = map[string]bool{
	"Error": true, "Unwrap": true, "String": true, "Close": true, "Read": true, "Write": true,
	"Len": true, "Less": true, "Swap": true, "ServeHTTP": true,
	"MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true,
}

func exportedReceiver(receiver *ast.FieldList) bool {
	named := receiver.List[0].Type
	if pointer, ok := named.(*ast.StarExpr); ok {
		named = pointer.X
	}
	if generic, ok := named.(*ast.IndexExpr); ok {
		named = generic.X
	}
	name, ok := named.(*ast.Ident)
	return ok && name.IsExported()
}
