package apt

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Field is one field of a control paragraph. Value holds the lines after the
// colon as they are written, continuation lines with their leading blank, the
// outer blanks of the first line removed.
type Field struct {
	Name  string
	Value string
}

// Paragraph is one control paragraph in the order of its fields.
type Paragraph []Field

// Get returns the value of the named field, of any letter case, or "".
func (p Paragraph) Get(name string) string {
	for _, f := range p {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// maxFields bounds the fields of one paragraph; Debian's largest have about 40.
const maxFields = 256

// ParseControl reads the single paragraph of a package's control file. It is
// strict where leniency would let a package write lines into the archive's
// index: no second paragraph, no field twice, no line that only has blanks, no
// control characters.
func ParseControl(b []byte) (Paragraph, error) {
	if !utf8.Valid(b) {
		return nil, malformed("the control file is not UTF-8")
	}
	text := strings.TrimRight(string(b), "\n")
	var p Paragraph
	seen := map[string]bool{}
	// The lines of the last field are put together once: its value may have
	// hundreds of thousands.
	var value []string
	end := func() {
		if len(p) > 0 {
			p[len(p)-1].Value = strings.Join(value, "\n")
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if i := strings.IndexFunc(line, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }); i >= 0 {
			return nil, malformed("the control file holds a control character")
		}
		switch {
		case strings.TrimSpace(line) == "":
			return nil, malformed("the control file has an empty line inside")
		case line[0] == ' ' || line[0] == '\t':
			if len(p) == 0 {
				return nil, malformed("the control file starts with a continuation line")
			}
			value = append(value, strings.TrimRight(line, " \t"))
			continue
		}
		end()
		name, first, ok := strings.Cut(line, ":")
		if !ok || !validFieldName(name) {
			return nil, malformed("the control file has a line that is no field")
		}
		if key := strings.ToLower(name); seen[key] {
			return nil, malformed("the control file has the field %s twice", name)
		} else {
			seen[key] = true
		}
		if len(p) == maxFields {
			return nil, malformed("the control file has more than %d fields", maxFields)
		}
		p, value = append(p, Field{Name: name}), append(value[:0], strings.TrimSpace(first))
	}
	end()
	return p, nil
}

func validFieldName(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '#' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return true
}

// indexFields are the fields that the archive writes about a package. A
// package that brings them itself does not get a say.
var indexFields = map[string]bool{
	"filename": true, "size": true, "md5sum": true, "sha1": true,
	"sha256": true, "sha512": true, "status": true,
}

// Stanza returns the package's paragraph for a Packages index, ended by a
// newline and without the empty line between paragraphs. path is relative to
// the archive's root; size is in bytes; sha256 is lower-case hexadecimal.
func (d *Deb) Stanza(path string, size int64, sha256 string) []byte {
	var b bytes.Buffer
	field := func(name, value string) {
		b.WriteString(name)
		b.WriteByte(':')
		if !strings.HasPrefix(value, "\n") {
			b.WriteByte(' ')
		}
		b.WriteString(value)
		b.WriteByte('\n')
	}
	field("Package", d.Name)
	for _, f := range d.Control {
		lower := strings.ToLower(f.Name)
		if lower == "package" || lower == "description" || indexFields[lower] || f.Value == "" {
			continue
		}
		field(f.Name, f.Value)
	}
	field("Filename", path)
	field("Size", itoa(size))
	field("SHA256", sha256)
	if v := d.Control.Get("Description"); v != "" {
		field("Description", v)
	}
	return b.Bytes()
}
