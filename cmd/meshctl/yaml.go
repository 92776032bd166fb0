package main

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/cli"
)

// printDeclaration writes a declaration in the form in which it is written.
func printDeclaration(w io.Writer, v control.DeclarationView) error {
	fmt.Fprintf(w, "# %s revision %d, written %s by %s\n", cli.Clean(v.Name), v.Revision, stamp(v.Written), cli.Clean(v.By))
	if v.Removed {
		_, err := fmt.Fprintln(w, "# This revision removes the declaration.")
		return err
	}
	text, err := documentText(v)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

// documentText is a declaration as YAML; empty when it has no document.
func documentText(v control.DeclarationView) (string, error) {
	if v.Document == nil {
		return "", nil
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(documentNode(*v.Document)); err != nil {
		return "", fmt.Errorf("write declaration as YAML: %w", err)
	}
	if err := e.Close(); err != nil {
		return "", fmt.Errorf("write declaration as YAML: %w", err)
	}
	return b.String(), nil
}

// mapping builds a YAML mapping in a given order and leaves out what is empty.
type mapping struct{ node yaml.Node }

func newMapping() *mapping { return &mapping{node: yaml.Node{Kind: yaml.MappingNode}} }

func (m *mapping) add(key string, value *yaml.Node) {
	m.node.Content = append(m.node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
}

func (m *mapping) text(key, value string) {
	if value != "" {
		m.add(key, textNode(value))
	}
}

func (m *mapping) flag(key string, set bool) {
	if set {
		m.add(key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
	}
}

func (m *mapping) texts(key string, values []string) {
	if len(values) == 0 {
		return
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, v := range values {
		list.Content = append(list.Content, textNode(v))
	}
	m.add(key, list)
}

// textNode lets the library choose quotes, so that "0644" and "yes" stay text.
func textNode(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func documentNode(doc mesh.Document) *yaml.Node {
	m := newMapping()
	m.text("declaration", doc.Declaration)
	m.text("select", doc.Select)
	resources := &yaml.Node{Kind: yaml.SequenceNode}
	for _, r := range doc.Resources {
		resources.Content = append(resources.Content, resourceNode(r))
	}
	m.add("resources", resources)
	return &m.node
}

func resourceNode(r mesh.DocumentResource) *yaml.Node {
	m := newMapping()
	m.text(string(r.Kind), r.Name)
	if r.Package != nil {
		m.text("version", r.Package.Version)
		m.flag("absent", r.Package.Absent)
	}
	if r.File != nil {
		fileKeys(m, *r.File)
	}
	m.text("when", r.When)
	m.flag("template", r.Template)
	var requires []string
	for _, id := range r.Requires {
		requires = append(requires, string(id))
	}
	m.texts("requires", requires)
	if r.OnChange != nil {
		change := newMapping()
		change.node.Style = yaml.FlowStyle
		change.texts("reload", r.OnChange.Reload)
		change.texts("restart", r.OnChange.Restart)
		m.add("on_change", &change.node)
	}
	return &m.node
}

func fileKeys(m *mapping, f mesh.FileSpec) {
	m.flag("absent", f.Absent)
	if f.Type != mesh.FileRegular {
		m.text("type", string(f.Type))
	}
	m.text("target", f.Target)
	m.text("owner", f.Owner)
	m.text("group", f.Group)
	m.text("mode", f.Mode)
	m.flag("sensitive", f.Sensitive)
	regular := !f.Absent && (f.Type == "" || f.Type == mesh.FileRegular)
	switch {
	case !regular:
	case f.Content != nil && utf8.Valid(f.Content) && !bytes.ContainsRune(f.Content, 0):
		m.add("content", textNode(string(f.Content)))
	default:
		left := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle}
		left.LineComment = fmt.Sprintf("left out: %d bytes, SHA-256 %s", f.Size, f.SHA256)
		if f.Sensitive || f.SHA256 == "" {
			left.LineComment = "left out: sensitive"
		}
		m.add("content", left)
	}
}
