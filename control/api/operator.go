package api

import (
	"context"
	"io"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Operator is what an operator can ask of the control plane. Every method may
// be called concurrently. A write is durable, and in the audit log, when the
// method returns without an error. An error that is meant for the operator is a
// *mesh.Error or a mesh.Problems; any other is a fault, and its text is not
// shown to the caller.
type Operator interface {
	// IssueToken makes a token; the answer is the only place that holds it.
	IssueToken(ctx context.Context, by control.Caller, req control.TokenRequest) (control.TokenIssued, error)
	// Tokens lists the newest tokens first, without their secrets: those that can
	// still be used, or all.
	Tokens(ctx context.Context, all bool) ([]control.TokenView, error)
	// RevokeToken ends a token that nobody used.
	RevokeToken(ctx context.Context, by control.Caller, id string) error
	// Declare writes a named declaration whole, or refuses it whole. Every blob
	// that it names has been given to PutBlob before.
	Declare(ctx context.Context, by control.Caller, doc mesh.Document) (control.Declared, error)
	// DeclareAnew is Declare that writes also what is the same already.
	DeclareAnew(ctx context.Context, by control.Caller, doc mesh.Document) (control.Declared, error)
	// RemoveDeclaration writes a revision that removes the declaration.
	RemoveDeclaration(ctx context.Context, by control.Caller, name string) (control.Declared, error)
	Declarations(ctx context.Context) ([]control.DeclarationView, error)
	// Declaration returns one revision with its document; zero: the newest.
	Declaration(ctx context.Context, name string, revision int64) (control.DeclarationView, error)
	// Progress says how far the nodes of a revision have come; zero: the newest.
	Progress(ctx context.Context, name string, revision int64) (control.Progress, error)
	Nodes(ctx context.Context) ([]control.NodeView, error)
	Node(ctx context.Context, name string) (control.NodeDetail, error)
	// History lists the revisions of a declaration, newest first.
	History(ctx context.Context, name string) ([]control.DeclarationView, error)
	// Compare returns two revisions; to zero: the newest, from zero: the one
	// before it. Content that is sensitive in either is in neither.
	Compare(ctx context.Context, name string, from, to int64) (control.Comparison, error)
	// Revert writes an earlier revision again; zero: the one before the newest.
	Revert(ctx context.Context, by control.Caller, name string, to int64) (control.Declared, error)
	// Events returns what happened lately on one node, or on all when the name is
	// empty: at most limit, newest first.
	Events(ctx context.Context, node string, limit int) ([]control.EventView, error)
	// Retire gives a node its final declaration; Keep takes that back.
	Retire(ctx context.Context, by control.Caller, name string) (control.Retiring, error)
	Keep(ctx context.Context, by control.Caller, name string) (control.Retiring, error)
	// Label sets and drops labels of a node, and returns those that it has then.
	Label(ctx context.Context, by control.Caller, name string, set map[string]string, drop []string) (map[string]string, error)
	// Recover confirms that what a node holds and is not known here is superseded.
	Recover(ctx context.Context, by control.Caller, name string) (control.Recovered, error)
	// Revoke ends the identity of a node for good.
	Revoke(ctx context.Context, by control.Caller, name string) error
	// AddOperator registers an operator who comes from elsewhere.
	AddOperator(ctx context.Context, by control.Caller, req control.OperatorRequest) (control.OperatorAdded, error)
	// RemoveOperator ends an operator; what is open with the key is closed.
	RemoveOperator(ctx context.Context, by control.Caller, name string) error
	Operators(ctx context.Context) ([]control.OperatorView, error)
	// Audit returns at most limit entries, newest first.
	Audit(ctx context.Context, limit int) ([]control.AuditEntry, error)
	// PutBlob stores what r gives under its SHA-256, and refuses other bytes.
	PutBlob(ctx context.Context, by control.Caller, sha256 string, r io.Reader) error
	// MissingBlobs returns those of sums that are not stored.
	MissingBlobs(ctx context.Context, sums []string) ([]string, error)
	// ReplaceContent writes anew every declaration in which a file has the content
	// with this SHA-256, with other content in its place, and names them.
	ReplaceContent(ctx context.Context, by control.Caller, old string, content []byte) ([]string, error)
	// RecordRepository writes a change of the repository into the audit log.
	RecordRepository(ctx context.Context, by control.Caller, what, detail string) error
	// PackageUses lists the versions of packages that must stay installable.
	PackageUses(ctx context.Context) ([]control.PackageUse, error)
	// Lacking names the nodes that verified no file of this content.
	Lacking(ctx context.Context, sha256 string) ([]string, error)
}

// Publisher is the mesh's package repository as the API needs it.
type Publisher interface {
	// Publish adds all files to a suite in one step, or none. They can be
	// installed when it returns without an error. A file that is there already
	// with the same content is not an error. A refusal is a *mesh.Error.
	Publish(ctx context.Context, suite string, files []Upload) ([]Published, error)
	// Packages lists a suite. A suite that nobody published to is empty.
	Packages(ctx context.Context, suite string) ([]Package, error)
	// Repository says what a machine needs to install from the suite.
	Repository(ctx context.Context, suite string) (Repository, error)
}

// DefaultSuite is the suite that is meant where none is named.
const DefaultSuite = "stable"

// Upload is one file on its way into the repository.
type Upload struct {
	// Name is the file name as the operator gave it; for messages only.
	Name string
	// Body gives the content once, from the beginning.
	Body io.Reader
	// Size is the length of Body in bytes.
	Size int64
	// Allow returns nil when whoever sent the file may publish a package of that
	// name. The Publisher asks it, with the name inside the file, before
	// anything is published. Nil: every name is allowed.
	Allow func(name string) error
}

// PublishOutcome says what became of one file of a publication.
type PublishOutcome string

// The outcomes of a file that was published.
const (
	PublishAdded   PublishOutcome = "added"
	PublishPresent PublishOutcome = "already-there"
)

// Package is one package of a suite.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Arch    string `json:"arch"`
	// Format is deb or rpm.
	Format string `json:"format"`
	SHA256 string `json:"sha256"`
	// Size in bytes.
	Size int64 `json:"size"`
}

