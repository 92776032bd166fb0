// Package file is the provider for resources of kind file: regular files,
// directories, symbolic links, and paths at which nothing may stand.
//
// What it writes is there whole or not at all, also after a power cut: a
// temporary in the same directory, fsync, rename, fsync of the directory.
// Every path is walked component by component with directory descriptors, so
// that no link that an unprivileged user could have placed is ever followed.
// Check reads by path from a fresh descriptor, never what Apply has in hand.
//
// It makes no parents, replaces nothing of another type than is wanted unless it
// is the mesh's own, clears no immutable flag, and does not fetch content:
// that is the business of Content. It keeps nothing between calls but what it
// looked up in the current pass, and the digests of files that cannot have
// changed since it read them (see memory).
package file

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// OriginalLimit is the length in bytes up to which the content of a file that
// is replaced or removed is kept for putting it back.
const OriginalLimit = 64 << 20

// Content hands out content that does not travel inside the declaration.
type Content interface {
	// Open returns the content with this SHA-256 (lower-case hexadecimal). The
	// error matches fs.ErrNotExist when it has not arrived yet. The caller
	// verifies what it reads.
	Open(sha256 string) (io.ReadCloser, error)
}

// Config is what New needs.
type Config struct {
	// Content hands out what is not inline. Nil: nothing is there.
	Content Content
	// Logger takes what is worth a line and no result. Nil: nothing is logged.
	Logger *slog.Logger
	// Random makes the names of temporaries. Nil: the kernel's.
	Random io.Reader
	// Getent asks the machine's name service for an account that /etc/passwd or
	// /etc/group lacks. Nil: the program getent is run.
	Getent func(ctx context.Context, database, name string) (id uint32, found bool, err error)
	// Label returns the SELinux label that the policy gives a file of this class
	// ("file", "dir", "link") which is written now. Old is the label of what is
	// replaced, empty when nothing is. An empty result: keep the old one, or what
	// the kernel chose. Nil: the policy is asked where SELinux is enabled.
	Label func(ctx context.Context, path, class, old string) (string, error)
	// PackageOf names the package that ships the file at a path; empty: none, or
	// not known. Nil: the machine's package database is asked.
	PackageOf func(ctx context.Context, path string) string
	// Now is the time. Nil: the machine's clock.
	Now func() time.Time
}

// Provider is the resource.Provider for files, which waits as long as the kernel
// does: see Patient. Use New.
type Provider struct {
	content  Content
	log      *slog.Logger
	random   io.Reader
	accounts accounts
	label    func(ctx context.Context, path, class, old string) (string, error)
	packages func(ctx context.Context, path string) string
	now      func() time.Time
	memory   memory
	// buffer is for reading. Nil: not needed yet.
	buffer []byte
	// last is what the last Check saw, at lastPath. Empty path: nothing.
	last     state
	lastPath string
	mounts   mounts
	// declared holds the paths of this pass; reached, by where a path really
	// leads, the path under which a check got there first.
	declared map[string]bool
	reached  *reached
	// turns counts how often a long read went on.
	turns atomic.Uint64
	// ours is what Announce found at oursPath to be of another type than is
	// wanted, and the mesh's own. Empty path: nothing.
	ours     state
	oursPath string
	// announced is what Announce saw at announcedPath. Empty path: nothing.
	announced     state
	announcedPath string
}

var (
	_ resource.Provider    = (*Provider)(nil)
	_ resource.PassStarter = (*Provider)(nil)
	_ resource.Announcer   = (*Provider)(nil)
	_ resource.Holder      = (*Provider)(nil)
	_ resource.Tidier      = (*Provider)(nil)
)

// New makes a provider.
func New(c Config) *Provider {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Getent == nil {
		c.Getent = getent
	}
	if c.Label == nil {
		c.Label = policyLabel
	}
	if c.PackageOf == nil {
		c.PackageOf = packageOf
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Provider{
		content: c.Content, log: c.Logger, random: c.Random, accounts: accounts{getent: c.Getent},
		label: c.Label, packages: c.PackageOf, now: c.Now,
	}
}

// Kind returns mesh.KindFile.
func (p *Provider) Kind() mesh.Kind { return mesh.KindFile }

// StartPass forgets the accounts and mounts that were looked up, and where the
// paths of the last pass led.
func (p *Provider) StartPass(_ context.Context, declared []mesh.Resource) {
	p.accounts.forget()
	p.mounts = mounts{}
	p.lastPath, p.oursPath, p.announcedPath = "", "", ""
	p.memory.kinds = nil
	p.declared, p.reached = make(map[string]bool, len(declared)), &reached{first: make(map[string]string)}
	for _, r := range declared {
		if r.Kind == mesh.KindFile {
			p.declared[r.Name] = true
		}
	}
}

// twin returns the other declared path that leads to the same place through a
// link; empty: there is none.
func (p *Provider) twin(path, real string) string {
	if real != path && p.declared[real] {
		return real
	}
	if other := p.reached.by(real); other != path {
		return other
	}
	return ""
}

// reached remembers which path led to a place first.
type reached struct {
	mu    sync.Mutex
	first map[string]string // guarded by mu
}

// by returns the path that led to the place; empty: none did.
func (r *reached) by(real string) string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first[real]
}

