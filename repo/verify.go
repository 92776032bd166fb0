package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshctl/mesh/repo/apt"
	"github.com/meshctl/mesh/repo/rpm"
)

// verifyPart reads a built part from the disk, the way a client does: from the
// signature down to the list of packages, and compares it with what it has to
// be. It shares no code with the writers. What this process wrote and compared
// before is compared byte by byte and not unpacked again.
func (r *Repo) verifyPart(p *part) error {
	if p.key.format == Deb {
		return r.verifyDeb(p)
	}
	return r.verifyRPM(p)
}

func (r *Repo) readPart(p *part, rel string) ([]byte, error) {
	return os.ReadFile(r.public("parts", p.dir, "tree", rel))
}

func (r *Repo) verifyDeb(p *part) error {
	signed, err := r.readPart(p, "InRelease")
	if err != nil {
		return err
	}
	text, err := r.signer.VerifyClear(signed)
	if err != nil {
		return fmt.Errorf("InRelease: %w", err)
	}
	release, err := r.readPart(p, "Release")
	if err != nil {
		return err
	}
	detached, err := r.readPart(p, "Release.gpg")
	if err != nil {
		return err
	}
	if err := r.signer.VerifyDetached(release, detached); err != nil {
		return fmt.Errorf("verify Release.gpg: %w", err)
	}
	if !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(release)) {
		return errors.New("compare indexes: InRelease and Release say different things")
	}
	rel, err := apt.ParseRelease(release)
	if err != nil {
		return err
	}
	if rel.Suite != p.key.suite || !rel.ByHash || !rel.Date.Equal(p.date) || !rel.ValidUntil.Equal(p.validUntil) {
		return fmt.Errorf("the Release file is of suite %q, by-hash %t, dated %s", rel.Suite, rel.ByHash, rel.Date)
	}
	files := map[string]apt.IndexFile{}
	for _, f := range rel.Files {
		files[f.Path] = f
	}
	if len(files) != 2*len(rel.Architectures) {
		return fmt.Errorf("the Release file promises %d files for %d architectures", len(files), len(rel.Architectures))
	}
	for _, arch := range rel.Architectures {
		dir := component + "/binary-" + arch + "/"
		if err := r.verifyPackages(p, arch, files[dir+"Packages"], files[dir+"Packages.gz"]); err != nil {
			return err
		}
	}
	for _, rec := range p.records {
		if rec.Arch != "all" && !slices.Contains(rel.Architectures, rec.Arch) {
			return fmt.Errorf("%s is in no index", rec.ID())
		}
	}
	return nil
}

// verifyPackages reads the index of one architecture and compares it with what
// Release promises of it, packed and plain.
func (r *Repo) verifyPackages(p *part, arch string, plain, packed apt.IndexFile) error {
	file, err := r.readPart(p, packed.Path)
	if err != nil {
		return err
	}
	if int64(len(file)) != packed.Size || sum(file) != packed.SHA256 {
		return fmt.Errorf("%s is not the file that Release promises", packed.Path)
	}
	tree := r.public("parts", p.dir, "tree")
	same, err := sameFile(filepath.Join(tree, packed.Path), filepath.Join(tree, filepath.Dir(packed.Path), "by-hash/SHA256", packed.SHA256))
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("%s is not what stands under its hash", packed.Path)
	}
	if ix := p.indexes[arch]; ix != nil && ix.plain == plain.Size && ix.plainSum == plain.SHA256 {
		if err := ix.verify(packages, file, verifyStanzas); err != nil {
			return fmt.Errorf("%s: %w", packed.Path, err)
		}
		return nil
	}
	text, err := unpackBounded(file, plain.Size)
	if err != nil {
		return fmt.Errorf("%s: %w", packed.Path, err)
	}
	if sum(text) != plain.SHA256 {
		return fmt.Errorf("%s unpacks to something else than Release promises", packed.Path)
	}
	if err := verifyStanzas(text, ofArch(p.records, arch)); err != nil {
		return fmt.Errorf("%s: %w", packed.Path, err)
	}
	return nil
}

// sameFile reports whether two names are one file, or two files of the same bytes.
func sameFile(a, b string) (bool, error) {
	sa, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	sb, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	if os.SameFile(sa, sb) {
		return true, nil
	}
	_, ha, err := sumFile(a)
	if err != nil {
		return false, err
	}
	_, hb, err := sumFile(b)
	return ha == hb, err
}

// verifyStanzas compares the paragraphs of a Packages index with the packages
// that it has to list, in this order.
func verifyStanzas(text []byte, records []*record) error {
	n := 0
	err := apt.ReadPackages(bytes.NewReader(text), func(e apt.Entry) error {
		if n == len(records) || e.Name != records[n].Name || e.Version != records[n].Version || e.Architecture != records[n].Arch {
			return fmt.Errorf("it lists %s %s for %s, which should not be there", clip(e.Name), clip(e.Version), clip(e.Architecture))
		}
		if rec := records[n]; e.Filename != rec.File || e.Size != rec.Size || e.SHA256 != rec.SHA256 {
			return fmt.Errorf("it promises another file for %s", rec.ID())
		}
		n++
		return nil
	})
	if err != nil {
		return err
	}
	if n != len(records) {
		return fmt.Errorf("it lists %d packages, want %d", n, len(records))
	}
	return nil
}

