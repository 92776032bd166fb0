package document

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
)

// decoder walks the nodes of one document and gathers findings.
type decoder struct {
	file     *File
	source   Source
	problems mesh.Problems
}

// add notes a finding at a node; nil means that the place is not known.
func (d *decoder) add(at *yaml.Node, path, message string) {
	p := mesh.Problem{File: d.file.Name, Path: path, Message: message}
	if at != nil {
		p.Line, p.Column = at.Line, at.Column
	}
	d.problems = append(d.problems, p)
}

// field reads the value of one key.
type field func(value *yaml.Node, path string)

// mapping reads a mapping whose keys are those of fields and no others, each
// once. It returns the nodes of the keys that were there.
func (d *decoder) mapping(n *yaml.Node, path, what string, fields map[string]field) map[string]*yaml.Node {
	d.place(n, path)
	if !d.plain(n, path) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.add(n, path, fmt.Sprintf("%s is a list of keys and values, and this is %s", what, describe(n)))
		return nil
	}
	there := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		if key.Kind != yaml.ScalarNode || key.Anchor != "" {
			d.add(key, path, "a key is one word, without anchor or alias")
			continue
		}
		read, known := fields[key.Value]
		if !known {
			d.add(key, at, unknownKey(key.Value, what, fields))
			continue
		}
		if first, twice := there[key.Value]; twice {
			d.add(key, at, fmt.Sprintf("the key stands here a second time; the first is on line %d", first.Line))
			continue
		}
		there[key.Value] = key
		d.place(key, at)
		read(value, at)
	}
	return there
}

func (d *decoder) place(n *yaml.Node, path string) {
	if _, known := d.file.places[path]; !known {
		d.file.places[path] = place{n.Line, n.Column}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func unknownKey(key, what string, fields map[string]field) string {
	var known []string
	for k := range fields {
		known = append(known, k)
	}
	slices.Sort(known)
	for _, k := range known {
		if strings.EqualFold(k, strings.ReplaceAll(key, "-", "_")) || oneEdit(k, key) {
			return fmt.Sprintf("%s has no key %q; did you mean %q?", what, short(key), k)
		}
	}
	return fmt.Sprintf("%s has no key %q; there are %s", what, short(key), strings.Join(known, ", "))
}

// oneEdit reports whether one letter more, less, other or swapped leads from a
// to b.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	if i == len(a) || a[i+1:] == b[i+1:] {
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// plain refuses what the format has and a declaration does not need: aliases
// can make a small document grow without bound, and tags change types unseen.
func (d *decoder) plain(n *yaml.Node, path string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.add(n, path, "anchors and aliases (& and *) are not taken; write the value out, or in quotes if it is meant literally")
		return false
	case n.Style&yaml.TaggedStyle != 0:
		d.add(n, path, "tags (!) are not taken; write the value in quotes if it is meant literally")
		return false
	}
	return true
}

// text reads a string.
func (d *decoder) text(to *string) field {
	return func(n *yaml.Node, path string) {
		if !d.plain(n, path) {
			return
		}
		if n.Kind != yaml.ScalarNode {
			d.add(n, path, "this must be text, and is "+describe(n))
			return
		}
		switch n.ShortTag() {
		case "!!str":
			*to = n.Value
		case "!!null":
			d.add(n, path, "this has no value; leave the key out if none is meant")
		default:
			d.add(n, path, fmt.Sprintf("without quotes %s is read as %s; write it in quotes, as in %q", short(n.Value), describe(n), short(n.Value)))
		}
	}
}

// filled reads a string that is not empty: what is meant to be left open is left
// out, and an empty value is one that got lost on the way here.
func (d *decoder) filled(to *string) field {
	return func(n *yaml.Node, path string) {
		d.text(to)(n, path)
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && n.Value == "" {
			d.add(n, path, "this is empty; leave the key out if none is meant")
		}
	}
}

// truth reads true or false.
func (d *decoder) truth(to *bool) field {
	return func(n *yaml.Node, path string) {
		if !d.plain(n, path) {
			return
		}
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.add(n, path, "this must be true or false, and is "+describe(n))
			return
		}
		*to = strings.EqualFold(n.Value, "true")
	}
}

// list reads a list, one call of item for each entry.
func (d *decoder) list(item field) field {
	return func(n *yaml.Node, path string) {
		if !d.plain(n, path) {
			return
		}
		if n.Kind != yaml.SequenceNode {
			d.add(n, path, "this must be a list, and is "+describe(n))
			return
		}
		for i, entry := range n.Content {
			at := path + "[" + strconv.Itoa(i) + "]"
			d.place(entry, at)
			item(entry, at)
		}
	}
}

// texts reads a list of strings.
func (d *decoder) texts(to *[]string) field {
	return d.list(func(n *yaml.Node, path string) {
		var one string
		d.text(&one)(n, path)
		*to = append(*to, one)
	})
}

// top reads the whole; false when it is no declaration at all.
func (d *decoder) top(n *yaml.Node) bool {
	doc := &d.file.Document
	there := d.mapping(n, "", "a declaration", map[string]field{
		"declaration": d.text(&doc.Declaration),
		"select":      d.filled(&doc.Select),
		"resources": d.list(func(n *yaml.Node, path string) {
			doc.Resources = append(doc.Resources, d.resource(n, path))
		}),
	})
	if there == nil {
		return false
	}
	for _, key := range []string{"declaration", "resources"} {
		if there[key] == nil {
			d.add(n, "", fmt.Sprintf("a declaration needs the key %q", key))
		}
	}
	return true
}

