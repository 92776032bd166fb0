package link

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/cpu"

	mesh "github.com/meshctl/mesh"
)

// dialTimeout bounds the TCP connection to one address.
const dialTimeout = 10 * time.Second

// dialer makes authenticated connections to one control plane.
type dialer struct {
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	fingerprint [sha256.Size]byte
	// pinnedBy names, in a sentence, what holds the fingerprint.
	pinnedBy string
	// handshake bounds the handshake.
	handshake time.Duration
}

func newDialer(dial func(context.Context, string, string) (net.Conn, error), fingerprint [sha256.Size]byte, pinnedBy string, handshake time.Duration) dialer {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	return dialer{dial: dial, fingerprint: fingerprint, pinnedBy: pinnedBy, handshake: handshake}
}

// peer is a connection to the control plane with the one channel that it is
// for. Channels and requests must be served.
type peer struct {
	address  string
	raw      net.Conn
	conn     ssh.Conn
	channels <-chan ssh.NewChannel
	requests <-chan *ssh.Request

	channel         ssh.Channel
	channelRequests <-chan *ssh.Request
}

func (p *peer) close() { _ = p.raw.Close() }

// first tries addresses in turn until open works for one, or one that proved
// to be the control plane refused. Otherwise every address has its say in the
// error.
func (d dialer) first(ctx context.Context, addresses []string, open func(context.Context, string) (*peer, error)) (*peer, error) {
	var failures []error
	for _, address := range addresses {
		p, err := open(ctx, address)
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var refused *refusedError
		if errors.As(err, &refused) {
			return nil, err
		}
		failures = append(failures, err)
	}
	if len(failures) == 1 {
		return nil, failures[0]
	}
	sentences := make([]string, len(failures))
	code := mesh.CodeDenied
	for i, err := range failures {
		sentences[i] = err.Error()
		if mesh.CodeOf(err) != mesh.CodeDenied {
			code = mesh.CodeUnavailable
		}
	}
	return nil, &mesh.Error{Code: code, Message: strings.Join(sentences, "; "), Err: errors.Join(failures...)}
}

// refusedError marks an answer of the control plane that holds the pinned key.
type refusedError struct{ refused mesh.Refused }

// Error returns the control plane's own sentence.
func (e *refusedError) Error() string { return e.refused.Message }

// refusal makes the error of an answer.
func refusal(address string, refused mesh.Refused) error {
	refused.Message = printable(refused.Message)
	if refused.Code == "" {
		refused.Code = mesh.CodeInternal
	}
	return mesh.Errorf(refused.Code, "the control plane at %s refused: %w", address, &refusedError{refused})
}

// printable keeps a message of another machine from moving a terminal's cursor.
func printable(s string) string {
	const limit = 2048
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}

// open dials one address, proves who this machine is and opens a channel. An
// empty secret is not sent.
func (d dialer) open(ctx context.Context, address, user string, key ssh.Signer, secret, channel string) (*peer, error) {
	raw, err := d.dial(ctx, "tcp", address)
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeUnavailable, "cannot reach the control plane at %s: %w", address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	deadline := time.AfterFunc(d.handshake, func() { _ = raw.Close() })
	defer deadline.Stop()
	p, err := d.shake(raw, address, user, key, secret)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	p.channel, p.channelRequests, err = p.conn.OpenChannel(channel, nil)
	if err != nil {
		_ = raw.Close()
		return nil, mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s did not open %s: %w", address, channel, err)
	}
	return p, nil
}

// shake runs the handshake, and turns what can go wrong in it into sentences.
func (d dialer) shake(raw net.Conn, address, user string, key ssh.Signer, secret string) (*peer, error) {
	var (
		wrongKey error
		asked    bool
		banner   *mesh.Refused
	)
	config := &ssh.ClientConfig{
		User:          user,
		ClientVersion: "SSH-2.0-mesh",
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256,
			ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512},
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			if sum := sha256.Sum256(shown.Marshal()); sum != d.fingerprint {
				wrongKey = mesh.Errorf(mesh.CodeDenied, "the control plane at %s shows key %s, %s pins %s; nothing was sent",
					address, mesh.FingerprintText(sum), d.pinnedBy, mesh.FingerprintText(d.fingerprint))
				return wrongKey
			}
			return nil
		},
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			asked = true
			return []ssh.Signer{key}, nil
		})},
		BannerCallback: func(message string) error {
			var refused mesh.Refused
			if json.Unmarshal([]byte(message), &refused) == nil && refused.Message != "" {
				banner = &refused
			}
			return nil
		},
	}
	config.Ciphers = ciphers()
	if secret != "" {
		config.Auth = append(config.Auth, ssh.Password(secret))
	}
	conn, channels, requests, err := ssh.NewClientConn(raw, address, config)
	switch {
	case err == nil:
		return &peer{address: address, raw: raw, conn: conn, channels: channels, requests: requests}, nil
	case wrongKey != nil:
		return nil, wrongKey
	case banner != nil:
		return nil, refusal(address, *banner)
	case asked && !broken(err):
		return nil, refusal(address, mesh.Refused{Code: mesh.CodeDenied, Message: "it does not accept this machine's key"})
	default:
		return nil, mesh.Errorf(mesh.CodeUnavailable, "the handshake with the control plane at %s broke off: %w", address, err)
	}
}

// broken reports whether the connection was at fault, and not what was said.
func broken(err error) bool {
	var network net.Error
	return errors.As(err, &network) || ended(err)
}

// ciphers prefers AES-GCM where the processor has it.
func ciphers() []string {
	if cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL {
		return []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305}
	}
	return []string{ssh.CipherChaCha20Poly1305, ssh.CipherAES128GCM}
}

// refuse answers a request that the control plane has no reason to make.
func refuse(request *ssh.Request) error {
	if !request.WantReply {
		return nil
	}
	if err := request.Reply(false, nil); err != nil {
		return fmt.Errorf("refuse a request: %w", err)
	}
	return nil
}
