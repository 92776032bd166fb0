package link

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
)

// connection is one SSH connection, authenticated or about to be.
type connection struct {
	server *Server
	raw    net.Conn
	source source
	// deadline closes raw when the first frame takes too long. It is stopped
	// when that frame was answered.
	deadline *time.Timer

	// What authenticate found out.
	user string
	// node is set for mesh.UserNode.
	node string
	// key is set for mesh.UserEnrol and operators, secretHash for the former.
	key        string
	secretHash string

	channels <-chan ssh.NewChannel
	requests <-chan *ssh.Request
}

// log is made when there is something to say, and not kept for each connection.
func (c *connection) log() *slog.Logger {
	return c.server.cfg.Log.With("remote", c.raw.RemoteAddr().String())
}

// authenticate waits for the client to speak, then for a place among the
// handshakes, then for proof of who it is.
func (c *connection) authenticate(ctx context.Context, share *share) error {
	cfg := &c.server.cfg
	greeting := time.AfterFunc(cfg.GreetingTimeout, func() { _ = c.raw.Close() })
	reader := bufio.NewReaderSize(c.raw, 16)
	_, err := reader.Peek(1)
	greeting.Stop()
	if err != nil {
		return fmt.Errorf("wait for a greeting: %w", err)
	}
	// First its source's own places, so that waiting for those of all is for
	// sources that have some left.
	for _, slots := range []chan struct{}{share.slots, c.server.slots} {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { <-slots }()
	}
	c.deadline = time.AfterFunc(cfg.HandshakeTimeout, func() { _ = c.raw.Close() })
	conn, channels, requests, err := ssh.NewServerConn(&greeted{Conn: c.raw, first: reader}, c.sshConfig(ctx))
	if err != nil {
		c.deadline.Stop()
		return fmt.Errorf("handshake: %w", err)
	}
	c.user, c.channels, c.requests = conn.User(), channels, requests
	if conn.Permissions != nil {
		c.node = conn.Permissions.Extensions[extensionNode]
		c.key = conn.Permissions.Extensions[extensionKey]
		c.secretHash = conn.Permissions.Extensions[extensionSecret]
	}
	return nil
}

// greeted is a connection of which the first bytes were looked at.
type greeted struct {
	net.Conn
	first *bufio.Reader
}

// Read returns what was looked at first, then the rest.
func (g *greeted) Read(p []byte) (int, error) {
	if g.first != nil {
		if g.first.Buffered() > 0 {
			return g.first.Read(p[:min(len(p), g.first.Buffered())])
		}
		g.first = nil
	}
	return g.Conn.Read(p)
}

// Keys of ssh.Permissions.Extensions, which carry what authentication found.
const (
	extensionNode   = "node@mesh"
	extensionKey    = "key@mesh"
	extensionSecret = "secret-hash@mesh"
)

// What is agreed on, shared by all connections and never changed. Machines make
// Ed25519 keys; operators come with what they have.
var (
	keyAlgorithms = []string{
		ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
	}
	ciphers = []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES256GCM}
)

func (c *connection) sshConfig(ctx context.Context) *ssh.ServerConfig {
	policy := c.server.cfg.Policy
	config := &ssh.ServerConfig{
		PublicKeyAuthAlgorithms: keyAlgorithms,
		ServerVersion:           "SSH-2.0-mesh",
		// An agent may offer a few keys before the one that is registered.
		MaxAuthTries: 6,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			text := AuthorizedKey(key)
			machine := meta.User() == mesh.UserNode || meta.User() == mesh.UserEnrol
			if machine && key.Type() != ssh.KeyAlgoED25519 {
				return nil, errors.New("the key of a machine is of another type")
			}
			switch meta.User() {
			case mesh.UserNode:
				node, err := policy.NodeByKey(ctx, text)
				if err != nil {
					return nil, c.refusal(err)
				}
				return &ssh.Permissions{Extensions: map[string]string{extensionNode: node}}, nil
			case mesh.UserEnrol:
				return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{
					PasswordCallback: func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
						return c.checkToken(ctx, text, password)
					},
				}}
			default:
				return c.admitOperator(ctx, text)
			}
		},
	}
	config.Ciphers = ciphers
	config.AddHostKey(c.server.cfg.HostKey)
	return config
}

// checkToken is the second step of an enrolment; the machine has shown by then
// that it holds the key.
func (c *connection) checkToken(ctx context.Context, key string, password []byte) (*ssh.Permissions, error) {
	if rest := c.server.sources.wait(c.source); rest > 0 {
		return nil, c.refusal(mesh.Errorf(mesh.CodeUnavailable, "too many wrong tokens came from this address; tokens from it are looked at again in %s", rest.Round(time.Second)))
	}
	const hexSecret = 2 * mesh.SecretSize
	if len(password) != hexSecret {
		c.wrongToken()
		return nil, c.refusal(mesh.Errorf(mesh.CodeInvalid, "this is not the secret of a token; copy the token again, whole"))
	}
	hash := mesh.SecretHash(string(password))
	if err := c.server.cfg.Policy.CheckToken(ctx, hash); err != nil {
		if mesh.CodeOf(err) == mesh.CodeDenied {
			c.wrongToken()
		}
		return nil, c.refusal(err)
	}
	return &ssh.Permissions{Extensions: map[string]string{extensionKey: key, extensionSecret: hash}}, nil
}

func (c *connection) wrongToken() {
	if c.server.sources.guessed(c.source) {
		c.log().Warn("too many wrong tokens from one source; its tokens are not looked at for a while", "source", string(c.source))
	}
}

// refusal makes the error that tells the client why, as a banner with the JSON
// of a mesh.Refused. Faults of ours are logged here and not told.
func (c *connection) refusal(err error) error {
	refused := c.refused(err)
	message, marshalErr := json.Marshal(refused)
	if marshalErr != nil {
		return err
	}
	return &ssh.BannerError{Err: err, Message: string(message)}
}

// refused turns an error of the policy into what the other end may read.
func (c *connection) refused(err error) mesh.Refused {
	var known *mesh.Error
	if errors.As(err, &known) && known.Code != mesh.CodeInternal {
		return mesh.Refused{Code: known.Code, Message: known.Error()}
	}
	var problems mesh.Problems
	if errors.As(err, &problems) {
		return mesh.Refused{Code: mesh.CodeInvalid, Message: problems.Error()}
	}
	c.log().Error("the policy could not answer a host", "error", err)
	return mesh.Refused{Code: mesh.CodeInternal, Message: "the control plane could not decide for a reason of its own, which its log has; trying again later may help"}
}
