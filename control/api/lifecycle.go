package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/meshctl/mesh/control"
)

func (s *Server) history(r *http.Request, _ control.Caller) (any, error) {
	views, err := s.cfg.Operator.History(r.Context(), r.PathValue("name"))
	return list(views), err
}

func (s *Server) compare(r *http.Request, _ control.Caller) (any, error) {
	from, err := number(r, "from")
	if err != nil {
		return nil, err
	}
	to, err := number(r, "to")
	if err != nil {
		return nil, err
	}
	return s.cfg.Operator.Compare(r.Context(), r.PathValue("name"), from, to)
}

func (s *Server) revert(r *http.Request, by control.Caller) (any, error) {
	to, err := number(r, "to")
	if err != nil {
		return nil, err
	}
	return s.cfg.Operator.Revert(r.Context(), by, r.PathValue("name"), to)
}

func (s *Server) events(r *http.Request, _ control.Caller) (any, error) {
	limit, err := number(r, "limit")
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = 100
	}
	events, err := s.cfg.Operator.Events(r.Context(), r.URL.Query().Get("node"), int(min(limit, maxAudit)))
	return list(events), err
}

func (s *Server) retire(r *http.Request, by control.Caller) (any, error) {
	return s.cfg.Operator.Retire(r.Context(), by, r.PathValue("name"))
}

func (s *Server) keep(r *http.Request, by control.Caller) (any, error) {
	return s.cfg.Operator.Keep(r.Context(), by, r.PathValue("name"))
}

// labelsRequest is the request and the answer about labels.
type labelsRequest struct {
	Set  map[string]string `json:"set"`
	Drop []string          `json:"drop,omitempty"`
}

func (s *Server) label(r *http.Request, by control.Caller) (any, error) {
	var req labelsRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	labels, err := s.cfg.Operator.Label(r.Context(), by, r.PathValue("name"), req.Set, req.Drop)
	return labelsRequest{Set: labels}, err
}

func (s *Server) recover(r *http.Request, by control.Caller) (any, error) {
	return s.cfg.Operator.Recover(r.Context(), by, r.PathValue("name"))
}

// History lists the revisions of a declaration, newest first.
func (c *Client) History(ctx context.Context, name string) ([]control.DeclarationView, error) {
	return ask[[]control.DeclarationView](ctx, c, http.MethodGet, "/v1/declarations/"+url.PathEscape(name)+"/history", nil)
}

// Compare returns two revisions; to zero: the newest, from zero: the one before
// it.
func (c *Client) Compare(ctx context.Context, name string, from, to int64) (control.Comparison, error) {
	query := url.Values{"from": {strconv.FormatInt(from, 10)}, "to": {strconv.FormatInt(to, 10)}}
	return ask[control.Comparison](ctx, c, http.MethodGet, "/v1/declarations/"+url.PathEscape(name)+"/compare?"+query.Encode(), nil)
}

// Revert writes an earlier revision again; zero: the one before the newest.
func (c *Client) Revert(ctx context.Context, name string, to int64) (control.Declared, error) {
	return ask[control.Declared](ctx, c, http.MethodPost, "/v1/declarations/"+url.PathEscape(name)+"/revert?to="+strconv.FormatInt(to, 10), nil)
}

// Events returns what happened lately, newest first, on one node or, with an
// empty name, on all; limit zero: a hundred.
func (c *Client) Events(ctx context.Context, node string, limit int) ([]control.EventView, error) {
	query := url.Values{"node": {node}, "limit": {strconv.Itoa(limit)}}
	return ask[[]control.EventView](ctx, c, http.MethodGet, "/v1/events?"+query.Encode(), nil)
}

// Retire gives a node its final declaration.
func (c *Client) Retire(ctx context.Context, name string) (control.Retiring, error) {
	return ask[control.Retiring](ctx, c, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/retire", nil)
}

// Keep takes a retirement back.
func (c *Client) Keep(ctx context.Context, name string) (control.Retiring, error) {
	return ask[control.Retiring](ctx, c, http.MethodDelete, "/v1/nodes/"+url.PathEscape(name)+"/retire", nil)
}

// Label sets and drops labels of a node, and returns those that it has then.
func (c *Client) Label(ctx context.Context, name string, set map[string]string, drop []string) (map[string]string, error) {
	answer, err := ask[labelsRequest](ctx, c, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/labels", labelsRequest{Set: set, Drop: drop})
	return answer.Set, err
}

// Recover confirms that what a node holds and is not known here is superseded.
func (c *Client) Recover(ctx context.Context, name string) (control.Recovered, error) {
	return ask[control.Recovered](ctx, c, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/recover", nil)
}
