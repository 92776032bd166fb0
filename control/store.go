package control

import (
	"context"
	"errors"
	"io"
	"time"

	mesh "github.com/meshctl/mesh"
)

// ErrNotFound: the store holds no such thing.
var ErrNotFound = errors.New("not found")

// Store keeps what the control plane must not forget. Each method is one
// transaction: it is on disk, whole, when the method returns nil, and nothing
// of it is there when it returns an error. A ctx that ends keeps a write from
// beginning, and changes nothing once it has begun: what is kept in memory
// follows what was returned. All methods may be called at the same time; writes
// are seen in the order in which they returned.
type Store interface {
	NodeStore
	DeclarationStore
	ReportStore
	OperatorStore
	SweepStore

	// Audit returns the newest entries first, at most limit.
	Audit(ctx context.Context, limit int) ([]AuditEntry, error)
	// RecordAudit adds one entry.
	RecordAudit(ctx context.Context, entry AuditEntry) error
}

// OperatorStore keeps the operators who come from elsewhere.
type OperatorStore interface {
	// Operators returns those who are registered, by name.
	Operators(ctx context.Context) ([]OperatorRecord, error)
	// AddOperator stores an operator whose name and key nobody has.
	AddOperator(ctx context.Context, operator OperatorRecord, entry AuditEntry) error
	// RemoveOperator forgets an operator; ErrNotFound when there is none.
	RemoveOperator(ctx context.Context, name string, entry AuditEntry) error
}

// OperatorRecord is what is stored of an operator.
type OperatorRecord struct {
	Name string
	// Key is the line of an authorized_keys file, without a comment.
	Key    string
	Role   Role
	Limits Limits
	Added  time.Time
	By     string
}

// NodeStore keeps nodes, their identities, tokens and what is known of them.
type NodeStore interface {
	// Nodes returns every node that ever was.
	Nodes(ctx context.Context) ([]NodeRecord, error)
	// Identities returns every key that was ever taken.
	Identities(ctx context.Context) ([]IdentityRecord, error)

	// IssueToken stores a token that nobody used.
	IssueToken(ctx context.Context, token TokenRecord, entry AuditEntry) error
	// Token returns ErrNotFound when no token has the hash.
	Token(ctx context.Context, hash string) (TokenRecord, error)

	// TokenNamed returns a token whose hash begins with prefix; ErrNotFound when
	// there is none.
	TokenNamed(ctx context.Context, prefix string) (TokenRecord, error)
	// Tokens returns the newest tokens first, at most limit.
	Tokens(ctx context.Context, limit int) ([]TokenRecord, error)
	// RevokeToken forgets a token that nobody used; ErrNotFound when there is none
	// with the hash, or it was used.
	RevokeToken(ctx context.Context, hash string, entry AuditEntry) error

	// Enrol stores an enrolment whole.
	Enrol(ctx context.Context, tx EnrolTx) error
	// Leave ends a node and its identities.
	Leave(ctx context.Context, tx LeaveTx) error
	// ChangeNode stores what an operator, or a consequence of it, changes about a
	// node.
	ChangeNode(ctx context.Context, tx ChangeTx) error
	// StoreFacts replaces what is known of a node.
	StoreFacts(ctx context.Context, tx FactsTx) error
	// StoreLink keeps what a node said when it connected, or when it received.
	StoreLink(ctx context.Context, tx LinkTx) error
	// Recorded returns the greatest number of a message of a node's store that was
	// recorded; zero when there is none.
	Recorded(ctx context.Context, node, storeID string) (uint64, error)
	// TakeBack notes that a node's store knows less than it did when it reported.
	TakeBack(ctx context.Context, tx TakeBackTx) error
	// StoreContacts keeps when nodes were last heard of, and what they held then.
	StoreContacts(ctx context.Context, contacts []Contact) error
	// Inventory returns the newest one; empty when there is none.
	Inventory(ctx context.Context, node string) (mesh.Inventory, error)
}

