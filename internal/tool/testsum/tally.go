package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of go test -json; unknown fields are ignored because the
// go command adds some with time.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	// Elapsed is in seconds; zero when the go command gives none.
	Elapsed float64
}

// test is what became of one test or subtest.
type test struct {
	pkg, name string
	outcome   string // pass, fail, skip; empty while it has not ended
	output    []string
	parent    bool // it has subtests, which are counted instead of it
	// ran: the go command spoke of it. A subtest whose name holds a slash seems
	// to lie below a test that there never was.
	ran bool
	// elapsed is in seconds.
	elapsed float64
}

// tally counts what a run of tests did. The zero value is not usable; make one
// with newTally.
type tally struct {
	// talk receives a line for each package and the output of what failed.
	talk  io.Writer
	tests map[string]*test
	// noise holds a package's output outside its tests, for when it fails.
	noise map[string][]string
	// broken lists what failed without a test to blame: a package that did
	// not build, a panic in TestMain.
	broken []string
}

func newTally(talk io.Writer) *tally {
	return &tally{talk: talk, tests: map[string]*test{}, noise: map[string][]string{}}
}

// read takes the output of one go test -json to its end.
func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			t.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the test output: %w", err)
		}
	}
}

func (t *tally) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		// Some tools write lines of their own between.
		fmt.Fprintf(t.talk, "%s", line)
		return
	}
	pkg := e.Package
	if pkg == "" {
		pkg = e.ImportPath
	}
	if e.Test == "" {
		t.pkg(pkg, e)
		return
	}
	current := t.test(pkg, e.Test)
	current.ran = true
	switch e.Action {
	case "output":
		current.output = append(current.output, e.Output)
	case "pass", "fail", "skip":
		current.outcome, current.elapsed = e.Action, e.Elapsed
		if e.Action == "pass" {
			current.output = nil
		}
	}
}

func (t *tally) test(pkg, name string) *test {
	key := pkg + " " + name
	if known := t.tests[key]; known != nil {
		return known
	}
	t.tests[key] = &test{pkg: pkg, name: name}
	if slash := strings.LastIndexByte(name, '/'); slash > 0 {
		t.test(pkg, name[:slash]).parent = true
	}
	return t.tests[key]
}

func (t *tally) pkg(pkg string, e event) {
	switch e.Action {
	case "output", "build-output":
		t.noise[pkg] = append(t.noise[pkg], e.Output)
	case "build-fail":
		t.broken = append(t.broken, pkg+" did not build")
		t.print(t.noise[pkg])
	case "pass":
		fmt.Fprintf(t.talk, "ok    %-45s %6.2fs\n", short(pkg), e.Elapsed)
	case "skip":
		fmt.Fprintf(t.talk, "none  %-45s has no tests\n", short(pkg))
	case "fail":
		fmt.Fprintf(t.talk, "FAIL  %-45s %6.2fs\n", short(pkg), e.Elapsed)
		t.blame(pkg)
	}
}

// blame prints why a package failed: the output of its failed tests, or, when
// no test failed, everything that it said outside them.
func (t *tally) blame(pkg string) {
	blamed := false
	for _, failed := range t.of(pkg) {
		if failed.outcome == "fail" {
			blamed = true
			t.print(failed.output)
		}
		if failed.outcome == "" {
			// The test was running when its process ended.
			blamed = true
			failed.outcome = "fail"
			t.print(failed.output)
		}
	}
	if !blamed {
		t.broken = append(t.broken, pkg+" failed outside its tests")
		t.print(t.noise[pkg])
	}
}

func (t *tally) print(lines []string) {
	for _, line := range lines {
		fmt.Fprintf(t.talk, "      %s", line)
	}
}

// of returns the tests of pkg by name.
func (t *tally) of(pkg string) []*test {
	var tests []*test
	for _, each := range t.tests {
		if each.ran && (pkg == "" || each.pkg == pkg) {
			tests = append(tests, each)
		}
	}
	slices.SortFunc(tests, func(a, b *test) int {
		return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name)
	})
	return tests
}

// totals is the end of a run.
type totals struct {
	passed, failed, skipped int
}

// totals counts each test once: a test with subtests stands for nothing by
// itself, unless it failed or skipped and none of its subtests did.
func (t *tally) totals() totals {
	var sum totals
	for _, each := range t.of("") {
		if each.parent && (each.outcome == "pass" || t.below(each, each.outcome)) {
			continue
		}
		switch each.outcome {
		case "pass":
			sum.passed++
		case "skip":
			sum.skipped++
		default:
			sum.failed++
		}
	}
	sum.failed += len(t.broken)
	return sum
}

func (t *tally) below(parent *test, outcome string) bool {
	for _, each := range t.tests {
		if each.pkg == parent.pkg && each.outcome == outcome && strings.HasPrefix(each.name, parent.name+"/") {
			return true
		}
	}
	return false
}

// skips lists the tests that did not run, each with the reason that it gave.
func (t *tally) skips() []string {
	var lines []string
	for _, each := range t.of("") {
		if each.outcome != "skip" || each.parent && t.below(each, "skip") {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", short(each.pkg), each.name, reason(each.output)))
	}
	return lines
}

// slow is how long a test may take in seconds before it is worth a line, and
// slowShown how many get one.
const (
	slow      = 20
	slowShown = 15
)

// slowest lists the tests that took longest, the longest first; of a test with
// subtests, those.
func (t *tally) slowest() []string {
	all := slices.DeleteFunc(t.of(""), func(each *test) bool { return each.parent || each.elapsed < slow })
	slices.SortStableFunc(all, func(a, b *test) int { return cmp.Compare(b.elapsed, a.elapsed) })
	var lines []string
	for _, each := range all[:min(len(all), slowShown)] {
		lines = append(lines, fmt.Sprintf("%4.0f s %s %s", each.elapsed, short(each.pkg), each.name))
	}
	return lines
}

// reason takes what a skipped test said out of what the go command says about
// it.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			line = text
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "gave no reason"
	}
	return strings.Join(said, " ")
}

// short leaves out the module's path, which every package shares.
func short(pkg string) string {
	if rest, ok := strings.CutPrefix(pkg, "github.com/meshctl/mesh/"); ok {
		return "./" + rest
	}
	return pkg
}
