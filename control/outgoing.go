package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	mesh "github.com/meshctl/mesh"
)

// Outgoing is a declaration in the form in which it travels.
type Outgoing struct {
	Generation mesh.Generation
	// Body comes to the JSON of a mesh.Declaration, one part after the other. What
	// is in it is shared and must not be changed.
	Body [][]byte
}

// outgoing puts together what travels to one node, around resources that many
// may get.
func outgoing(d mesh.Declaration, resources []byte) (*Outgoing, error) {
	d.Resources = []mesh.Resource{}
	around, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("marshal what is around the resources: %w", err)
	}
	// The name of a node has no brackets, and what else is before has none.
	before, after, _ := bytes.Cut(around, []byte("[]"))
	return &Outgoing{Generation: d.Generation, Body: [][]byte{before, resources, after}}, nil
}

// encodingsLimit bounds what encodings holds, in bytes.
const encodingsLimit = 16 << 20

// encodings holds resources in the form in which they travel, so that what many
// nodes get is encoded once for all of them. The zero value is ready.
type encodings struct {
	mu sync.Mutex
	// known holds them by the first of the resources, which are shared and never
	// changed. Under mu, like the rest.
	known map[*mesh.Resource]func() ([]byte, error)
	// kept lists those that were encoded, the oldest first.
	kept  []keptEncoding
	bytes int
}

type keptEncoding struct {
	first *mesh.Resource
	size  int
}

// of returns a list of resources as JSON. The result must not be changed.
func (e *encodings) of(resources []mesh.Resource) ([]byte, error) {
	if len(resources) == 0 {
		return []byte("[]"), nil
	}
	first := &resources[0]
	e.mu.Lock()
	encode, known := e.known[first]
	if !known {
		encode = sync.OnceValues(func() ([]byte, error) { return json.Marshal(resources) })
		if e.known == nil {
			e.known = make(map[*mesh.Resource]func() ([]byte, error))
		}
		e.known[first] = encode
	}
	e.mu.Unlock()
	data, err := encode()
	if !known {
		e.keep(keptEncoding{first, len(data)})
	}
	if err != nil {
		return nil, fmt.Errorf("marshal what a node gets: %w", err)
	}
	return data, nil
}

// keep counts what was encoded, and forgets the oldest as far as there is too
// much.
func (e *encodings) keep(k keptEncoding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = append(e.kept, k)
	e.bytes += k.size
	for e.bytes > encodingsLimit {
		delete(e.known, e.kept[0].first)
		e.bytes -= e.kept[0].size
		e.kept = e.kept[1:]
	}
}
