package assign

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// placeholders of a template, besides labels.NAME.
var placeholders = []string{"node.name", "os.id", "os.version", "os.family", "arch"}

var labelPlaceholder = regexp.MustCompile(`^labels\.[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// template is content cut into literal pieces and names: piece 0, name 0,
// piece 1, name 1, ... piece n.
type template struct {
	pieces [][]byte
	names  []string
}

func parseTemplate(content []byte) (*template, error) {
	t := &template{}
	var piece []byte
	line := 1
	for {
		i := bytes.Index(content, []byte("${"))
		if i < 0 {
			t.pieces = append(t.pieces, append(piece, content...))
			return t, nil
		}
		line += bytes.Count(content[:i], []byte("\n"))
		if i > 0 && content[i-1] == '$' {
			// "$${" is a literal "${".
			piece = append(piece, content[:i-1]...)
			piece = append(piece, "${"...)
			content = content[i+2:]
			continue
		}
		piece = append(piece, content[:i]...)
		end := bytes.IndexByte(content[i:], '}')
		if end < 0 || end > 128 {
			return nil, fmt.Errorf("line %d of the content: \"${\" without \"}\"; write \"$${\" for a literal \"${\"", line)
		}
		name := string(content[i+2 : i+end])
		if !slices.Contains(placeholders, name) && !labelPlaceholder.MatchString(name) {
			return nil, fmt.Errorf("line %d of the content: ${%s} is not known; there are ${labels.NAME}, ${%s}, and \"$${\" for a literal \"${\"", line, name, strings.Join(placeholders, "}, ${"))
		}
		t.pieces = append(t.pieces, piece)
		t.names = append(t.names, name)
		piece = nil
		content = content[i+end+1:]
	}
}

func (t *template) uses() usage {
	var u usage
	for _, name := range t.names {
		switch {
		case name == "node.name":
			u.name = true
		case strings.HasPrefix(name, "labels."):
			u.labels = true
		default:
			u.profile = true
		}
	}
	return u
}

// render fills the template in. A label that the node does not have is an
// error: a configuration with a hole in it is not what was declared.
func (t *template) render(f *Facts) ([]byte, error) {
	var out []byte
	for i, name := range t.names {
		out = append(out, t.pieces[i]...)
		value, err := lookup(f, name)
		if err != nil {
			return nil, err
		}
		out = append(out, value...)
	}
	return append(out, t.pieces[len(t.names)]...), nil
}

func lookup(f *Facts, name string) (string, error) {
	switch name {
	case "node.name":
		return f.name, nil
	case "os.id":
		return f.profile.OS.ID, nil
	case "os.version":
		return f.profile.OS.Version, nil
	case "os.family":
		return f.profile.OS.Family, nil
	case "arch":
		return f.profile.Arch, nil
	}
	label, _ := strings.CutPrefix(name, "labels.")
	value, has := f.labels[label]
	if !has {
		return "", fmt.Errorf("the template needs the label %q, which the node does not have", label)
	}
	return value, nil
}

// checkTemplate returns the template of a resource, nil when it has none.
func checkTemplate(r mesh.DocumentResource) (*template, error) {
	if !r.Template || r.File == nil {
		return nil, nil
	}
	if r.File.Content == nil && r.File.Size > 0 {
		return nil, fmt.Errorf("the content of a template has at most %d bytes", mesh.InlineLimit)
	}
	return parseTemplate(r.File.Content)
}
