// Package reconcile brings a machine to its declaration: it orders resources,
// applies what differs, reads back, writes the ledger after the read-back,
// removes what both sides agree to remove, and goes on where a crash stopped
// it. It is logic over a Store and Providers.
//
// It touches no machine itself, holds no link, and decides neither when a pass
// is made nor what is declared.
package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/internal/fault"
)

// Units reloads and restarts units of the service manager.
type Units interface {
	// Act reloads or restarts the unit and reads back that it is active. The note
	// is for the operator: what was met although all is well. The error is a
	// *resource.Error with reason unit-failed and the unit's last journal lines
	// when it is not.
	Act(ctx context.Context, unit, verb string) (note string, err error)
	// DaemonReload makes the service manager read its unit files again.
	DaemonReload(ctx context.Context) error
}

// Config is what a Reconciler is made of. Every field is needed.
type Config struct {
	Store     Store
	Providers []resource.Provider
	Units     Units
	// Last names the resource that is changed when all else is done: the host
	// itself. Empty: there is none.
	Last mesh.ResourceID
	// Now is the time that results and reports carry.
	Now func() time.Time
	Log *slog.Logger
}

// Reconciler makes passes, one at a time, called from one goroutine.
type Reconciler struct {
	store     Store
	providers map[mesh.Kind]resource.Provider
	units     Units
	last      mesh.ResourceID
	now       func() time.Time
	log       *slog.Logger
}

// New makes a Reconciler.
func New(cfg Config) *Reconciler {
	r := &Reconciler{
		store:     cfg.Store,
		providers: make(map[mesh.Kind]resource.Provider, len(cfg.Providers)),
		units:     cfg.Units,
		last:      cfg.Last,
		now:       cfg.Now,
		log:       cfg.Log,
	}
	for _, p := range cfg.Providers {
		r.providers[p.Kind()] = p
	}
	return r
}

// Outcome says how a pass ended.
type Outcome struct {
	State   mesh.GenerationState
	Results []mesh.Result
	// Removed are results of resources that are no longer managed.
	Removed []mesh.Result
	Kept    []mesh.ResourceID
	// Drifted lists resources that were found changed by somebody else.
	Drifted []mesh.ResourceID
	// Superseded: the pass stopped at a resource boundary because a newer
	// declaration waits. Nothing was reported for it.
	Superseded bool
}

// Count returns how many results have the status.
func (o Outcome) Count(s mesh.Status) int {
	n := 0
	for _, r := range slices.Concat(o.Results, o.Removed) {
		if r.Status == s {
			n++
		}
	}
	return n
}

// pass is the state of one pass; it lives in one call of Run.
type pass struct {
	*Reconciler
	decl    mesh.Declaration
	trigger mesh.Trigger
	number  uint64
	started time.Time
	results map[mesh.ResourceID]mesh.Result
	entries map[mesh.ResourceID]Entry
	// owned is without Undo unless whole says otherwise.
	owned    map[mesh.ResourceID]mesh.Owned
	whole    map[mesh.ResourceID]bool
	actions  []UnitAction
	removed  []mesh.Result
	drifted  []mesh.ResourceID
	declared map[mesh.ResourceID]mesh.Resource
	digests  map[mesh.ResourceID]string
	// unstored are records of what was found right. Nothing was written for them,
	// so they need not be durable before the pass goes on.
	unstored []Record
	// unchanged lists what the ledger says already, if it is found so again.
	unchanged map[mesh.ResourceID]bool
	// notes are of writes that are under way.
	notes map[mesh.ResourceID][]string
	stop  func() bool
}

// unstoredLimit is how many records of what was found right are stored at once.
const unstoredLimit = 500

