package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

// documentLimit bounds the stored form of a document, blobs apart.
const documentLimit = 8 << 20

// refusalsShown bounds how many nodes a refusal names.
const refusalsShown = 10

// Declare writes a named declaration: a revision, and a generation for every
// eligible node for which something changes. It is refused whole when the
// document has faults, when a blob that it names is missing, or when it
// contradicts another declaration on a node.
func (c *Control) Declare(ctx context.Context, caller Caller, doc mesh.Document) (Declared, error) {
	return c.declare(ctx, caller, doc, occasionWritten, anyRevision)
}

// DeclareAnew is Declare of what may be the same as before: it is a revision and
// a generation for every node that it selects all the same. What a node does
// not try again by itself, such as a version of the host that was undone there,
// it tries for a new revision.
func (c *Control) DeclareAnew(ctx context.Context, caller Caller, doc mesh.Document) (Declared, error) {
	return c.declare(ctx, caller, doc, occasionAnew, anyRevision)
}

// anyRevision is what declare is told when it does not matter which revision is
// the newest.
const anyRevision int64 = -1

// declare writes a document over one revision, and refuses when another is the
// newest.
func (c *Control) declare(ctx context.Context, caller Caller, doc mesh.Document, why occasion, over int64) (Declared, error) {
	if err := caller.MayDeclare(doc.Declaration); err != nil {
		return Declared{}, err
	}
	if ps := doc.Validate(); len(ps) > 0 {
		return Declared{}, refused(doc.Declaration, ps)
	}
	source, revision, err := c.prepare(ctx, doc)
	if err != nil {
		return Declared{}, err
	}
	if err := c.enter(ctx); err != nil {
		return Declared{}, err
	}
	defer c.leave()
	c.mu.Lock()
	newest, exists := c.revisions[doc.Declaration]
	c.mu.Unlock()
	if over != anyRevision && over != newest.Revision {
		return Declared{}, overtaken(doc.Declaration, newest.Revision)
	}
	if why != occasionAnew && exists && !newest.Removed && newest.Digest == revision.Digest {
		return Declared{Declaration: newest.Name, Revision: newest.Revision}, nil
	}
	revision.Revision = newest.Revision + 1
	source.Number(revision.Revision)
	return c.write(ctx, caller, revision, source, why)
}

// RemoveDeclaration writes the removal of a declaration. What it declared is
// released on every node that it selects.
func (c *Control) RemoveDeclaration(ctx context.Context, caller Caller, name string) (Declared, error) {
	if err := caller.MayDeclare(name); err != nil {
		return Declared{}, err
	}
	if err := c.enter(ctx); err != nil {
		return Declared{}, err
	}
	defer c.leave()
	c.mu.Lock()
	newest, exists := c.revisions[name]
	c.mu.Unlock()
	if !exists || newest.Removed {
		return Declared{}, c.noDeclaration(name)
	}
	return c.write(ctx, caller, Revision{Name: name, Revision: newest.Revision + 1, Removed: true}, nil, occasionWritten)
}

func (c *Control) noDeclaration(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return mesh.Errorf(mesh.CodeNotFound, "there is no declaration %q; %smeshctl declaration list lists those there are", bounded(name, 80), didYouMean(name, maps.Keys(c.revisions)))
}

func refused(name string, ps mesh.Problems) error {
	return &mesh.Error{Code: mesh.CodeInvalid, Message: fmt.Sprintf("declaration %s is refused and nothing was written", bounded(name, 80)), Details: ps}
}