// DeclarationStore keeps named declarations and what was compiled from them.
type DeclarationStore interface {
	// Declarations returns the newest revision of every name, by name.
	Declarations(ctx context.Context) ([]Revision, error)
	// Declaration returns a revision, zero meaning the newest; ErrNotFound when
	// there is none.
	Declaration(ctx context.Context, name string, revision int64) (Revision, error)
	// Revisions lists the newest revisions of a name, newest first, at most
	// limit, without their documents; none when there never was such a name.
	Revisions(ctx context.Context, name string, limit int) ([]DeclarationView, error)
	// WriteDeclaration stores a revision and the generations that it causes.
	WriteDeclaration(ctx context.Context, tx DeclarationTx) error
	// WriteGenerations stores generations that no revision causes.
	WriteGenerations(ctx context.Context, generations []GenerationRecord) error

	// Compiled returns what was written for a node; ErrNotFound when there is
	// none of that generation, or no longer. What it returns may be shared and
	// must not be changed.
	Compiled(ctx context.Context, node string, generation mesh.Generation) (mesh.Declaration, error)
	// CausedBy returns the generations that a revision caused, by node. Old
	// generations are forgotten.
	CausedBy(ctx context.Context, name string, revision int64) (map[string]mesh.Generation, error)
	// NamesBlob reports whether a declaration of the node, not yet forgotten,
	// names the blob.
	NamesBlob(ctx context.Context, node, sha256 string) (bool, error)
}

// ReportStore keeps what nodes say. A message that has a sequence number is
// recorded once: fresh is false, and nothing was written, when the number, or a
// greater one, of the same host store was recorded already.
type ReportStore interface {
	StoreReport(ctx context.Context, tx ReportTx) (fresh bool, err error)
	StoreOwned(ctx context.Context, tx OwnedTx) (fresh bool, err error)
	StoreEvent(ctx context.Context, tx EventTx) (fresh bool, err error)

	// Results returns what the node's ledger holds as far as it was reported.
	Results(ctx context.Context, node string) ([]mesh.Result, error)
	// BadResults returns the results whose status is Bad, by node, of the nodes
	// named; of all when nodes is nil. Output is left out: on a day on which all
	// fails it is what an answer, and the memory, would be full of.
	BadResults(ctx context.Context, nodes []string) (map[string][]mesh.Result, error)
	// Owned returns the recovery copy of a node.
	Owned(ctx context.Context, node string) ([]mesh.Owned, error)
	// OwnedIDs returns the resources in the recovery copies, by node.
	OwnedIDs(ctx context.Context, nodes []string) (map[string][]mesh.ResourceID, error)
	// Events returns the newest first, at most limit; of all nodes when node is
	// empty.
	Events(ctx context.Context, node string, limit int) ([]EventView, error)
}

// SweepStore forgets what is not to be kept. Each method but ForgetNames is one
// transaction that removes at most limit rows, so that no other write waits for
// long, and returns how many; none: no more is to be removed by it.
type SweepStore interface {
	// Crowded is signalled when a sweep is due before its time.
	Crowded() <-chan struct{}
	// ForgetAudit forgets the oldest entries from before a time.
	ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error)
	// ForgetTokens forgets tokens that expired before a time.
	ForgetTokens(ctx context.Context, before time.Time, limit int) (int, error)
	// ForgetRevisions forgets revisions beyond the newest keep of their name, and
	// all but the newest of a name that was removed before a time.
	ForgetRevisions(ctx context.Context, keep int, removed time.Time, limit int) (int, error)
	// ForgetSequences forgets former stores of hosts, but for the newest of each
	// node. That of the store that a node has now stays.
	ForgetSequences(ctx context.Context, limit int) (int, error)
	// Left returns nodes that left before a time and that ForgetNode has not
	// brought to its end.
	Left(ctx context.Context, before time.Time) ([]string, error)
	// ForgetNode forgets what a node that left reported and was given. That it
	// was, how it ended and its keys stay. Fewer than limit: that is all.
	// CodeConflict: it has not left.
	ForgetNode(ctx context.Context, name string, limit int) (int, error)
	// ForgetNames forgets what nothing refers to any more, limit rows in each
	// transaction.
	ForgetNames(ctx context.Context, limit int) (int, error)
	// Named returns those of the digests that a revision, or a generation of some
	// node, refers to.
	Named(ctx context.Context, sums []string) (map[string]bool, error)
}

// ErrBusy: it is tried again later.
var ErrBusy = errors.New("something else has to end first")

// SweptBlobs is what a sweep of blobs removed.
type SweptBlobs struct {
	Count int
	Bytes int64
}

// ErrContent: content does not have the digest that it was given under.
var ErrContent = errors.New("the content does not have the digest that was named")

