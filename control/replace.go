package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	mesh "github.com/meshctl/mesh"
)

// ReplaceContent writes every declaration anew in which a file has the content
// with this SHA-256, with other content in its place and all else as it is, and
// returns their names; with an error those that were written before it. It is
// done here, since nobody is shown the sensitive files that go with it.
func (c *Control) ReplaceContent(ctx context.Context, caller Caller, old string, content []byte) ([]string, error) {
	c.mu.Lock()
	names := slices.Sorted(maps.Keys(c.revisions))
	c.mu.Unlock()
	var written []string
	for _, name := range names {
		done, err := c.replaceIn(ctx, caller, name, old, content)
		if err != nil {
			return written, fmt.Errorf("declaration %s: %w", name, err)
		}
		if done {
			written = append(written, name)
		}
	}
	return written, nil
}

// replaceIn does one declaration, anew when somebody writes it at the same time.
func (c *Control) replaceIn(ctx context.Context, caller Caller, name, old string, content []byte) (bool, error) {
	for {
		newest, err := c.revision(ctx, name, 0)
		if err != nil || newest.Removed {
			return false, err
		}
		doc, found := newest.Document, false
		doc.Resources = slices.Clone(doc.Resources)
		for i := range doc.Resources {
			if f := doc.Resources[i].File; f != nil && f.SHA256 == old {
				file := *f
				file.SetContent(content)
				doc.Resources[i].File, found = &file, true
			}
		}
		if !found {
			return false, nil
		}
		switch _, err := c.declare(ctx, caller, doc, occasionWritten, newest.Revision); {
		case err == nil:
			return true, nil
		case c.newestOf(name) == newest.Revision:
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
	}
}

func (c *Control) newestOf(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revisions[name].Revision
}

// overtaken refuses a write of what somebody else has written meanwhile.
func overtaken(name string, newest int64) error {
	return mesh.Errorf(mesh.CodeConflict, "declaration %s was written by somebody else meanwhile, as revision %d; nothing was written", name, newest)
}
