package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

const revisionColumns = `name, revision, removed, document, digest, who, door, at`

func revisionFields(r *control.Revision) []any {
	return []any{&r.Name, &r.Revision, &r.Removed, asJSON(&r.Document), &r.Digest, &r.By, &r.Door, into(&r.At)}
}

// Declarations returns the newest revision of every name, by name.
func (s *Store) Declarations(ctx context.Context) ([]control.Revision, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+revisionColumns+` FROM revisions r WHERE revision = (SELECT max(revision) FROM revisions WHERE name = r.name) ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("query declarations: %w", err)
	}
	return collect(rows, revisionFields)
}

// Declaration returns a revision, zero meaning the newest; control.ErrNotFound
// when there is none.
func (s *Store) Declaration(ctx context.Context, name string, revision int64) (control.Revision, error) {
	var r control.Revision
	err := s.db.QueryRowContext(ctx, `SELECT `+revisionColumns+` FROM revisions WHERE name = ? AND (revision = ? OR ? = 0) ORDER BY revision DESC LIMIT 1`, name, revision, revision).
		Scan(revisionFields(&r)...)
	if errors.Is(err, sql.ErrNoRows) {
		return control.Revision{}, control.ErrNotFound
	}
	if err != nil {
		return control.Revision{}, fmt.Errorf("query declaration: %w", err)
	}
	return r, nil
}

// Revisions lists the newest revisions of a name without their documents.
func (s *Store) Revisions(ctx context.Context, name string, limit int) ([]control.DeclarationView, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT name, revision, removed, coalesce(json_array_length(document, '$.resources'), 0), who, at
		FROM revisions WHERE name = ? ORDER BY revision DESC LIMIT ?`, name, limit)
	if err != nil {
		return nil, fmt.Errorf("query revisions: %w", err)
	}
	return collect(rows, func(v *control.DeclarationView) []any {
		return []any{&v.Name, &v.Revision, &v.Removed, &v.Resources, &v.By, into(&v.Written)}
	})
}

// WriteDeclaration stores a revision and the generations that it causes.
func (s *Store) WriteDeclaration(ctx context.Context, tx control.DeclarationTx) error {
	records := make([]*control.GenerationRecord, len(tx.Generations))
	for i := range tx.Generations {
		records[i] = &tx.Generations[i]
	}
	generations, err := prepareGenerations(records...)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error {
		id, err := w.revision(tx.Revision)
		if err != nil {
			return err
		}
		if err := w.generations(generations, sql.NullInt64{Int64: id, Valid: true}); err != nil {
			return err
		}
		return w.audit(tx.Audit)
	})
}

// WriteGenerations stores generations that no revision causes.
func (s *Store) WriteGenerations(ctx context.Context, generations []control.GenerationRecord) error {
	records := make([]*control.GenerationRecord, len(generations))
	for i := range generations {
		records[i] = &generations[i]
	}
	prepared, err := prepareGenerations(records...)
	if err != nil {
		return err
	}
	return s.write(ctx, func(w *writer) error { return w.generations(prepared, sql.NullInt64{}) })
}

func (w *writer) revision(r control.Revision) (int64, error) {
	document, err := encode(r.Document)
	if err != nil {
		return 0, err
	}
	result, err := w.result(`INSERT INTO revisions (`+revisionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Name, r.Revision, r.Removed, document, r.Digest, r.By, r.Door, micros(r.At))
	if err != nil {
		return 0, fmt.Errorf("insert revision: %w", err)
	}
	id, err := result.LastInsertId()
	if err != nil {
		return 0, err
	}
	for _, resource := range r.Document.Resources {
		file := resource.File
		if file == nil || file.Content != nil || file.SHA256 == "" {
			continue
		}
		sum, err := hex.DecodeString(file.SHA256)
		if err != nil {
			return 0, fmt.Errorf("name of a blob: %w", err)
		}
		if err := w.exec(`INSERT OR IGNORE INTO revision_blobs (sum, revision) VALUES (?, ?)`, sum, id); err != nil {
			return 0, fmt.Errorf("insert the name of a blob: %w", err)
		}
	}
	return id, nil
}

