package main

import (
	"context"
	"errors"
	"fmt"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
)

// publisher is the repository as the API asks for it.
type publisher struct {
	repo *repo.Repo
	// url returns where machines find the repository.
	url func() (string, error)
	// note is called after something was published.
	note func()
	gate gate
}

func (p publisher) Publish(ctx context.Context, suite string, files []api.Upload) ([]api.Published, error) {
	incoming := make([]repo.Incoming, len(files))
	for i, f := range files {
		incoming[i] = repo.Incoming{Name: f.Name, Body: f.Body}
		if f.Allow != nil {
			incoming[i].Allow = func(p repo.Package) error { return f.Allow(p.Name) }
		}
	}
	done, err := p.repo.Publish(ctx, suite, incoming)
	if err != nil {
		return nil, refusal(err, "nothing was published")
	}
	p.note()
	return p.gate.warn(ctx, done, publishedViews(done)), nil
}

func publishedViews(done repo.Published) []api.Published {
	published := make([]api.Published, len(done.Files))
	for i, f := range done.Files {
		outcome := api.PublishAdded
		if f.Outcome == repo.AlreadyThere {
			outcome = api.PublishPresent
		}
		published[i] = api.Published{File: f.Name, Outcome: outcome, Package: packageView(f.Package)}
	}
	return published
}

func (p publisher) Packages(ctx context.Context, suite string) ([]api.Package, error) {
	list, err := p.repo.List(ctx, suite)
	if err != nil {
		return nil, refusal(err, "`meshctl packages suites` lists them")
	}
	views := make([]api.Package, len(list))
	for i, pkg := range list {
		views[i] = packageView(pkg)
	}
	return views, nil
}

func (p publisher) Repository(_ context.Context, suite string) (api.Repository, error) {
	key, err := p.repo.PublicKey()
	if err != nil {
		return api.Repository{}, fmt.Errorf("read public key: %w", err)
	}
	url, err := p.url()
	if err != nil {
		return api.Repository{}, err
	}
	return api.Repository{
		URL:        url,
		Suite:      suite,
		KeyURL:     url + "/mesh.asc",
		KeySHA256:  api.Digest(key),
		AptKeyFile: repohttp.AptKeyFile,
		AptSource:  repohttp.AptSources(url, suite, ""),
		DnfKeyFile: repohttp.DnfKeyFile,
		DnfSource:  repohttp.DnfRepo(url, suite),
	}, nil
}

func packageView(p repo.Package) api.Package {
	return api.Package{Name: p.Name, Version: p.Version, Arch: p.Arch, Format: string(p.Format), SHA256: p.SHA256, Size: p.Size}
}

// refusal turns what the repository refuses into what the operator reads.
func refusal(err error, next string) error {
	var r *repo.Refusal
	if !errors.As(err, &r) {
		return err
	}
	code := mesh.CodeInvalid
	switch r.Code {
	case repo.CodeConflict:
		code = mesh.CodeConflict
	case repo.CodeNoSuite, repo.CodeNoPackage:
		code = mesh.CodeNotFound
	}
	return &mesh.Error{Code: code, Message: fmt.Sprintf("%v; %s", r, next), Err: err}
}

// readersOf is the policy as the repository asks who may read.
type readersOf struct{ policy *control.Control }

func (r readersOf) Admit(ctx context.Context, user, password string) error {
	err := r.policy.AdmitReader(ctx, control.Credential{User: user, Secret: password})
	if mesh.CodeOf(err) == mesh.CodeDenied {
		return fmt.Errorf("%w: %w", repohttp.ErrRefused, err)
	}
	return err
}
