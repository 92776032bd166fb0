package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/mesh/internal/fault"
)

// draft is the next generation while changes are applied to it.
type draft struct {
	base      *state
	edits     map[partKey]*edit
	withdrawn map[string]withdrawn // what base holds, when nothing was changed
	own       bool                 // whether withdrawn is the draft's own
	adding    map[string]*staged   // staged files that enter the pool, by pool digest
}

// edit is what a draft changes in one part. A part with an edit is built, even
// when the edit is empty.
type edit struct {
	added []*record
	gone  map[*record]bool
}

func (s *state) draft() *draft {
	return &draft{base: s, edits: map[partKey]*edit{}, withdrawn: s.withdrawn, adding: map[string]*staged{}}
}

func (d *draft) clone() *draft {
	c := &draft{base: d.base, edits: make(map[partKey]*edit, len(d.edits)), withdrawn: maps.Clone(d.withdrawn), own: true, adding: maps.Clone(d.adding)}
	for k, e := range d.edits {
		c.edits[k] = &edit{added: slices.Clone(e.added), gone: maps.Clone(e.gone)}
	}
	return c
}

// edit returns the edit of a part, and makes the part part of the change.
func (d *draft) edit(k partKey) *edit {
	e := d.edits[k]
	if e == nil {
		e = &edit{gone: map[*record]bool{}}
		d.edits[k] = e
	}
	return e
}

// has reports whether the draft has this part.
func (d *draft) has(k partKey) bool { return d.base.parts[k] != nil || d.edits[k] != nil }

// in returns the record of a package in one part, nil when it is not there.
func (d *draft) in(k partKey, p Package) *record {
	if e := d.edits[k]; e != nil {
		for _, rec := range e.added {
			if rec.Name == p.Name && rec.Version == p.Version && rec.Arch == p.Arch {
				return rec
			}
		}
	}
	if base := d.base.parts[k]; base != nil {
		if rec := base.find(p); rec != nil && (d.edits[k] == nil || !d.edits[k].gone[rec]) {
			return rec
		}
	}
	return nil
}

// anywhere returns the record of a package in whichever suite holds it.
func (d *draft) anywhere(p Package) *record {
	for k := range d.base.parts {
		if k.format != p.Format {
			continue
		}
		if rec := d.in(k, p); rec != nil {
			return rec
		}
	}
	for k := range d.edits {
		if k.format != p.Format || d.base.parts[k] != nil {
			continue
		}
		if rec := d.in(k, p); rec != nil {
			return rec
		}
	}
	return nil
}

// named returns the records of a name in one part, oldest version first.
func (d *draft) named(k partKey, name string) []*record {
	var out []*record
	e := d.edits[k]
	if base := d.base.parts[k]; base != nil {
		for _, rec := range base.named(name) {
			if e == nil || !e.gone[rec] {
				out = append(out, rec)
			}
		}
	}
	if e != nil {
		for _, rec := range e.added {
			if rec.Name == name {
				out = append(out, rec)
			}
		}
		slices.SortFunc(out, compareRecords)
	}
	return out
}

func (d *draft) add(k partKey, rec *record) {
	e := d.edit(k)
	e.added = append(e.added, rec)
	if _, was := d.withdrawn[rec.ID()]; was {
		d.ownWithdrawn()
		delete(d.withdrawn, rec.ID())
	}
}

// drop takes a record out of one part. Its name and version are remembered when
// no other suite holds them.
func (d *draft) drop(k partKey, rec *record) {
	e := d.edit(k)
	if i := slices.Index(e.added, rec); i >= 0 {
		e.added = slices.Delete(e.added, i, i+1)
	} else {
		e.gone[rec] = true
	}
	if d.anywhere(rec.Package) == nil {
		d.ownWithdrawn()
		d.withdrawn[rec.ID()] = withdrawn{Content: rec.Content, Uploaded: rec.Uploaded}
		delete(d.adding, rec.SHA256)
	}
}

func (d *draft) ownWithdrawn() {
	if d.own {
		return
	}
	if d.withdrawn = maps.Clone(d.withdrawn); d.withdrawn == nil {
		d.withdrawn = map[string]withdrawn{}
	}
	d.own = true
}

// ensureSuite gives the suite its two parts.
func (d *draft) ensureSuite(suite string) {
	for _, f := range []Format{Deb, RPM} {
		if k := (partKey{suite, f}); !d.has(k) {
			d.edit(k)
		}
	}
}

// all returns every record of one part, in the part's order.
func (d *draft) all(k partKey) []*record {
	base, e := d.base.parts[k], d.edits[k]
	switch {
	case base == nil:
		base = &part{key: k}
	case e == nil:
		return base.records
	}
	return base.with(e.added, e.gone).records
}

