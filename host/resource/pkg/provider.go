package pkg

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// Config is what New needs.
type Config struct {
	// Manager of this machine. Nil: there is none, and every package fails with
	// reason no-package-manager.
	Manager Manager
	// Local finds package files that were brought along. Nil: there are none.
	Local Local
	// Services are looked at around each transaction. Nil: nobody looks.
	Services Services
	// Logger takes what is worth a line and no result. Nil: nothing is logged.
	Logger *slog.Logger
	// Keep lists names that are never removed, the host's own package above all.
	Keep []string
}

// Provider is the resource.SetProvider for packages. Use New.
type Provider struct {
	manager Manager
	local   Local
	log     *slog.Logger
	keep    []string
	// services may be nil.
	services Services
	// declared is what this pass is for.
	declared []mesh.Resource
	notes    notes
	// first is the database as this pass found it. Nil: it was not read.
	first *database
	// snapshot is the database as read in this pass. Nil: it has to be read.
	snapshot *database
	// refreshed says how Refresh ended in this pass. Nil: it did not run.
	refreshed *refresh
}

type refresh struct{ err error }

var (
	_ resource.SetProvider = (*Provider)(nil)
	_ resource.PassStarter = (*Provider)(nil)
	_ resource.Noter       = (*Provider)(nil)
)

// New makes a provider.
func New(c Config) *Provider {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Provider{manager: c.Manager, local: c.Local, log: c.Logger, keep: c.Keep, services: c.Services}
}

// Kind returns mesh.KindPackage.
func (p *Provider) Kind() mesh.Kind { return mesh.KindPackage }

// StartPass forgets the database, what was told, and that the indexes were
// refreshed.
func (p *Provider) StartPass(_ context.Context, declared []mesh.Resource) {
	p.snapshot, p.first = nil, nil
	p.refreshed = nil
	p.declared = declared
	p.notes = notes{}
}

// database is one reading of the package database.
type database struct {
	entries []Installed
	native  string
}

// find returns the entries that a declared name means: none, one, or several
// versions side by side.
func (d *database) find(name string) []Installed {
	var found []Installed
	for _, e := range d.entries {
		if matches(name, e.Name, e.Arch, d.native) {
			found = append(found, e)
		}
	}
	return found
}

// read returns the database of this pass.
func (p *Provider) read(ctx context.Context) (*database, error) {
	if p.manager == nil {
		return nil, resource.Failed(mesh.ReasonNoManager, nil, "this machine has neither apt nor dnf, so no package can be looked at or installed")
	}
	if p.snapshot != nil {
		return p.snapshot, nil
	}
	entries, err := p.manager.Installed(ctx)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, resource.Unknown(mesh.ReasonDatabase, nil, "the package database lists no package at all, which cannot be; nothing is installed or removed")
	}
	p.snapshot = &database{entries: entries, native: p.manager.Architecture()}
	if p.first == nil {
		p.first = p.snapshot
	}
	return p.snapshot, nil
}

// reread reads the database anew, after something may have changed it.
func (p *Provider) reread(ctx context.Context) (*database, error) {
	p.snapshot = nil
	return p.read(ctx)
}

// Check compares the package database with what is wanted.
func (p *Provider) Check(ctx context.Context, want mesh.Resource) (resource.Diff, error) {
	if err := known(want); err != nil {
		return resource.Diff{}, err
	}
	db, err := p.read(ctx)
	if err != nil {
		return resource.Diff{}, err
	}
	if other := p.twin(db, want.Name); other != "" {
		return resource.Diff{}, resource.Failed(mesh.ReasonTwice, nil, "it is the same package as %s, which is declared before it; keep one of them", other)
	}
	if want.Package.Absent {
		if e, is := meant(db, want.Name); is {
			return resource.Diff{}, resource.Failed(mesh.ReasonNotAvailable, nil, "%s is no name of a package but another way to write %s:%s %s, which is installed; declare %s:%s or %s", want.Name, e.Name, e.Arch, e.Version, e.Name, e.Arch, e.Name)
		}
	}
	return p.compare(db, want), nil
}

// meant finds the installed package that a name spells in a way of the tools, as
// "fx.x86_64" or "fx-1.0-1": to say that no package has that name would be true
// and of no use. A version without its release does not count: "fx-2" may well be
// a name.
func meant(db *database, name string) (Installed, bool) {
	if len(db.find(name)) > 0 {
		return Installed{}, false
	}
	for _, e := range db.entries {
		rest, begins := strings.CutPrefix(name, e.Name)
		if !begins || rest == "" {
			continue
		}
		switch strings.TrimSuffix(rest, "."+e.Arch) {
		case "", "-" + e.Version, "-" + withoutEpoch(e.Version):
			return e, true
		}
	}
	return Installed{}, false
}

