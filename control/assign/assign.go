package assign

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cel.dev/cel-go/cel"

	mesh "github.com/meshctl/mesh"
)

// Compiler prepares documents. It may be used by several goroutines.
type Compiler struct {
	env *cel.Env
	// ids numbers the parts of all documents.
	ids atomic.Uint64
}

// keptLimit bounds how many results are kept for one document or one set. It
// is above the number of nodes of a mesh; past it they are computed anew.
const keptLimit = 1 << 16

// New makes a Compiler.
func New() (*Compiler, error) {
	env, err := newEnv()
	if err != nil {
		return nil, err
	}
	return &Compiler{env: env}, nil
}

// Fault is why a node cannot get what its declarations say. The node keeps
// what it had.
type Fault struct {
	// Resource is empty when the fault is not about one.
	Resource mesh.ResourceID
	// Declarations that are part of the fault, in order.
	Declarations []string
	Detail       string
}

// Part is what one document gives to a node. It is shared: neither it nor what
// it holds may be changed.
type Part struct {
	// id is never used twice, so that a merge can be looked up by its parts.
	id uint64
	// Selected: the document selects the node, even if no resource is left.
	Selected  bool
	Resources []mesh.Resource
	Faults    []Fault
}

// Source is a document that was checked and prepared.
type Source struct {
	name      string
	selects   *expression
	resources []preparedResource
	uses      usage
	ids       *atomic.Uint64

	mu sync.Mutex
	// parts holds what was computed, by the facts that it depends on.
	parts map[string]*Part
}

type preparedResource struct {
	resource mesh.Resource
	when     *expression
	template *template
}

// Prepare checks the expressions and templates of a document, with every fault
// at once. It does not repeat what Document.Validate finds.
func (c *Compiler) Prepare(doc mesh.Document) (*Source, mesh.Problems) {
	var ps mesh.Problems
	s := &Source{name: doc.Declaration, ids: &c.ids, parts: make(map[string]*Part)}
	if strings.TrimSpace(doc.Select) != "" {
		e, err := c.compileExpression(doc.Select)
		if err != nil {
			ps.Add("select", err.Error())
		} else {
			s.selects = e
			s.uses = s.uses.and(e.uses)
		}
	}
	for i, r := range doc.Resources {
		at := fmt.Sprintf("resources[%d]", i)
		p := preparedResource{resource: compiled(doc.Declaration, r.Resource)}
		if strings.TrimSpace(r.When) != "" {
			e, err := c.compileExpression(r.When)
			if err != nil {
				ps.Add(at+".when", err.Error())
			} else {
				p.when = e
				s.uses = s.uses.and(e.uses)
			}
		}
		t, err := checkTemplate(r)
		if err != nil {
			ps.Add(at+".template", err.Error())
		} else if t != nil {
			p.template = t
			s.uses = s.uses.and(t.uses())
		}
		s.resources = append(s.resources, p)
	}
	if len(ps) > 0 {
		return nil, ps
	}
	return s, nil
}

// compiled puts a resource into the form in which it travels.
func compiled(from string, r mesh.Resource) mesh.Resource {
	r.From = from
	if r.File != nil {
		file := *r.File
		if !file.Absent && file.Type == "" {
			file.Type = mesh.FileRegular
		}
		if file.Content != nil {
			file.SetContent(file.Content)
		}
		r.File = &file
	}
	return r
}

// Number says which revision the document is; every resource of it carries
// that. It must be called before the source is used.
func (s *Source) Number(revision int64) {
	for i := range s.resources {
		s.resources[i].resource.Revision = revision
	}
}

// Name is the name of the declaration.
func (s *Source) Name() string { return s.name }

// For returns what the document gives to a node.
func (s *Source) For(f *Facts) *Part {
	key := f.key(s.uses)
	s.mu.Lock()
	part, known := s.parts[key]
	s.mu.Unlock()
	if known {
		return part
	}
	part = s.compute(f)
	part.id = s.ids.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, raced := s.parts[key]; raced {
		return other
	}
	if len(s.parts) >= keptLimit {
		clear(s.parts)
	}
	s.parts[key] = part
	return part
}

