package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/meshctl/mesh/repo/apt"
	"github.com/meshctl/mesh/repo/rpm"
)

// verifyPart reads a built part from the disk, the way a client does: from the
// signature down to the list of packages, and compares it with what it has to
// be. It shares no code with the writers.
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
	if rel.Suite != p.key.suite || !rel.ByHash || !rel.Date.Equal(p.date) {
		return fmt.Errorf("the Release file is of suite %q, by-hash %t, dated %s", rel.Suite, rel.ByHash, rel.Date)
	}
	plain := map[string][]byte{}
	for _, f := range rel.Files {
		b, err := r.readPart(p, f.Path)
		if err != nil {
			return err
		}
		if int64(len(b)) != f.Size || sum(b) != f.SHA256 {
			return fmt.Errorf("%s is not the file that Release promises", f.Path)
		}
		dir := f.Path[:strings.LastIndexByte(f.Path, '/')+1]
		same, err := sameFile(r.public("parts", p.dir, "tree", f.Path), r.public("parts", p.dir, "tree", dir+"by-hash/SHA256/"+f.SHA256))
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("%s is not what stands under its hash", f.Path)
		}
		if strings.HasSuffix(f.Path, "/Packages") {
			plain[f.Path] = b
			continue
		}
		un, err := unpackBounded(b, int64(len(plain[strings.TrimSuffix(f.Path, ".gz")])))
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if !bytes.Equal(un, plain[strings.TrimSuffix(f.Path, ".gz")]) {
			return fmt.Errorf("%s unpacks to something else than the plain file", f.Path)
		}
	}
	for _, arch := range rel.Architectures {
		if err := p.verifyPackages(arch, plain[component+"/binary-"+arch+"/Packages"]); err != nil {
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

func (p *part) verifyPackages(arch string, index []byte) error {
	want := 0
	for _, rec := range p.records {
		if rec.Arch == arch || rec.Arch == "all" {
			want++
		}
	}
	seen := make(map[string]bool, want)
	err := apt.ReadPackages(bytes.NewReader(index), func(e apt.Entry) error {
		id := Package{Format: Deb, Name: e.Name, Version: e.Version, Arch: e.Architecture}.ID()
		rec := p.byID[id]
		if rec == nil || seen[id] {
			return fmt.Errorf("the index of %s lists %s, which should not be there", arch, id)
		}
		seen[id] = true
		if e.Filename != rec.File || e.Size != rec.Size || e.SHA256 != rec.SHA256 {
			return fmt.Errorf("the index of %s promises another file for %s", arch, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(seen) != want {
		return fmt.Errorf("the index of %s lists %d packages, want %d", arch, len(seen), want)
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
	_, docs, err := rpm.ParseRepomd(repomd)
	if err != nil {
		return err
	}
	var kinds []string
	for _, d := range docs {
		kinds = append(kinds, string(d.Kind))
		b, err := r.readPart(p, d.Href)
		if err != nil {
			return err
		}
		if int64(len(b)) != d.Size || sum(b) != d.SHA256 {
			return fmt.Errorf("%s is not the file that repomd.xml promises", d.Href)
		}
		plain, err := unpackBounded(b, d.OpenSize)
		if err != nil {
			return fmt.Errorf("%s: %w", d.Href, err)
		}
		if sum(plain) != d.OpenSHA256 {
			return fmt.Errorf("%s does not unpack to what repomd.xml promises", d.Href)
		}
		if d.Kind != rpm.Primary {
			if n := bytes.Count(plain, []byte("<package pkgid=")); n != len(p.records) {
				return fmt.Errorf("%s lists %d packages, want %d", d.Href, n, len(p.records))
			}
			continue
		}
		if err := p.verifyPrimary(plain); err != nil {
			return err
		}
	}
	if want := []string{string(rpm.Primary), string(rpm.Filelists), string(rpm.Other)}; !slices.Equal(kinds, want) {
		return fmt.Errorf("repomd.xml lists %v, want %v", kinds, want)
	}
	return nil
}

func (p *part) verifyPrimary(doc []byte) error {
	seen := make(map[string]bool, len(p.records))
	err := rpm.ReadPrimary(bytes.NewReader(doc), func(e rpm.Entry) error {
		version := e.Version + "-" + e.Release
		if e.Epoch != "0" {
			version = e.Epoch + ":" + version
		}
		id := Package{Format: RPM, Name: e.Name, Version: version, Arch: e.Arch}.ID()
		rec := p.byID[id]
		if rec == nil || seen[id] {
			return fmt.Errorf("the primary document lists %s, which should not be there", id)
		}
		seen[id] = true
		if e.Href != rec.File || e.Size != rec.Size || e.SHA256 != rec.SHA256 {
			return fmt.Errorf("the primary document promises another file for %s", id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(seen) != len(p.records) {
		return fmt.Errorf("the primary document lists %d packages, want %d", len(seen), len(p.records))
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
		if err := r.verifyPart(p); err != nil {
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
