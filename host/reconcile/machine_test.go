package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// A machine is what the fake providers work on: names with values. With a file
// it survives the process, each write being there whole or not at all.
type machine struct {
	file   string // empty: memory only
	things map[mesh.ResourceID]string
	// writes lists every change, in order, as "file:/a=one" or "file:/a gone".
	writes []string
	// step is called before and after each write. Nil: nobody counts.
	step func()
}

func newMachine(file string) (*machine, error) {
	m := &machine{file: file, things: map[mesh.ResourceID]string{}}
	if file == "" {
		return m, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	return m, json.Unmarshal(data, &m.things)
}

// save replaces the file; a process that dies leaves the old or the new one.
func (m *machine) save() error {
	if m.file == "" {
		return nil
	}
	data, err := json.Marshal(m.things)
	if err != nil {
		return err
	}
	aside := m.file + ".new"
	if err := os.WriteFile(aside, data, 0o600); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Clean(m.file))
}

func (m *machine) put(id mesh.ResourceID, value string) error {
	m.count()
	m.things[id] = value
	m.writes = append(m.writes, string(id)+"="+value)
	err := m.save()
	m.count()
	return err
}

func (m *machine) drop(id mesh.ResourceID) error {
	m.count()
	delete(m.things, id)
	m.writes = append(m.writes, string(id)+" gone")
	err := m.save()
	m.count()
	return err
}

func (m *machine) count() {
	if m.step != nil {
		m.step()
	}
}

// behaviour is how a provider treats one resource.
type behaviour string

const (
	saysDoneDoesNothing behaviour = "Apply and Remove return nil and do nothing"
	failsAndDidIt       behaviour = "Apply and Remove return an error and did it"
	fails               behaviour = "Apply and Remove return an error and did nothing"
	busy                behaviour = "Apply and Remove say that a lock is held"
	resultUnknown       behaviour = "Apply does it, and neither it nor Check can say so"
	unreadable          behaviour = "Check cannot read the state"
	harms               behaviour = "Apply and Remove do it and harm something else"
	namesNonsense       behaviour = "Apply returns an error whose status is ok"
	otherError          behaviour = "Apply returns a plain error"
)

// provider is a kind of resource on a machine. A resource's value is the
// content of its file or the version of its package.
type provider struct {
	kind mesh.Kind
	m    *machine
	// behaves says how single resources are treated. Absent: honestly.
	behaves map[mesh.ResourceID]behaviour
	// calls lists Apply, Capture and Remove calls, as "apply file:/a".
	calls []string
	// during is called in the middle of each Apply. Nil: nothing is.
	during func(mesh.ResourceID)
}

type undo struct {
	There bool   `json:"there"`
	Was   string `json:"was"`
}

func newProvider(kind mesh.Kind, m *machine) *provider {
	return &provider{kind: kind, m: m, behaves: map[mesh.ResourceID]behaviour{}}
}

func (p *provider) Kind() mesh.Kind { return p.kind }

func wanted(r mesh.Resource) (value string, absent bool) {
	if r.File != nil {
		return string(r.File.Content), r.File.Absent
	}
	return "version " + r.Package.Version, r.Package.Absent
}

func (p *provider) Check(_ context.Context, want mesh.Resource) (resource.Diff, error) {
	switch p.behaves[want.ID()] {
	case unreadable, resultUnknown:
		return resource.Diff{}, resource.Unknown(mesh.ReasonIO, nil, "the state of %s cannot be read", want.ID())
	}
	var d resource.Diff
	have, there := p.m.things[want.ID()]
	value, absent := wanted(want)
	switch {
	case absent && there:
		d.Add("value", have, "")
	case !absent && (!there || have != value):
		d.Add("value", have, value)
	}
	return d, nil
}

func (p *provider) Capture(ctx context.Context, want mesh.Resource) (mesh.Owned, error) {
	p.calls = append(p.calls, "capture "+string(want.ID()))
	diff, err := p.Check(ctx, want)
	if err != nil {
		return mesh.Owned{}, err
	}
	was, there := p.m.things[want.ID()]
	o := mesh.Owned{Resource: want.ID(), Made: mesh.MadeReplaced}
	switch {
	case diff.Zero():
		o.Made = mesh.MadeExisted
	case !there:
		o.Made = mesh.MadeCreated
	}
	o.Undo, err = json.Marshal(undo{There: there, Was: was})
	return o, err
}

