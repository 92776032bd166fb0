package repo

import (
	"context"
	"errors"
	"fmt"

	"github.com/meshctl/mesh/internal/fault"
)

// Publish adds files to a suite, all of them or none, and returns after the
// new tree was read back and switched to: machines can install the files from
// then on. A file whose content is in the suite already is AlreadyThere; when
// all are, nothing changes. A suite that does not exist is made.
//
// What is wrong with a file or its name is a *Refusal; any other error is the
// repository's or the sender's trouble, and the same call may be repeated.
func (r *Repo) Publish(ctx context.Context, suite string, files []Incoming) (Published, error) {
	if suite == "" {
		suite = DefaultSuite
	}
	if !suiteName.MatchString(suite) {
		return Published{}, &Refusal{Code: CodeBadSuite, Sentence: fmt.Sprintf("%q cannot be the name of a suite: lower-case letters, digits, dots and dashes, at most 64", clip(suite))}
	}
	if len(files) == 0 {
		return Published{}, &Refusal{Code: CodeNoFiles, Sentence: "no file was given to publish"}
	}
	all, err := r.stageAll(ctx, files)
	defer func() {
		for _, s := range all {
			if s != nil {
				s.discard()
			}
		}
	}()
	if err != nil {
		return Published{}, err
	}
	fault.Point("repo.after-stage")
	for i, s := range all {
		if allow := files[i].Allow; allow != nil {
			if err := allow(s.rec.Package); err != nil {
				return Published{}, err
			}
		}
	}
	out := Published{Suite: suite}
	gen, err := r.commit(ctx, func(d *draft) error {
		out.Files = nil
		for _, s := range all {
			f, err := r.admit(d, suite, s)
			if err != nil {
				return err
			}
			out.Files = append(out.Files, f)
		}
		return nil
	})
	if err != nil {
		return Published{}, err
	}
	out.Generation = gen
	for _, f := range out.Files {
		if f.Outcome == Added {
			r.log.Info("package published", "suite", suite, "format", f.Package.Format, "package", f.Package.Name,
				"version", f.Package.Version, "arch", f.Package.Arch, "sha256", f.Package.SHA256, "generation", gen)
		}
	}
	return out, nil
}

// admit puts one staged file into the draft's suite, or refuses it.
func (r *Repo) admit(d *draft, suite string, s *staged) (PublishedFile, error) {
	if rec := s.rec; rec.Format == RPM && rec.SignedBy != r.signer.Fingerprints()[0] {
		return PublishedFile{}, fmt.Errorf("admit %s: %w", clip(s.given), errKeyChanged)
	}
	d.ensureSuite(suite)
	k := partKey{suite, s.rec.Format}
	rec := d.anywhere(s.rec.Package)
	if rec == nil {
		if w, ok := d.withdrawn[s.rec.ID()]; ok && w.Content != s.rec.Content {
			return PublishedFile{}, conflict(s, w.Uploaded, "was published before, and removed,")
		}
		rec = s.rec
		if old, err := r.loadRecord(rec.SHA256); err == nil {
			rec = old
		}
		d.adding[rec.SHA256] = s
	} else if rec.Content != s.rec.Content {
		return PublishedFile{}, conflict(s, rec.Uploaded, "is published")
	}
	f := PublishedFile{Name: s.given, Outcome: AlreadyThere, Package: rec.Package}
	if d.in(k, rec.Package) == nil {
		d.add(k, rec)
		f.Outcome = Added
	}
	return f, nil
}

// errKeyChanged: a key was dropped between the upload and the publish. Sending
// the same again helps.
var errKeyChanged = errors.New("the signing key changed while the file was received; publish it again")

func conflict(s *staged, theirs, how string) error {
	return &Refusal{Code: CodeConflict, File: s.given, Sentence: fmt.Sprintf(
		"%s %s for %s %s with other content: its SHA-256 is %s, this file's is %s; give this build a new version. Nothing was published",
		s.rec.Name, s.rec.Version, s.rec.Arch, how, theirs, s.rec.Uploaded)}
}

// Ref names one package of a suite. An empty Arch means every architecture
// that has this version.
type Ref struct {
	Format        Format
	Name, Version string
	Arch          string
}

