package main

import (
	"context"
	"errors"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/openpgp"
)

// librarian is the repository beyond publishing, as the API asks for it.
type librarian struct {
	repo *repo.Repo
	keys *openpgp.Keys
}

func (l librarian) Versions(_ context.Context, name string) ([]api.SuitePackage, error) {
	found := l.repo.Versions(name)
	views := make([]api.SuitePackage, len(found))
	for i, p := range found {
		views[i] = api.SuitePackage{Suite: p.Suite, Package: packageView(p.Package), Published: p.Published, Compression: p.Compression, Path: "/" + p.File}
	}
	return views, nil
}

func (l librarian) Suites(context.Context) ([]string, error) { return l.repo.Suites(), nil }

func (l librarian) Remove(ctx context.Context, suite string, refs []api.PackageRef) ([]api.Package, error) {
	wanted, err := l.refs(suite, refs)
	if err != nil {
		return nil, err
	}
	gone, err := l.repo.Remove(ctx, suite, wanted...)
	if err != nil {
		return nil, refusal(err, "nothing was removed")
	}
	views := make([]api.Package, len(gone))
	for i, p := range gone {
		views[i] = packageView(p)
	}
	return views, nil
}

func (l librarian) Promote(ctx context.Context, from, to string, refs []api.PackageRef) ([]api.Published, error) {
	wanted, err := l.refs(from, refs)
	if err != nil {
		return nil, err
	}
	done, err := l.repo.Promote(ctx, from, to, wanted)
	if err != nil {
		return nil, refusal(err, "nothing was promoted")
	}
	return publishedViews(done), nil
}

// refs makes one reference for each format that has the package, when none is
// named. A version that no format has is refused.
func (l librarian) refs(suite string, refs []api.PackageRef) ([]repo.Ref, error) {
	var out []repo.Ref
	for _, ref := range refs {
		found := false
		for _, f := range []repo.Format{repo.Deb, repo.RPM} {
			if ref.Format != "" && ref.Format != string(f) {
				continue
			}
			for _, p := range l.repo.Versions(ref.Name) {
				if p.Suite == suite && p.Format == f && p.Version == ref.Version && (ref.Arch == "" || p.Arch == ref.Arch) {
					out, found = append(out, repo.Ref{Format: f, Name: ref.Name, Version: ref.Version, Arch: ref.Arch}), true
					break
				}
			}
		}
		if !found {
			return nil, mesh.Errorf(mesh.CodeNotFound, "suite %s has no package %s; `meshctl packages show %s` lists what there is; nothing was changed", suite, ref, ref.Name)
		}
	}
	return out, nil
}

func (l librarian) Keys(context.Context) (api.Keys, error) {
	public, err := l.keys.PublicArmored()
	if err != nil {
		return api.Keys{}, err
	}
	view := api.Keys{Public: string(public), SHA256: api.Digest(public)}
	for _, k := range l.keys.Ring().List() {
		view.Keys = append(view.Keys, api.Key{Fingerprint: k.Fingerprint, Identity: k.Identity, Bits: k.Bits, Created: k.Created, Expires: k.Expires})
	}
	return view, nil
}

func (l librarian) RotateKey(ctx context.Context, armored []byte) (api.Keys, error) {
	if len(armored) == 0 {
		armored = nil
	}
	_, err := l.repo.Resign(ctx, func() error { return l.keys.Begin(armored) })
	switch {
	case errors.Is(err, openpgp.ErrRotating):
		return api.Keys{}, mesh.Errorf(mesh.CodeConflict, "%w; `meshctl repo key show` says how far it is, `meshctl repo key finish` ends it; nothing was changed", err)
	case errors.Is(err, openpgp.ErrSameKey):
		return api.Keys{}, mesh.Errorf(mesh.CodeConflict, "%w; nothing was changed", err)
	case errors.Is(err, openpgp.ErrWeakKey), errors.Is(err, openpgp.ErrUnreadableKey):
		return api.Keys{}, mesh.Errorf(mesh.CodeInvalid, "this key cannot sign the repository: %w; nothing was changed", err)
	case err != nil:
		return api.Keys{}, err
	}
	return l.Keys(ctx)
}

// FinishKey first gives every package the signature of the new key while both
// still sign, and only then drops the old one: at no moment is anything served
// that the keys served beside it do not verify.
func (l librarian) FinishKey(ctx context.Context) (api.Keys, error) {
	for _, step := range []func() error{l.keys.Prefer, l.keys.Drop} {
		_, err := l.repo.Resign(ctx, step)
		if errors.Is(err, openpgp.ErrNotRotating) {
			return api.Keys{}, mesh.Errorf(mesh.CodeConflict, "%w; nothing was changed", err)
		}
		if err != nil {
			return api.Keys{}, err
		}
	}
	return l.Keys(ctx)
}

func (l librarian) PrivateKey(context.Context) ([]byte, error) { return l.keys.Export() }
