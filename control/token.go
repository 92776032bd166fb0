package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	mesh "github.com/meshctl/mesh"
)

const (
	defaultTTL = time.Hour
	longestTTL = 30 * 24 * time.Hour
	labelLimit = 64
	// tokenID is how many characters of a token's hash name it. Nothing can be
	// done with them but to revoke it.
	tokenID = 12
	// tokensShown bounds how many tokens are listed.
	tokensShown = 1000
)

var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// IssueToken makes a token. Only its hash is kept.
func (c *Control) IssueToken(ctx context.Context, caller Caller, req TokenRequest) (TokenIssued, error) {
	if err := c.checkRequest(req); err != nil {
		return TokenIssued{}, err
	}
	addresses := req.Addresses
	if len(addresses) == 0 {
		addresses = c.addresses
	}
	if len(addresses) == 0 {
		return TokenIssued{}, mesh.Errorf(mesh.CodeInvalid, "the control plane does not know under which address machines reach it; set addresses in its configuration or give one with the request")
	}
	ttl := req.TTL
	if ttl == 0 {
		ttl = defaultTTL
	}
	token := mesh.Token{Addresses: addresses, Fingerprint: c.fingerprint}
	if _, err := io.ReadFull(c.rand, token.Secret[:]); err != nil {
		return TokenIssued{}, fmt.Errorf("make a secret: %w", err)
	}
	if parsed, err := mesh.ParseToken(token.String()); err != nil || !bytes.Equal(parsed.Secret[:], token.Secret[:]) {
		return TokenIssued{}, mesh.Errorf(mesh.CodeInvalid, "the token would not fit: give fewer or shorter addresses")
	}
	reading, err := c.readingFiles(ctx, mesh.SecretHash(token.SecretText()))
	if err != nil {
		return TokenIssued{}, fmt.Errorf("make a credential for the repository: %w", err)
	}
	now := c.now()
	record := TokenRecord{Hash: mesh.SecretHash(token.SecretText()), Name: req.Name, Labels: req.Labels, Replaces: req.Replaces, Issued: now, Expires: now.Add(ttl)}
	entry := caller.entry(now, "token issued", describeRequest(req, record))
	if err := c.store.IssueToken(ctx, record, entry); err != nil {
		return TokenIssued{}, fmt.Errorf("store token: %w", err)
	}
	return TokenIssued{Token: token.String(), ID: record.ID(), Expires: record.Expires, RepositoryURL: c.repositoryURL, Reading: reading}, nil
}

// ID names the token. It is no secret.
func (r TokenRecord) ID() string { return r.Hash[:min(tokenID, len(r.Hash))] }

// Tokens lists the newest tokens first: those that a machine can still use, or
// all that are known.
func (c *Control) Tokens(ctx context.Context, all bool) ([]TokenView, error) {
	records, err := c.store.Tokens(ctx, tokensShown)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	now := c.now()
	views := []TokenView{}
	for _, r := range records {
		v := TokenView{ID: r.ID(), Name: r.Name, Replaces: r.Replaces, Labels: r.Labels, Issued: r.Issued, Expires: r.Expires, State: TokenOpen, Node: r.Node}
		switch {
		case !r.Used.IsZero():
			v.State, v.Used = TokenUsed, &r.Used
		case !now.Before(r.Expires):
			v.State = TokenExpired
		}
		if all || v.State == TokenOpen {
			views = append(views, v)
		}
	}
	return views, nil
}

// RevokeToken ends a token that nobody used: no machine enrols with it, or reads
// the repository with it, from then on.
func (c *Control) RevokeToken(ctx context.Context, caller Caller, id string) error {
	// An enrolment that has looked at the token is stored before.
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	record, err := TokenRecord{}, ErrNotFound
	if len(id) == tokenID {
		record, err = c.store.TokenNamed(ctx, id)
	}
	if errors.Is(err, ErrNotFound) {
		return mesh.Errorf(mesh.CodeNotFound, "there is no token %q; meshctl token list shows those that can be used", bounded(id, 80))
	}
	if err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	if !record.Used.IsZero() {
		return mesh.Errorf(mesh.CodeConflict, "the token was used at %s for node %s, and ended with that; meshctl node revoke %s ends the node's identity", record.Used.UTC().Format(time.RFC3339), record.Node, record.Node)
	}
	entry := caller.entry(c.now(), "token revoked", id)
	return wrap(c.store.RevokeToken(ctx, record.Hash, entry), "revoke token")
}

// checkRequest finds every fault of a request for a token.
func (c *Control) checkRequest(req TokenRequest) error {
	var ps mesh.Problems
	if req.Name != "" && !mesh.ValidNodeName(req.Name) {
		ps.Add("name", fmt.Sprintf("%q cannot be the name of a node: use lower-case letters, digits, dots and dashes, at most 63, beginning and ending with a letter or digit", bounded(req.Name, 80)))
	}
	if req.TTL < 0 || req.TTL > longestTTL {
		ps.Add("ttl", fmt.Sprintf("a token can be used for at most %v", longestTTL))
	}
	checkLabels(&ps, req.Labels)
	for i, a := range req.Addresses {
		if _, _, err := net.SplitHostPort(a); err != nil || strings.Contains(a, ",") {
			ps.Add(fmt.Sprintf("addresses[%d]", i), fmt.Sprintf("%q is not host:port", bounded(a, 80)))
		}
	}
	if len(ps) > 0 {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: "no token was issued", Details: ps}
	}
	if req.Replaces != "" {
		if req.Name != "" && req.Name != req.Replaces {
			return mesh.Errorf(mesh.CodeInvalid, "a machine that replaces node %s takes its name; leave the name out", req.Replaces)
		}
		if _, exists := c.snapshot(req.Replaces); !exists {
			return c.unknownNode(req.Replaces)
		}
		return nil
	}
	if _, exists := c.snapshot(req.Name); exists && req.Name != "" {
		return mesh.Errorf(mesh.CodeConflict, "there is a node %s already; use --replaces %s if the machine takes its place, or another name", req.Name, req.Name)
	}
	return nil
}

// checkLabels adds every fault of labels that are to be set.
func checkLabels(ps *mesh.Problems, labels map[string]string) {
	if len(labels) > labelLimit {
		ps.Add("labels", fmt.Sprintf("a node has at most %d labels", labelLimit))
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		v := labels[k]
		if !labelName.MatchString(k) {
			ps.Add("labels", fmt.Sprintf("%q cannot be the name of a label: begin with a letter, go on with letters, digits, _ . and -, at most 63", bounded(k, 80)))
		}
		if len(v) > 255 || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			ps.Add("labels", fmt.Sprintf("the value of the label %q must be at most 255 bytes of text without control characters", bounded(k, 80)))
		}
	}
}

func describeRequest(req TokenRequest, record TokenRecord) string {
	name := req.Name
	if req.Replaces != "" {
		name = "the place of " + req.Replaces
	}
	if name == "" {
		name = "a node named by its host"
	}
	detail := fmt.Sprintf("for %s, until %s", name, record.Expires.UTC().Format(time.RFC3339))
	for _, k := range slices.Sorted(maps.Keys(req.Labels)) {
		detail += fmt.Sprintf(", %s=%s", k, req.Labels[k])
	}
	return detail
}
