package control

import (
	"time"

	mesh "github.com/meshctl/mesh"
)

// Caller is who asks, and through which door; every write is recorded with it.
type Caller struct {
	// Name of the operator, as in "root", "uid 1000" or "anna".
	Name string
	// Door is "socket" or "ssh".
	Door string
	// Key is the fingerprint of the key that was proved. Empty: none was needed.
	Key string
	// Role is what the caller may ask for. Empty: nothing.
	Role Role
	// Limits of a publisher. Zero: none.
	Limits Limits
}

// The doors through which operators come.
const (
	DoorSocket = "socket"
	DoorSSH    = "ssh"
)

// OperatorRequest registers an operator who comes from elsewhere.
type OperatorRequest struct {
	Name string `json:"name"`
	// Key is a line of authorized_keys; a comment at its end is dropped.
	Key  string `json:"key"`
	Role Role   `json:"role"`
	Limits
}

// OperatorView is a registered operator.
type OperatorView struct {
	Name string `json:"operator"`
	Role Role   `json:"role"`
	Limits
	// Key is the fingerprint.
	Key   string    `json:"key"`
	Added time.Time `json:"added"`
	By    string    `json:"by"`
}

// OperatorAdded is the answer to the registration of an operator.
type OperatorAdded struct {
	OperatorView
	// Changed is false when the same operator was registered already.
	Changed bool `json:"changed"`
	// Addresses are host:port pairs at which the control plane is reached, and
	// Fingerprint that of its key, which the operator has to pin.
	Addresses   []string `json:"addresses"`
	Fingerprint string   `json:"fingerprint"`
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
	Token string `json:"token"`
	// ID names the token where it is listed and revoked. It is no secret.
	ID      string    `json:"id"`
	Expires time.Time `json:"expires"`
	// RepositoryURL is where the machine finds the mesh's repository.
	RepositoryURL string `json:"repository_url"`
	// Reading holds, by package manager, the files with which the machine reads
	// the repository until it is a node. Empty: the repository is open.
	Reading map[string][]ReadingFile `json:"reading,omitempty"`
}

// TokenState says what can become of a token.
type TokenState string

// The states of a token.
const (
	// TokenOpen: a machine can enrol with it.
	TokenOpen TokenState = "open"
	// TokenUsed: a machine has.
	TokenUsed TokenState = "used"
	// TokenExpired: nobody has in time.
	TokenExpired TokenState = "expired"
)

// TokenView is a token without its secret.
type TokenView struct {
	ID    string     `json:"id"`
	State TokenState `json:"state"`
	// Name that the node gets. Empty: its host name, or that of the node that it
	// replaces.
	Name     string            `json:"name,omitempty"`
	Replaces string            `json:"replaces,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Issued   time.Time         `json:"issued"`
	Expires  time.Time         `json:"expires"`
	// Used is when a machine enrolled with it, Node as what. Nil: none has.
	Used *time.Time `json:"used,omitempty"`
	Node string     `json:"node,omitempty"`
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
	Node   string            `json:"node"`
	State  mesh.NodeState    `json:"state"`
	Labels map[string]string `json:"labels,omitempty"`
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
	// Retiring: the node leaves when it has applied its final declaration.
	Retiring bool `json:"retiring,omitempty"`
	// Ahead: the node holds a generation that is not known here; see Recover.
	// Unheard: it was not heard of since the control plane was restored.
	Ahead   bool `json:"ahead,omitempty"`
	Unheard bool `json:"unheard,omitempty"`
	// Note says in a few words what the other fields cannot. Empty: nothing.
	Note string `json:"note,omitempty"`
}

// Retiring is the answer to a retirement, and to taking one back.
type Retiring struct {
	Node string `json:"node"`
	// Generation is the one that the node gets because of it. Zero: none.
	Generation mesh.Generation `json:"generation"`
	// Resources counts what is to be removed or put back, or, when a retirement
	// is taken back, what the node is to have.
	Resources int `json:"resources"`
	// Changed is false when the node was being retired already.
	Changed bool `json:"changed"`
}

// Recovered is the answer to the confirmation of a node whose generation was
// not known.
type Recovered struct {
	Node string          `json:"node"`
	Held mesh.Generation `json:"held"`
	// Generation is the one that the node gets. Zero: none, since no declaration
	// selects it.
	Generation mesh.Generation   `json:"generation"`
	Resources  int               `json:"resources"`
	Released   []mesh.ResourceID `json:"released,omitempty"`
}

// Comparison is two revisions of one declaration.
type Comparison struct {
	From DeclarationView `json:"from"`
	To   DeclarationView `json:"to"`
	// Hidden lists sensitive files whose content differs. It is in neither.
	Hidden []mesh.ResourceID `json:"hidden,omitempty"`
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
	// Output is the last that the tool wrote. It is told of one node, and left out
	// of what is told of many.
	Output string `json:"output,omitempty"`
}

// NodeDetail is everything that is known of a node.
type NodeDetail struct {
	NodeView
	Key         string `json:"key"`
	HostVersion string `json:"host_version"`
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
	At   time.Time `json:"at"`
	Who  string    `json:"who"`
	Door string    `json:"door"`
	// Key is the fingerprint of the operator's key. Empty: no key was needed.
	Key    string `json:"key,omitempty"`
	What   string `json:"what"`
	Detail string `json:"detail,omitempty"`
}
