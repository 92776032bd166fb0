// Package grant makes credentials for the mesh's own package repository, one
// for each node, and says how apt and dnf are given theirs.
//
// A credential is computed from a secret of the control plane, the node and its
// identity, so there is no table of passwords and the same one comes out after
// a restart. Which node is part of the mesh is not decided here, and nothing is
// served.
package grant

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/keyfile"
)

const (
	secretFile = "grants.secret"
	secretSize = 32
	// passwordSize is the length of a password, in bytes before it is written in
	// hexadecimal.
	passwordSize = 20
	tokenUser    = "token-"
)

// The files that bring a credential to a machine.
const (
	AptFile      = "/etc/apt/auth.conf.d/mesh.conf"
	DnfUser      = "/etc/dnf/vars/mesh_reader"
	DnfPassword  = "/etc/dnf/vars/mesh_password"
	providerName = "repository"
)

// Repository is the control.Grants of the package repository.
type Repository struct {
	secret []byte
	// urls returns where machines find the repository.
	urls func() []string

	mu sync.Mutex
	// good holds the identities with a good credential, by node. Under mu.
	good map[string]map[string]bool
}

var _ control.Grants = (*Repository)(nil)

// Open makes the provider with the secret that is kept in dir, and makes the
// secret when there is none. Nobody has a good credential until Grant.
func Open(dir string, urls func() []string) (*Repository, error) {
	text, err := keyfile.LoadOrCreate(dir, secretFile, func() ([]byte, error) {
		var secret [secretSize]byte
		if _, err := rand.Read(secret[:]); err != nil {
			return nil, err
		}
		return []byte(hex.EncodeToString(secret[:]) + "\n"), nil
	})
	if err != nil {
		return nil, fmt.Errorf("secret of the repository's credentials: %w", err)
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != secretSize {
		return nil, fmt.Errorf("%s in %s is damaged; restore it from the backup, or move it away: every node then gets a new credential", secretFile, dir)
	}
	return &Repository{secret: secret, urls: urls, good: make(map[string]map[string]bool)}, nil
}

// Name implements control.Grants.
func (r *Repository) Name() string { return providerName }

// Grant implements control.Grants.
func (r *Repository) Grant(_ context.Context, h control.Holder) (control.Credential, error) {
	if len(r.urls()) == 0 {
		return control.Credential{}, mesh.Errorf(mesh.CodeUnavailable, "this control plane has no address at which its repository is reached; set repository_url in its configuration")
	}
	if h.Token == "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.good[h.Node] == nil {
			r.good[h.Node] = make(map[string]bool)
		}
		r.good[h.Node][h.Identity] = true
	}
	return r.credential(h), nil
}

func (r *Repository) credential(h control.Holder) control.Credential {
	user := h.Node
	if h.Token != "" {
		user = tokenUser + h.Token
	}
	mac := hmac.New(sha256.New, r.secret)
	for _, part := range []string{providerName, user, h.Identity} {
		fmt.Fprintf(mac, "%d %s\n", len(part), part)
	}
	return control.Credential{User: user, Secret: hex.EncodeToString(mac.Sum(nil)[:passwordSize])}
}

// Revoke implements control.Grants. The credential of a token ends with the
// token, which is not decided here.
func (r *Repository) Revoke(_ context.Context, h control.Holder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.good[h.Node], h.Identity)
	if len(r.good[h.Node]) == 0 {
		delete(r.good, h.Node)
	}
	return nil
}

// Check implements control.Grants.
func (r *Repository) Check(_ context.Context, c control.Credential) (control.Holder, error) {
	// A node may be called what a user of a token is; it is looked for first.
	r.mu.Lock()
	holders := make([]control.Holder, 0, 2)
	for identity := range r.good[c.User] {
		holders = append(holders, control.Holder{Node: c.User, Identity: identity})
	}
	r.mu.Unlock()
	if hash, found := strings.CutPrefix(c.User, tokenUser); found && mesh.ValidDigest(hash) {
		holders = append(holders, control.Holder{Token: hash})
	}
	for _, h := range holders {
		if hmac.Equal([]byte(r.credential(h).Secret), []byte(c.Secret)) {
			return h, nil
		}
	}
	return control.Holder{}, mesh.Errorf(mesh.CodeDenied, "no node has this credential")
}

// Deliver implements control.Grants. apt wants one line for each address under
// which the repository is known, with the scheme, or it keeps the password from
// plain HTTP. dnf reads two variables, which the .repo file names.
func (r *Repository) Deliver(c control.Credential, profile mesh.Profile) []mesh.Resource {
	switch profile.PackageManager {
	case "apt":
		var b strings.Builder
		b.WriteString("# Written by the mesh: opens its package repository to this machine.\n")
		for _, url := range r.urls() {
			fmt.Fprintf(&b, "machine %s login %s password %s\n", url, c.User, c.Secret)
		}
		return []mesh.Resource{secretFileOf(AptFile, b.String())}
	case "dnf", "dnf5":
		return []mesh.Resource{secretFileOf(DnfUser, c.User+"\n"), secretFileOf(DnfPassword, c.Secret+"\n")}
	}
	return nil
}

func secretFileOf(path, content string) mesh.Resource {
	f := &mesh.FileSpec{Type: mesh.FileRegular, Mode: "0600", Sensitive: true}
	f.SetContent([]byte(content))
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: f}
}
