package apitest

import (
	"context"
	"fmt"
	"slices"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
)

// Librarian is an api.Librarian over the suites of a Publisher.
type Librarian struct {
	Publisher *Publisher
	// Signing is what Keys answers at first; a key's Fingerprint stands for it.
	Signing []api.Key
}

// Versions looks into every suite.
func (l *Librarian) Versions(_ context.Context, name string) ([]api.SuitePackage, error) {
	l.Publisher.mu.Lock()
	defer l.Publisher.mu.Unlock()
	var out []api.SuitePackage
	for suite, packages := range l.Publisher.suites {
		for _, p := range packages {
			if p.Name == name {
				out = append(out, api.SuitePackage{Suite: suite, Package: p})
			}
		}
	}
	return out, nil
}

// Suites lists the suites that something was published to.
func (l *Librarian) Suites(context.Context) ([]string, error) {
	l.Publisher.mu.Lock()
	defer l.Publisher.mu.Unlock()
	var out []string
	for suite := range l.Publisher.suites {
		out = append(out, suite)
	}
	slices.Sort(out)
	return out, nil
}

// Remove removes what is there, or refuses.
func (l *Librarian) Remove(_ context.Context, suite string, refs []api.PackageRef) ([]api.Package, error) {
	l.Publisher.mu.Lock()
	defer l.Publisher.mu.Unlock()
	var gone []api.Package
	for _, ref := range refs {
		at := slices.IndexFunc(l.Publisher.suites[suite], func(p api.Package) bool { return p.Name == ref.Name && p.Version == ref.Version })
		if at < 0 {
			return nil, missing("package", ref.String())
		}
		gone = append(gone, l.Publisher.suites[suite][at])
		l.Publisher.suites[suite] = slices.Delete(l.Publisher.suites[suite], at, at+1)
	}
	return gone, nil
}

// Promote copies what is there, or refuses.
func (l *Librarian) Promote(_ context.Context, from, to string, refs []api.PackageRef) ([]api.Published, error) {
	l.Publisher.mu.Lock()
	defer l.Publisher.mu.Unlock()
	var done []api.Published
	for _, ref := range refs {
		at := slices.IndexFunc(l.Publisher.suites[from], func(p api.Package) bool { return p.Name == ref.Name && p.Version == ref.Version })
		if at < 0 {
			return nil, missing("package", ref.String())
		}
		p := l.Publisher.suites[from][at]
		l.Publisher.suites[to] = append(l.Publisher.suites[to], p)
		done = append(done, api.Published{File: p.Name, Outcome: api.PublishAdded, Package: p})
	}
	return done, nil
}

// Keys answers with Signing.
func (l *Librarian) Keys(context.Context) (api.Keys, error) {
	public := fmt.Sprint(l.Signing)
	return api.Keys{Keys: slices.Clone(l.Signing), Public: public, SHA256: api.Digest([]byte(public))}, nil
}

// RotateKey adds a key.
func (l *Librarian) RotateKey(ctx context.Context, armored []byte) (api.Keys, error) {
	if len(l.Signing) > 1 {
		return api.Keys{}, mesh.Errorf(mesh.CodeConflict, "a rotation is under way")
	}
	l.Signing = append(l.Signing, api.Key{Fingerprint: "NEXT" + string(armored), Bits: 4096})
	return l.Keys(ctx)
}

// FinishKey drops the first key.
func (l *Librarian) FinishKey(ctx context.Context) (api.Keys, error) {
	l.Signing = l.Signing[1:]
	return l.Keys(ctx)
}

// PrivateKey answers with a text that is none.
func (l *Librarian) PrivateKey(context.Context) ([]byte, error) { return []byte("PRIVATE"), nil }