// body is what nodes get, encoded once for all that get the same.
type body struct {
	hash      []byte
	resources string
	blobs     [][]byte
}

type preparedGeneration struct {
	control.GenerationRecord
	body     *body
	released string
}

// prepareGenerations encodes outside the writer; nil records are left out.
func prepareGenerations(records ...*control.GenerationRecord) ([]preparedGeneration, error) {
	var prepared []preparedGeneration
	bodies := make(map[*mesh.Resource]*body)
	for _, r := range records {
		if r == nil {
			continue
		}
		var key *mesh.Resource
		if len(r.Resources) > 0 {
			key = &r.Resources[0]
		}
		if bodies[key] == nil {
			b, err := newBody(r.Resources)
			if err != nil {
				return nil, err
			}
			bodies[key] = b
		}
		released, err := encode(r.Released)
		if err != nil {
			return nil, err
		}
		prepared = append(prepared, preparedGeneration{*r, bodies[key], released})
	}
	return prepared, nil
}

func newBody(resources []mesh.Resource) (*body, error) {
	if resources == nil {
		resources = []mesh.Resource{}
	}
	text, err := encode(resources)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(text))
	b := &body{hash: sum[:], resources: text}
	for _, blob := range (mesh.Declaration{Resources: resources}).Blobs() {
		raw, err := hex.DecodeString(blob)
		if err != nil {
			return nil, fmt.Errorf("name of a blob: %w", err)
		}
		b.blobs = append(b.blobs, raw)
	}
	return b, nil
}

