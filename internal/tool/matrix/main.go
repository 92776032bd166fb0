// Command matrix runs the tests that say on which hosts what holds, prints a
// table of them, and writes it as JSON and, put among what was seen before, as a
// page of docs.
//
// A test takes a line in the table by logging "matrix: " and a JSON object, see
// lab.Case; its own outcome, time and first complaint complete the line. It runs
// one command, go test -json, and does not know which tests there are.
//
// Usage: matrix [-out FILE] [-part] -- go test -json ...
//
//	matrix -page
//
// With -part the lines of this run take the place of those of the same case and
// host, and the others stay; without it they are all there is. With -page nothing
// is run and the page is written anew from what is kept.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// line is one line of the table.
type line struct {
	Case        string  `json:"case"`
	Requirement string  `json:"requirement"`
	Host        string  `json:"host"`
	Systemd     string  `json:"systemd"`
	Manager     string  `json:"manager"`
	Result      string  `json:"result"` // pass, fail or not-run
	Seconds     float64 `json:"seconds"`
	Reason      string  `json:"reason,omitempty"` // of what did not pass
	// Seen is the day and the commit of the tree that was run.
	Seen string `json:"seen,omitempty"`
}

// event is one line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func main() {
	out := flag.String("out", "out/matrix.json", "the file for the lines of this run")
	part := flag.Bool("part", false, "this is a part of the matrix; the other lines stay")
	only := flag.Bool("page", false, "run nothing; write the page from the lines that are kept")
	flag.Parse()
	if *only {
		if err := keep(nil, true); err != nil {
			fmt.Fprintln(os.Stderr, "matrix:", err)
			os.Exit(1)
		}
		return
	}
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: matrix [-out FILE] [-part] -- go test -json ...")
		os.Exit(2)
	}
	seen := tree()
	lines, err := run(flag.Args())
	for i := range lines {
		lines[i].Seen = seen
	}
	if len(lines) > 0 {
		print(os.Stdout, lines)
		err = errors.Join(err, write(*out, lines), keep(lines, *part))
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	case len(lines) == 0:
		fmt.Fprintln(os.Stderr, "matrix: no test took a line in the table")
		os.Exit(1)
	}
}

func run(argv []string) ([]line, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines, err := read(pipe, os.Stderr)
	if e := cmd.Wait(); e != nil {
		return lines, fmt.Errorf("the tests: %w", e)
	}
	return lines, err
}

// read takes the events to their end. What failed is repeated on talk.
func read(r io.Reader, talk io.Writer) ([]line, error) {
	open := map[string]*line{}
	said := map[string][]string{}
	var done []line
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			fmt.Fprintln(talk, s.Text())
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			said[key] = append(said[key], e.Output)
			if _, object, ok := strings.Cut(e.Output, "matrix: "); ok {
				l := &line{}
				if json.Unmarshal([]byte(object), l) == nil {
					open[key] = l
				}
			}
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				fmt.Fprint(talk, strings.Join(said[key], ""))
			}
			if l := open[key]; l != nil {
				l.Result, l.Seconds = e.Action, e.Elapsed
				if e.Action == "skip" {
					l.Result = "not-run"
				}
				if e.Action != "pass" {
					l.Reason = reason(said[key])
				}
				done = append(done, *l)
			}
			delete(open, key)
			delete(said, key)
		}
	}
	slices.SortFunc(done, func(a, b line) int { return strings.Compare(a.Case+a.Host, b.Case+b.Host) })
	return done, s.Err()
}

// reason is the first thing that a test complained about.
func reason(output []string) string {
	for _, o := range output {
		o = strings.TrimSpace(o)
		if strings.Contains(o, "_test.go:") && !strings.Contains(o, "matrix: ") {
			_, text, _ := strings.Cut(o, ": ")
			return text
		}
	}
	return "it did not say why"
}

func print(w io.Writer, lines []line) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CASE\tREQUIREMENT\tHOST\tSYSTEMD\tMANAGER\tRESULT\tSECONDS\tREASON")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%s\n", l.Case, l.Requirement, l.Host, l.Systemd, l.Manager, l.Result, l.Seconds, l.Reason)
	}
	t.Flush()
}

func write(path string, lines []line) error {
	data, err := json.MarshalIndent(lines, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