// prepare checks a valid document as far as that needs no node, moves large
// content into blobs, and returns it in the form in which it is compiled and
// stored.
func (c *Control) prepare(ctx context.Context, doc mesh.Document) (*assign.Source, Revision, error) {
	var ps mesh.Problems
	if len(doc.Resources) > resourceLimit {
		ps.Add("resources", fmt.Sprintf("a declaration has at most %d resources", resourceLimit))
		return nil, Revision{}, refused(doc.Declaration, ps)
	}
	doc.Resources = slices.Clone(doc.Resources)
	total := 0
	for i := range doc.Resources {
		r := &doc.Resources[i]
		if r.File == nil {
			continue
		}
		file := *r.File
		if file.Content != nil {
			file.SetContent(file.Content)
		}
		if size := len(file.Content); size > mesh.InlineLimit || (total+size > inlineBudget && !r.Template) {
			if r.Template {
				ps.Add(fmt.Sprintf("resources[%d].template", i), fmt.Sprintf("the content of a template has at most %d bytes", mesh.InlineLimit))
				continue
			}
			var err error
			if file, err = detach(ctx, c.blobs, file); err != nil {
				return nil, Revision{}, err
			}
		}
		total += len(file.Content)
		r.File = &file
	}
	missing, err := c.missing(ctx, doc)
	if err != nil {
		return nil, Revision{}, err
	}
	source, more := c.compiler.Prepare(doc)
	ps = append(append(ps, missing...), more...)
	if len(ps) > 0 {
		return nil, Revision{}, refused(doc.Declaration, ps)
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, Revision{}, fmt.Errorf("marshal document: %w", err)
	}
	if len(data) > documentLimit {
		ps.Add("", fmt.Sprintf("the declaration has %d bytes without its large files; the limit is %d", len(data), documentLimit))
		return nil, Revision{}, refused(doc.Declaration, ps)
	}
	sum := sha256.Sum256(data)
	return source, Revision{Name: doc.Declaration, Document: doc, Digest: hex.EncodeToString(sum[:])}, nil
}

// missing finds the blobs that a document names and that are not there.
func (c *Control) missing(ctx context.Context, doc mesh.Document) (mesh.Problems, error) {
	at := make(map[string]string)
	var sums []string
	for i, r := range doc.Resources {
		if r.File != nil && r.File.Content == nil && r.File.SHA256 != "" && r.File.Size > 0 && at[r.File.SHA256] == "" {
			at[r.File.SHA256] = fmt.Sprintf("resources[%d]", i)
			sums = append(sums, r.File.SHA256)
		}
	}
	if len(sums) == 0 {
		return nil, nil
	}
	missing, err := c.blobs.Missing(ctx, sums)
	if err != nil {
		return nil, fmt.Errorf("look up blobs: %w", err)
	}
	var ps mesh.Problems
	for _, sum := range missing {
		ps.Add(at[sum], "its content "+sum+" was not uploaded")
	}
	return ps, nil
}

// write stores a revision with the generations that it causes. A nil source
// removes the declaration. The caller has the gate.
func (c *Control) write(ctx context.Context, caller Caller, revision Revision, source *assign.Source, why occasion) (Declared, error) {
	if err := caller.MayDeclare(revision.Name); err != nil {
		return Declared{}, err
	}
	before := c.currentSet()
	set := before.Without(revision.Name)
	if source != nil {
		set = before.With(source)
	}
	records, faults, err := c.consequences(ctx, revision.Name, before, set, why)
	if err != nil {
		return Declared{}, err
	}
	now := c.now()
	revision.By, revision.Door, revision.At = caller.Name, caller.Door, now
	what := "declaration written"
	if revision.Removed {
		what = "declaration removed"
	}
	tx := DeclarationTx{
		Revision: revision,
		Audit:    caller.entry(now, what, fmt.Sprintf("%s revision %d, %d nodes to change", revision.Name, revision.Revision, len(records))),
	}
	for _, r := range records {
		r.At = now
		tx.Generations = append(tx.Generations, *r)
	}
	if err := c.store.WriteDeclaration(ctx, tx); err != nil {
		return Declared{}, fmt.Errorf("store declaration %s: %w", revision.Name, err)
	}
	c.mu.Lock()
	c.revisions[revision.Name] = revision
	c.set = set
	for name, f := range faults {
		if n := c.nodes[name]; n != nil {
			n.faults = f
		}
	}
	c.mu.Unlock()
	c.written(records...)
	c.log.Info("declaration written", "declaration", revision.Name, "revision", revision.Revision, "removed", revision.Removed, "nodes", len(records))
	return Declared{Declaration: revision.Name, Revision: revision.Revision, Changed: true, Nodes: len(records)}, nil
}

