// Package remote reaches the operator API of a control plane from elsewhere,
// over SSH.
//
// It proves the operator's key and refuses any control plane but the one whose
// fingerprint it was given. It trusts nothing on first use, keeps no list of
// known hosts, and knows nothing of what is asked.
package remote

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/sshkey"
)

const (
	dialTimeout      = 15 * time.Second
	handshakeTimeout = 30 * time.Second
	// sshUser is the name under which operators come. Any would do that is not
	// one of the machines': the key says who it is.
	sshUser = "operator"
	// keepAlive is how often the network is asked whether the other end is there.
	keepAlive = 15 * time.Second
)

// Config says which control plane is reached, and as whom.
type Config struct {
	// Address is host:port.
	Address string
	// Fingerprint is that of the control plane's key.
	Fingerprint [sha256.Size]byte
	// Signers are the keys that are offered, in order. They must not be empty.
	Signers []ssh.Signer
}

// Dialer is an api.Dialer over one SSH connection, which it makes when it is
// first needed and makes again when it was lost.
type Dialer struct {
	cfg Config

	mu sync.Mutex
	// client is nil while there is no connection, under mu.
	client *ssh.Client
	closed bool
}

// New makes a dialer. It connects when it is first asked to dial.
func New(cfg Config) *Dialer { return &Dialer{cfg: cfg} }

// DialContext opens a connection to the API.
func (d *Dialer) DialContext(ctx context.Context) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	if d.client != nil {
		if c, err := open(d.client); err == nil {
			return c, nil
		}
		_ = d.client.Close()
		d.client = nil
	}
	client, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	c, err := open(client)
	if err != nil {
		_ = client.Close()
		return nil, mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s took the key and does not answer operators: %w; nothing was asked", d.cfg.Address, err)
	}
	d.client = client
	return c, nil
}

// Close ends the SSH connection and what it carries.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.client == nil {
		return nil
	}
	err := d.client.Close()
	d.client = nil
	return err
}

func (d *Dialer) connect(ctx context.Context) (*ssh.Client, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", d.cfg.Address)
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s cannot be reached: %w; nothing was asked", d.cfg.Address, err)
	}
	timer := time.AfterFunc(handshakeTimeout, func() { _ = raw.Close() })
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()

	var banner string
	other := false
	conn, channels, requests, err := ssh.NewClientConn(raw, d.cfg.Address, &ssh.ClientConfig{
		User: sshUser,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(d.cfg.Signers...)},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if shown := sshkey.Fingerprint(key); shown != d.cfg.Fingerprint {
				other = true
				return &mesh.Error{Code: mesh.CodeDenied, Message: fmt.Sprintf(
					"what answers at %s has the key %s, and %s is pinned; nothing was sent. If the control plane has a new key, get its fingerprint on the machine itself",
					d.cfg.Address, mesh.FingerprintText(shown), mesh.FingerprintText(d.cfg.Fingerprint))}
			}
			return nil
		},
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		BannerCallback:    func(message string) error { banner = message; return nil },
		ClientVersion:     "SSH-2.0-mesh",
	})
	if err == nil {
		return ssh.NewClient(conn, channels, requests), nil
	}
	_ = raw.Close()
	var told *mesh.Error
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case other && errors.As(err, &told):
		return nil, told
	case banner != "":
		return nil, d.refusal(banner)
	default:
		return nil, mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s did not let the connection come about: %w; nothing was asked", d.cfg.Address, err)
	}
}

// refusal reads why the control plane, whose key is the pinned one, refused.
func (d *Dialer) refusal(banner string) error {
	var refused mesh.Refused
	if err := json.Unmarshal([]byte(banner), &refused); err != nil || refused.Message == "" {
		return mesh.Errorf(mesh.CodeDenied, "the control plane at %s refused every key that was offered", d.cfg.Address)
	}
	keys := make([]string, len(d.cfg.Signers))
	for i, s := range d.cfg.Signers {
		keys[i] = mesh.FingerprintText(sshkey.Fingerprint(s.PublicKey()))
	}
	return mesh.Errorf(refused.Code, "the control plane at %s refused: %s (offered: %s)", d.cfg.Address, refused.Message, strings.Join(keys, ", "))
}

// open opens one channel as a connection.
func open(client *ssh.Client) (net.Conn, error) {
	channel, requests, err := client.OpenChannel(mesh.ChannelAPI, nil)
	if err != nil {
		return nil, err
	}
	go ssh.DiscardRequests(requests) // ends with the channel
	return &conn{Channel: channel, client: client}, nil
}

// conn is a channel as a net.Conn. It has no deadlines: HTTP asks for none on
// this side, and ends a request that was given up by closing.
type conn struct {
	ssh.Channel
	client *ssh.Client
}

func (c *conn) LocalAddr() net.Addr              { return c.client.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr             { return c.client.RemoteAddr() }
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