func (p *provider) Apply(_ context.Context, want mesh.Resource, _ resource.Diff) error {
	id := want.ID()
	p.calls = append(p.calls, "apply "+string(id))
	if p.during != nil {
		p.during(id)
	}
	value, absent := wanted(want)
	do := func() error {
		if absent {
			return p.m.drop(id)
		}
		return p.m.put(id, value)
	}
	return p.treat(id, do)
}

func (p *provider) treat(id mesh.ResourceID, do func() error) error {
	switch p.behaves[id] {
	case saysDoneDoesNothing:
		return nil
	case failsAndDidIt:
		return errors.Join(do(), resource.Failed(mesh.ReasonTool, nil, "the tool ended with 1").WithOutput("E: no"))
	case fails:
		return resource.Failed(mesh.ReasonTool, nil, "the tool ended with 1").WithOutput("E: no")
	case busy:
		return resource.Deferred(mesh.ReasonLocked, nil, "somebody holds the lock")
	case resultUnknown:
		return errors.Join(do(), resource.Unknown(mesh.ReasonToolUnknown, nil, "how the tool ended is not known"))
	case harms:
		e := resource.Failed(mesh.ReasonHarm, nil, "while it ran a bystander went")
		e.Harm = true
		return errors.Join(do(), e)
	case namesNonsense:
		return &resource.Error{Status: mesh.StatusOK, Detail: "all is well"}
	case otherError:
		return errors.New("no such device")
	}
	return do()
}

func (p *provider) Wrote(_ context.Context, want mesh.Resource) ([]byte, error) {
	value, there := p.m.things[want.ID()]
	return json.Marshal(wrote{undo: undo{There: there, Was: value}, Verified: true})
}

func (p *provider) original(o mesh.Owned) (undo, error) {
	var u undo
	if len(o.Undo) == 0 {
		return u, resource.Failed(mesh.ReasonUndo, nil, "what was there is not known")
	}
	return u, json.Unmarshal(o.Undo, &u)
}

func (p *provider) Remove(_ context.Context, o mesh.Owned) error {
	p.calls = append(p.calls, "remove "+string(o.Resource))
	u, err := p.original(o)
	if err != nil {
		return err
	}
	have, there := p.m.things[o.Resource]
	if there == u.There && have == u.Was {
		return nil
	}
	if len(o.Wrote) > 0 && there {
		wrote, err := readWrote(o)
		if err != nil {
			return err
		}
		if have != wrote.Was && !slices.Contains(wrote.Announced, have) {
			return resource.Conflict(mesh.ReasonModified, nil, "somebody changed it")
		}
	}
	return p.treat(o.Resource, func() error {
		if u.There {
			return p.m.put(o.Resource, u.Was)
		}
		return p.m.drop(o.Resource)
	})
}

func (p *provider) CheckRemoved(_ context.Context, o mesh.Owned) (resource.Diff, error) {
	var d resource.Diff
	u, err := p.original(o)
	if err != nil {
		return d, err
	}
	have, there := p.m.things[o.Resource]
	if there != u.There || have != u.Was {
		d.Add("value", have, u.Was)
	}
	return d, nil
}

// wrote is what was verified, and what was announced since.
type wrote struct {
	undo
	Verified  bool     `json:"verified"`
	Announced []string `json:"announced,omitempty"`
}

func readWrote(o mesh.Owned) (wrote, error) {
	var w wrote
	if len(o.Wrote) == 0 {
		return w, nil
	}
	return w, json.Unmarshal(o.Wrote, &w)
}

// announcing is a provider that says what it is about to write, as the one for
// files does.
type announcing struct{ *provider }

func (p announcing) Announce(_ context.Context, want mesh.Resource, o mesh.Owned) (resource.Announcement, error) {
	w, err := readWrote(o)
	if err != nil {
		return resource.Announcement{}, err
	}
	have, there := p.m.things[want.ID()]
	out := resource.Announcement{Owned: o}
	if w.Verified && (there != w.There || have != w.Was) && !slices.Contains(w.Announced, have) {
		out.Edited = "it had been changed"
	}
	value, _ := wanted(want)
	// Of what was announced before, what stands there is still ours.
	w.Announced = append(slices.DeleteFunc(w.Announced, func(a string) bool { return a != have }), value)
	out.Owned.Wrote, err = json.Marshal(w)
	return out, err
}

