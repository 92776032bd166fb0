package control

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

const (
	// inlineBudget bounds the content that travels inside one declaration, so
	// that it fits into a frame; what is beyond it travels as blobs.
	inlineBudget = 4 << 20
	// resourceLimit bounds the resources of a document and of a declaration.
	resourceLimit = 10_000
	// resourcesBudget bounds what one node gets in the form in which it travels,
	// and releasedBudget the names that are released with it, so that both fit
	// into a frame.
	resourcesBudget = 11 << 20
	releasedBudget  = 4 << 20
)

// finalDigest is the content digest of every final declaration.
var finalDigest = mesh.Declaration{Final: true}.ContentDigest()

// occasion is why it is decided anew what a node gets.
type occasion string

const (
	// occasionWritten: an operator wrote a declaration that concerns the node.
	occasionWritten occasion = "written"
	// occasionAnew: an operator wrote it so that nodes see to it once more, whether
	// or not something changed.
	occasionAnew occasion = "anew"
	// occasionLearned: something else is known of the node.
	occasionLearned occasion = "learned"
	// occasionEnrolled: the node holds what another life of it left.
	occasionEnrolled occasion = "enrolled"
	// occasionRetired: an operator said that the node retires.
	occasionRetired occasion = "retired"
	// occasionConfirmed: an operator confirmed that what the node holds, and is
	// not known here, is to be superseded.
	occasionConfirmed occasion = "confirmed"
)

// next decides what a node gets after set and facts. It returns nil when
// nothing new is to be written, and the faults that keep the node from getting
// what its declarations say. The resources of the record are not staged yet.
//
// A node that no declaration selects and that never got anything gets nothing:
// no declaration known is something else than an empty declaration. A node that
// retires gets the final declaration, whatever its declarations say.
func next(n node, set *assign.Set, owned []mesh.ResourceID, why occasion, at time.Time) (*GenerationRecord, []assign.Fault) {
	switch {
	case n.State != mesh.NodeEnrolled, n.Unheard:
		return nil, nil
	case n.Ahead && why != occasionConfirmed:
		return nil, nil
	case n.Retiring:
		return final(n, owned, why, at), nil
	case !n.Briefing.Eligible():
		return nil, nil
	}
	compiled := set.Compile(n.facts)
	if len(compiled.Faults) > 0 {
		return nil, compiled.Faults
	}
	if len(compiled.Resources) > resourceLimit {
		return nil, []assign.Fault{{Detail: fmt.Sprintf("its declarations come to %d resources; the limit is %d", len(compiled.Resources), resourceLimit)}}
	}
	released := release(owned, compiled.Has)
	switch {
	case n.Declared == 0:
		if compiled.Selected == 0 || len(compiled.Resources)+len(released) == 0 {
			return nil, nil
		}
	case n.Ahead || why == occasionEnrolled || why == occasionAnew:
	case compiled.Digest == n.Digest && contains(n.Released, released):
		return nil, nil
	}
	return &GenerationRecord{
		Node:       n.Name,
		Generation: max(n.Declared, n.Floor, n.Held) + 1,
		Resources:  compiled.Resources,
		Digest:     compiled.Digest,
		Released:   released,
		At:         at,
	}, nil
}

// release lists what is owned and not declared, in order and each once, as far
// as it fits into one declaration. The host removes that, reports the rest as
// kept, and the rest is released by the next generation.
func release(owned []mesh.ResourceID, declared func(mesh.ResourceID) bool) []mesh.ResourceID {
	var released []mesh.ResourceID
	for _, id := range owned {
		if !declared(id) {
			released = append(released, id)
		}
	}
	slices.Sort(released)
	released = slices.Compact(released)
	size := 0
	for i, id := range released {
		// In JSON a byte may take six.
		if size += 6*len(id) + len(`"",`); size > releasedBudget {
			return released[:i:i]
		}
	}
	return released
}

// final decides about the last declaration of a node that retires: no
// resources, and everything that the node owns released.
func final(n node, owned []mesh.ResourceID, why occasion, at time.Time) *GenerationRecord {
	released := release(owned, func(mesh.ResourceID) bool { return false })
	if n.Digest == finalDigest && contains(n.Released, released) && why == occasionLearned {
		return nil
	}
	return &GenerationRecord{
		Node: n.Name, Generation: max(n.Declared, n.Floor, n.Held) + 1,
		Final: true, Digest: finalDigest, Released: released, At: at,
	}
}

// contains reports whether all, which is in order, holds each of some. Both may
// be long, and a node can choose one of them.
func contains(all, some []mesh.ResourceID) bool {
	for _, id := range some {
		if _, there := slices.BinarySearch(all, id); !there {
			return false
		}
	}
	return true
}