// Remove takes packages out of a suite, all or none, and returns what was removed.
// Readers that know an earlier generation can still fetch it for a while; its name
// and version are never given to other content. A package that is not there is a
// *Refusal.
func (r *Repo) Remove(ctx context.Context, suite string, refs ...Ref) ([]Package, error) {
	var gone []Package
	_, err := r.commit(ctx, func(d *draft) error {
		gone = nil
		for _, ref := range refs {
			recs, err := d.lookUp(suite, ref)
			if err != nil {
				return err
			}
			for _, rec := range recs {
				d.drop(partKey{suite, rec.Format}, rec)
				gone = append(gone, rec.Package)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range gone {
		r.log.Info("package removed", "suite", suite, "format", p.Format, "package", p.Name, "version", p.Version, "arch", p.Arch)
	}
	return gone, nil
}

// lookUp returns the records that ref names in a suite; at least one.
func (d *draft) lookUp(suite string, ref Ref) ([]*record, error) {
	k := partKey{suite, ref.Format}
	if !d.has(k) {
		return nil, noSuchSuite(suite, d.base)
	}
	var out []*record
	for _, rec := range d.named(k, ref.Name) {
		if rec.Version == ref.Version && (ref.Arch == "" || rec.Arch == ref.Arch) {
			out = append(out, rec)
		}
	}
	if len(out) == 0 {
		return nil, &Refusal{Code: CodeNoPackage, Sentence: fmt.Sprintf("suite %s has no %s package %s %s %s; `meshctl packages list` shows what it has",
			suite, ref.Format, clip(ref.Name), clip(ref.Version), clip(ref.Arch))}
	}
	return out, nil
}

// Promote makes packages of one suite members of another too. No file is
// copied: both suites name the same one. A target that does not exist is made.
// Promoting what is there already changes nothing.
func (r *Repo) Promote(ctx context.Context, from, to string, refs []Ref) (Published, error) {
	if !suiteName.MatchString(to) {
		return Published{}, &Refusal{Code: CodeBadSuite, Sentence: fmt.Sprintf("%q cannot be the name of a suite", clip(to))}
	}
	out := Published{Suite: to}
	gen, err := r.commit(ctx, func(d *draft) error {
		out.Files = nil
		for _, ref := range refs {
			recs, err := d.lookUp(from, ref)
			if err != nil {
				return err
			}
			d.ensureSuite(to)
			for _, rec := range recs {
				f := PublishedFile{Name: rec.Name, Outcome: AlreadyThere, Package: rec.Package}
				k := partKey{to, rec.Format}
				if d.in(k, rec.Package) == nil {
					d.add(k, rec)
					f.Outcome = Added
				}
				out.Files = append(out.Files, f)
			}
		}
		return nil
	})
	if err != nil {
		return Published{}, err
	}
	out.Generation = gen
	r.log.Info("packages promoted", "from", from, "to", to, "count", len(out.Files), "generation", gen)
	return out, nil
}

// Retain keeps the newest versions of every package in a suite, counted for
// each format, name and architecture, and removes older ones unless inUse says
// that a machine or a declaration still names them. It returns what it removed.
// inUse may be called several times for a package; nil protects nothing.
func (r *Repo) Retain(ctx context.Context, suite string, newest int, inUse func(Package) bool) ([]Package, error) {
	if newest < 1 {
		return nil, errors.New("retention must keep at least one version of every package")
	}
	var gone []Package
	_, err := r.commit(ctx, func(d *draft) error {
		gone = nil
		for _, f := range []Format{Deb, RPM} {
			k := partKey{suite, f}
			if !d.has(k) {
				return noSuchSuite(suite, d.base)
			}
			// Records are sorted, so the newest versions of a name come last.
			records := d.all(k)
			counts := map[string]int{}
			for i := len(records) - 1; i >= 0; i-- {
				rec := records[i]
				key := rec.Name + "/" + rec.Arch
				if counts[key]++; counts[key] <= newest || inUse != nil && inUse(rec.Package) {
					continue
				}
				d.drop(k, rec)
				gone = append(gone, rec.Package)
			}
		}
		return nil
	})
	return gone, err
}