// resource reads one entry of resources.
func (d *decoder) resource(n *yaml.Node, path string) mesh.DocumentResource {
	var (
		r                     mesh.DocumentResource
		file                  mesh.FileSpec
		pkg                   mesh.PackageSpec
		filePath, packageName string
		kind, content, source string
		absent                bool
		requires              []string
		hasOnChange           bool
		onChange              mesh.OnChange
	)
	there := d.mapping(n, path, "a resource", map[string]field{
		"file":      d.filled(&filePath),
		"package":   d.filled(&packageName),
		"version":   d.filled(&pkg.Version),
		"absent":    d.truth(&absent),
		"when":      d.filled(&r.When),
		"type":      d.filled(&kind),
		"content":   d.text(&content),
		"source":    d.filled(&source),
		"target":    d.filled(&file.Target),
		"owner":     d.filled(&file.Owner),
		"group":     d.filled(&file.Group),
		"mode":      d.filled(&file.Mode),
		"sensitive": d.truth(&file.Sensitive),
		"template":  d.truth(&r.Template),
		"requires":  d.texts(&requires),
		"on_change": func(n *yaml.Node, path string) {
			before := len(d.problems)
			there := d.mapping(n, path, "on_change", map[string]field{
				"reload":  d.texts(&onChange.Reload),
				"restart": d.texts(&onChange.Restart),
			})
			hasOnChange = there != nil
			if hasOnChange && len(onChange.Reload)+len(onChange.Restart) == 0 && len(d.problems) == before {
				d.add(n, path, "this names no unit; leave the key out if none is meant")
			}
		},
	})
	if there == nil {
		return r
	}
	for _, id := range requires {
		r.Requires = append(r.Requires, mesh.ResourceID(id))
	}
	if hasOnChange {
		r.OnChange = &onChange
	}
	switch {
	case there["file"] != nil && there["package"] != nil:
		d.add(there["package"], join(path, "package"), "a resource is a file or a package, not both; begin a new entry with \"-\"")
	case there["file"] != nil:
		d.misplaced(there, path, "a file", "version")
		r.Kind, r.Name = mesh.KindFile, filePath
		file.Absent, file.Type = absent, mesh.FileType(kind)
		d.content(&file, there, path, content, source)
		r.File = &file
	case there["package"] != nil:
		d.misplaced(there, path, "a package", "type", "content", "source", "target", "owner", "group", "mode", "sensitive", "template")
		pkg.Absent = absent
		r.Kind, r.Name = mesh.KindPackage, packageName
		r.Package = &pkg
	default:
		d.add(n, path, "a resource needs the key \"file\" with an absolute path, or \"package\" with a name")
	}
	return r
}

func (d *decoder) misplaced(there map[string]*yaml.Node, path, what string, keys ...string) {
	for _, key := range keys {
		if at := there[key]; at != nil {
			d.add(at, join(path, key), fmt.Sprintf("%s has no %s", what, key))
		}
	}
}

// content gives a file what stands in the document or in its source.
func (d *decoder) content(file *mesh.FileSpec, there map[string]*yaml.Node, path, content, source string) {
	switch {
	case there["content"] != nil && there["source"] != nil:
		d.add(there["source"], join(path, "source"), "a file has content or source, not both")
	case there["content"] != nil:
		file.SetContent([]byte(content))
	case there["source"] != nil:
		if source == "" {
			return
		}
		if d.source == nil {
			d.add(there["source"], join(path, "source"), "no files can be read here; write the content into the document")
			return
		}
		data, err := d.source(source)
		if err != nil {
			d.add(there["source"], join(path, "source"), err.Error())
			return
		}
		file.SetContent(data)
	}
}

// describe says in words what a node is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a list of keys and values"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!int":
		return "a number"
	case "!!float":
		return "a number with a fraction"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	case "!!timestamp":
		return "a date"
	case "!!str":
		return "the text " + strconv.Quote(short(n.Value))
	}
	return "a value of another type"
}

// short bounds what a finding quotes.
func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// syntax adds that data is no YAML, at the line with which it ceases to be: the
// end of the shortest beginning that is refused in the same words. The parser
// itself names the line where the list or mapping around it begins, or the one
// above that.
func (d *decoder) syntax(data []byte, err error) {
	var ends []int
	for line := range bytes.Lines(data) {
		ends = append(ends, len(line))
		if n := len(ends); n > 1 {
			ends[n-1] += ends[n-2]
		}
	}
	said := syntaxText(err)
	before := sort.Search(len(ends), func(i int) bool {
		in := yaml.NewDecoder(bytes.NewReader(data[:ends[i]]))
		var n yaml.Node
		err := in.Decode(&n)
		if err == nil {
			err = in.Decode(&n)
		}
		return err != nil && syntaxText(err) == said
	})
	d.add(&yaml.Node{Line: before + 1}, "", "not valid YAML: "+said)
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line \d+: )?`)

// syntaxText is what the parser says, without the line.
func syntaxText(err error) string { return syntaxLine.ReplaceAllString(err.Error(), "") }
