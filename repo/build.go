package repo

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/mesh/repo/apt"
	"github.com/meshctl/mesh/repo/rpm"
)

// component is the one component of every apt suite.
const component = "main"

// maxSkew is how far in the future apt lets the date of a Release be.
const maxSkew = 10 * time.Second

// buildPart writes a part's tree. prev is the part that it replaces, nil for
// the first; next is the generation that it is built for.
func (r *Repo) buildPart(ctx context.Context, p, prev *part, next *state) error {
	p.dir = partName(p.key, next.generation)
	p.setDates(prev, next.time)
	if r.cfg.ValidFor > 0 && p.key.format == Deb {
		p.validUntil = p.date.Add(r.cfg.ValidFor)
	}
	t, err := newTree(r.public("parts", p.dir))
	if err != nil {
		return err
	}
	if p.key.format == Deb {
		err = r.buildDeb(ctx, t, p, prev)
	} else {
		err = r.buildRPM(ctx, t, p, prev, next.generation)
	}
	if err != nil {
		return err
	}
	if err := r.carry(t, p.key); err != nil {
		return err
	}
	b, err := p.stored()
	if err != nil {
		return fmt.Errorf("write list of packages: %w", err)
	}
	if err := t.write("packages.json", b); err != nil {
		return err
	}
	return t.sync()
}

// setDates keeps two promises to apt. A Release is never dated before the one
// that it replaces, or apt would keep the old one without a word; a clock that
// was far ahead is the exception, because apt refused that Release as well.
// And Last-Modified grows with every build, in whole seconds, or a client
// would be told "not modified" about the second of two publishes in a second.
func (p *part) setDates(prev *part, now time.Time) {
	now = now.UTC().Truncate(time.Second)
	p.date, p.modified = now, now
	if prev == nil {
		return
	}
	if prev.date.After(now) && prev.date.Sub(now) <= maxSkew {
		p.date = prev.date
	}
	if !p.modified.After(prev.modified) {
		p.modified = prev.modified.Add(time.Second)
	}
}

// carry gives the immutable indexes of the generations that stay readable
// their place in the new tree.
func (r *Repo) carry(t *tree, k partKey) error {
	seen := map[*part]bool{}
	now := r.cfg.Now()
	for i, s := range r.kept {
		// The new generation will stand before them: place i+1.
		if i+1 > r.cfg.Keep.Min && !r.keeps(i, now) {
			break
		}
		old := s.parts[k]
		if old == nil || seen[old] {
			continue
		}
		seen[old] = true
		for _, rel := range old.own {
			from := r.public("parts", old.dir, "tree", rel)
			if err := t.link(from, "tree/"+rel); err != nil {
				return fmt.Errorf("keep the index of an earlier generation: %w", err)
			}
		}
	}
	return nil
}

