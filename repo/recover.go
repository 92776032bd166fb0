package repo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// recover brings the repository to the state of its published generation, or
// makes the first one, and removes everything that a crash left behind. It
// runs before anybody else sees the repository.
func (r *Repo) recover(ctx context.Context) error {
	link, err := os.Readlink(r.public("current"))
	if errors.Is(err, fs.ErrNotExist) {
		r.state.Store(&state{})
		if err := r.sweep(); err != nil {
			return err
		}
		d := (&state{}).draft()
		d.ensureSuite(DefaultSuite)
		if err := r.publish(ctx, &state{}, d); err != nil {
			return fmt.Errorf("make the first generation: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the published generation: %w", err)
	}
	name, found := strings.CutPrefix(link, "gen/")
	current, ok := parseGenName(name)
	if !found || !ok {
		return fmt.Errorf("find the published generation: public/current points at %q", clip(link))
	}
	if err := r.loadKept(current); err != nil {
		return err
	}
	if err := r.sweep(); err != nil {
		return err
	}
	return r.repair(ctx)
}

// loadKept reads the current generation, which must be readable, and as many
// older ones as are kept whatever their age.
func (r *Repo) loadKept(current uint64) error {
	dir, err := os.ReadDir(r.public("gen"))
	if err != nil {
		return fmt.Errorf("list generations: %w", err)
	}
	var numbers []uint64
	for _, e := range dir {
		if n, ok := parseGenName(e.Name()); ok && n <= current {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int { return cmp.Compare(b, a) })
	if len(numbers) == 0 || numbers[0] != current {
		return fmt.Errorf("the published generation %d is not in %s", current, r.public("gen"))
	}
	if len(numbers) > r.cfg.Keep.Min+1 {
		numbers = numbers[:r.cfg.Keep.Min+1]
	}
	l := loader{r: r, parts: map[string]*part{}, records: map[string]*record{}}
	for i, n := range numbers {
		s, err := l.generation(n)
		if err != nil && i == 0 {
			return fmt.Errorf("read the published generation: %w", err)
		}
		if err != nil {
			r.log.Warn("an old generation of the repository cannot be read and is dropped", "generation", n, "error", err)
			break
		}
		r.kept = append(r.kept, s)
	}
	for _, p := range l.parts {
		r.count(p, 1)
	}
	r.state.Store(r.kept[0])
	return nil
}

// loader reads stored generations and shares what they have in common.
type loader struct {
	r       *Repo
	parts   map[string]*part
	records map[string]*record
}

func (l *loader) generation(n uint64) (*state, error) {
	var g storedGeneration
	if err := readJSON(l.r.public("gen", genName(n), "state.json"), &g); err != nil {
		return nil, err
	}
	if g.Format != storedFormat || g.Generation != n {
		return nil, fmt.Errorf("state file of generation %d: format %d, generation %d", n, g.Format, g.Generation)
	}
	s := &state{generation: n, time: g.Time, parts: map[partKey]*part{}, withdrawn: g.Withdrawn}
	fresh := map[string]*part{}
	for _, ref := range g.Parts {
		k := partKey{ref.Suite, ref.Format}
		p := l.parts[ref.Dir]
		if p == nil {
			var err error
			if p, err = l.part(k, ref.Dir); err != nil {
				return nil, err
			}
			fresh[ref.Dir] = p
		}
		s.parts[k] = p
	}
	maps.Copy(l.parts, fresh)
	return s, nil
}

func (l *loader) part(k partKey, dir string) (*part, error) {
	var sp storedPart
	if err := readJSON(l.r.public("parts", dir, "packages.json"), &sp); err != nil {
		return nil, err
	}
	if sp.Format != storedFormat {
		return nil, fmt.Errorf("part %s is of format %d", dir, sp.Format)
	}
	p := &part{key: k, dir: dir, own: sp.Own, date: sp.Date, modified: sp.Modified, validUntil: sp.ValidUntil}
	for _, sha := range sp.Packages {
		rec := l.records[sha]
		if rec == nil {
			var err error
			if rec, err = l.r.loadRecord(sha); err != nil {
				return nil, err
			}
			l.records[sha] = rec
		}
		p.records = append(p.records, rec)
	}
	return p, nil
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// sweep removes what no kept generation names: half-built trees, staged
// uploads, pool files of a publish that was not switched to.
func (r *Repo) sweep() error {
	gens, parts := map[string]bool{}, map[string]bool{}
	for _, s := range r.kept {
		gens[genName(s.generation)] = true
		for _, p := range s.parts {
			parts[p.dir] = true
		}
	}
	err := errors.Join(
		removeUnless(r.public("gen"), gens),
		removeUnless(r.public("parts"), parts),
		removeUnless(r.staging(), nil),
	)
	if e := os.Remove(r.public("current.new")); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	prefixes, e := os.ReadDir(r.pool())
	err = errors.Join(err, e)
	for _, d := range prefixes {
		if len(d.Name()) != 2 || !d.IsDir() {
			continue
		}
		used := map[string]bool{}
		for sha := range r.refs {
			if sha[:2] == d.Name() {
				used[sha] = true
			}
		}
		err = errors.Join(err, removeUnless(r.pool(d.Name()), used))
	}
	if err != nil {
		return fmt.Errorf("remove what an interrupted publish left: %w", err)
	}
	return nil
}

func removeUnless(dir string, keep map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] {
			err = errors.Join(err, os.RemoveAll(dir+"/"+e.Name()))
		}
	}
	return err
}

// repair reads the published indexes back and builds the ones that do not
// verify again, as a new generation: after damage, or with a new key.
func (r *Repo) repair(ctx context.Context) error {
	cur := r.state.Load()
	d := cur.draft()
	d.ensureSuite(DefaultSuite)
	for _, k := range slices.SortedFunc(maps.Keys(cur.parts), func(a, b partKey) int {
		return cmp.Or(cmp.Compare(a.suite, b.suite), cmp.Compare(a.format, b.format))
	}) {
		p := cur.parts[k]
		if err := r.verifyPart(p); err != nil {
			r.log.Warn("published indexes do not verify and are built again", "suite", k.suite, "format", k.format, "error", err)
			d.edit(k)
		} else if r.stale(p, r.cfg.Now()) {
			d.edit(k)
		}
	}
	if len(d.edits) == 0 {
		return nil
	}
	if err := r.publish(ctx, cur, d); err != nil {
		return fmt.Errorf("build damaged indexes again: %w", err)
	}
	return nil
}