// called counts the calls that begin with what.
func (p *provider) called(what string) int {
	n := 0
	for _, c := range p.calls {
		if strings.HasPrefix(c, what) {
			n++
		}
	}
	return n
}

// setProvider takes sets, as a package manager does.
type setProvider struct {
	*provider
	// sets lists the resources of each ApplySet, as "a b".
	sets []string
}

func (p *setProvider) ApplySet(ctx context.Context, changes []resource.Change) []error {
	errs := make([]error, len(changes))
	var names []string
	for i, c := range changes {
		names = append(names, c.Want.Name)
		errs[i] = p.Apply(ctx, c.Want, c.Diff)
	}
	p.sets = append(p.sets, strings.Join(names, " "))
	return errs
}

func (p *setProvider) RemoveSet(ctx context.Context, owned []mesh.Owned) []error {
	errs := make([]error, len(owned))
	for i, o := range owned {
		errs[i] = p.Remove(ctx, o)
	}
	return errs
}

// serviceManager is a fake of the units of a machine.
type serviceManager struct {
	// did lists what was done, as "restart nginx.service" or "daemon-reload".
	did []string
	// broken holds units that do not come back.
	broken map[string]bool
	// says is what is noted of a unit that does.
	says map[string]string
	// deaf: daemon-reload does not work.
	deaf bool
	// file takes a line for each thing done. Empty: memory only.
	file string
	step func()
	// acted is called when a unit came back. Nil: nothing is.
	acted func(unit, verb string)
}

func (s *serviceManager) note(what string) error {
	if s.step != nil {
		s.step()
		defer s.step()
	}
	s.did = append(s.did, what)
	if s.file == "" {
		return nil
	}
	f, err := os.OpenFile(s.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, what)
	return errors.Join(err, f.Close())
}

func (s *serviceManager) Act(_ context.Context, unit, verb string) (string, error) {
	if err := s.note(verb + " " + unit); err != nil {
		return "", err
	}
	if s.broken[unit] {
		return "", resource.Failed(mesh.ReasonUnit, nil, "after the %s %s is failed", verb, unit).WithOutput("exit 1")
	}
	if s.acted != nil {
		s.acted(unit, verb)
	}
	return s.says[unit], nil
}

func (s *serviceManager) DaemonReload(context.Context) error {
	if err := s.note("daemon-reload"); err != nil {
		return err
	}
	if s.deaf {
		return errors.New("no answer")
	}
	return nil
}

// controlPlane believes what is delivered to it, in the way in which the real
// one does: results are taken over, then what is gone is dropped.
type controlPlane struct {
	results map[mesh.ResourceID]mesh.Result
	owned   map[mesh.ResourceID]mesh.Owned
	reports []mesh.Report
	events  []mesh.Event
}

func newControlPlane() *controlPlane {
	return &controlPlane{results: map[mesh.ResourceID]mesh.Result{}, owned: map[mesh.ResourceID]mesh.Owned{}}
}

func (c *controlPlane) take(f mesh.Frame) error {
	switch f.Type {
	case mesh.FrameReport:
		var r mesh.Report
		if err := json.Unmarshal(f.Body, &r); err != nil {
			return err
		}
		c.reports = append(c.reports, r)
		if r.Full {
			clear(c.results)
		}
		for _, one := range r.Results {
			c.results[one.Resource] = one
		}
		for _, id := range r.Gone {
			delete(c.results, id)
		}
	case mesh.FrameOwned:
		var o mesh.OwnedChange
		if err := json.Unmarshal(f.Body, &o); err != nil {
			return err
		}
		if o.Full {
			clear(c.owned)
		}
		for _, one := range o.Owned {
			c.owned[one.Resource] = one
		}
		for _, id := range o.Gone {
			delete(c.owned, id)
		}
	case mesh.FrameEvent:
		var e mesh.Event
		if err := json.Unmarshal(f.Body, &e); err != nil {
			return err
		}
		c.events = append(c.events, e)
	}
	return nil
}

func (c *controlPlane) ledger() string {
	return mesh.LedgerDigest(slices.Collect(maps.Values(c.results)))
}

func (c *controlPlane) copyDigest() string {
	return mesh.OwnedDigest(slices.Collect(maps.Values(c.owned)))
}

func (c *controlPlane) lastReport() mesh.Report {
	if len(c.reports) == 0 {
		return mesh.Report{}
	}
	return c.reports[len(c.reports)-1]
}
