package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzip"
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
	t, err := newTree(r.public("parts", p.dir))
	if err != nil {
		return err
	}
	if p.key.format == Deb {
		err = r.buildDeb(ctx, t, p)
	} else {
		err = r.buildRPM(ctx, t, p, next.generation)
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
	var out []string
	for a := range set {
		out = append(out, a)
	}
	sort.Strings(out)
	return out
}

// blob is one index file: its bytes as served, and what they unpack to.
type blob struct {
	plain, packed          []byte
	plainSHA256, packed256 string
}

func compress(plain []byte) (blob, error) {
	var buf bytes.Buffer
	buf.Grow(len(plain)/4 + 1024)
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return blob{}, err
	}
	if _, err := z.Write(plain); err != nil {
		return blob{}, err
	}
	if err := z.Close(); err != nil {
		return blob{}, err
	}
	return blob{plain: plain, packed: buf.Bytes(), plainSHA256: sum(plain), packed256: sum(buf.Bytes())}, nil
}

func (r *Repo) buildDeb(ctx context.Context, t *tree, p *part) error {
	archs := r.debArchitectures(p)
	blobs := make([]blob, len(archs))
	g, _ := errgroup.WithContext(ctx)
	for i, arch := range archs {
		g.Go(func() error {
			var b bytes.Buffer
			for _, rec := range p.records {
				if rec.Arch == arch || rec.Arch == "all" {
					b.WriteString(rec.Stanza)
					b.WriteByte('\n')
				}
			}
			var err error
			blobs[i], err = compress(b.Bytes())
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("compress index: %w", err)
	}
	rel := &apt.Release{
		Origin: r.cfg.Origin, Label: r.cfg.Label, Suite: p.key.suite, Codename: p.key.suite,
		Date: p.date, Architectures: archs, Components: []string{component}, ByHash: true,
	}
	for i, arch := range archs {
		dir := component + "/binary-" + arch + "/"
		for _, f := range []struct {
			name, sha string
			body      []byte
		}{
			{"Packages", blobs[i].plainSHA256, blobs[i].plain},
			{"Packages.gz", blobs[i].packed256, blobs[i].packed},
		} {
			if err := t.write("tree/"+dir+f.name, f.body); err != nil {
				return err
			}
			byHash := dir + "by-hash/SHA256/" + f.sha
			if err := t.link(t.path("tree/"+dir+f.name), "tree/"+byHash); err != nil {
				return err
			}
			p.own = append(p.own, byHash)
			rel.Files = append(rel.Files, apt.IndexFile{Path: dir + f.name, Size: int64(len(f.body)), SHA256: f.sha})
		}
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

func (r *Repo) buildRPM(ctx context.Context, t *tree, p *part, generation uint64) error {
	kinds := []rpm.Kind{rpm.Primary, rpm.Filelists, rpm.Other}
	docs := make([]rpm.Document, len(kinds))
	blobs := make([]blob, len(kinds))
	g, _ := errgroup.WithContext(ctx)
	for i, k := range kinds {
		g.Go(func() error {
			fragments := make([][]byte, len(p.records))
			for j, rec := range p.records {
				fragments[j] = rec.fragment(k)
			}
			var b bytes.Buffer
			if err := rpm.WriteDocument(&b, k, fragments); err != nil {
				return err
			}
			var err error
			if blobs[i], err = compress(b.Bytes()); err != nil {
				return err
			}
			docs[i] = rpm.Document{
				Kind: k, Href: "repodata/" + blobs[i].packed256 + "-" + string(k) + ".xml.gz",
				SHA256: blobs[i].packed256, OpenSHA256: blobs[i].plainSHA256,
				Size: int64(len(blobs[i].packed)), OpenSize: int64(len(blobs[i].plain)), Time: p.modified.Unix(),
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("write metadata: %w", err)
	}
	for i := range docs {
		if err := t.write("tree/"+docs[i].Href, blobs[i].packed); err != nil {
			return err
		}
		p.own = append(p.own, docs[i].Href)
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

func (rec *record) fragment(k rpm.Kind) []byte {
	switch k {
	case rpm.Primary:
		return []byte(rec.Primary)
	case rpm.Filelists:
		return []byte(rec.Filelists)
	default:
		return []byte(rec.Other)
	}
}

// unpackBounded unpacks gzip and fails when it is not exactly want bytes.
func unpackBounded(packed []byte, want int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	buf.Grow(int(want) + bytes.MinRead)
	if _, err := io.Copy(&buf, io.LimitReader(z, want+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) != want {
		return nil, fmt.Errorf("it unpacks to %d bytes, want %d", buf.Len(), want)
	}
	return buf.Bytes(), nil
}
