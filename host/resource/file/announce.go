package file

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"golang.org/x/sys/unix"
)

// Hold fills in owner, group and mode, where they are left open, from what was
// last verified.
func (p *Provider) Hold(want mesh.Resource, owned mesh.Owned) mesh.Resource {
	f := want.File
	if f == nil || f.Absent || (f.Owner != "" && f.Group != "" && (f.Mode != "" || f.Type == mesh.FileSymlink)) {
		return want
	}
	last, err := readRecord(owned)
	if err != nil || last.Type == "" || (last.Type != fileType(f.Type) && (f.Type != "" || last.Type != typeRegular)) {
		return want
	}
	held := *f
	if held.Owner == "" {
		held.Owner = strconv.FormatUint(uint64(last.UID), 10)
	}
	if held.Group == "" {
		held.Group = strconv.FormatUint(uint64(last.GID), 10)
	}
	if held.Mode == "" && last.Type != typeSymlink {
		held.Mode = fmt.Sprintf("%04o", last.Mode)
	}
	want.File = &held
	return want
}

// Announce notes in Owned.Wrote what Apply is about to write. An original that
// was captured for a write that never came about, and that somebody has changed
// since, is captured anew.
func (p *Provider) Announce(ctx context.Context, want mesh.Resource, owned mesh.Owned) (resource.Announcement, error) {
	out := resource.Announcement{Owned: owned}
	w, err := wanted(want)
	if err != nil {
		return out, err
	}
	r, err := readRemoval(owned)
	if err != nil {
		// What stood there is not known any more. It can be replaced all the same,
		// and never be put back.
		r = removal{path: want.Name}
	}
	held, err := readRecord(owned)
	if err != nil {
		held = record{}
	}
	known := slices.Concat(r.ours, []state{r.was, w.meant()})
	have, err := p.lookAt(ctx, want.Name, reading{hash: true, sizes: ofSizes(known...)})
	if err != nil {
		return out, unreadable(want.Name, err)
	}
	isOurs := slices.ContainsFunc(r.ours, have.same)
	p.oursPath = ""
	p.announced, p.announcedPath = have, want.Name
	if isOurs && have.Type != typeNone {
		p.ours, p.oursPath = have, want.Name
	}
	if r.was.TooLarge && have.same(r.was) && !have.same(w.meant()) {
		return out, tooLarge(want.Name, have.Size)
	}
	switch {
	case held.verified() && !have.equal(held.state) && !slices.ContainsFunc(held.Announced, have.same):
		out.Edited = p.edited(ctx, want, held.state, have)
	case !held.verified() && r.was.Type != "" && !have.equal(r.was) && !isOurs:
		fresh, err := p.Capture(ctx, want)
		if err != nil {
			return out, err
		}
		fresh.Resource, fresh.Generation = owned.Resource, owned.Generation
		out.Owned = fresh
		out.Notes = p.notes(ctx, want, w, have, fresh)
		return out, nil
	}
	if err := announce(&out.Owned, held, r.ours, have, w.meant()); err != nil {
		return out, err
	}
	out.Notes = p.notes(ctx, want, w, have, owned)
	return out, nil
}

// announce adds what is meant to what may stand there without being anybody
// else's, and keeps of earlier announcements what does stand there. Of what was
// verified it is also announced when the content stays: another owner or mode
// that a crash leaves is then not somebody's.
func announce(owned *mesh.Owned, held record, ours []state, have, meant state) error {
	if !held.verified() && len(ours) > 0 && ours[0].same(meant) {
		return nil
	}
	var next []state
	if slices.ContainsFunc(held.Announced, have.same) {
		next = append(next, state{Type: have.Type, SHA256: have.SHA256, Size: have.Size, Target: have.Target})
	}
	if !slices.ContainsFunc(next, meant.same) {
		next = append(next, meant)
	}
	held.Announced = next
	var err error
	if owned.Wrote, err = json.Marshal(held); err != nil {
		return fmt.Errorf("write down what is about to be written: %w", err)
	}
	return nil
}

