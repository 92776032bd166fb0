package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// shown is one test that declares which requirements it shows.
type shown struct {
	// where is the package's directory, or the script's path.
	where string
	// test is the function's name; empty for a script.
	test    string
	numbers []int
}

var (
	marker = regexp.MustCompile(`^Shows:\s*(.*)$`)
	number = regexp.MustCompile(`^M([1-9][0-9]*)$`)
)

// scan reads every Go file and testscript below root and returns the tests
// that carry a marker. A marker that is wrong or stands where no test begins
// is a finding with file and line. The error is for a tree that cannot be
// read.
func scan(root fs.FS) (tests []shown, found []string, err error) {
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name == "out" || name != "." && (base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		var more []shown
		var wrong []string
		switch {
		case path.Ext(name) == ".txtar":
			more, wrong, err = scanScript(root, name)
		case path.Ext(name) == ".go" && !strings.Contains("/"+name, "/testdata/"):
			more, wrong, err = scanGo(root, name)
		}
		tests = append(tests, more...)
		found = append(found, wrong...)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the tests: %w", err)
	}
	return tests, found, nil
}

func scanGo(root fs.FS, name string) ([]shown, []string, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Contains(text, []byte("Shows:")) {
		return nil, nil, nil
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	owners := map[*ast.CommentGroup]*ast.FuncDecl{}
	for _, declaration := range file.Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && f.Doc != nil && isTest(name, f) {
			owners[f.Doc] = f
		}
	}
	var tests []shown
	var found []string
	for _, group := range file.Comments {
		for _, comment := range group.List {
			match := marker.FindStringSubmatch(strings.TrimSpace(strings.TrimPrefix(comment.Text, "//")))
			if match == nil {
				continue
			}
			line := set.Position(comment.Pos()).Line
			test := owners[group]
			if test == nil {
				found = append(found, fmt.Sprintf("%s:%d: a Shows marker that is not directly above a test function", name, line))
				continue
			}
			numbers, err := parseNumbers(match[1])
			if err != nil {
				found = append(found, fmt.Sprintf("%s:%d: %v", name, line, err))
				continue
			}
			tests = append(tests, shown{where: path.Dir(name), test: test.Name.Name, numbers: numbers})
		}
	}
	return tests, found, nil
}

// isTest reports whether the go command runs f of the file name as a test.
func isTest(name string, f *ast.FuncDecl) bool {
	if !strings.HasSuffix(name, "_test.go") || f.Recv != nil || f.Name.Name == "TestMain" {
		return false
	}
	return strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")
}

// scanScript reads the comments of a testscript, which end where its first
// file begins.
func scanScript(root fs.FS, name string) ([]shown, []string, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, nil, err
	}
	var tests []shown
	var found []string
	line := 0
	for each := range strings.Lines(string(text)) {
		line++
		if strings.HasPrefix(each, "-- ") {
			break
		}
		comment, ok := strings.CutPrefix(strings.TrimSpace(each), "#")
		if !ok {
			continue
		}
		match := marker.FindStringSubmatch(strings.TrimSpace(comment))
		if match == nil {
			continue
		}
		numbers, err := parseNumbers(match[1])
		if err != nil {
			found = append(found, fmt.Sprintf("%s:%d: %v", name, line, err))
			continue
		}
		tests = append(tests, shown{where: name, numbers: numbers})
	}
	return tests, found, nil
}

// parseNumbers reads "M1, M2".
func parseNumbers(text string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		match := number.FindStringSubmatch(part)
		if match == nil {
			return nil, fmt.Errorf("%q is not a requirement's number (write // Shows: M1, M2)", part)
		}
		n, err := strconv.Atoi(match[1])
		if err != nil || n > len(list) {
			return nil, fmt.Errorf("there is no requirement %s (M1 to M%d)", part, len(list))
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