// debArchitectures returns the architectures that a suite serves, sorted.
// Packages for all architectures are listed under each of them.
func (r *Repo) debArchitectures(p *part) []string {
	set := map[string]bool{}
	for _, a := range r.cfg.Architectures {
		set[a] = true
	}
	for _, rec := range p.records {
		if rec.Arch != "all" {
			set[rec.Arch] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// packages is how a Packages index is written.
var packages = document{write: func(b []byte, rec *record) []byte { return append(append(b, rec.Stanza...), '\n') }}

// ofArch returns the records that the index of an architecture lists.
func ofArch(records []*record, arch string) []*record {
	out := make([]*record, 0, len(records))
	for _, rec := range records {
		if rec.Arch == arch || rec.Arch == "all" {
			out = append(out, rec)
		}
	}
	return out
}

// buildIndexes makes the compressed indexes of a part, all at once.
func (p *part) buildIndexes(ctx context.Context, prev *part, names []string, doc func(name string) (document, []*record)) error {
	p.indexes = make(map[string]*index, len(names))
	made := make([]*index, len(names))
	g, _ := errgroup.WithContext(ctx)
	for i, name := range names {
		g.Go(func() (err error) {
			var before *index
			if prev != nil {
				before = prev.indexes[name]
			}
			d, records := doc(name)
			made[i], err = d.makeIndex(before, records)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	for i, name := range names {
		p.indexes[name] = made[i]
	}
	return nil
}

func (r *Repo) buildDeb(ctx context.Context, t *tree, p, prev *part) error {
	archs := r.debArchitectures(p)
	err := p.buildIndexes(ctx, prev, archs, func(arch string) (document, []*record) { return packages, ofArch(p.records, arch) })
	if err != nil {
		return err
	}
	rel := &apt.Release{
		Origin: r.cfg.Origin, Label: r.cfg.Label, Suite: p.key.suite, Codename: p.key.suite,
		Date: p.date, ValidUntil: p.validUntil, Architectures: archs, Components: []string{component}, ByHash: true,
	}
	for _, arch := range archs {
		ix := p.indexes[arch]
		dir := component + "/binary-" + arch + "/"
		if err := t.write("tree/"+dir+"Packages.gz", ix.bytes()...); err != nil {
			return err
		}
		byHash := dir + "by-hash/SHA256/" + ix.sum
		if err := t.link(t.path("tree/"+dir+"Packages.gz"), "tree/"+byHash); err != nil {
			return err
		}
		p.own = append(p.own, byHash)
		// The plain file is promised and not served: without the promise apt
		// passes over the whole component, and nobody fetches it.
		rel.Files = append(rel.Files,
			apt.IndexFile{Path: dir + "Packages", Size: ix.plain, SHA256: ix.plainSum},
			apt.IndexFile{Path: dir + "Packages.gz", Size: ix.size, SHA256: ix.sum})
	}
	text := rel.Bytes()
	var inline, detached []byte
	sg, _ := errgroup.WithContext(ctx)
	sg.Go(func() (err error) { inline, err = r.signer.ClearSign(text); return err })
	sg.Go(func() (err error) { detached, err = r.signer.DetachSign(text); return err })
	if err := sg.Wait(); err != nil {
		return err
	}
	for name, body := range map[string][]byte{"Release": text, "InRelease": inline, "Release.gpg": detached} {
		if err := r.writeMutable(t, p, name, body); err != nil {
			return err
		}
	}
	return nil
}

// writeMutable writes a file whose name later generations use again. Its time
// on the disk is the Last-Modified that any plain web server would send.
func (r *Repo) writeMutable(t *tree, p *part, name string, body []byte) error {
	if err := t.write("tree/"+name, body); err != nil {
		return err
	}
	if err := os.Chtimes(t.path("tree/"+name), p.modified, p.modified); err != nil {
		return fmt.Errorf("date %s: %w", name, err)
	}
	return nil
}

var rpmKinds = []rpm.Kind{rpm.Primary, rpm.Filelists, rpm.Other}

// metadata is how a document of the rpm metadata is written that lists n packages.
func metadata(k rpm.Kind, n int) document {
	d := document{write: func(b []byte, rec *record) []byte { return append(b, rec.fragment(k)...) }}
	d.head, d.tail = rpm.Frame(k, n)
	return d
}

func (r *Repo) buildRPM(ctx context.Context, t *tree, p, prev *part, generation uint64) error {
	var names []string
	for _, k := range rpmKinds {
		names = append(names, string(k))
	}
	err := p.buildIndexes(ctx, prev, names, func(name string) (document, []*record) {
		return metadata(rpm.Kind(name), len(p.records)), p.records
	})
	if err != nil {
		return err
	}
	var docs []rpm.Document
	for _, k := range rpmKinds {
		ix := p.indexes[string(k)]
		doc := rpm.Document{
			Kind: k, Href: "repodata/" + ix.sum + "-" + string(k) + ".xml.gz",
			SHA256: ix.sum, OpenSHA256: ix.plainSum, Size: ix.size, OpenSize: ix.plain, Time: p.modified.Unix(),
		}
		docs = append(docs, doc)
		if err := t.write("tree/"+doc.Href, ix.bytes()...); err != nil {
			return err
		}
		p.own = append(p.own, doc.Href)
	}
	repomd := rpm.Repomd(strconv.FormatUint(generation, 10), docs)
	signature, err := r.signer.DetachSign(repomd)
	if err != nil {
		return err
	}
	key, err := r.signer.PublicArmored()
	if err != nil {
		return err
	}
	for name, body := range map[string][]byte{"repomd.xml": repomd, "repomd.xml.asc": signature, "repomd.xml.key": key} {
		if err := r.writeMutable(t, p, "repodata/"+name, body); err != nil {
			return err
		}
	}
	// The packages stand under the repository's own base, where reposync and
	// its like insist on finding them.
	return t.symlink("../../../../pool", "tree/pool")
}

func (rec *record) fragment(k rpm.Kind) string {
	switch k {
	case rpm.Primary:
		return rec.Primary
	case rpm.Filelists:
		return rec.Filelists
	default:
		return rec.Other
	}
}