// parts returns the parts of the generation that the draft describes.
func (d *draft) parts() map[partKey]*part {
	out := maps.Clone(d.base.parts)
	if out == nil {
		out = map[partKey]*part{}
	}
	for k, e := range d.edits {
		base := d.base.parts[k]
		if base == nil {
			base = &part{key: k}
		}
		out[k] = base.with(e.added, e.gone)
	}
	return out
}

// change is one caller's wish. apply sees the draft with all earlier changes
// of the batch in it; when it refuses, its draft is thrown away.
type change struct {
	apply func(*draft) error
	done  chan struct{} // closed when generation and err are set
	gen   uint64
	err   error
}

// commit makes a change part of the next generation and returns that
// generation's number after it was switched to. Changes that wait at the same
// time share one generation. A context that ends while the change waits takes
// it out of the queue; once a commit has begun, its end is waited for.
func (r *Repo) commit(ctx context.Context, apply func(*draft) error) (uint64, error) {
	c := &change{apply: apply, done: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, c)
	r.mu.Unlock()

	select {
	case <-c.done:
		return c.gen, c.err
	case <-ctx.Done():
		if r.unqueue(c) {
			return 0, ctx.Err()
		}
		<-c.done
		return c.gen, c.err
	case <-r.closed:
		return 0, ErrClosed
	case <-r.turn:
	}
	defer func() { r.turn <- struct{}{} }()
	select {
	case <-c.done: // another holder of the turn took it along
		return c.gen, c.err
	default:
	}
	r.mu.Lock()
	batch := r.queue
	r.queue = nil
	r.mu.Unlock()
	// The batch holds other callers' changes: this caller's context must not
	// end them.
	r.commitBatch(context.WithoutCancel(ctx), batch)
	return c.gen, c.err
}

func (r *Repo) unqueue(c *change) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, q := range r.queue {
		if q == c {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return true
		}
	}
	return false
}

func (r *Repo) commitBatch(ctx context.Context, batch []*change) {
	cur := r.state.Load()
	d := cur.draft()
	for _, c := range batch {
		next := d
		if len(batch) > 1 {
			next = d.clone()
		}
		if c.err = c.apply(next); c.err == nil {
			d = next
		} else if len(batch) == 1 {
			d = cur.draft()
		}
	}
	gen, err := cur.generation, error(nil)
	if len(d.edits) > 0 {
		if err = r.publish(ctx, cur, d); err == nil {
			gen = r.state.Load().generation
		}
	}
	for _, c := range batch {
		if c.err == nil {
			c.gen, c.err = gen, err
		}
		close(c.done)
	}
}