// stager moves content that is too large to travel inline into blobs, once for
// all nodes that get the same resources.
type stager struct {
	blobs     Blobs
	encodings *encodings
	done      map[*mesh.Resource][]mesh.Resource
	sizes     map[*mesh.Resource]int
}

func (c *Control) newStager() *stager {
	return &stager{blobs: c.blobs, encodings: &c.encodings, done: make(map[*mesh.Resource][]mesh.Resource), sizes: make(map[*mesh.Resource]int)}
}

// fits returns why staged resources do not fit into a frame; nil when they do.
func (s *stager) fits(staged []mesh.Resource) (*assign.Fault, error) {
	if len(staged) == 0 {
		return nil, nil
	}
	size, known := s.sizes[&staged[0]]
	if !known {
		data, err := s.encodings.of(staged)
		if err != nil {
			return nil, err
		}
		size = len(data)
		s.sizes[&staged[0]] = size
	}
	if size <= resourcesBudget {
		return nil, nil
	}
	return &assign.Fault{Detail: fmt.Sprintf("its declarations come to %d bytes without their large files, and %d is what one node can be sent; declare fewer resources, or put what belongs together into a package", size, resourcesBudget)}, nil
}

func (s *stager) stage(ctx context.Context, resources []mesh.Resource) ([]mesh.Resource, error) {
	if len(resources) == 0 {
		return resources, nil
	}
	key := &resources[0]
	if staged, known := s.done[key]; known {
		return staged, nil
	}
	staged := resources
	total := 0
	for i, r := range resources {
		if r.File == nil || len(r.File.Content) == 0 {
			continue
		}
		if len(r.File.Content) <= mesh.InlineLimit && total+len(r.File.Content) <= inlineBudget {
			total += len(r.File.Content)
			continue
		}
		file, err := detach(ctx, s.blobs, *r.File)
		if err != nil {
			return nil, err
		}
		if &staged[0] == key {
			staged = slices.Clone(resources)
		}
		staged[i].File = &file
	}
	s.done[key] = staged
	return staged, nil
}

func detach(ctx context.Context, blobs Blobs, file mesh.FileSpec) (mesh.FileSpec, error) {
	if err := blobs.Put(ctx, file.SHA256, bytes.NewReader(file.Content)); err != nil {
		return file, fmt.Errorf("store content: %w", err)
	}
	file.Content = nil
	return file, nil
}

// reconsider decides anew about one node, stores what came out and wakes it.
// The caller has the gate.
func (c *Control) reconsider(ctx context.Context, name string) error {
	n, known := c.snapshot(name)
	if !known {
		return nil
	}
	record, faults, err := c.decide(ctx, n, occasionLearned)
	if err != nil {
		return err
	}
	if record != nil {
		if err := c.store.WriteGenerations(ctx, []GenerationRecord{*record}); err != nil {
			return fmt.Errorf("store generation %s of %s: %w", record.Generation, name, err)
		}
	}
	c.mu.Lock()
	if live := c.nodes[name]; live != nil {
		live.faults = faults
	}
	c.mu.Unlock()
	c.written(record)
	return nil
}

// decide is next, with the recovery copy read and the content staged.
func (c *Control) decide(ctx context.Context, n node, why occasion) (*GenerationRecord, []assign.Fault, error) {
	owned, err := c.store.OwnedIDs(ctx, []string{n.Name})
	if err != nil {
		return nil, nil, fmt.Errorf("read recovery copy: %w", err)
	}
	record, faults := next(n, c.currentSet(), owned[n.Name], why, c.now())
	if record == nil {
		return nil, faults, nil
	}
	s := c.newStager()
	if record.Resources, err = s.stage(ctx, record.Resources); err != nil {
		return nil, nil, err
	}
	fault, err := s.fits(record.Resources)
	if err != nil {
		return nil, nil, err
	}
	if fault != nil {
		return nil, []assign.Fault{*fault}, nil
	}
	return record, faults, nil
}

func (c *Control) currentSet() *assign.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.set
}

// written notes generations that are stored, nil ones apart, and wakes the
// links of their nodes.
func (c *Control) written(records ...*GenerationRecord) {
	var wake []Waker
	c.mu.Lock()
	for _, r := range records {
		if r == nil {
			continue
		}
		n := c.nodes[r.Node]
		if n == nil {
			continue
		}
		n.Declared, n.Digest, n.Released = r.Generation, r.Digest, r.Released
		n.Floor = max(n.Floor, r.Generation)
		n.Ahead = false
		n.resources = nil
		if n.live != nil {
			if n.resources = r.Resources; n.resources == nil {
				n.resources = []mesh.Resource{}
			}
			wake = append(wake, n.live.waker)
		}
	}
	c.mu.Unlock()
	for _, w := range wake {
		w.Wake()
	}
}
