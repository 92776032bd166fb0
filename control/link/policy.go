package link

import (
	"context"
	"io"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Policy decides everything about nodes; the server only carries it. All
// methods are called from many goroutines. An error with mesh.CodeInvalid is
// final; one with mesh.CodeUnavailable, or without a code, may go away.
type Policy interface {
	// CheckToken returns nil when the hash is that of a token that somebody may
	// enrol with now, or may repeat an enrolment with.
	CheckToken(ctx context.Context, secretHash string) error
	// Enrol decides about a machine that proved key and token. Key is in the
	// form of authorized_keys, without a comment. What it returns is durable.
	Enrol(ctx context.Context, key, secretHash, remote string, e mesh.Enrol) (mesh.Enrolled, error)
	// NodeByKey returns the name of the node that the key belongs to, and
	// mesh.CodeDenied when there is none or it was revoked.
	NodeByKey(ctx context.Context, key string) (string, error)
	// Connect takes a link that said hello, or refuses it. The waker may be
	// called before Connect returns. A recovery copy, when there is one, is
	// sent before any declaration, in as many frames as it needs.
	Connect(ctx context.Context, node string, hello mesh.Hello, w control.Waker) (mesh.Welcome, *mesh.Recover, error)
	// Disconnect is called once for each Connect that returned no error.
	Disconnect(node string, w control.Waker)
	// Pending returns the newest declaration that the node does not hold, nil
	// when there is none.
	Pending(ctx context.Context, node string) (*control.Outgoing, error)
	// Handle takes a frame of a node; nil means that it is committed, now or
	// earlier. A sequence number counts within storeID.
	Handle(ctx context.Context, node, storeID string, f mesh.Frame) error
	// OpenBlob opens content that a declaration of the node names.
	OpenBlob(ctx context.Context, node, sha256 string) (io.ReadCloser, error)
}
