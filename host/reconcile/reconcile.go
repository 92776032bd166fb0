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
	"errors"
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
	// Act reloads or restarts the unit and reads back that it is active. The
	// error is a *resource.Error with reason unit-failed and the unit's last
	// journal lines when it is not.
	Act(ctx context.Context, unit, verb string) error
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
	if err := p.actOnUnits(ctx); err != nil || len(last) == 0 {
		return err == nil, err
	}
	// What was done is done; what follows from these alone is still to do.
	p.actions = slices.DeleteFunc(p.actions, func(a UnitAction) bool {
		return !slices.ContainsFunc(last, func(r mesh.Resource) bool { return r.ID() == a.Resource })
	})
	if done, err := p.applyAll(ctx, last); err != nil || !done {
		return done, err
	}
	return true, p.actOnUnits(ctx)
}

// applyFreed applies once more what was not reached and what a removal may have
// made room for.
func (p *pass) applyFreed(ctx context.Context, sorted []mesh.Resource) (bool, error) {
	if len(p.removed) > 0 {
		again := slices.DeleteFunc(sorted, func(r mesh.Resource) bool {
			s := p.results[r.ID()].Status
			return s.Good() || s == mesh.StatusDeferred
		})
		for _, r := range again {
			p.results[r.ID()] = p.result(r.ID(), mesh.StatusPending, "", "")
		}
		if done, err := p.applyAll(ctx, again); err != nil || !done {
			return done, err
		}
	}
	return true, nil
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

// prepare checks one resource. What is right, or cannot be read, is recorded;
// what has to be written comes back.
func (p *pass) prepare(ctx context.Context, provider resource.Provider, res mesh.Resource) (*resource.Change, Intent, error) {
	id := res.ID()
	want := p.held(provider, res)
	diff, err := provider.Check(ctx, want)
	if err != nil {
		return nil, Intent{}, p.recordError(ctx, id, err)
	}
	entry := p.entries[id]
	owned, isOwned := p.owned[id]
	if !diff.Zero() {
		intent, err := p.announce(ctx, provider, want, diff)
		if err != nil {
			return nil, Intent{}, p.recordError(ctx, id, err)
		}
		return &resource.Change{Want: want, Diff: diff, Resumed: entry.Writing}, intent, nil
	}
	status := mesh.StatusOK
	if entry.Writing {
		// It was written, and nobody could say so then.
		status = mesh.StatusChanged
	}
	record := Record{Result: p.result(id, status, "", "")}
	if status == mesh.StatusChanged {
		record.Units = p.follow(res)
	}
	if !isOwned {
		owned, err = p.capture(ctx, provider, res)
		if err != nil {
			return nil, Intent{}, p.recordError(ctx, id, err)
		}
		owned.Made = mesh.MadeExisted
	}
	if record.Owned, err = p.wrote(ctx, provider, res, owned); err != nil {
		return nil, Intent{}, p.recordError(ctx, id, err)
	}
	return nil, Intent{}, p.record(ctx, record)
}

// held is the resource with what it leaves open as it was last verified.
func (p *pass) held(provider resource.Provider, res mesh.Resource) mesh.Resource {
	if h, ok := provider.(resource.Holder); ok {
		if owned, isOwned := p.owned[res.ID()]; isOwned {
			return h.Hold(res, owned)
		}
	}
	return res
}

// announce gathers what must be stored before a resource is written.
func (p *pass) announce(ctx context.Context, provider resource.Provider, want mesh.Resource, diff resource.Diff) (Intent, error) {
	id := want.ID()
	intent := Intent{Resource: id}
	entry := p.entries[id]
	_, isOwned := p.owned[id]
	var owned mesh.Owned
	var err error
	if isOwned {
		owned, err = p.ownedWhole(ctx, id)
	} else if owned, err = p.capture(ctx, provider, want); err == nil {
		captured := owned
		intent.Owned = &captured
	}
	if err != nil {
		return Intent{}, err
	}
	edited := ""
	if a, ok := provider.(resource.Announcer); ok {
		said, err := a.Announce(ctx, want, owned)
		if err != nil {
			return Intent{}, err
		}
		if string(said.Owned.Wrote) != string(owned.Wrote) || string(said.Owned.Undo) != string(owned.Undo) {
			intent.Owned = &said.Owned
		}
		edited = said.Edited
		notes := said.Notes
		if edited != "" {
			notes = append([]string{edited}, notes...)
		}
		p.notes[id] = notes
	}
	asBefore := entry.BeforeWant == p.digests[id]
	if entry.Before.Good() && !entry.Writing && (asBefore || edited != "") {
		detail := diff.String()
		if edited != "" {
			detail = edited
		}
		intent.Event = &mesh.Event{Kind: mesh.EventDrift, Resource: id, Detail: detail, At: p.now()}
	}
	return intent, nil
}

// ownedWhole returns what is held about a resource together with what undoing it
// needs.
func (p *pass) ownedWhole(ctx context.Context, id mesh.ResourceID) (mesh.Owned, error) {
	if !p.whole[id] {
		owned, err := p.store.Owned(ctx, id)
		if err != nil {
			return mesh.Owned{}, &storeError{err}
		}
		p.owned[id], p.whole[id] = owned, true
	}
	return p.owned[id], nil
}

// storeError ends a pass: it is no result of a resource.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

func (p *pass) capture(ctx context.Context, provider resource.Provider, res mesh.Resource) (mesh.Owned, error) {
	owned, err := provider.Capture(ctx, res)
	if err != nil {
		return mesh.Owned{}, err
	}
	owned.Resource = res.ID()
	owned.Generation = p.decl.Generation
	return owned, nil
}

// wrote sets what a later removal compares with. It returns nil when nothing
// changed in what is held.
func (p *pass) wrote(ctx context.Context, provider resource.Provider, res mesh.Resource, owned mesh.Owned) (*mesh.Owned, error) {
	wrote, err := provider.Wrote(ctx, res)
	if err != nil {
		return nil, err
	}
	if held, ok := p.owned[res.ID()]; ok {
		if string(held.Wrote) == string(wrote) {
			return nil, nil
		}
		if owned, err = p.ownedWhole(ctx, res.ID()); err != nil {
			return nil, err
		}
	}
	owned.Wrote = wrote
	return &owned, nil
}

// readBack looks at the machine after a write, whatever the write said, and
// records what it saw.
func (p *pass) readBack(ctx context.Context, provider resource.Provider, res mesh.Resource, applied error) error {
	id := res.ID()
	diff, err := provider.Check(ctx, res)
	if err != nil {
		p.setWriting(id, unsettled)
		return p.recordError(ctx, id, errors.Join(err, applied))
	}
	if !diff.Zero() {
		if applied != nil {
			switch resource.AsError(applied).Status {
			case mesh.StatusUnknown:
				// The tool may still be at work.
				p.setWriting(id, unsettled)
			case mesh.StatusDeferred:
				// Nothing was done now; what was before is not better known.
			default:
				p.setWriting(id, settled)
			}
			record := p.errorRecord(ctx, id, applied)
			record.Disown = p.untouched(ctx, provider, id)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return p.record(ctx, record)
		}
		p.setWriting(id, settled)
		return p.record(ctx, Record{Result: p.result(id, mesh.StatusFailed, mesh.ReasonReadBack, "it was written without an error and reads back differently: "+diff.String())})
	}
	owned, err := p.wrote(ctx, provider, res, p.owned[id])
	if err != nil {
		return p.recordError(ctx, id, err)
	}
	if applied != nil {
		p.log.WarnContext(ctx, "the tool reported an error and the machine is as wanted", "resource", id, "error", applied)
	}
	record := Record{Result: p.result(id, mesh.StatusChanged, "", p.note(ctx, provider, res, applied)), Owned: owned, Units: p.follow(res)}
	fault.Point("reconcile.before-record")
	if err := p.record(ctx, record); err != nil {
		return err
	}
	fault.Point("reconcile.after-record")
	return nil
}

// note joins what was known before the write, what the provider says of it
// afterwards, and the error that it reported although all is as wanted.
func (p *pass) note(ctx context.Context, provider resource.Provider, res mesh.Resource, applied error) string {
	notes := slices.Clone(p.notes[res.ID()])
	if n, ok := provider.(resource.Noter); ok {
		notes = append(notes, n.Notes(ctx, res)...)
	}
	if e := resource.AsError(applied); e != nil && e.Status != mesh.StatusDeferred {
		notes = append(notes, "it is as wanted although an error was reported: "+e.Detail)
	}
	all := strings.Join(notes, "; ")
	if all != "" {
		p.log.InfoContext(ctx, "resource changed", "resource", res.ID(), "detail", all)
	}
	return all
}

// untouched reports whether a write that failed left nothing of the mesh: it was
// never read back as wanted before, and what there was still stands. Then it is
// not owned: what comes about there later is somebody else's.
func (p *pass) untouched(ctx context.Context, provider resource.Provider, id mesh.ResourceID) bool {
	owned, isOwned := p.owned[id]
	if !isOwned || len(owned.Wrote) > 0 || owned.Partial || p.entries[id].Writing {
		return false
	}
	owned, err := p.ownedWhole(ctx, id)
	if err != nil {
		return false
	}
	diff, err := provider.CheckRemoved(ctx, owned)
	return err == nil && diff.Zero()
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

// reread is what follows when a unit file was written or removed.
func reread(id mesh.ResourceID) []UnitAction {
	if id.Kind() != mesh.KindFile || !isUnitFile(id.Name()) {
		return nil
	}
	return []UnitAction{{Resource: id, Verb: verbReread}}
}

func isUnitFile(path string) bool {
	for _, dir := range []string{"/etc/systemd/system/", "/run/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/", "/usr/local/lib/systemd/system/"} {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return false
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

func (p *pass) result(id mesh.ResourceID, status mesh.Status, reason mesh.Reason, detail string) mesh.Result {
	r := mesh.Result{Resource: id, Status: status, Reason: reason, Detail: detail, Generation: p.decl.Generation, At: p.now()}
	r.Want = p.digests[id]
	return r
}

func (p *pass) recordError(ctx context.Context, id mesh.ResourceID, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var lost *storeError
	if errors.As(err, &lost) {
		return lost.error
	}
	return p.record(ctx, p.errorRecord(ctx, id, err))
}

func (p *pass) errorRecord(ctx context.Context, id mesh.ResourceID, err error) Record {
	e := resource.AsError(err)
	switch e.Status {
	case mesh.StatusFailed, mesh.StatusDeferred, mesh.StatusUnknown, mesh.StatusConflict:
	default:
		// No error makes a resource good.
		e = resource.Failed(mesh.ReasonInternal, err, "its provider names an error with status %q: %v", e.Status, err)
	}
	if e.Reason == mesh.ReasonInternal {
		p.log.ErrorContext(ctx, "a resource could not be handled", "resource", id, "error", err)
	}
	result := p.result(id, e.Status, e.Reason, e.Detail)
	result.Output = e.Output
	return Record{Result: result}
}

func (p *pass) record(ctx context.Context, record Record) error {
	id := record.Result.Resource
	if _, err := p.results[id].Status.Step(record.Result.Status); err != nil {
		return fmt.Errorf("record %s: %w", id, err)
	}
	if record.Result.Status.Good() {
		p.setWriting(id, settled)
	}
	record.Unfinished = p.entries[id].Writing
	found := record.Result.Status == mesh.StatusOK && len(record.Units) == 0
	switch {
	case found && record.Owned == nil && p.unchanged[id]:
		// The ledger says so already.
	default:
		p.unstored = append(p.unstored, record)
		if found && len(p.unstored) < unstoredLimit {
			break
		}
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	p.actions = append(p.actions, record.Units...)
	switch {
	case record.Forget:
		delete(p.results, id)
		delete(p.owned, id)
		p.removed = append(p.removed, record.Result)
	default:
		p.results[id] = record.Result
		p.unchanged[id] = p.unchanged[id] && found
		if record.Owned != nil {
			p.owned[id], p.whole[id] = *record.Owned, true
		}
		if record.Disown {
			delete(p.owned, id)
			delete(p.whole, id)
		}
	}
	return nil
}

// flush stores the records that were held back.
func (p *pass) flush(ctx context.Context) error {
	if len(p.unstored) == 0 {
		return nil
	}
	if err := p.store.Record(ctx, p.unstored); err != nil {
		return fmt.Errorf("record %s: %w", p.unstored[len(p.unstored)-1].Result.Resource, err)
	}
	p.unstored = nil
	return nil
}

// What is known of a write that was announced.
const (
	settled   = false
	unsettled = true
)

func (p *pass) setWriting(id mesh.ResourceID, writing bool) {
	entry := p.entries[id]
	entry.Writing = writing
	p.entries[id] = entry
}
