package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	controllink "github.com/meshctl/mesh/control/link"
	hostlink "github.com/meshctl/mesh/host/link"
	"github.com/meshctl/mesh/internal/frame"
)

const controlAt = "control.test:7022"

func unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// startControl serves p on n until the test ends.
func startControl(t *testing.T, n *network, p controllink.Policy, key ssh.Signer, change ...func(*controllink.Config)) *controllink.Server {
	t.Helper()
	cfg := controllink.Config{Policy: p, HostKey: key, Log: testLog(t).With("end", "control")}
	for _, c := range change {
		c(&cfg)
	}
	server, err := controllink.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	listener := n.listen(controlAt)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v after its ctx ended", err)
		}
	})
	return server
}

// startHost runs a client on n until the test ends.
func startHost(t *testing.T, n *network, h hostlink.Host, o hostlink.Outbox, key ssh.Signer, control ssh.PublicKey, change ...func(*hostlink.Config)) *hostlink.Client {
	t.Helper()
	cfg := hostlink.Config{
		Addresses:   []string{controlAt},
		Key:         key,
		Fingerprint: controllink.Fingerprint(control),
		Host:        h,
		Outbox:      o,
		Log:         testLog(t).With("end", "host"),
		Dial:        n.dial,
	}
	for _, c := range change {
		c(&cfg)
	}
	client, err := hostlink.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- client.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run returned %v after its ctx ended", err)
		}
	})
	return client
}

// raw is one end of a link that a test plays by hand.
type raw struct {
	conn    ssh.Conn
	channel ssh.Channel
	frames  *frame.Reader
}

func (r *raw) close() { _ = r.conn.Close() }

func (r *raw) say(t *testing.T, f mesh.Frame) {
	t.Helper()
	if err := frame.Write(r.channel, f); err != nil {
		t.Fatalf("say %s: %v", f.Type, err)
	}
}

// dialRaw connects to the control plane as a host would and opens a channel.
func dialRaw(n *network, user string, key ssh.Signer, secret, channel string) (*raw, error) {
	tcp, err := n.dial(context.Background(), "tcp", controlAt)
	if err != nil {
		return nil, err
	}
	return shakeRaw(tcp, user, key, secret, channel)
}

// shakeRaw does the same on a connection. A nil key is not shown, nor is an
// empty secret.
func shakeRaw(tcp net.Conn, user string, key ssh.Signer, secret, channel string) (*raw, error) {
	config := &ssh.ClientConfig{User: user, HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	if key != nil {
		config.Auth = append(config.Auth, ssh.PublicKeys(key))
	}
	if secret != "" {
		config.Auth = append(config.Auth, ssh.Password(secret))
	}
	conn, channels, requests, err := ssh.NewClientConn(tcp, controlAt, config)
	if err != nil {
		return nil, err
	}
	go ssh.DiscardRequests(requests)
	go func() {
		for next := range channels {
			_ = next.Reject(ssh.Prohibited, "")
		}
	}()
	opened, channelRequests, err := conn.OpenChannel(channel, nil)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	go ssh.DiscardRequests(channelRequests)
	return &raw{conn: conn, channel: opened, frames: frame.NewReader(opened)}, nil
}

// rawControl accepts hosts, whoever they are.
type rawControl struct {
	key      ssh.Signer
	accepted chan *raw
	// secrets holds the passwords that came.
	secrets chan string
}

// startRawControl listens on n until the test ends.
func startRawControl(t *testing.T, n *network) *rawControl {
	t.Helper()
	c := &rawControl{key: newKey(t), accepted: make(chan *raw, 16), secrets: make(chan string, 16)}
	listener := n.listen(controlAt)
	go c.serve(listener)
	t.Cleanup(func() { _ = listener.Close(); n.cut() })
	return c
}

func (c *rawControl) serve(listener net.Listener) {
	for {
		tcp, err := listener.Accept()
		if err != nil {
			return
		}
		go c.accept(tcp)
	}
}

func (c *rawControl) accept(tcp net.Conn) {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, _ ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() == mesh.UserNode {
				return nil, nil
			}
			return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{
				PasswordCallback: func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
					c.secrets <- string(password)
					return nil, nil
				},
			}}
		},
	}
	config.AddHostKey(c.key)
	conn, channels, requests, err := ssh.NewServerConn(tcp, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for next := range channels {
		switch next.ChannelType() {
		case mesh.ChannelLink, mesh.ChannelEnrol:
		default:
			_ = next.Reject(ssh.UnknownChannelType, "")
			continue
		}
		channel, channelRequests, err := next.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(channelRequests)
		c.accepted <- &raw{conn: conn, channel: channel, frames: frame.NewReader(channel)}
	}
}

func codeOf(err error) mesh.Code {
	var known *mesh.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return ""
}
