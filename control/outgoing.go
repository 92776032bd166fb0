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
	// known holds them by the list, which is shared and never changed. Under mu,
	// like the rest.
	known map[encodedList]func() ([]byte, error)
	// kept lists those that were encoded, the oldest first.
	kept  []keptEncoding
	bytes int
}

// encodedList tells lists of resources apart without looking into them.
type encodedList struct {
	first  *mesh.Resource
	length int
}

type keptEncoding struct {
	list encodedList
	size int
}

// of returns a list of resources as JSON. The result must not be changed.
func (e *encodings) of(resources []mesh.Resource) ([]byte, error) {
	if len(resources) == 0 {
		return []byte("[]"), nil
	}
	list := encodedList{&resources[0], len(resources)}
	e.mu.Lock()
	encode, known := e.known[list]
	if !known {
		encode = sync.OnceValues(func() ([]byte, error) { return json.Marshal(resources) })
		if e.known == nil {
			e.known = make(map[encodedList]func() ([]byte, error))
		}
		e.known[list] = encode
	}
	e.mu.Unlock()
	data, err := encode()
	if !known {
		e.keep(keptEncoding{list, len(data)})
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
		delete(e.known, e.kept[0].list)
		e.bytes -= e.kept[0].size
		e.kept = e.kept[1:]
	}
}
