package mesh

import (
	"fmt"
	"path"
	"slices"
	"strconv"
)

// Generation numbers the declarations of one node. It only grows; zero means
// that there is none yet.
type Generation uint64

// String writes a generation as operators read it: "g14", or "-" for none.
func (g Generation) String() string {
	if g == 0 {
		return "-"
	}
	return "g" + strconv.FormatUint(uint64(g), 10)
}

// Declaration is everything that one node should have, compiled by the control
// plane out of all named declarations. It is plain data: nothing in it is left
// to evaluate.
type Declaration struct {
	Node       string     `json:"node"`
	Generation Generation `json:"generation"`
	// Final: the node is being retired. Resources is then empty.
	Final bool `json:"final,omitempty"`
	// Resources stand in the order in which they are applied, as far as
	// Requires leaves it open.
	Resources []Resource `json:"resources"`
	// Released lists what the control plane agrees may be removed. The host
	// removes what it owns, is not declared and is listed here.
	Released []ResourceID `json:"released,omitempty"`
}

// ContentDigest identifies what is declared without the generation: equal
// digests mean that nothing changed for the node. Released does not count.
func (d Declaration) ContentDigest() string {
	type content struct {
		Final     bool
		Resources []string
	}
	c := content{Final: d.Final}
	for _, r := range d.Resources {
		c.Resources = append(c.Resources, r.Digest())
	}
	return digestJSON(c)
}

// Blobs lists the SHA-256 digests of the content that does not travel inline,
// each once, in order of appearance.
func (d Declaration) Blobs() []string {
	var sums []string
	for _, r := range d.Resources {
		if r.File != nil && r.File.Content == nil && r.File.SHA256 != "" && r.File.Size > 0 && !slices.Contains(sums, r.File.SHA256) {
			sums = append(sums, r.File.SHA256)
		}
	}
	return sums
}

// Validate returns every fault of a compiled declaration. A host refuses one
// that has any, whole.
func (d Declaration) Validate() Problems {
	var ps Problems
	if d.Generation == 0 {
		ps.Add("generation", "a declaration needs a generation of at least 1")
	}
	if d.Final && len(d.Resources) > 0 {
		ps.Add("resources", "a final declaration lists no resources")
	}
	ps = append(ps, validateResources(d.Resources)...)
	return ps
}

// Document is a named declaration as a person or a pipeline writes it, decoded
// but not evaluated.
type Document struct {
	// Declaration is the name: lower-case letters, digits and dashes.
	Declaration string `json:"declaration"`
	// Select is a CEL expression over a node. Empty: every eligible node.
	Select    string             `json:"select,omitempty"`
	Resources []DocumentResource `json:"resources"`
}

// DocumentResource is one entry of a document.
type DocumentResource struct {
	Resource
	// When is a CEL expression over a node. Empty: always.
	When string `json:"when,omitempty"`
	// Template: ${...} in the content is replaced for each node.
	Template bool `json:"template,omitempty"`
}

// Validate returns every fault of a document that can be seen without
// evaluating expressions.
func (d Document) Validate() Problems {
	var ps Problems
	if !declarationName.MatchString(d.Declaration) {
		ps.Add("declaration", fmt.Sprintf("%q is not a name for a declaration: use lower-case letters, digits and dashes, beginning with a letter or digit, at most 63", d.Declaration))
	}
	always := make(map[ResourceID]int)
	for i, r := range d.Resources {
		validateResource(&ps, fmt.Sprintf("resources[%d]", i), r.Resource)
		if r.When == "" {
			if first, twice := always[r.ID()]; twice {
				ps.Add(fmt.Sprintf("resources[%d]", i), fmt.Sprintf("%s stands in resources[%d] already, and both are without a condition", r.ID(), first))
			} else {
				always[r.ID()] = i
			}
		}
		if r.Template && (r.File == nil || r.File.Absent || r.File.Type == FileDirectory || r.File.Type == FileSymlink) {
			ps.Add(fmt.Sprintf("resources[%d].template", i), "only the content of a regular file can be a template")
		}
	}
	for i, r := range d.Resources {
		if r.When != "" || r.Kind != KindFile || r.Absent() {
			continue
		}
		for dir := path.Dir(r.Name); dir != "/" && dir != "."; dir = path.Dir(dir) {
			if j, declared := always[NewResourceID(KindFile, dir)]; declared && !d.Resources[j].mayHold() {
				ps.Add(fmt.Sprintf("resources[%d].file", i), fmt.Sprintf("%s cannot be there, because %s, as resources[%d] declares it, holds nothing", r.Name, dir, j))
			}
		}
	}
	return ps
}

// mayHold reports whether a file can have others below it.
func (r DocumentResource) mayHold() bool {
	return r.File != nil && !r.File.Absent && (r.File.Type == FileDirectory || r.File.Type == FileSymlink)
}