// edited says what somebody did to a file since it was read back.
func (p *Provider) edited(ctx context.Context, want mesh.Resource, was, have state) string {
	var what []string
	change := func(name, old, now string) { what = append(what, fmt.Sprintf("%s %s instead of %s", name, now, old)) }
	switch {
	case have.Type == typeNone:
		what = append(what, "it was gone")
	case was.Type == typeNone:
		what = append(what, fmt.Sprintf("a %s had appeared", have.Type))
	case have.Type != was.Type:
		what = append(what, fmt.Sprintf("a %s stood in its place", have.Type))
	default:
		switch {
		case have.Target != was.Target:
			change("target", was.Target, have.Target)
		case have.Size != was.Size:
			change("size", fmt.Sprint(was.Size), fmt.Sprint(have.Size))
		case have.SHA256 != was.SHA256 && want.File.Sensitive:
			what = append(what, "other content")
		case have.SHA256 != was.SHA256:
			change("content", "sha256 "+was.SHA256, "sha256 "+have.SHA256)
		}
		if have.UID != was.UID || have.GID != was.GID {
			change("owner", fmt.Sprintf("%d:%d", was.UID, was.GID), fmt.Sprintf("%d:%d", have.UID, have.GID))
		}
		if have.Mode != was.Mode {
			change("mode", fmt.Sprintf("%04o", was.Mode), fmt.Sprintf("%04o", have.Mode))
		}
	}
	text := "it had been changed since the last look: " + strings.Join(what, ", ")
	if have.Type != typeNone {
		if name := p.packages(ctx, want.Name); name != "" {
			text += fmt.Sprintf(" (package %s has a file of this name)", name)
		}
	}
	return text
}

// notes says what the write means for others.
func (p *Provider) notes(ctx context.Context, want mesh.Resource, w want, have state, owned mesh.Owned) []string {
	var notes []string
	if have.Type == typeRegular && have.links > 1 {
		notes = append(notes, fmt.Sprintf("the file that stood there has %d other names, which keep what it held", have.links-1))
	}
	if have.Type == typeRegular && !p.inPlace(ctx, w, have) {
		for _, place := range p.mounts.of(have.print, want.Name) {
			notes = append(notes, fmt.Sprintf("the file that stood there is mounted at %s too, which goes on showing it until it is mounted anew", place))
		}
	}
	var u undo
	if len(owned.Wrote) == 0 && len(owned.Undo) > 0 && json.Unmarshal(owned.Undo, &u) == nil && u.Package != "" {
		notes = append(notes, fmt.Sprintf("package %s ships a file of this name; what stood there is kept and comes back when this is no longer declared", u.Package))
	}
	if have.Type != w.meant().Type && !w.absent {
		notes = append(notes, w.defaulted()...)
		if onMemory(want.Name) {
			notes = append(notes, "the file system there is in memory, so it is gone at a restart of the machine and made again by the first look after it")
		}
	}
	return notes
}

// inPlace reports whether the file that stands there will stay it.
func (p *Provider) inPlace(ctx context.Context, w want, have state) bool {
	target, err := p.target(ctx, w, have)
	return err == nil && have.becomes(target)
}

// defaulted names what a new thing gets because it is not declared.
func (w want) defaulted() []string {
	var what []string
	if w.owner == "" {
		what = append(what, "owner root")
	}
	if w.group == "" {
		what = append(what, "group root")
	}
	if !w.hasMode && w.kind != mesh.FileSymlink {
		what = append(what, fmt.Sprintf("mode %04o", w.defaultMode()))
	}
	if len(what) == 0 {
		return nil
	}
	return []string{"made with " + strings.Join(what, ", ") + ", as nothing else is declared"}
}

// onMemory reports whether the directory of a path lies in a file system that
// does not outlive the machine's power.
func onMemory(path string) bool {
	at, err := locate(path, toLook)
	if err != nil {
		return false
	}
	defer at.close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(at.fd(), &st); err != nil {
		return false
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}
