package control

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	mesh "github.com/meshctl/mesh"
)

// historyShown bounds how many revisions a history lists.
const historyShown = 10_000

// History lists the revisions of a declaration, newest first, without their
// documents.
func (c *Control) History(ctx context.Context, name string) ([]DeclarationView, error) {
	if _, err := c.revision(ctx, name, 0); err != nil {
		return nil, err
	}
	views, err := c.store.Revisions(ctx, name, historyShown)
	return views, wrap(err, "read revisions of %s", name)
}

// Compare returns two revisions of a declaration, to zero meaning the newest and
// from zero the one before it. The content of a file that is sensitive in either
// of them is in neither.
func (c *Control) Compare(ctx context.Context, name string, from, to int64) (Comparison, error) {
	later, err := c.revision(ctx, name, to)
	if err != nil {
		return Comparison{}, err
	}
	if from == 0 {
		if from = later.Revision - 1; from == 0 {
			return Comparison{}, mesh.Errorf(mesh.CodeInvalid, "revision %d of declaration %s is its first; there is none before it to compare with", later.Revision, name)
		}
	}
	earlier, err := c.revision(ctx, name, from)
	if err != nil {
		return Comparison{}, err
	}
	out := Comparison{From: viewOf(earlier), To: viewOf(later)}
	a, b := slices.Clone(earlier.Document.Resources), slices.Clone(later.Document.Resources)
	for i := range a {
		j := slices.IndexFunc(b, func(r mesh.DocumentResource) bool { return r.ID() == a[i].ID() })
		if j < 0 || a[i].File == nil || b[j].File == nil || !(a[i].File.Sensitive || b[j].File.Sensitive) {
			continue
		}
		if a[i].File.SHA256 != b[j].File.SHA256 || !bytes.Equal(a[i].File.Content, b[j].File.Content) {
			out.Hidden = append(out.Hidden, a[i].ID())
		}
		a[i].File, b[j].File = bare(a[i].File), bare(b[j].File)
	}
	if !earlier.Removed {
		out.From.Document = hidden(earlier.Document, a)
	}
	if !later.Removed {
		out.To.Document = hidden(later.Document, b)
	}
	return out, nil
}

// bare is a file without its content and what gives it away.
func bare(file *mesh.FileSpec) *mesh.FileSpec {
	copied := *file
	copied.Content, copied.SHA256, copied.Size = nil, "", 0
	return &copied
}

// hidden is a document with these resources, of which the sensitive ones have no
// content.
func hidden(doc mesh.Document, resources []mesh.DocumentResource) *mesh.Document {
	doc.Resources = slices.Clone(resources)
	for i := range doc.Resources {
		if file := doc.Resources[i].File; file != nil && file.Sensitive {
			doc.Resources[i].File = bare(file)
		}
	}
	return &doc
}

// Revert writes an earlier revision again, zero meaning the one before the
// newest. It is a write like any other, with a revision of its own.
func (c *Control) Revert(ctx context.Context, caller Caller, name string, to int64) (Declared, error) {
	newest, err := c.revision(ctx, name, 0)
	if err != nil {
		return Declared{}, err
	}
	if to == 0 {
		if to = newest.Revision - 1; to == 0 {
			return Declared{}, mesh.Errorf(mesh.CodeInvalid, "declaration %s has one revision only; remove it with meshctl declaration remove %s", name, name)
		}
	}
	r, err := c.revision(ctx, name, to)
	if err != nil {
		return Declared{}, err
	}
	if !r.Removed {
		return c.Declare(ctx, caller, r.Document)
	}
	if newest.Removed {
		return Declared{Declaration: name, Revision: newest.Revision}, nil
	}
	declared, err := c.RemoveDeclaration(ctx, caller, name)
	if err != nil {
		return Declared{}, fmt.Errorf("remove what revision %d had removed: %w", to, err)
	}
	return declared, nil
}