// consequences decides what each node gets that the declaration selects, or
// selected before. It refuses when the new set contradicts itself on a node
// because of this declaration; the faults of others are returned by node.
func (c *Control) consequences(ctx context.Context, name string, before, after *assign.Set, why occasion) ([]*GenerationRecord, map[string][]assign.Fault, error) {
	c.mu.Lock()
	var affected []node
	for _, n := range c.nodes {
		if n.State == mesh.NodeEnrolled && n.Briefing.Eligible() && !n.Retiring {
			affected = append(affected, *n)
		}
	}
	c.mu.Unlock()
	affected = slices.DeleteFunc(affected, func(n node) bool {
		return len(n.faults) == 0 && !concerns(before.Get(name), n) && !concerns(after.Get(name), n)
	})
	if len(affected) == 0 {
		return nil, nil, nil
	}
	slices.SortFunc(affected, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	names := make([]string, len(affected))
	byName := make(map[string]*node, len(affected))
	for i := range affected {
		names[i] = affected[i].Name
		byName[names[i]] = &affected[i]
	}
	owned, err := c.store.OwnedIDs(ctx, names)
	if err != nil {
		return nil, nil, fmt.Errorf("read recovery copies: %w", err)
	}
	var records []*GenerationRecord
	faults := make(map[string][]assign.Fault, len(affected))
	against := refusals{name: name, source: after.Get(name)}
	now := c.now()
	for i := range affected {
		n := &affected[i]
		here := occasionWritten
		if concerns(after.Get(name), *n) {
			here = why
		}
		record, found := next(*n, after, owned[n.Name], here, now)
		faults[n.Name] = found
		against.add(*n, found)
		if record != nil {
			records = append(records, record)
		}
	}
	if err := against.err(mesh.CodeConflict); err != nil {
		return nil, nil, err
	}
	stager := c.newStager()
	fitting := records[:0]
	for _, r := range records {
		if r.Resources, err = stager.stage(ctx, r.Resources); err != nil {
			return nil, nil, err
		}
		fault, err := stager.fits(r.Resources)
		if err != nil {
			return nil, nil, err
		}
		if fault == nil {
			fitting = append(fitting, r)
			continue
		}
		faults[r.Node] = []assign.Fault{*fault}
		against.add(*byName[r.Node], faults[r.Node])
	}
	return fitting, faults, against.err(mesh.CodeInvalid)
}

// refusals gathers why a write of a declaration is refused.
type refusals struct {
	name string
	// source is what is to be written. Nil: the declaration is removed, which
	// cannot contradict anything.
	source *assign.Source
	ps     mesh.Problems
}

// add takes those faults of a node that are there because of this declaration.
// What others do to a node that it does not select keeps nobody from writing.
func (r *refusals) add(n node, faults []assign.Fault) {
	for _, f := range faults {
		ours := slices.Contains(f.Declarations, r.name) || len(f.Declarations) == 0 && concerns(r.source, n)
		if r.source != nil && ours {
			r.ps.Add("", refusal(n.Name, f))
		}
	}
}

// err is nil when nothing was gathered.
func (r *refusals) err(code mesh.Code) error {
	if len(r.ps) == 0 {
		return nil
	}
	if more := len(r.ps) - refusalsShown; more > 0 {
		r.ps = append(r.ps[:refusalsShown:refusalsShown], mesh.Problem{Message: fmt.Sprintf("and %d more of this kind", more)})
	}
	return &mesh.Error{Code: code, Message: fmt.Sprintf("declaration %s is refused and nothing was written", r.name), Details: r.ps}
}

func concerns(s *assign.Source, n node) bool {
	if s == nil {
		return false
	}
	part := s.For(n.facts)
	return part.Selected || len(part.Faults) > 0
}

func refusal(node string, f assign.Fault) string {
	if f.Resource == "" {
		return fmt.Sprintf("node %s: %s", node, f.Detail)
	}
	return fmt.Sprintf("node %s, %s: %s", node, f.Resource, f.Detail)
}

// Declarations lists every declaration by name, removed ones too.
func (c *Control) Declarations(context.Context) ([]DeclarationView, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	views := make([]DeclarationView, 0, len(c.revisions))
	for _, name := range slices.Sorted(maps.Keys(c.revisions)) {
		views = append(views, viewOf(c.revisions[name]))
	}
	return views, nil
}

func viewOf(r Revision) DeclarationView {
	return DeclarationView{Name: r.Name, Revision: r.Revision, Written: r.At, By: r.By, Removed: r.Removed, Resources: len(r.Document.Resources)}
}

// Declaration returns one revision with its document, zero meaning the newest.
// Nothing of the content of a sensitive file is in it.
func (c *Control) Declaration(ctx context.Context, name string, revision int64) (DeclarationView, error) {
	r, err := c.revision(ctx, name, revision)
	if err != nil {
		return DeclarationView{}, err
	}
	view := viewOf(r)
	if r.Removed {
		return view, nil
	}
	view.Document = hidden(r.Document, r.Document.Resources)
	return view, nil
}

func (c *Control) revision(ctx context.Context, name string, revision int64) (Revision, error) {
	c.mu.Lock()
	newest, exists := c.revisions[name]
	c.mu.Unlock()
	if !exists {
		return Revision{}, c.noDeclaration(name)
	}
	if revision == 0 || revision == newest.Revision {
		return newest, nil
	}
	r, err := c.store.Declaration(ctx, name, revision)
	if errors.Is(err, ErrNotFound) {
		return Revision{}, c.noRevision(ctx, newest, revision)
	}
	if err != nil {
		return Revision{}, fmt.Errorf("read declaration %s: %w", name, err)
	}
	return r, nil
}

// noRevision says which revisions there are.
func (c *Control) noRevision(ctx context.Context, newest Revision, asked int64) error {
	if asked < 1 || asked > newest.Revision {
		return mesh.Errorf(mesh.CodeNotFound, "declaration %s has no revision %d; the newest is %d", newest.Name, asked, newest.Revision)
	}
	kept, err := c.store.Revisions(ctx, newest.Name, int(newest.Revision-asked))
	if err != nil {
		return fmt.Errorf("read revisions of %s: %w", newest.Name, err)
	}
	oldest := newest.Revision
	if len(kept) > 0 {
		oldest = kept[len(kept)-1].Revision
	}
	return mesh.Errorf(mesh.CodeNotFound, "revision %d of declaration %s is not kept any more; revisions %d to %d are (see revisions_keep in the configuration of mesh-control)", asked, newest.Name, oldest, newest.Revision)
}

// PutBlob stores content under its SHA-256. The audit log says how much; what
// it is for is said by the declaration that names it.
func (c *Control) PutBlob(ctx context.Context, caller Caller, sha256 string, r io.Reader) error {
	if err := caller.MayUpload(); err != nil {
		return err
	}
	if !mesh.ValidDigest(sha256) {
		return mesh.Errorf(mesh.CodeInvalid, "a blob is named by its SHA-256 in lower-case hexadecimal")
	}
	counted := &counter{from: r}
	err := c.blobs.Put(ctx, sha256, counted)
	if errors.Is(err, ErrContent) {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: "the content that arrived does not have the SHA-256 that was named; nothing was stored; send it again", Err: err}
	}
	if err != nil {
		return fmt.Errorf("store blob %s: %w", sha256, err)
	}
	// It is there, whether or not anybody still waits for the answer.
	entry := caller.entry(c.now(), "content uploaded", fmt.Sprintf("%d bytes", counted.read))
	return wrap(c.store.RecordAudit(context.WithoutCancel(ctx), entry), "store audit entry")
}

// counter counts what is read through it.
type counter struct {
	from io.Reader
	read int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.read += int64(n)
	return n, err
}

// MissingBlobs returns those of the digests under which nothing is stored.
func (c *Control) MissingBlobs(ctx context.Context, sums []string) ([]string, error) {
	for _, sum := range sums {
		if !mesh.ValidDigest(sum) {
			return nil, mesh.Errorf(mesh.CodeInvalid, "a blob is named by its SHA-256 in lower-case hexadecimal")
		}
	}
	missing, err := c.blobs.Missing(ctx, sums)
	return missing, wrap(err, "look up blobs")
}

// RecordRepository notes a change of the package repository. It was made, so it
// is noted also when ctx has ended.
func (c *Control) RecordRepository(ctx context.Context, caller Caller, what, detail string) error {
	entry := caller.entry(c.now(), what, bounded(detail, detailLimit))
	return wrap(c.store.RecordAudit(context.WithoutCancel(ctx), entry), "store audit entry")
}

// Audit returns the newest writes first.
func (c *Control) Audit(ctx context.Context, limit int) ([]AuditEntry, error) {
	entries, err := c.store.Audit(ctx, limit)
	return entries, wrap(err, "read audit log")
}