func (s *Source) compute(f *Facts) *Part {
	selected, err := s.selects.eval(f)
	if err != nil {
		return &Part{Faults: []Fault{{Declarations: []string{s.name}, Detail: "select cannot be evaluated: " + err.Error()}}}
	}
	if !selected {
		return &Part{}
	}
	p := &Part{Selected: true}
	for _, prepared := range s.resources {
		fault := func(detail string) {
			p.Faults = append(p.Faults, Fault{Resource: prepared.resource.ID(), Declarations: []string{s.name}, Detail: detail})
		}
		holds, err := prepared.when.eval(f)
		if err != nil {
			fault("when cannot be evaluated: " + err.Error())
			continue
		}
		if !holds {
			continue
		}
		r := prepared.resource
		if prepared.template != nil {
			content, err := prepared.template.render(f)
			if err != nil {
				fault(err.Error())
				continue
			}
			file := *r.File
			file.SetContent(content)
			r.File = &file
		}
		p.Resources = append(p.Resources, r)
	}
	return p
}

// Compiled is what all declarations together give to a node. It is shared:
// neither it nor what it holds may be changed.
type Compiled struct {
	// Selected is the number of declarations that select the node.
	Selected  int
	Resources []mesh.Resource
	// Faults is empty when Resources can be given to the node.
	Faults []Fault
	// Digest is that of mesh.Declaration.ContentDigest.
	Digest string

	from map[mesh.ResourceID]string
}

// Has reports whether the resource is declared.
func (c *Compiled) Has(id mesh.ResourceID) bool {
	_, has := c.from[id]
	return has
}

// Set is the declarations that hold at one time. It is not changed after it
// was made.
type Set struct {
	sources []*Source

	mu sync.Mutex
	// merged holds what was put together, by the parts that went into it.
	merged map[string]*Compiled
}

// NewSet makes a set; the order does not matter.
func NewSet(sources ...*Source) *Set {
	sources = slices.Clone(sources)
	slices.SortFunc(sources, func(a, b *Source) int { return strings.Compare(a.name, b.name) })
	return &Set{sources: sources, merged: make(map[string]*Compiled)}
}

// With returns a set in which s stands, in place of one of its name.
func (s *Set) With(source *Source) *Set {
	return NewSet(append(slices.Clone(s.Without(source.name).sources), source)...)
}

// Without returns a set in which no document of that name stands.
func (s *Set) Without(name string) *Set {
	return NewSet(slices.DeleteFunc(slices.Clone(s.sources), func(o *Source) bool { return o.name == name })...)
}

// Get returns the document of that name, nil when there is none.
func (s *Set) Get(name string) *Source {
	for _, source := range s.sources {
		if source.name == name {
			return source
		}
	}
	return nil
}

// Compile returns what a node gets. Nodes that get the same parts share the
// result.
func (s *Set) Compile(f *Facts) *Compiled {
	parts := make([]*Part, 0, len(s.sources))
	var key strings.Builder
	for _, source := range s.sources {
		part := source.For(f)
		if part.Selected || len(part.Faults) > 0 {
			parts = append(parts, part)
			fmt.Fprintf(&key, "%d ", part.id)
		}
	}
	if f.ownKey != "" {
		parts = append(parts, f.ownPart())
		key.WriteString(f.ownKey)
	}
	s.mu.Lock()
	c, known := s.merged[key.String()]
	s.mu.Unlock()
	if known {
		return c
	}
	c = merge(parts)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, raced := s.merged[key.String()]; raced {
		return other
	}
	if len(s.merged) >= keptLimit {
		clear(s.merged)
	}
	s.merged[key.String()] = c
	return c
}

// ownPart is what the node gets because of who it is, as a document that
// selects it.
func (f *Facts) ownPart() *Part {
	p := &Part{Selected: true, Resources: f.own.Resources}
	if f.own.Fault != "" {
		p.Faults = []Fault{{Detail: f.own.Fault}}
	}
	return p
}

func merge(parts []*Part) *Compiled {
	from := make(map[mesh.ResourceID]string)
	c := &Compiled{from: from}
	for _, p := range parts {
		c.Faults = append(c.Faults, p.Faults...)
		if p.Selected {
			c.Selected++
		}
		for _, r := range p.Resources {
			id := r.ID()
			switch first, claimed := from[id]; {
			case claimed && first == r.From:
				c.Faults = append(c.Faults, Fault{Resource: id, Declarations: []string{first}, Detail: fmt.Sprintf("declaration %s declares it twice", first)})
			case claimed:
				c.Faults = append(c.Faults, Fault{Resource: id, Declarations: []string{first, r.From}, Detail: fmt.Sprintf("declarations %s and %s both claim it", first, r.From)})
			default:
				from[id] = r.From
				c.Resources = append(c.Resources, r)
			}
		}
	}
	if len(c.Faults) > 0 {
		c.Resources = nil
		return c
	}
	c.Digest = mesh.Declaration{Resources: c.Resources}.ContentDigest()
	return c
}
