package control

import (
	"time"

	mesh "github.com/meshctl/mesh"
)

// Caller is who asks, and through which door; every write is recorded with it.
type Caller struct {
	// Name of the operator, as in "root" or "uid 1000".
	Name string `json:"name"`
	// Door is "socket" or "ssh".
	Door string `json:"door"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	// Name that the node will have. Empty: its host name.
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// TTL is how long the token can be used. Zero: one hour.
	TTL time.Duration `json:"ttl,omitempty"`
	// Replaces names a node whose identity is revoked by this enrolment.
	Replaces string `json:"replaces,omitempty"`
	// Addresses are put into the token instead of the control plane's own.
	Addresses []string `json:"addresses,omitempty"`
}

// TokenIssued is the answer; Token is shown once and not stored.
type TokenIssued struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// RepositoryURL is where the machine finds the mesh's repository.
	RepositoryURL string `json:"repository_url"`
}

// Declared is the answer to a write of a named declaration.
type Declared struct {
	Declaration string `json:"declaration"`
	Revision    int64  `json:"revision"`
	// Changed is false when the document equals the newest revision; nothing
	// was written then.
	Changed bool `json:"changed"`
	// Nodes is how many nodes get a new generation through this write.
	Nodes int `json:"nodes"`
}

// DeclarationView is one named declaration.
type DeclarationView struct {
	Name     string    `json:"declaration"`
	Revision int64     `json:"revision"`
	Written  time.Time `json:"written"`
	By       string    `json:"by"`
	// Removed: the newest revision removes the declaration.
	Removed   bool `json:"removed,omitempty"`
	Resources int  `json:"resources"`
	// Document is set where one declaration is shown. The content of a sensitive
	// file is left out.
	Document *mesh.Document `json:"document,omitempty"`
}

// Progress says how far the nodes that a declaration selects have come.
type Progress struct {
	Declaration string `json:"declaration"`
	Revision    int64  `json:"revision"`
	// Nodes is the number of nodes that the declaration selects, or that got a
	// new generation because it no longer selects them.
	Nodes   int `json:"nodes"`
	Applied int `json:"applied"`
	// Outstanding counts the undelivered too.
	Outstanding int          `json:"outstanding"`
	Undelivered int          `json:"undelivered"`
	Failed      int          `json:"failed"`
	Failures    []FailedView `json:"failures,omitempty"`
}

// NodeView is one row of the list of nodes.
type NodeView struct {
	Node  string         `json:"node"`
	State mesh.NodeState `json:"state"`
	// Declared is the newest generation written for the node; Applied the newest
	// that it applied whole. Zero: none.
	Declared    mesh.Generation `json:"declared"`
	Held        mesh.Generation `json:"held"`
	Applied     mesh.Generation `json:"applied"`
	Outstanding OutstandingView `json:"outstanding"`
	Failed      []FailedView    `json:"failed"`
	// LastContact is the control plane's receive time. Zero: never.
	LastContact time.Time `json:"last_contact"`
	// Eligible is false when a line of the briefing failed.
	Eligible bool `json:"eligible"`
}

// OutstandingView counts generations that are written and not decided.
type OutstandingView struct {
	// Undelivered: the node has not said that it holds it.
	Undelivered int `json:"undelivered"`
	// Delivered: held by the node, and not finished.
	Delivered int `json:"delivered"`
}

// FailedView is one resource of a node that is not as declared.
type FailedView struct {
	Node     string          `json:"node,omitempty"`
	Resource mesh.ResourceID `json:"resource"`
	Status   mesh.Status     `json:"status"`
	Reason   mesh.Reason     `json:"reason"`
	Detail   string          `json:"detail,omitempty"`
	Output   string          `json:"output,omitempty"`
}

// NodeDetail is everything that is known of a node.
type NodeDetail struct {
	NodeView
	Labels      map[string]string `json:"labels,omitempty"`
	Key         string            `json:"key"`
	HostVersion string            `json:"host_version"`
	// Host says how the host stands with its own version: whether a release that
	// does not run there would be undone, and how the last upgrade ended. Nil:
	// the host says nothing of it.
	Host     *mesh.HostUpgrade `json:"host,omitempty"`
	Enrolled time.Time         `json:"enrolled"`
	Profile  mesh.Profile      `json:"profile"`
	Briefing mesh.Briefing     `json:"briefing"`
	Results  []mesh.Result     `json:"results"`
	Owned    []mesh.ResourceID `json:"owned"`
	Kept     []mesh.ResourceID `json:"kept,omitempty"`
	Events   []EventView       `json:"events,omitempty"`
	// Drift is the heartbeat's count since the host started.
	Drift uint64 `json:"drift"`
	// LedgerAgrees: the digest in the last heartbeat is that of the results here.
	LedgerAgrees bool `json:"ledger_agrees"`
}

// EventView is an event with the time at which it was received.
type EventView struct {
	mesh.Event
	Node     string    `json:"node"`
	Received time.Time `json:"received"`
}

// AuditEntry is one write.
type AuditEntry struct {
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Door   string    `json:"door"`
	What   string    `json:"what"`
	Detail string    `json:"detail,omitempty"`
}