// twin returns the name of an earlier declaration of the same package, as of
// "fx" before "fx:amd64".
func (p *Provider) twin(db *database, name string) string {
	if slices.ContainsFunc(db.find(name), func(e Installed) bool { return e.Many }) {
		return ""
	}
	for _, r := range p.declared {
		switch {
		case r.Kind != mesh.KindPackage:
		case r.Name == name:
			return ""
		case whole(r.Name, db.native) == whole(name, db.native):
			return r.Name
		}
	}
	return ""
}

func known(want mesh.Resource) error {
	if want.Kind != mesh.KindPackage || want.Package == nil {
		return resource.Failed(mesh.ReasonInternal, nil, "%s is no package resource", want.ID())
	}
	return nil
}

func (p *Provider) compare(db *database, want mesh.Resource) resource.Diff {
	var d resource.Diff
	found := db.find(want.Name)
	if want.Package.Absent {
		for _, e := range found {
			d.Add("version", e.Version, "")
		}
		return d
	}
	entry, ok := pick(found, want.Package.Version)
	if !ok {
		d.Add("version", "", orAny(want.Package.Version))
		return d
	}
	if want.Package.Version != "" && !sameVersion(entry.Version, want.Package.Version) {
		d.Add("version", entry.Version, want.Package.Version)
	}
	if entry.State != "" {
		d.Add("state", entry.State, "installed")
	}
	if twice(found) {
		d.Add("versions", "several at once", "one")
	}
	if _, marks := p.manager.(Marker); marks && entry.Mark == MarkAuto {
		d.Add("mark", string(MarkAuto), string(MarkManual))
	}
	return d
}

// pick chooses among versions side by side: the wanted one, otherwise the last.
func pick(found []Installed, version string) (Installed, bool) {
	if len(found) == 0 {
		return Installed{}, false
	}
	i := slices.IndexFunc(found, func(e Installed) bool { return sameVersion(e.Version, version) })
	if i < 0 {
		i = len(found) - 1
	}
	return found[i], true
}

// twice reports whether one package is there in several versions although it
// may not be: what an interrupted transaction leaves.
func twice(found []Installed) bool {
	for i, a := range found {
		for _, b := range found[i+1:] {
			if a.Name == b.Name && a.Arch == b.Arch && !a.Many {
				return true
			}
		}
	}
	return false
}

func orAny(version string) string {
	if version == "" {
		return "any version"
	}
	return version
}

// undo is what Capture keeps.
type undo struct {
	// Version that was installed. Empty: the package was not there.
	Version string `json:"version,omitempty"`
	// Mark that it had. Empty: none was kept.
	Mark Mark `json:"mark,omitempty"`
	// Meant is what the mesh was about to do. It counts until the first
	// successful read-back.
	Meant wrote `json:"meant"`
}

// wrote is what was verified to be there.
type wrote struct {
	Installed bool   `json:"installed"`
	Version   string `json:"version,omitempty"`
}

// Capture notes whether the package was there, in which version and with which
// mark.
func (p *Provider) Capture(ctx context.Context, want mesh.Resource) (mesh.Owned, error) {
	if err := known(want); err != nil {
		return mesh.Owned{}, err
	}
	db, err := p.read(ctx)
	if err != nil {
		return mesh.Owned{}, err
	}
	if p.first != nil {
		// What came along with another package of this pass was not there before.
		db = p.first
	}
	owned := mesh.Owned{Resource: want.ID(), Made: mesh.MadeExisted}
	entry, there := pick(db.find(want.Name), want.Package.Version)
	u := undo{Meant: wrote{Installed: !want.Package.Absent, Version: want.Package.Version}}
	switch {
	case there:
		u.Version, u.Mark = entry.Version, entry.Mark
		if want.Package.Absent {
			owned.Made = mesh.MadeReplaced
		}
	case !want.Package.Absent:
		owned.Made = mesh.MadeCreated
	}
	if owned.Undo, err = json.Marshal(u); err != nil {
		return mesh.Owned{}, fmt.Errorf("write down what is installed: %w", err)
	}
	return owned, nil
}

// Wrote returns whether the package is installed and in which version.
func (p *Provider) Wrote(ctx context.Context, want mesh.Resource) ([]byte, error) {
	if err := known(want); err != nil {
		return nil, err
	}
	db, err := p.read(ctx)
	if err != nil {
		return nil, err
	}
	var w wrote
	if e, there := pick(db.find(want.Name), want.Package.Version); there {
		w = wrote{Installed: true, Version: e.Version}
	}
	return json.Marshal(w)
}

// Apply is ApplySet for one.
func (p *Provider) Apply(ctx context.Context, want mesh.Resource, d resource.Diff) error {
	return p.ApplySet(ctx, []resource.Change{{Want: want, Diff: d}})[0]
}

// Remove is RemoveSet for one.
func (p *Provider) Remove(ctx context.Context, owned mesh.Owned) error {
	return p.RemoveSet(ctx, []mesh.Owned{owned})[0]
}
