package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

// Holder is who a credential is for: an identity of a node, or a token.
type Holder struct {
	// Node and Identity, the line of an authorized_keys file, are set for a node.
	Node, Identity string
	// Token is the hash of a token, for a machine that is not a node yet. Empty:
	// it is a node.
	Token string
}

// Credential proves a holder to a provider.
type Credential struct{ User, Secret string }

// Grants is a provider of credentials. Each is of one holder alone, so that
// revoking it takes nothing from anybody else. All methods may be called at the
// same time.
type Grants interface {
	// Name says what is provided, in a word.
	Name() string
	// Grant makes the credential of a holder good, and returns it. Asking again,
	// also after a restart, gives the same one.
	Grant(ctx context.Context, h Holder) (Credential, error)
	// Revoke ends it: from its return on Check refuses it. A holder who has none
	// is a success.
	Revoke(ctx context.Context, h Holder) error
	// Check returns whose credential it is; mesh.CodeDenied when it is nobody's,
	// or was revoked.
	Check(ctx context.Context, c Credential) (Holder, error)
	// Deliver returns the files that bring the credential to a machine, all of
	// them sensitive; none when such a machine has no use for it.
	Deliver(c Credential, profile mesh.Profile) []mesh.Resource
}

// EventGrantKept is raised when a credential could not be revoked at its
// provider.
const EventGrantKept mesh.EventKind = "grant-not-revoked"

// ReadingFile is a file that a machine needs to read the repository before it
// is a node. It is for its owner's eyes alone.
type ReadingFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

// own returns what a node gets because of who it is: its credentials.
func (c *Control) own(ctx context.Context, name, key string, profile mesh.Profile) assign.Own {
	var own assign.Own
	if key == "" {
		return own
	}
	for _, g := range c.grants {
		credential, err := g.Grant(ctx, Holder{Node: name, Identity: key})
		if err != nil {
			return assign.Own{Fault: fmt.Sprintf("its credential for the %s could not be made: %v", g.Name(), err)}
		}
		for _, r := range g.Deliver(credential, profile) {
			// No declaration can have such a name.
			r.From = "(" + g.Name() + ")"
			own.Resources = append(own.Resources, r)
		}
	}
	return own
}

// revokeGrants ends the credentials of an identity. It is stored already that
// the identity ended; a provider that cannot be told is an event.
func (c *Control) revokeGrants(ctx context.Context, name, key string) {
	if key == "" {
		return
	}
	for _, g := range c.grants {
		if err := g.Revoke(ctx, Holder{Node: name, Identity: key}); err != nil {
			c.log.Error("credential could not be revoked at its provider", "node", name, "provider", g.Name(), "error", err)
			detail := fmt.Sprintf("the credential for the %s could not be revoked there; what it opens may still be open to this machine", g.Name())
			if err := c.raise(ctx, name, EventGrantKept, detail); err != nil {
				c.log.Error("event could not be stored", "node", name, "error", err)
			}
		}
	}
}

// readingFiles returns what a machine needs to read the repository until it is
// a node, by package manager; nil when the repository is open.
func (c *Control) readingFiles(ctx context.Context, tokenHash string) (map[string][]ReadingFile, error) {
	if c.readers == nil {
		return nil, nil
	}
	credential, err := c.readers.Grant(ctx, Holder{Token: tokenHash})
	if err != nil {
		return nil, err
	}
	files := make(map[string][]ReadingFile)
	for _, manager := range []string{"apt", "dnf"} {
		for _, r := range c.readers.Deliver(credential, mesh.Profile{PackageManager: manager}) {
			files[manager] = append(files[manager], ReadingFile{Path: r.Name, Content: string(r.File.Content)})
		}
	}
	return files, nil
}

// AdmitReader returns nil when the credential opens the repository: that of an
// enrolled node, or of a token with which a machine may still enrol. Anything
// else is refused with mesh.CodeDenied, from the moment in which it is revoked.
func (c *Control) AdmitReader(ctx context.Context, credential Credential) error {
	if c.readers == nil {
		return nil
	}
	holder, err := c.readers.Check(ctx, credential)
	if err != nil {
		return err
	}
	if holder.Token != "" {
		return c.admitToken(ctx, holder.Token)
	}
	// Whatever the provider says, this is who is a node.
	if n, known := c.snapshot(holder.Node); !known || n.State != mesh.NodeEnrolled || n.key != holder.Identity {
		return mesh.Errorf(mesh.CodeDenied, "the credential is that of a node that is not part of this mesh any more")
	}
	return nil
}

// admitToken lets a machine read until its token expires: before it enrols, and
// until its own credential has arrived.
func (c *Control) admitToken(ctx context.Context, hash string) error {
	token, err := c.store.Token(ctx, hash)
	if errors.Is(err, ErrNotFound) {
		return noToken()
	}
	if err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	if !c.now().Before(token.Expires) {
		return expired(token)
	}
	if token.Used.IsZero() {
		return nil
	}
	if n, known := c.snapshot(token.Node); !known || n.State != mesh.NodeEnrolled || n.key != token.UsedBy {
		return mesh.Errorf(mesh.CodeDenied, "the token was used at %s by a machine that is not part of this mesh any more", token.Used.UTC().Format(time.RFC3339))
	}
	return nil
}

// catchUp writes what nodes get differently since the control plane was last
// here: its configuration, or what it makes of the same declarations, may have
// changed. Nobody else uses c yet.
func (c *Control) catchUp(ctx context.Context) error {
	var names []string
	for name, n := range c.nodes {
		if n.State == mesh.NodeEnrolled && n.Briefing.Eligible() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	owned, err := c.store.OwnedIDs(ctx, names)
	if err != nil {
		return fmt.Errorf("read recovery copies: %w", err)
	}
	var changed []GenerationRecord
	stager, now := c.newStager(), c.now()
	for _, name := range names {
		record, found := next(*c.nodes[name], c.set, owned[name], occasionLearned, now)
		if len(found) > 0 {
			c.nodes[name].faults = found
		}
		if record == nil {
			continue
		}
		if record.Resources, err = stager.stage(ctx, record.Resources); err != nil {
			return err
		}
		fault, err := stager.fits(record.Resources)
		if err != nil {
			return err
		}
		if fault != nil {
			c.nodes[name].faults = []assign.Fault{*fault}
			continue
		}
		changed = append(changed, *record)
	}
	if len(changed) == 0 {
		return nil
	}
	if err := c.store.WriteGenerations(ctx, changed); err != nil {
		return fmt.Errorf("store what changed since the last start: %w", err)
	}
	for i := range changed {
		c.written(&changed[i])
	}
	c.log.Info("nodes get something else since the last start", "nodes", len(changed))
	return nil
}