func (r *Repo) verifyRPM(p *part) error {
	repomd, err := r.readPart(p, "repodata/repomd.xml")
	if err != nil {
		return err
	}
	signature, err := r.readPart(p, "repodata/repomd.xml.asc")
	if err != nil {
		return err
	}
	if err := r.signer.VerifyDetached(repomd, signature); err != nil {
		return fmt.Errorf("repomd.xml.asc: %w", err)
	}
	key, err := r.readPart(p, "repodata/repomd.xml.key")
	if err != nil {
		return err
	}
	want, err := r.signer.PublicArmored()
	if err != nil {
		return err
	}
	if !bytes.Equal(key, want) {
		return errors.New("repomd.xml.key holds other keys than this repository signs with")
	}
	_, docs, err := rpm.ParseRepomd(repomd)
	if err != nil {
		return err
	}
	var kinds []rpm.Kind
	for _, d := range docs {
		kinds = append(kinds, d.Kind)
		if err := r.verifyDocument(p, d); err != nil {
			return fmt.Errorf("%s: %w", d.Href, err)
		}
	}
	if !slices.Equal(kinds, rpmKinds) {
		return fmt.Errorf("repomd.xml lists %v, want %v", kinds, rpmKinds)
	}
	return nil
}

// verifyDocument reads one document of the rpm metadata and compares it with
// what repomd.xml promises of it.
func (r *Repo) verifyDocument(p *part, d rpm.Document) error {
	file, err := r.readPart(p, d.Href)
	if err != nil {
		return err
	}
	if int64(len(file)) != d.Size || sum(file) != d.SHA256 {
		return errors.New("it is not the file that repomd.xml promises")
	}
	read := func(text []byte, records []*record) error { return nil }
	if d.Kind == rpm.Primary {
		read = verifyElements
	}
	if ix := p.indexes[string(d.Kind)]; ix != nil && ix.plain == d.OpenSize && ix.plainSum == d.OpenSHA256 {
		return ix.verify(metadata(d.Kind, len(p.records)), file, read)
	}
	text, err := unpackBounded(file, d.OpenSize)
	if err != nil {
		return err
	}
	if sum(text) != d.OpenSHA256 {
		return errors.New("it does not unpack to what repomd.xml promises")
	}
	if d.Kind == rpm.Primary {
		return verifyPrimary(bytes.NewReader(text), p.records)
	}
	if n := bytes.Count(text, []byte("<package pkgid=")); n != len(p.records) {
		return fmt.Errorf("it lists %d packages, want %d", n, len(p.records))
	}
	return nil
}

// verifyElements is verifyPrimary for a piece of a document.
func verifyElements(text []byte, records []*record) error {
	head, tail := rpm.Frame(rpm.Primary, len(records))
	return verifyPrimary(io.MultiReader(strings.NewReader(head), bytes.NewReader(text), strings.NewReader(tail)), records)
}

// verifyPrimary compares the elements of a primary document with the packages
// that it has to list, in this order.
func verifyPrimary(text io.Reader, records []*record) error {
	n := 0
	err := rpm.ReadPrimary(text, func(e rpm.Entry) error {
		version := e.Version + "-" + e.Release
		if e.Epoch != "0" {
			version = e.Epoch + ":" + version
		}
		if n == len(records) || e.Name != records[n].Name || version != records[n].Version || e.Arch != records[n].Arch {
			return fmt.Errorf("it lists %s %s for %s, which should not be there", clip(e.Name), clip(version), clip(e.Arch))
		}
		if rec := records[n]; e.Href != rec.File || e.Size != rec.Size || e.SHA256 != rec.SHA256 {
			return fmt.Errorf("it promises another file for %s", rec.ID())
		}
		n++
		return nil
	})
	if err != nil {
		return err
	}
	if n != len(records) {
		return fmt.Errorf("it lists %d packages, want %d", n, len(records))
	}
	return nil
}

// Check reads the whole published repository back: every index as a publish
// does, and every package file of every suite against its digest and
// signature. It changes nothing. It reads the pool once, so it costs time in
// proportion to its size; the caller chooses when. The error names every fault
// that was found.
func (r *Repo) Check(ctx context.Context) error {
	// The turn is held: collecting must not take files away under the reading.
	select {
	case <-r.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { r.turn <- struct{}{} }()
	s := r.state.Load()
	var errs []error
	seen := map[string]bool{}
	for k, p := range s.parts {
		whole := *p
		whole.indexes = nil
		if err := r.verifyPart(&whole); err != nil {
			errs = append(errs, fmt.Errorf("%s of suite %s: %w", k.format, k.suite, err))
		}
		for _, rec := range p.records {
			if err := ctx.Err(); err != nil {
				return err
			}
			if seen[rec.SHA256] {
				continue
			}
			seen[rec.SHA256] = true
			if err := r.readBack(r.filePath(rec), rec); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", rec.ID(), err))
			}
		}
	}
	return errors.Join(errs...)
}