// publish builds, reads back and switches to the generation that d describes.
// The caller holds the turn. On error the tree is as it was.
func (r *Repo) publish(ctx context.Context, cur *state, d *draft) (err error) {
	next := &state{
		generation: cur.generation + 1, time: r.cfg.Now().UTC(),
		parts: d.parts(), withdrawn: d.withdrawn,
	}
	var entered []string
	defer func() {
		if err != nil {
			r.abandon(next, d, entered)
		}
	}()
	for sha, s := range d.adding {
		moved, err := r.enterPool(sha, s)
		if err != nil {
			return err
		}
		if moved {
			entered = append(entered, sha)
		}
	}
	if err := r.syncPool(entered); err != nil {
		return err
	}
	fault.Point("repo.after-pool")

	g, gctx := errgroup.WithContext(ctx)
	for k := range d.edits {
		p := next.parts[k]
		g.Go(func() error {
			if err := r.buildPart(gctx, p, cur.parts[k], next); err != nil {
				return fmt.Errorf("build %s of suite %s: %w", k.format, k.suite, err)
			}
			if err := r.verifyPart(p); err != nil {
				return fmt.Errorf("read back %s of suite %s: %w", k.format, k.suite, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	fault.Point("repo.after-build")
	if err := r.writeGeneration(next); err != nil {
		return err
	}
	fault.Point("repo.before-switch")
	if err := r.switchTo(next); err != nil {
		return err
	}
	fault.Point("repo.after-switch")
	r.adopt(next, d)
	r.collect()
	return nil
}

// enterPool moves a staged directory to its place in the pool and reports
// whether it did: the same file may be there from an earlier generation.
func (r *Repo) enterPool(sha string, s *staged) (bool, error) {
	to := r.pool(sha[:2], sha)
	if err := os.MkdirAll(r.pool(sha[:2]), 0o755); err != nil {
		return false, fmt.Errorf("make pool directory: %w", err)
	}
	if _, err := os.Stat(to); err == nil {
		// The digest is the same, so the record may only differ in its dates.
		rec, err := r.loadRecord(sha)
		if err != nil {
			return false, err
		}
		if err := r.readBack(r.filePath(rec), rec); err != nil {
			return false, fmt.Errorf("file in the pool: %w", err)
		}
		return false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look into the pool: %w", err)
	}
	if err := os.Rename(s.dir, to); err != nil {
		return false, fmt.Errorf("move file into the pool: %w", err)
	}
	return true, nil
}

// syncPool makes the pool's new entries durable.
func (r *Repo) syncPool(entered []string) error {
	dirs := map[string]bool{}
	for _, sha := range entered {
		dirs[r.pool(sha[:2])], dirs[r.pool()] = true, true
	}
	var g errgroup.Group
	for d := range dirs {
		g.Go(func() error { return syncPath(d) })
	}
	return g.Wait()
}

func (r *Repo) filePath(rec *record) string { return r.cfg.Dir + "/" + rec.File }

// abandon removes what an unsuccessful publish wrote. What it cannot remove is
// removed at the next start.
func (r *Repo) abandon(next *state, d *draft, entered []string) {
	os.RemoveAll(r.public("gen", genName(next.generation)))
	for k := range d.edits {
		os.RemoveAll(r.public("parts", partName(k, next.generation)))
	}
	for _, sha := range entered {
		if r.refs[sha] == 0 {
			os.RemoveAll(r.pool(sha[:2], sha))
		}
	}
}

func (r *Repo) writeGeneration(s *state) error {
	t, err := newTree(r.public("gen", genName(s.generation)))
	if err != nil {
		return err
	}
	for k, p := range s.parts {
		name := "dists/" + k.suite
		if k.format == RPM {
			name = "rpm/" + k.suite
		}
		if err := t.symlink("../../../parts/"+p.dir+"/tree", name); err != nil {
			return err
		}
	}
	if err := t.symlink("../../../pool", "pool"); err != nil {
		return err
	}
	b, err := s.stored()
	if err != nil {
		return fmt.Errorf("write generation: %w", err)
	}
	if err := t.write("state.json", b); err != nil {
		return err
	}
	return t.sync()
}

// switchTo makes s the generation that readers see, by one rename.
func (r *Repo) switchTo(s *state) error {
	tmp := r.public("current.new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear an earlier switch: %w", err)
	}
	if err := os.Symlink("gen/"+genName(s.generation), tmp); err != nil {
		return fmt.Errorf("prepare switch: %w", err)
	}
	if err := os.Rename(tmp, r.public("current")); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := syncPath(r.public()); err != nil {
		// Switched, but a power cut could undo it: say so rather than
		// claim success, and take the old generation back.
		if back := r.kept; len(back) > 0 {
			os.Symlink("gen/"+genName(back[0].generation), tmp)
			os.Rename(tmp, r.public("current"))
		}
		return fmt.Errorf("make switch durable: %w", err)
	}
	return nil
}

// adopt makes s current in memory.
func (r *Repo) adopt(s *state, d *draft) {
	for k := range d.edits {
		r.count(s.parts[k], 1)
		if old := d.base.parts[k]; old != nil {
			// Only the current indexes are built upon; hundreds of old ones add up.
			old.indexes = nil
		}
	}
	r.kept = append([]*state{s}, r.kept...)
	r.state.Store(s)
}

func (r *Repo) count(p *part, by int) {
	for _, rec := range p.records {
		if r.refs[rec.SHA256] += by; r.refs[rec.SHA256] == 0 {
			delete(r.refs, rec.SHA256)
		}
	}
}

// keeps reports whether the generation at place i of kept, newest first, must
// stay readable.
func (r *Repo) keeps(i int, now time.Time) bool {
	if i <= r.cfg.Keep.Min {
		return true
	}
	return i <= r.cfg.Keep.Max && now.Sub(r.kept[i-1].time) < r.cfg.Keep.For
}

// collect removes generations that no reader can be in the middle of, and the
// files that only they named. What cannot be removed now is removed at the
// next start, so it is logged and does not undo a publish that was done.
func (r *Repo) collect() {
	now := r.cfg.Now()
	n := len(r.kept)
	for n > 1 && !r.keeps(n-1, now) {
		n--
	}
	gone := r.kept[n:]
	r.kept = r.kept[:n:n]
	if len(gone) == 0 {
		return
	}
	used := map[*part]bool{}
	for _, s := range r.kept {
		for _, p := range s.parts {
			used[p] = true
		}
	}
	var errs []error
	seen := map[*part]bool{}
	for _, s := range gone {
		errs = append(errs, os.RemoveAll(r.public("gen", genName(s.generation))))
		for _, p := range s.parts {
			if used[p] || seen[p] {
				continue
			}
			seen[p] = true
			errs = append(errs, os.RemoveAll(r.public("parts", p.dir)))
			r.count(p, -1)
			for _, rec := range p.records {
				if r.refs[rec.SHA256] == 0 {
					errs = append(errs, os.RemoveAll(r.pool(rec.SHA256[:2], rec.SHA256)))
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("old repository files could not be removed; the next start removes them", "error", err)
	}
}
