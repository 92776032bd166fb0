package api

import (
	"context"
	"net/http"
	"net/url"
)

// PackageVersions returns every package of a name in every suite.
func (c *Client) PackageVersions(ctx context.Context, name string) ([]SuitePackage, error) {
	return ask[[]SuitePackage](ctx, c, http.MethodGet, "/v1/packages/"+url.PathEscape(name), nil)
}

// Suites lists the suites.
func (c *Client) Suites(ctx context.Context) ([]string, error) {
	return ask[[]string](ctx, c, http.MethodGet, "/v1/suites", nil)
}

// RemovePackages takes packages out of a suite, all or none.
func (c *Client) RemovePackages(ctx context.Context, req RemoveRequest) ([]Package, error) {
	return ask[[]Package](ctx, c, http.MethodPost, "/v1/packages/remove", req)
}

// PromotePackages makes packages members of another suite too, all or none.
func (c *Client) PromotePackages(ctx context.Context, req PromoteRequest) (Publication, error) {
	return ask[Publication](ctx, c, http.MethodPost, "/v1/packages/promote", req)
}

// Repository says what a machine needs to install from a suite.
func (c *Client) Repository(ctx context.Context, suite string) (Repository, error) {
	return ask[Repository](ctx, c, http.MethodGet, "/v1/repository?suite="+url.QueryEscape(suite), nil)
}

// Keys describes the keys that sign the repository.
func (c *Client) Keys(ctx context.Context) (Keys, error) {
	return ask[Keys](ctx, c, http.MethodGet, "/v1/repository/key", nil)
}

// RotateKey begins a rotation.
func (c *Client) RotateKey(ctx context.Context, req RotateRequest) (Keys, error) {
	return ask[Keys](ctx, c, http.MethodPost, "/v1/repository/key/rotate", req)
}

// FinishKey ends a rotation.
func (c *Client) FinishKey(ctx context.Context, req FinishRequest) (Keys, error) {
	return ask[Keys](ctx, c, http.MethodPost, "/v1/repository/key/finish", req)
}

// PrivateKey returns the main private key, armored.
func (c *Client) PrivateKey(ctx context.Context) ([]byte, error) {
	key, err := ask[RotateRequest](ctx, c, http.MethodGet, "/v1/repository/key/private", nil)
	return []byte(key.Private), err
}
