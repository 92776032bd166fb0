// Package adr reads the decision records in this directory and the numbered
// documents in docs, and says whether they stand on decisions that hold. It
// does not judge what a record decides, and it never changes a file.
package adr

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Status says how far a decision has come. The text is what the record's
// front matter holds.
type Status string

const (
	// Proposed is a decision under discussion. Nothing that is in force may
	// stand on it.
	Proposed Status = "proposed"
	// Accepted is a decision in force.
	Accepted Status = "accepted"
	// Superseded is a decision that another one has replaced. It stays to be
	// read, and nothing that is in force may stand on it.
	Superseded Status = "superseded"
)

// record is one decision, as its front matter states it.
type record struct {
	file   string
	number int
	// status is empty when the front matter names none or an unknown one.
	status       Status
	restsOn      []reference
	extends      []reference
	supersedes   []reference
	supersededBy []reference
	// statusLine is 1 when the record has no status.
	statusLine int
}

// document is one numbered page of docs.
type document struct {
	file    string
	restsOn []reference
}

// reference is a record's number as some line of a file names it.
type reference struct {
	number int
	line   int
}

// field is one line of front matter.
type field struct {
	value string
	line  int
}

// matter is the front matter of a file and the text below it.
type matter struct {
	fields map[string]field
	body   []string
	// bodyLine is the line number of body[0].
	bodyLine int
}

// readMatter splits text into front matter and body. Keys outside allowed,
// keys given twice and lines that are not "key: value" are findings; the rest
// is still read, so that one mistake does not hide the next.
func readMatter(file string, text []byte, allowed []string, found *findings) (matter, bool) {
	lines := strings.Split(string(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))), "\n")
	m := matter{fields: map[string]field{}}
	if lines[0] != "---" {
		found.add(file, 1, "has no front matter: the first line must be ---")
		return m, false
	}
	end := slices.Index(lines[1:], "---")
	if end < 0 {
		found.add(file, 1, "front matter does not end: a line --- is missing")
		return m, false
	}
	for i, line := range lines[1 : 1+end] {
		number := i + 2
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || key != strings.TrimSpace(key) {
			found.add(file, number, "front matter line %q is not \"key: value\"", line)
			continue
		}
		if !slices.Contains(allowed, key) {
			found.add(file, number, "unknown front matter key %q (known: %s)", key, strings.Join(allowed, ", "))
			continue
		}
		if earlier, twice := m.fields[key]; twice {
			found.add(file, number, "front matter key %q is given twice, first on line %d", key, earlier.line)
			continue
		}
		m.fields[key] = field{value: strings.TrimSpace(value), line: number}
	}
	m.body = lines[end+2:]
	m.bodyLine = end + 3
	return m, true
}

// references reads a list of record numbers: "[1, 2]", or one bare number.
// An absent key and an empty list are both no references.
func (m matter) references(file, key string, found *findings) []reference {
	f, ok := m.fields[key]
	if !ok {
		return nil
	}
	text := f.value
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = strings.TrimSpace(text[1 : len(text)-1])
		if text == "" {
			return nil
		}
	}
	var refs []reference
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 {
			found.add(file, f.line, "%s: %q is not a record's number (write [1, 2])", key, strings.TrimSpace(part))
			continue
		}
		if slices.ContainsFunc(refs, func(r reference) bool { return r.number == n }) {
			found.add(file, f.line, "%s names record %s twice", key, show(n))
			continue
		}
		refs = append(refs, reference{number: n, line: f.line})
	}
	return refs
}

// title returns the first "# " heading of the body, or "" when there is none.
func (m matter) title() string {
	for _, line := range m.body {
		if rest, ok := strings.CutPrefix(line, "# "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// section reports whether the body has the heading "## name" with text below
// it, before the next heading.
func (m matter) section(name string) bool {
	start := slices.Index(m.body, "## "+name)
	if start < 0 {
		return false
	}
	for _, line := range m.body[start+1:] {
		if strings.HasPrefix(line, "#") {
			return false
		}
		if strings.TrimSpace(line) != "" {
			return true
		}
	}
	return false
}

// show writes a record's number as its file name does.
func show(number int) string { return fmt.Sprintf("%04d", number) }