// Blobs keeps content by its SHA-256.
type Blobs interface {
	// Put stores what r gives. It is on disk when Put returns nil, and nothing
	// is stored and ErrContent returned when the content does not have the digest.
	Put(ctx context.Context, sha256 string, r io.Reader) error
	// Open returns ErrNotFound when the content is not there.
	Open(ctx context.Context, sha256 string) (io.ReadCloser, error)
	// Missing returns those that are not there, in the same order. Those that are
	// stay for the age of the next sweeps, whether or not anything names them yet;
	// so do those that are put.
	Missing(ctx context.Context, sums []string) ([]string, error)
	// Sweep removes content that nobody put or asked Missing about for age, and
	// that named, which is asked right before, does not return. ErrBusy: a backup
	// is made, and it went no further.
	Sweep(ctx context.Context, age time.Duration, named func(ctx context.Context, sums []string) (map[string]bool, error)) (SweptBlobs, error)
}

// NodeRecord is what is stored of a node, without its results.
type NodeRecord struct {
	Name string
	// State is enrolled, retired or revoked. That a node is disconnected is
	// never stored.
	State  mesh.NodeState
	Labels map[string]string
	// Machine is the hash of the machine id with which the identity was made.
	Machine     string
	HostVersion string
	Enrolled    time.Time
	Profile     mesh.Profile
	// ProfileDigest and InventoryDigest are empty when none was received.
	ProfileDigest   string
	InventoryDigest string
	Briefing        mesh.Briefing
	// StoreID is the host store that the sequence numbers and the recovery copy
	// belong to. Empty: none was seen yet.
	StoreID string
	// Floor is the greatest generation that the node is known to have held or
	// been given; new ones are above it.
	Floor mesh.Generation
	Held  mesh.Generation
	// Ahead: the node holds a generation that this store does not know, as after
	// an old backup was restored. Nothing is written for it until an operator
	// confirms; generations then go on above what it holds.
	Ahead bool
	// Unheard: this store was restored from a backup, and the node has not said
	// since what it holds. Nothing is written for it until it has.
	Unheard bool
	// Retiring: its newest declaration is the final one, or will be.
	Retiring bool
	// Refused is a generation that the node did not take, and why. Zero: none.
	Refused    mesh.Generation
	RefusedWhy string
	// Declared is the newest generation written. Zero: none.
	Declared mesh.Generation
	// Digest and Released are those of the newest generation.
	Digest   string
	Released []mesh.ResourceID
	// Reported is the generation of the latest report, State what it said.
	// Applied is the newest that a report called applied. Zero: none.
	Reported      mesh.Generation
	ReportedState mesh.GenerationState
	Applied       mesh.Generation
	Kept          []mesh.ResourceID
	LastContact   time.Time
	Drift         uint64
}

// IdentityRecord is a key that belongs, or belonged, to a node.
type IdentityRecord struct {
	// Key is the line of an authorized_keys file, without a comment.
	Key     string
	Node    string
	Machine string
	// Revoked is zero while the key is good.
	Revoked time.Time
}

// TokenRecord is what is stored of a token. The secret is not.
type TokenRecord struct {
	Hash string
	// Name is empty when the host name is taken.
	Name     string
	Labels   map[string]string
	Replaces string
	Issued   time.Time
	Expires  time.Time
	// Used is zero when nobody used it. UsedBy is then the key, Node the name
	// that it was used for.
	Used   time.Time
	UsedBy string
	Node   string
}

// EnrolTx is an enrolment: token used, identity and node stored, the former
// identity revoked, facts, recovery copy and first generation written.
type EnrolTx struct {
	TokenHash string
	Key       string
	// Node replaces a node of the same name.
	Node      NodeRecord
	Inventory mesh.Inventory
	// RevokeKeys are the identities that end with this one.
	RevokeKeys []string
	// Owned is put over the recovery copy that is there. An enrolment with which
	// the copy would have more than Limit is refused with CodeInvalid.
	Owned []mesh.Owned
	Limit CopyLimit
	// Bootstrap is set when the bundle becomes a named declaration.
	Bootstrap *Revision
	// Generation is set when the node gets one.
	Generation *GenerationRecord
	Events     []EventView
	Audit      AuditEntry
	At         time.Time
}