// Run makes one pass. It asks superseded at each resource boundary and stops
// there when the answer is yes. The error is that of the store or of ctx;
// resources that cannot be reached are results, not errors.
func (r *Reconciler) Run(ctx context.Context, decl mesh.Declaration, trigger mesh.Trigger, superseded func() bool) (Outcome, error) {
	state, err := r.store.State(ctx)
	if err != nil {
		return Outcome{}, fmt.Errorf("read ledger: %w", err)
	}
	p := &pass{
		Reconciler: r, decl: decl, trigger: trigger, stop: superseded, started: r.now(),
		results:   make(map[mesh.ResourceID]mesh.Result),
		entries:   make(map[mesh.ResourceID]Entry),
		owned:     make(map[mesh.ResourceID]mesh.Owned),
		whole:     make(map[mesh.ResourceID]bool),
		declared:  make(map[mesh.ResourceID]mesh.Resource),
		digests:   make(map[mesh.ResourceID]string),
		unchanged: make(map[mesh.ResourceID]bool),
		notes:     make(map[mesh.ResourceID][]string),
		actions:   state.Units,
	}
	for _, e := range state.Ledger {
		if e.Status != mesh.StatusPending {
			e.Before, e.BeforeWant = e.Status, e.Want
		}
		p.entries[e.Resource] = e
	}
	for _, o := range state.Owned {
		p.owned[o.Resource] = o
	}
	for _, res := range decl.Resources {
		id := res.ID()
		p.declared[id] = res
		p.digests[id] = res.Digest()
		e := p.entries[id]
		p.unchanged[id] = e.Status == mesh.StatusOK && !e.Writing && e.Detail == "" && e.Generation == decl.Generation && e.Want == p.digests[id]
	}
	if err := p.begin(ctx); err != nil {
		return Outcome{}, err
	}
	for _, provider := range r.providers {
		if s, ok := provider.(resource.PassStarter); ok {
			s.StartPass(ctx, decl.Resources)
		}
	}
	done, err := p.work(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if err := p.flush(ctx); err != nil {
		return Outcome{}, err
	}
	out := Outcome{Removed: p.removed, Drifted: p.drifted, Kept: p.kept(), Superseded: !done}
	for _, id := range slices.Sorted(maps.Keys(p.results)) {
		out.Results = append(out.Results, p.results[id])
	}
	if !done {
		out.State = mesh.GenerationOutstanding
		return out, nil
	}
	out.State = mesh.StateOf(out.Results)
	fault.Point("reconcile.before-end")
	err = r.store.EndPass(ctx, End{
		Pass: p.number, Started: p.started, Generation: decl.Generation, Trigger: trigger, State: out.State,
		Kept: out.Kept, Removed: p.removed,
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("store the end of the pass: %w", err)
	}
	return out, nil
}

// begin sets what the declaration is about to pending, and drops ledger entries
// of what is neither declared nor owned. What was as wanted under this very
// generation stays so in the ledger until it is found otherwise.
func (p *pass) begin(ctx context.Context) error {
	var begin []mesh.Result
	var drop []mesh.ResourceID
	for _, res := range p.decl.Resources {
		id := res.ID()
		pending := mesh.Result{Resource: id, Status: mesh.StatusPending, Generation: p.decl.Generation, Want: p.digests[id], At: p.now()}
		if !p.unchanged[id] {
			begin = append(begin, pending)
		}
		p.results[id] = pending
	}
	for id := range p.entries {
		_, declared := p.declared[id]
		_, owned := p.owned[id]
		if !declared && !owned {
			drop = append(drop, id)
		}
	}
	for _, o := range p.releasedOwned() {
		pending := mesh.Result{Resource: o.Resource, Status: mesh.StatusPending, Generation: p.decl.Generation, At: p.now()}
		begin = append(begin, pending)
		p.results[o.Resource] = pending
	}
	for _, id := range p.kept() {
		if _, in := p.entries[id]; in {
			drop = append(drop, id)
		}
	}
	number, err := p.store.BeginPass(ctx, begin, drop)
	if err != nil {
		return fmt.Errorf("begin pass: %w", err)
	}
	p.number = number
	return nil
}

// releasedOwned is what this host owns, is not declared, and was released.
func (p *pass) releasedOwned() []mesh.Owned {
	var out []mesh.Owned
	for _, id := range slices.Sorted(maps.Keys(p.owned)) {
		if _, declared := p.declared[id]; !declared && slices.Contains(p.decl.Released, id) {
			out = append(out, p.owned[id])
		}
	}
	removalOrder(out)
	return out
}

// kept is what this host owns, is not declared, and was not released.
func (p *pass) kept() []mesh.ResourceID {
	var out []mesh.ResourceID
	for _, id := range slices.Sorted(maps.Keys(p.owned)) {
		if _, declared := p.declared[id]; !declared && !slices.Contains(p.decl.Released, id) {
			out = append(out, id)
		}
	}
	return out
}

// work applies, removes, applies once more what a removal may have freed, and
// does the unit actions; then the same for the resource that comes last and what
// requires it. It returns false when it was superseded.
func (p *pass) work(ctx context.Context) (bool, error) {
	sorted, cyclic := order(p.decl.Resources)
	for _, id := range cyclic {
		err := p.record(ctx, Record{Result: p.result(id, mesh.StatusFailed, mesh.ReasonCycle, "it requires itself through other resources; remove one of the requires")})
		if err != nil {
			return false, err
		}
	}
	sorted, last := cutLast(sorted, p.last)
	if done, err := p.applyAll(ctx, sorted); err != nil || !done {
		return done, err
	}
	if done, err := p.removeAll(ctx); err != nil || !done {
		return done, err
	}
	if done, err := p.applyFreed(ctx, sorted); err != nil || !done {
		return done, err
	}
	if done, err := p.actOnUnits(ctx); err != nil || !done || len(last) == 0 {
		return done, err
	}
	// What was done is done; what follows from these alone is still to do.
	p.actions = slices.DeleteFunc(p.actions, func(a UnitAction) bool {
		return !slices.ContainsFunc(last, func(r mesh.Resource) bool { return r.ID() == a.Resource })
	})
	if done, err := p.applyAll(ctx, last); err != nil || !done {
		return done, err
	}
	return p.actOnUnits(ctx)
}

// applyFreed applies once more what was not reached and what the rest of the
// pass may have made room for: a removal, or a package that brought a directory
// or an account.
func (p *pass) applyFreed(ctx context.Context, sorted []mesh.Resource) (bool, error) {
	changed := false
	for _, r := range sorted {
		changed = changed || p.results[r.ID()].Status == mesh.StatusChanged
	}
	again := slices.DeleteFunc(sorted, func(r mesh.Resource) bool {
		switch s := p.results[r.ID()]; {
		case s.Status.Good(), s.Status == mesh.StatusDeferred:
			return true
		case len(p.removed) > 0:
			return false
		default:
			waits := s.Status == mesh.StatusSkipped || s.Reason == mesh.ReasonParent || s.Reason == mesh.ReasonAccount
			return !changed || !waits
		}
	})
	for _, r := range again {
		p.results[r.ID()] = p.result(r.ID(), mesh.StatusPending, "", "")
	}
	return p.applyAll(ctx, again)
}

func (p *pass) applyAll(ctx context.Context, sorted []mesh.Resource) (bool, error) {
	takesSet := func(k mesh.Kind) bool {
		_, ok := p.providers[k].(resource.SetProvider)
		return ok
	}
	for _, group := range groups(sorted, takesSet) {
		if p.stop() {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if err := p.applyGroup(ctx, group); err != nil {
			return false, err
		}
	}
	return true, nil
}

// applyGroup checks each resource of a group, writes those that differ in one
// step, reads each back, and records each.
func (p *pass) applyGroup(ctx context.Context, group []mesh.Resource) error {
	provider, known := p.providers[group[0].Kind]
	var changes []resource.Change
	var intents []Intent
	for _, res := range group {
		if !known {
			reason, detail := mesh.ReasonInternal, fmt.Sprintf("this host has no provider for kind %q", res.Kind)
			if res.Kind == mesh.KindPackage {
				reason, detail = mesh.ReasonNoManager, "this machine has no package manager that this host knows (apt, dnf)"
			}
			if err := p.record(ctx, Record{Result: p.result(res.ID(), mesh.StatusFailed, reason, detail)}); err != nil {
				return err
			}
			continue
		}
		if missing := p.unmet(res); missing != "" {
			detail := fmt.Sprintf("%s is not as wanted; this is tried again when it is", missing)
			if err := p.record(ctx, Record{Result: p.result(res.ID(), mesh.StatusSkipped, mesh.ReasonDependency, detail)}); err != nil {
				return err
			}
			continue
		}
		change, intent, err := p.prepare(ctx, provider, res)
		if err != nil {
			return err
		}
		if change != nil {
			changes = append(changes, *change)
			intents = append(intents, intent)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := p.flush(ctx); err != nil {
		return err
	}
	if err := p.store.Intend(ctx, intents); err != nil {
		return fmt.Errorf("store what is about to be written: %w", err)
	}
	for _, in := range intents {
		p.unchanged[in.Resource] = false
		if in.Owned != nil {
			p.owned[in.Resource], p.whole[in.Resource] = *in.Owned, true
		}
		if in.Event != nil {
			p.drifted = append(p.drifted, in.Resource)
			// Looked at again in the same pass, it is the same drift.
			entry := p.entries[in.Resource]
			entry.Before = ""
			p.entries[in.Resource] = entry
		}
	}
	fault.Point("reconcile.before-apply")
	errs := make([]error, len(changes))
	if set, ok := provider.(resource.SetProvider); ok {
		errs = set.ApplySet(ctx, changes)
	} else {
		for i, c := range changes {
			errs[i] = provider.Apply(ctx, c.Want, c.Diff)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	fault.Point("reconcile.after-apply")
	for i, c := range changes {
		if err := p.readBack(ctx, provider, c.Want, errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// follow lists the unit actions that a change asks for.
func (p *pass) follow(res mesh.Resource) []UnitAction {
	actions := reread(res.ID())
	if res.OnChange == nil {
		return actions
	}
	for _, u := range res.OnChange.Reload {
		actions = append(actions, UnitAction{Resource: res.ID(), Unit: u, Verb: verbReload})
	}
	for _, u := range res.OnChange.Restart {
		actions = append(actions, UnitAction{Resource: res.ID(), Unit: u, Verb: verbRestart})
	}
	return actions
}

// overtaken reports whether an action that an earlier pass left is one that the
// declaration asks for no more, as when it named a unit that there is not.
func (p *pass) overtaken(res mesh.Resource) bool {
	asked := p.follow(res)
	return slices.ContainsFunc(p.actions, func(a UnitAction) bool {
		return a.Resource == res.ID() && a.Verb != verbReread && !slices.Contains(asked, a)
	})
}

// reread is what follows when a unit file was written or removed.
func reread(id mesh.ResourceID) []UnitAction {
	if id.Kind() != mesh.KindFile || !isUnitFile(id.Name()) {
		return nil
	}
	return []UnitAction{{Resource: id, Verb: verbReread}}
}

// unitPlaces are the directories whose files are units, or are made into units
// by the generators of systemd and podman.
var unitPlaces = []string{
	"/etc/systemd/system/", "/run/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/", "/usr/local/lib/systemd/system/",
	"/etc/systemd/system.control/", "/etc/systemd/system-generators/", "/usr/local/lib/systemd/system-generators/", "/usr/lib/systemd/system-generators/",
	"/etc/init.d/", "/etc/containers/systemd/", "/usr/share/containers/systemd/",
}

// isUnitFile reports whether the service manager reads the file as a unit, or
// makes units of it.
func isUnitFile(path string) bool {
	if path == "/etc/fstab" || path == "/etc/crypttab" {
		return true
	}
	return slices.ContainsFunc(unitPlaces, func(dir string) bool { return strings.HasPrefix(path, dir) })
}

// unmet names the first required resource that is not as wanted; empty: none.
func (p *pass) unmet(res mesh.Resource) mesh.ResourceID {
	for _, need := range res.Requires {
		if _, declared := p.declared[need]; !declared || !p.results[need].Status.Good() {
			return need
		}
	}
	return ""
}