// generations writes what nodes get, and forgets what is old.
func (w *writer) generations(records []preparedGeneration, cause sql.NullInt64) error {
	ids := make(map[*body]int64)
	for _, r := range records {
		node, err := w.nodeID(r.Node)
		if err != nil {
			return err
		}
		id, written := ids[r.body]
		if !written {
			if id, err = w.body(r.body); err != nil {
				return err
			}
			ids[r.body] = id
		}
		err = w.exec(`INSERT INTO compiled (node, generation, body, final, digest, released, cause, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			node, uint(r.Generation), id, r.Final, r.Digest, r.released, cause, micros(r.At))
		if err != nil {
			return fmt.Errorf("insert generation %s of %s: %w", r.Generation, r.Node, err)
		}
		if err := w.exec(`UPDATE nodes SET floor = max(floor, ?), ahead = 0 WHERE id = ?`, uint(r.Generation), node); err != nil {
			return fmt.Errorf("raise the floor of %s: %w", r.Node, err)
		}
		if err := w.forgetGenerations(node); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) body(b *body) (int64, error) {
	var id int64
	err := w.row(`SELECT id FROM bodies WHERE hash = ?`, []any{b.hash}, &id)
	if err == nil {
		return id, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("look up what nodes get: %w", err)
	}
	result, err := w.result(`INSERT INTO bodies (hash, resources) VALUES (?, ?)`, b.hash, b.resources)
	if err != nil {
		return 0, fmt.Errorf("insert what nodes get: %w", err)
	}
	if id, err = result.LastInsertId(); err != nil {
		return 0, err
	}
	for _, sum := range b.blobs {
		if err := w.exec(`INSERT INTO body_blobs (sum, body) VALUES (?, ?)`, sum, id); err != nil {
			return 0, fmt.Errorf("insert the name of a blob: %w", err)
		}
	}
	return id, nil
}

// forgetGenerations keeps the newest of a node.
func (w *writer) forgetGenerations(node int64) error {
	var oldest, its int64
	err := w.row(`SELECT generation, body FROM compiled WHERE node = ? ORDER BY generation DESC LIMIT 1 OFFSET ?`, []any{node, generationsKept}, &oldest, &its)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find old generations: %w", err)
	}
	if err := w.exec(`DELETE FROM compiled WHERE node = ? AND generation <= ?`, node, oldest); err != nil {
		return fmt.Errorf("forget old generations: %w", err)
	}
	if err := w.exec(`DELETE FROM bodies WHERE id = ? AND NOT EXISTS (SELECT 1 FROM compiled WHERE body = bodies.id)`, its); err != nil {
		return fmt.Errorf("forget what no node gets: %w", err)
	}
	return nil
}

// Compiled returns what was written for a node; control.ErrNotFound when there
// is none of that generation, or no longer. The resources are shared and must
// not be changed.
func (s *Store) Compiled(ctx context.Context, node string, generation mesh.Generation) (mesh.Declaration, error) {
	d := mesh.Declaration{Node: node, Generation: generation}
	var id int64
	err := s.db.QueryRowContext(ctx, `SELECT c.body, c.final, c.released FROM compiled c JOIN nodes n ON n.id = c.node WHERE n.name = ? AND c.generation = ?`, node, uint(generation)).
		Scan(&id, &d.Final, asJSON(&d.Released))
	if errors.Is(err, sql.ErrNoRows) {
		return mesh.Declaration{}, control.ErrNotFound
	}
	if err != nil {
		return mesh.Declaration{}, fmt.Errorf("query generation: %w", err)
	}
	if d.Resources = s.bodies.get(id); d.Resources != nil {
		return d, nil
	}
	var size int
	err = s.db.QueryRowContext(ctx, `SELECT resources, length(resources) FROM bodies WHERE id = ?`, id).Scan(asJSON(&d.Resources), &size)
	if errors.Is(err, sql.ErrNoRows) {
		return mesh.Declaration{}, control.ErrNotFound
	}
	if err != nil {
		return mesh.Declaration{}, fmt.Errorf("query what a node gets: %w", err)
	}
	s.bodies.put(id, d.Resources, size)
	return d, nil
}

// bodiesLimit bounds the stored form of what bodyCache holds, in bytes.
const bodiesLimit = 32 << 20

// bodyCache holds what many nodes get in its decoded form, so that a push to
// all of them decodes it once. Ids of bodies are never used again for others.
type bodyCache struct {
	mu    sync.Mutex
	held  map[int64][]mesh.Resource
	bytes int
}

func (c *bodyCache) get(id int64) []mesh.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[id]
}

func (c *bodyCache) put(id int64, resources []mesh.Resource, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil || c.bytes+size > bodiesLimit {
		c.held, c.bytes = make(map[int64][]mesh.Resource), 0
	}
	if _, held := c.held[id]; !held && size <= bodiesLimit {
		c.held[id] = resources
		c.bytes += size
	}
}

// CausedBy returns the generations that a revision caused, by node.
func (s *Store) CausedBy(ctx context.Context, name string, revision int64) (map[string]mesh.Generation, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT n.name, c.generation FROM revisions r JOIN compiled c ON c.cause = r.id JOIN nodes n ON n.id = c.node
		WHERE r.name = ? AND r.revision = ?`, name, revision)
	if err != nil {
		return nil, fmt.Errorf("query generations: %w", err)
	}
	type row struct {
		node       string
		generation mesh.Generation
	}
	all, err := collect(rows, func(r *row) []any { return []any{&r.node, &r.generation} })
	if err != nil {
		return nil, err
	}
	caused := make(map[string]mesh.Generation, len(all))
	for _, r := range all {
		caused[r.node] = r.generation
	}
	return caused, nil
}

// NamesBlob reports whether a declaration of the node, not yet forgotten, names
// the blob.
func (s *Store) NamesBlob(ctx context.Context, node, sum string) (bool, error) {
	raw, err := hex.DecodeString(sum)
	if err != nil {
		return false, fmt.Errorf("name of a blob: %w", err)
	}
	var named bool
	err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM nodes n JOIN compiled c ON c.node = n.id JOIN body_blobs b ON b.body = c.body
		WHERE n.name = ? AND b.sum = ?)`, node, raw).Scan(&named)
	if err != nil {
		return false, fmt.Errorf("query blob: %w", err)
	}
	return named, nil
}