func (r *reached) add(real, path string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first[real] = path
}

// fresh returns a provider for the same pass. The two share nothing that a call
// of the old one, which may still come back, could spoil.
func (p *Provider) fresh() *Provider {
	return &Provider{
		content: p.content, log: p.log, random: p.random, accounts: accounts{getent: p.accounts.getent},
		label: p.label, packages: p.packages, now: p.now, declared: p.declared, reached: p.reached,
	}
}

// Check compares what stands at the path with what is wanted.
func (p *Provider) Check(ctx context.Context, want mesh.Resource) (resource.Diff, error) {
	w, err := wanted(want)
	if err != nil {
		return resource.Diff{}, err
	}
	have, err := p.lookAt(ctx, want.Name, w.reading())
	if err != nil {
		return resource.Diff{}, unreadable(want.Name, err)
	}
	if twin := p.twin(want.Name, have.real); twin != "" {
		return resource.Diff{}, resource.Failed(mesh.ReasonTwice, nil, "it is the same place as %s, which is declared too, through a link on the way; keep one of them", twin)
	}
	if have.real != want.Name && have.real != "" {
		p.reached.add(have.real, want.Name)
	}
	diff, err := p.compare(ctx, w, have)
	p.lastPath = ""
	if err == nil && diff.Zero() {
		p.last, p.lastPath = have, want.Name
	}
	return diff, err
}

// Capture keeps what stands at the path, whole. Something of another type than
// is wanted is not taken over: the error says so, and nothing is owned.
func (p *Provider) Capture(ctx context.Context, want mesh.Resource) (mesh.Owned, error) {
	w, err := wanted(want)
	if err != nil {
		return mesh.Owned{}, err
	}
	have, err := p.lookAt(ctx, want.Name, reading{hash: true, sizes: ofSizes(w.meant()), content: true, attributes: true})
	if err != nil {
		return mesh.Owned{}, unreadable(want.Name, err)
	}
	if err := w.admits(want.Name, have.Type); err != nil {
		return mesh.Owned{}, err
	}
	diff, err := p.compare(ctx, w, have)
	if err != nil {
		return mesh.Owned{}, err
	}
	owned := mesh.Owned{Resource: want.ID()}
	switch {
	case diff.Zero():
		owned.Made = mesh.MadeExisted
	case have.Type == typeNone:
		owned.Made = mesh.MadeCreated
	default:
		owned.Made = mesh.MadeReplaced
	}
	if have.TooLarge && owned.Made == mesh.MadeReplaced && !have.same(w.meant()) {
		return mesh.Owned{}, tooLarge(want.Name, have.Size)
	}
	kept := undo{Was: have, Meant: w.meant()}
	if owned.Made == mesh.MadeReplaced {
		kept.Package = p.packages(ctx, want.Name)
	}
	owned.Undo, err = json.Marshal(kept)
	if err != nil {
		return mesh.Owned{}, fmt.Errorf("write down what stands there: %w", err)
	}
	return owned, nil
}

func tooLarge(path string, size int64) error {
	return resource.Failed(mesh.ReasonTooLarge, nil, "what stands at %s has %d bytes, and at most %d are kept for putting back; it stays as it is", path, size, int64(OriginalLimit))
}

// Tidy takes away what a crash left beside the path.
func (p *Provider) Tidy(_ context.Context, id mesh.ResourceID) {
	at, err := locate(id.Name(), toWrite)
	if err != nil {
		return
	}
	defer at.close()
	at.sweep()
}