// Published is what became of one file of a publication.
type Published struct {
	// File is the name under which it was uploaded.
	File    string         `json:"file"`
	Outcome PublishOutcome `json:"outcome"`
	// Warning says which nodes cannot read the file. Empty: every node can.
	Warning string `json:"warning,omitempty"`
	Package
}

// Publication is the answer to a publish.
type Publication struct {
	Suite string      `json:"suite"`
	Files []Published `json:"files"`
}

// Repository is what a machine needs to install from the mesh's repository.
type Repository struct {
	// URL is where the repository is served, without a slash at the end.
	URL   string `json:"url"`
	Suite string `json:"suite"`
	// KeyURL is where the public key is served, and KeySHA256 the digest of
	// exactly those bytes, in hexadecimal: with it the key is not taken on trust.
	KeyURL    string `json:"key_url"`
	KeySHA256 string `json:"key_sha256"`
	// AptKeyFile is where AptSource expects the key, and AptSource the text of
	// a .sources file.
	AptKeyFile string `json:"apt_key_file"`
	AptSource  string `json:"apt_source"`
	// DnfKeyFile is where DnfSource expects the key, and DnfSource the text of
	// a .repo file.
	DnfKeyFile string `json:"dnf_key_file"`
	DnfSource  string `json:"dnf_source"`
}

// TokenAnswer is a token together with what a machine needs to use it.
type TokenAnswer struct {
	control.TokenIssued
	// Repository is nil when the repository could not say; RepositoryFault then
	// says why. The token is good all the same.
	Repository      *Repository `json:"repository,omitempty"`
	RepositoryFault string      `json:"repository_fault,omitempty"`
}

// Health is the answer of a control plane that works.
type Health struct {
	Version string `json:"version"`
	// Now is the control plane's time.
	Now time.Time `json:"now"`
}
