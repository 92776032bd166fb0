package main

import (
	"context"
	"net"
	"net/netip"
	"slices"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
)

// operator is the policy as the API asks for it, with the addresses as they are
// when a token is made: a machine that moves to another network gives out the
// addresses that it has there.
type operator struct {
	api.Operator
	places places
}

// IssueToken fills in the addresses when the operator named none.
func (o operator) IssueToken(ctx context.Context, by control.Caller, req control.TokenRequest) (control.TokenIssued, error) {
	if len(req.Addresses) == 0 {
		req.Addresses = o.places.links()
	}
	for _, a := range req.Addresses {
		if err := hostPort(a); err != nil {
			return control.TokenIssued{}, mesh.Errorf(mesh.CodeInvalid, "%w; no token was made", err)
		}
	}
	if len(req.Addresses) == 0 {
		return control.TokenIssued{}, mesh.Errorf(mesh.CodeUnavailable,
			"this machine has no address at which another could reach it, so no token was made; name one with --address HOST:PORT, or set addresses in %s", defaultConfigFile)
	}
	issued, err := o.Operator.IssueToken(ctx, by, req)
	if err != nil {
		return issued, err
	}
	if url, err := o.places.repository(); err == nil {
		issued.RepositoryURL = url
	}
	return issued, nil
}

// AddOperator tells the operator where the control plane is reached.
func (o operator) AddOperator(ctx context.Context, by control.Caller, req control.OperatorRequest) (control.OperatorAdded, error) {
	added, err := o.Operator.AddOperator(ctx, by, req)
	added.Addresses = o.places.links()
	return added, err
}

// places says where other machines find this control plane.
type places struct {
	config config
	// link and pool are where the two listeners ended up.
	link, pool net.Addr
	own        func() []netip.Addr
}

// links lists host:port pairs of the link; none when this machine has no
// address.
func (p places) links() []string {
	if len(p.config.addresses) > 0 {
		return p.config.addresses
	}
	return reachable(p.link, p.own())
}

// repository returns the URL of the repository, without a slash at the end.
func (p places) repository() (string, error) {
	if p.config.repositoryURL != "" {
		return p.config.repositoryURL, nil
	}
	candidates := p.pools()
	if len(candidates) == 0 {
		return "", mesh.Errorf(mesh.CodeUnavailable, "this machine has no address at which another could reach its repository; set repository_url in %s", defaultConfigFile)
	}
	if p.config.certificate != "" {
		return "https://" + candidates[0], nil
	}
	return "http://" + candidates[0], nil
}

// pools lists host:port pairs of the repository; none when this machine has no
// address.
func (p places) pools() []string {
	// Told addresses are the ones that work from elsewhere.
	_, port, err := net.SplitHostPort(p.pool.String())
	if len(p.config.addresses) == 0 || err != nil {
		return reachable(p.pool, p.own())
	}
	var pools []string
	for _, a := range p.config.addresses {
		if host, _, err := net.SplitHostPort(a); err == nil {
			pools = append(pools, net.JoinHostPort(host, port))
		}
	}
	return pools
}

// repositories lists every URL under which a machine may know the repository,
// without a slash at the end.
func (p places) repositories() []string {
	var urls []string
	if p.config.repositoryURL != "" {
		urls = append(urls, p.config.repositoryURL)
	}
	for _, pool := range p.pools() {
		if url := "http://" + pool; !slices.Contains(urls, url) {
			urls = append(urls, url)
		}
	}
	return urls
}