// Apply makes the path as wanted. Other content is always a new file under the
// old name. Where only owner or mode is wrong the file stays the one it is, where
// it can. A thing of another type is replaced when it is the mesh's own and
// Announce has just found it so.
func (p *Provider) Apply(ctx context.Context, want mesh.Resource, _ resource.Diff) error {
	w, err := wanted(want)
	if err != nil {
		return err
	}
	at, err := locate(want.Name, toWrite)
	if err != nil {
		return unreachable(want.Name, err)
	}
	defer at.close()
	at.sweep()
	have, err := p.look(ctx, at, reading{hash: true, sizes: ofSizes(w.meant(), p.ours), attributes: w.kind == mesh.FileRegular})
	if err != nil {
		return unreadable(want.Name, err)
	}
	ours := p.oursPath == want.Name && have.same(p.ours)
	changed := p.announcedPath == want.Name && !have.still(p.announced)
	p.oursPath, p.announcedPath = "", ""
	if changed {
		return changedJustNow(want.Name)
	}
	if err := w.admits(want.Name, have.Type); err != nil && !ours {
		return err
	}
	if have.mount && (have.Type != typeDirectory || w.kind != mesh.FileDirectory) {
		return mountedOver(want.Name, nil)
	}
	if have.Type != typeDirectory && at.immutable() {
		return immovable(want.Name, nil)
	}
	target, err := p.target(ctx, w, have)
	if err != nil {
		return err
	}
	p.memory.forget(want.Name)
	p.lastPath = ""
	fault.Point("file.before-apply")
	if w.absent {
		return at.remove(have.Type)
	}
	switch w.kind {
	case mesh.FileDirectory:
		return p.putDirectory(ctx, at, have, target)
	case mesh.FileSymlink:
		return p.putSymlink(ctx, at, have, target)
	default:
		if have.becomes(target) {
			return at.setRegular(have, target)
		}
		source, err := p.source(w, at, have)
		if err != nil {
			return err
		}
		return p.putRegular(ctx, at, have, target, source)
	}
}

// Wrote returns type, digest and size, or target, and for the record owner and
// mode of what stands at the path.
func (p *Provider) Wrote(ctx context.Context, want mesh.Resource) ([]byte, error) {
	if p.lastPath == want.Name {
		// What is ours is what was judged, and not what somebody may have made of it
		// since.
		return json.Marshal(record{state: p.last})
	}
	have, err := p.lookAt(ctx, want.Name, reading{hash: true})
	if err != nil {
		return nil, unreadable(want.Name, err)
	}
	return json.Marshal(record{state: have})
}

// target is what is to be written, with accounts as numbers. What is left open
// stays as it is where something stands, and is the default where nothing does.
func (p *Provider) target(ctx context.Context, w want, have state) (state, error) {
	if w.absent {
		return state{Type: typeNone}, nil
	}
	s := w.meant()
	s.sensitive = w.sensitive
	s.UID, s.GID, s.Mode = have.UID, have.GID, have.Mode
	if have.Type != s.Type {
		s.UID, s.GID, s.Mode = 0, 0, w.defaultMode()
	}
	var err error
	if w.owner != "" {
		if s.UID, err = p.accounts.user(ctx, w.owner); err != nil {
			return state{}, err
		}
	}
	if w.group != "" {
		if s.GID, err = p.accounts.group(ctx, w.group); err != nil {
			return state{}, err
		}
	}
	if w.hasMode {
		s.Mode = w.mode
	}
	return s, nil
}

func (p *Provider) compare(ctx context.Context, w want, have state) (resource.Diff, error) {
	var d resource.Diff
	if w.absent {
		if have.Type != typeNone {
			d.Add("type", string(have.Type), "")
		}
		return d, nil
	}
	if have.Type != fileType(w.kind) {
		d.Add("type", string(have.Type.orEmpty()), string(w.kind))
		return d, nil
	}
	switch w.kind {
	case mesh.FileRegular:
		switch {
		case have.Size != w.size:
			d.Add("size", fmt.Sprint(have.Size), fmt.Sprint(w.size))
		case have.SHA256 != w.sha256 && w.sensitive:
			d.Add("content", "other content", "what is declared")
		case have.SHA256 != w.sha256:
			d.Add("content", "sha256 "+have.SHA256, w.sha256)
		}
	case mesh.FileSymlink:
		if have.Target != w.target {
			d.Add("target", have.Target, w.target)
		}
	}
	if err := p.compareAccount(ctx, &d, "owner", w.owner, have.UID, p.accounts.user); err != nil {
		return d, err
	}
	if err := p.compareAccount(ctx, &d, "group", w.group, have.GID, p.accounts.group); err != nil {
		return d, err
	}
	if w.kind != mesh.FileSymlink && w.hasMode && have.Mode != w.mode {
		d.Add("mode", fmt.Sprintf("%04o", have.Mode), fmt.Sprintf("%04o", w.mode))
	}
	return d, nil
}

// compareAccount compares numbers. An account that does not exist is a
// difference: Apply says then which one.
func (p *Provider) compareAccount(ctx context.Context, d *resource.Diff, field, name string, have uint32, find func(context.Context, string) (uint32, error)) error {
	if name == "" {
		return nil
	}
	id, err := find(ctx, name)
	if err != nil {
		if e := resource.AsError(err); e.Status == mesh.StatusUnknown {
			return err
		}
		d.Add(field, fmt.Sprint(have), name+" (unknown here)")
		return nil
	}
	if id != have {
		d.Add(field, fmt.Sprint(have), name)
	}
	return nil
}
