package arch

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxLines is the size at which a file must have been split.
const maxLines = 800

// Violation is one place that breaks a rule.
type Violation struct {
	// Path is the file, or the room when the rule is about a whole package.
	Path string
	// Line counts from 1; zero means that no single line is at fault.
	Line    int
	Message string
}

// String gives the violation in the form that editors jump to.
func (v Violation) String() string {
	if v.Line == 0 {
		return v.Path + ": " + v.Message
	}
	return fmt.Sprintf("%s:%d: %s", v.Path, v.Line, v.Message)
}

// Check returns every place in tree that breaks a rule, by path and line. The
// rooms in planned may be named by rules and must not exist.
func Check(tree *Tree, planned []string) []Violation {
	var c checker
	for _, file := range tree.Files {
		c.imports(file)
		c.purity(file)
		c.testing(file)
		c.sleeping(file)
		c.explained(file)
		c.size(file.Path, file.Lines)
	}
	for _, script := range tree.Scripts {
		c.size(script.Path, script.Lines)
	}
	c.comments(tree)
	c.rooms(tree, planned)
	slices.SortFunc(c.found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
	return c.found
}

type checker struct{ found []Violation }

func (c *checker) add(where string, line int, format string, args ...any) {
	c.found = append(c.found, Violation{Path: where, Line: line, Message: fmt.Sprintf(format, args...)})
}

// supportsTests reports whether room holds code that only tests use: contract
// suites and the like, by the ending of its name.
func supportsTests(room string) bool {
	return matchAny([]string{"test/**"}, room) || strings.HasSuffix(path.Base(room), "test")
}

func ruleOf(room string) (Rule, bool) {
	for _, rule := range Rules {
		if match(rule.Room, room) {
			return rule, true
		}
	}
	return Rule{}, false
}

func (c *checker) imports(file File) {
	rule, known := ruleOf(file.Room)
	if !known {
		return // rooms says so once for the whole room
	}
	for _, imported := range file.Imports {
		target, ours := imported.Ours()
		if !ours {
			continue
		}
		inTests := file.Test || supportsTests(file.Room)
		switch {
		case closedTo(file.Room, target):
			c.add(file.Path, imported.Line, "%s imports %s: nothing imports %s from outside", file.Room, target, closedRoom(target))
		case supportsTests(target) && !inTests:
			c.add(file.Path, imported.Line, "%s imports %s outside its tests: what helps tests is no part of the product", file.Room, target)
		case target == file.Room || matchAny(rule.May, target) || inTests && matchAny(rule.TestsMay, target):
		default:
			c.add(file.Path, imported.Line, "%s imports %s: %s", file.Room, target, rule.Why)
		}
	}
}

// closedTo reports whether target lies in a room that importer may not enter.
// A program's own packages are below that program, so one program does not
// import another's.
func closedTo(importer, target string) bool {
	room := closedRoom(target)
	switch {
	case room == "":
		return false
	case room == "cmd":
		program, _, _ := strings.Cut(strings.TrimPrefix(target, "cmd/"), "/")
		return !match("cmd/"+program+"/**", importer)
	default:
		return !match(room+"/**", importer)
	}
}

func closedRoom(target string) string {
	for _, room := range Closed {
		if match(room+"/**", target) {
			return room
		}
	}
	return ""
}

func (c *checker) purity(file File) {
	if file.Test || !matchAny(Pure, file.Room) {
		return
	}
	for _, imported := range file.Imports {
		first, _, _ := strings.Cut(imported.Path, "/")
		if matchAny(effects, imported.Path) {
			c.add(file.Path, imported.Line, "%s imports %s: this room does no input or output", file.Room, imported.Path)
		}
		if file.Room == root && strings.Contains(first, ".") && imported.Path != Module && !strings.HasPrefix(imported.Path, Module+"/") {
			c.add(file.Path, imported.Line, "the root package imports %s: it uses the standard library only", imported.Path)
		}
	}
}

func (c *checker) testing(file File) {
	if file.Test || supportsTests(file.Room) {
		return
	}
	for _, imported := range file.Imports {
		if match("testing/**", imported.Path) {
			c.add(file.Path, imported.Line, "imports %s outside a test", imported.Path)
		}
	}
}

func (c *checker) sleeping(file File) {
	if file.Test || supportsTests(file.Room) {
		return
	}
	for _, line := range file.Sleeps {
		c.add(file.Path, line, "calls time.Sleep: waiting takes a context")
	}
}

// explained holds for packages that others import; a program's names are read
// together with the program.
func (c *checker) explained(file File) {
	if file.Test || file.Package == "main" {
		return
	}
	for _, name := range file.Unexplained {
		c.add(file.Path, name.Line, "%s is exported and has no comment", name.Text)
	}
}

func (c *checker) size(name string, lines int) {
	if lines > maxLines {
		c.add(name, 0, "has %d lines; past %d a file is split", lines, maxLines)
	}
}

// comments checks that every package says once what it is for.
func (c *checker) comments(tree *Tree) {
	type pkg struct{ room, name string }
	docs := map[pkg][]string{}
	testOnly := map[pkg]bool{}
	for _, file := range tree.Files {
		p := pkg{file.Room, strings.TrimSuffix(file.Package, "_test")}
		if _, seen := testOnly[p]; !seen {
			testOnly[p] = true
		}
		if !file.Test {
			testOnly[p] = false
		}
	}
	for _, file := range tree.Files {
		p := pkg{file.Room, strings.TrimSuffix(file.Package, "_test")}
		if file.Test && !testOnly[p] {
			if file.Doc != "" {
				c.add(file.Path, 0, "has a package comment in a test file: it belongs to the package's own files")
			}
			continue
		}
		if file.Doc == "" {
			continue
		}
		docs[p] = append(docs[p], file.Path)
		if opening := "Package " + p.name + " "; p.name != "main" && !strings.HasPrefix(file.Doc, opening) {
			c.add(file.Path, 0, "package comment does not begin with %q", opening)
		}
	}
	for p := range testOnly {
		switch n := len(docs[p]); {
		case n == 0:
			c.add(p.room, 0, "package %s has no package comment", p.name)
		case n > 1:
			c.add(p.room, 0, "package %s has %d package comments: %s", p.name, n, strings.Join(docs[p], ", "))
		}
	}
}

// rooms checks that rules and tree know each other: every package is in a
// rule, and every pattern of a rule still matches a package, so that renaming
// a room cannot leave a rule that binds nothing.
func (c *checker) rooms(tree *Tree, planned []string) {
	present := map[string]bool{}
	for _, file := range tree.Files {
		if !present[file.Room] {
			if _, known := ruleOf(file.Room); !known {
				c.add(file.Room, 0, "is in no rule of test/arch: say there what it may import")
			}
		}
		present[file.Room] = true
	}
	exists := func(pattern string) bool {
		for room := range present {
			if match(pattern, room) {
				return true
			}
		}
		return false
	}
	named := slices.Concat(Pure, Closed)
	for _, rule := range Rules {
		named = slices.Concat(named, []string{rule.Room}, rule.May, rule.TestsMay)
	}
	for i, room := range Closed {
		named[len(Pure)+i] = room + "/**"
	}
	slices.Sort(named)
	for _, pattern := range slices.Compact(named) {
		if !exists(pattern) && !matchAny(planned, strings.TrimSuffix(pattern, "/**")) {
			c.add("test/arch", 0, "rules name %s, which matches no package: follow the rename", pattern)
		}
	}
	for _, pattern := range planned {
		if exists(pattern) {
			c.add("test/arch", 0, "%s is listed as planned and exists: take it off that list", pattern)
		}
	}
}
