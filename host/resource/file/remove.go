package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// undo is what Capture keeps: what stood there, and what was about to be
// written. The second tells a write that was never read back, because of a
// crash, from somebody else's.
type undo struct {
	Was   state `json:"was"`
	Meant state `json:"meant"`
	// Package is what shipped the original. Empty: none, or not known.
	Package string `json:"package,omitempty"`
}

// record is what Owned.Wrote holds: what was last verified (Type is empty when
// nothing was yet), and what was announced since.
type record struct {
	state
	Announced []state `json:"announced,omitempty"`
}

func readRecord(owned mesh.Owned) (record, error) {
	var r record
	if len(owned.Wrote) == 0 {
		return r, nil
	}
	return r, json.Unmarshal(owned.Wrote, &r)
}

func (r record) verified() bool { return r.Type != "" }

// removal is what Remove and CheckRemoved work towards.
type removal struct {
	path string
	was  state
	// ours lists what may stand there without being anybody else's.
	ours []state
}

func readRemoval(owned mesh.Owned) (removal, error) {
	r := removal{path: owned.Resource.Name()}
	lost := func(err error) error {
		return resource.Failed(mesh.ReasonUndo, err, "what stood at %s before the mesh is no longer known, so what stands there stays", r.path)
	}
	switch {
	case len(owned.Undo) > 0:
		var u undo
		if err := json.Unmarshal(owned.Undo, &u); err != nil {
			return r, lost(err)
		}
		r.was = u.Was
		r.ours = append(r.ours, u.Meant)
	case owned.Made == mesh.MadeCreated && !owned.Partial:
		r.was = state{Type: typeNone}
	default:
		return r, lost(nil)
	}
	wrote, err := readRecord(owned)
	if err != nil {
		return r, lost(err)
	}
	if wrote.verified() {
		// What was read back is what is ours; what was meant at first is older.
		r.ours = []state{wrote.state}
	}
	r.ours = append(r.ours, wrote.Announced...)
	return r, nil
}

// reading hashes what may be the original or ours, and nothing larger.
func (r removal) reading() reading {
	return reading{hash: true, sizes: append(ofSizes(r.ours...), ofSizes(r.was)...)}
}

// Remove brings back what stood at the path before the mesh: nothing, or the
// original. What stands there now must be what was last verified, judged by
// type, content and target; another owner or mode is not somebody's work and
// does not count. That it is gone already is no conflict either.
func (p *Provider) Remove(ctx context.Context, owned mesh.Owned) error {
	r, err := readRemoval(owned)
	if err != nil {
		return err
	}
	look := r.reading()
	look.attributes = true
	have, err := p.lookAt(ctx, r.path, look)
	if err != nil {
		return unreadable(r.path, err)
	}
	p.Tidy(ctx, owned.Resource)
	if have.equal(r.was) {
		return nil
	}
	if err := r.mayReplace(have); err != nil {
		return err
	}
	if twin := p.twin(r.path, have.real); twin != "" {
		return resource.Conflict(mesh.ReasonTwice, nil, "%s is the same place as %s, which is declared; it stays", r.path, twin)
	}
	if have.mount && (have.Type != typeDirectory || r.was.Type != typeDirectory) {
		return mountedOver(r.path, nil)
	}
	p.memory.forget(r.path)
	p.lastPath = ""
	at, err := locate(r.path, toWrite)
	if err != nil {
		return unreachable(r.path, err)
	}
	defer at.close()
	return p.putBack(ctx, at, have, r)
}

// mayReplace refuses when somebody changed what stands there.
func (r removal) mayReplace(have state) error {
	if have.Type == typeNone || have.same(r.was) {
		return nil
	}
	for _, ours := range r.ours {
		if have.same(ours) {
			return nil
		}
	}
	return resource.Conflict(mesh.ReasonModified, nil, "%s was changed since the mesh wrote it; it stays, and is no longer put right", r.path)
}

func (p *Provider) putBack(ctx context.Context, at *location, have state, r removal) error {
	was := r.was
	if was.Attributes == nil {
		// It had none, which is not the same as leaving open which it has.
		was.Attributes = map[string][]byte{}
	}
	switch was.Type {
	case typeNone:
		return at.remove(have.Type)
	case typeRegular:
		if have.becomes(was) {
			return at.setRegular(have, was)
		}
		source, err := originalContent(at, have, was)
		if err != nil {
			return err
		}
		return p.putRegular(ctx, at, have, was, source)
	case typeDirectory:
		return p.putDirectory(ctx, at, have, was)
	case typeSymlink:
		return p.putSymlink(ctx, at, have, was)
	}
	return resource.Failed(mesh.ReasonUndo, nil, "a %s stood at %s before the mesh and cannot be put back", was.Type, r.path)
}

// originalContent is what was kept, or what stands there when that is the same.
func originalContent(at *location, have, was state) (io.ReadCloser, error) {
	if !was.TooLarge {
		return io.NopCloser(bytes.NewReader(was.Content)), nil
	}
	if have.Type == typeRegular && have.SHA256 == was.SHA256 {
		f, err := at.open()
		if err != nil {
			return nil, unreadable(at.path, err)
		}
		return f, nil
	}
	return nil, resource.Failed(mesh.ReasonUndo, nil, "what stood at %s before the mesh was too large to keep; what stands there stays", at.path)
}

// CheckRemoved looks whether the path is as it was before the mesh.
func (p *Provider) CheckRemoved(ctx context.Context, owned mesh.Owned) (resource.Diff, error) {
	var d resource.Diff
	r, err := readRemoval(owned)
	if err != nil {
		return d, err
	}
	have, err := p.lookAt(ctx, r.path, r.reading())
	if err != nil {
		return d, unreadable(r.path, err)
	}
	if have.Type != r.was.Type {
		d.Add("type", string(have.Type.orEmpty()), string(r.was.Type.orEmpty()))
		return d, nil
	}
	if !have.same(r.was) {
		d.Add("content", "other than before the mesh", "as before the mesh")
	}
	if have.Type != typeNone && (have.UID != r.was.UID || have.GID != r.was.GID) {
		d.Add("owner", fmt.Sprintf("%d:%d", have.UID, have.GID), fmt.Sprintf("%d:%d", r.was.UID, r.was.GID))
	}
	if (have.Type == typeRegular || have.Type == typeDirectory) && have.Mode != r.was.Mode {
		d.Add("mode", fmt.Sprintf("%04o", have.Mode), fmt.Sprintf("%04o", r.was.Mode))
	}
	return d, nil
}