// LeaveTx ends a node and its identities.
type LeaveTx struct {
	Node string
	// State is retired or revoked.
	State mesh.NodeState
	Event EventView
	Audit AuditEntry
	At    time.Time
}

// ChangeTx changes a node as far as it is set.
type ChangeTx struct {
	Node string
	// Labels replace those that are there. Nil: they stay.
	Labels map[string]string
	// Retiring and Ahead become as they say. Nil: they stay.
	Retiring *bool
	Ahead    *bool
	// Generation is set when the node gets one because of it.
	Generation *GenerationRecord
	Events     []EventView
	Audit      AuditEntry
}

// FactsTx replaces what is known of a node, as far as it is set.
type FactsTx struct {
	Node      string
	Profile   *mesh.Profile
	Inventory *mesh.Inventory
	Briefing  *mesh.Briefing
	// Digests are set with what they are of.
	ProfileDigest   string
	InventoryDigest string
	// Generation is set when the node gets one because of it.
	Generation *GenerationRecord
	Events     []EventView
}

// TakeBackTx is a node whose store was lost or put back to an earlier moment.
// What it reported counts no more, and its messages above Sequence are recorded
// when they come again, since they are others.
type TakeBackTx struct {
	Node     string
	Sequence Sequence
	// Applied is the newest generation that the node says it has applied.
	Applied mesh.Generation
	Events  []EventView
}

// LinkTx replaces what a node said of itself when it connected or received.
type LinkTx struct {
	Node        string
	HostVersion string
	StoreID     string
	Floor       mesh.Generation
	Held        mesh.Generation
	Ahead       bool
	Unheard     bool
	Refused     mesh.Generation
	RefusedWhy  string
	Events      []EventView
}

// Contact is when a node was last heard of.
type Contact struct {
	Node string
	At   time.Time
	// Held is the generation that the node had said to hold by then.
	Held  mesh.Generation
	Drift uint64
}

// Revision is one write of a named declaration.
type Revision struct {
	Name     string
	Revision int64
	// Removed: this write removes the declaration. Document is then empty.
	Removed  bool
	Document mesh.Document
	// Digest identifies the document.
	Digest string
	By     string
	Door   string
	At     time.Time
}

// DeclarationTx is a write of a named declaration.
type DeclarationTx struct {
	Revision    Revision
	Generations []GenerationRecord
	Audit       AuditEntry
}

// GenerationRecord is what was compiled for one node.
type GenerationRecord struct {
	Node       string
	Generation mesh.Generation
	// Resources may be shared by many records.
	Resources []mesh.Resource
	// Final: it is the last declaration of a node that retires.
	Final bool
	// Digest is that of mesh.Declaration.ContentDigest.
	Digest   string
	Released []mesh.ResourceID
	At       time.Time
}

// Sequence places a message among those of one host store. Number zero: it has
// no place and is always fresh.
type Sequence struct {
	StoreID string
	Number  uint64
}

// ReportTx is a report of a node.
type ReportTx struct {
	Node     string
	Sequence Sequence
	Report   mesh.Report
	// State is what is believed of the report.
	State mesh.GenerationState
	At    time.Time
	// Limit is how many results are kept of one node; a report that would make
	// more is refused with CodeInvalid. Zero: any number.
	Limit int
}

// OwnedTx changes the recovery copy of a node.
type OwnedTx struct {
	Node     string
	Sequence Sequence
	Change   mesh.OwnedChange
	// Mode says how the change is taken.
	Mode OwnedMode
	// Limit is what the copy of one node may have; a change that would make more
	// is refused with CodeInvalid.
	Limit CopyLimit
}

// CopyLimit bounds the recovery copy of one node. Zero: no bound.
type CopyLimit struct {
	Entries int
	// Bytes is the length of what was written and of what is needed to undo.
	Bytes int64
}

// OwnedMode says how a change of the recovery copy is taken.
type OwnedMode string

// The modes.
const (
	// OwnedAsSaid: the change is made.
	OwnedAsSaid OwnedMode = "as-said"
	// OwnedOnlyAdd: what the copy holds stays; only what it lacks is added. A
	// host that has lost its store must not make the copy forget.
	OwnedOnlyAdd OwnedMode = "only-add"
)

// EventTx is an event of a node.
type EventTx struct {
	Sequence Sequence
	Event    EventView
}
