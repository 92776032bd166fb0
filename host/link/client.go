// Package link is the host's end of the link: it dials the control plane,
// refuses any key but the pinned one, keeps one connection open, delivers what
// the host has to say and hands over what the control plane sends.
//
// It stores nothing and applies nothing: a Host and an Outbox do. Nothing here
// asks for declarations; they come.
package link

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
)

// Host is what the link serves. Heartbeat is called from the link's loop and
// answers at once; the others may take their time.
type Host interface {
	// Hello says who and how far this host is.
	Hello(ctx context.Context) (mesh.Hello, error)
	// Heartbeat says the same in short, every time. Sequence is filled in by
	// the link.
	Heartbeat(ctx context.Context) (mesh.Heartbeat, error)
	// Describe returns what mesh.WantProfile, mesh.WantInventory or
	// mesh.WantBriefing asks for, and the type of frame that carries it.
	Describe(ctx context.Context, want string) (any, mesh.FrameType, error)
	// Want is told which of mesh.WantReport and mesh.WantOwned the control
	// plane lacks; the host puts them into its outbox.
	Want(ctx context.Context, wants []string) error
	// Declare stores a declaration and the content that it names, durably,
	// before it returns. An error means that nothing was taken and that it is
	// handed over again later; a declaration that is refused is no error, but
	// Received.Refused. The ctx ends when a newer declaration came or the link
	// is lost. Fetch writes content that is only to be used after fetch
	// returned nil; it is for one goroutine at a time.
	Declare(ctx context.Context, d mesh.Declaration, fetch func(ctx context.Context, sha256 string, w io.Writer) error) (mesh.Received, error)
	// Recover stores the recovery copy, durably, before it returns. It comes
	// before any declaration; an error means that it is handed over again.
	Recover(ctx context.Context, copy mesh.Recover) error
	// Revoked is told that the control plane no longer counts this machine as
	// its node. The link goes on dialling, slowly.
	Revoked(ctx context.Context, reason string)
}

// Leaver is a Host that can leave its mesh.
type Leaver interface {
	// Retired is told, by the control plane that this host pins, that the node
	// has left the mesh: the goodbye is committed. It does not wait.
	Retired(ctx context.Context, reason string)
}

// Outbox holds the messages that must not be lost.
type Outbox interface {
	// Next returns at most max messages with a sequence number above after, in
	// order. It returns the same again until they are acked.
	Next(ctx context.Context, after uint64, max int) ([]mesh.Frame, error)
	// Acked says that the control plane committed everything up to and
	// including seq; they may be forgotten.
	Acked(ctx context.Context, seq uint64) error
	// Changed is received from after messages were added. It is always the
	// same channel, of capacity one, sent to without blocking.
	Changed() <-chan struct{}
}

// Config is what a Client is made of.
type Config struct {
	// Addresses are host:port pairs, tried in turn. At least one.
	Addresses []string
	// Key is the node's.
	Key ssh.Signer
	// Fingerprint is that of the one key that the control plane may show.
	Fingerprint [sha256.Size]byte
	// Host, Outbox and Log must be set.
	Host   Host
	Outbox Outbox
	Log    *slog.Logger
	// Beat is called at each turn of the loop, at least every Turn. Nil: not.
	Beat func()
	// Turn bounds how long the loop waits without a Beat. Zero: 5 s.
	Turn time.Duration
	// Network is received from when the network changed, so that dialling is
	// worth a try. Nil: never. See WatchNetwork.
	Network <-chan struct{}
	// Dial opens a TCP connection. Nil: a net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Rand returns numbers in [0,1) from many goroutines. Nil: math/rand/v2.
	Rand func() float64
	// Now is the clock of Status. Nil: time.Now.
	Now func() time.Time
	// BackoffBase and BackoffCap bound the first and the longest wait between
	// two attempts. Zero: 1 s and 60 s.
	BackoffBase time.Duration
	BackoffCap  time.Duration
	// HandshakeTimeout bounds the SSH handshake, and the wait for the welcome.
	// Zero: 45 s, which leaves room for a storm of reconnects.
	HandshakeTimeout time.Duration
	// Heartbeat is the interval when the welcome names none. Zero:
	// mesh.HeartbeatInterval.
	Heartbeat time.Duration
}

// Client keeps the link. Make it with New.
type Client struct {
	cfg     Config
	dialer  dialer
	refresh chan string

	mu sync.Mutex
	// status is under mu.
	status Status
}

// New makes a client; it does nothing until Run.
func New(cfg Config) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("no address of a control plane is known; enrol first")
	}
	if cfg.Key == nil || cfg.Host == nil || cfg.Outbox == nil || cfg.Log == nil {
		return nil, errors.New("a link needs a key, a host, an outbox and a log")
	}
	if cfg.Beat == nil {
		cfg.Beat = func() {}
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Turn = orDefault(cfg.Turn, 5*time.Second)
	cfg.BackoffBase = orDefault(cfg.BackoffBase, time.Second)
	cfg.BackoffCap = orDefault(cfg.BackoffCap, time.Minute)
	cfg.HandshakeTimeout = orDefault(cfg.HandshakeTimeout, 45*time.Second)
	cfg.Heartbeat = orDefault(cfg.Heartbeat, mesh.HeartbeatInterval)
	return &Client{
		cfg:     cfg,
		dialer:  newDialer(cfg.Dial, cfg.Fingerprint, "this node's configuration", cfg.HandshakeTimeout),
		refresh: make(chan string, 8),
		status:  Status{State: StateConnecting, Since: cfg.Now()},
	}, nil
}

func orDefault(value, standard time.Duration) time.Duration {
	if value == 0 {
		return standard
	}
	return value
}

// Refresh says that what the host would answer to Describe changed, so that it
// is sent again. Without a link nothing needs to be done: the next hello tells.
func (c *Client) Refresh(want string) {
	select {
	case c.refresh <- want:
	default:
	}
}

// Run keeps the link until ctx ends. It returns nil then, and never otherwise:
// being disconnected is ordinary.
func (c *Client) Run(ctx context.Context) error {
	attempts := 0
	for {
		began := c.cfg.Now()
		welcomed, err := c.attempt(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if welcomed && c.cfg.Now().Sub(began) > c.cfg.Heartbeat {
			attempts = 0
		}
		delay := backoff(c.cfg.Rand, c.cfg.BackoffBase, c.cfg.BackoffCap, attempts)
		if leaver, can := c.cfg.Host.(Leaver); can && mesh.CodeOf(err) == mesh.CodeRetired {
			leaver.Retired(ctx, err.Error())
		}
		if final(err) {
			delay = c.cfg.BackoffCap/2 + time.Duration(c.cfg.Rand()*float64(c.cfg.BackoffCap)/2)
		}
		attempts++
		c.disconnected(err, delay)
		if !c.wait(ctx, delay) {
			return nil
		}
	}
}

// final reports whether the control plane gave an answer that trying again
// soon will not change.
func final(err error) bool {
	switch mesh.CodeOf(err) {
	case mesh.CodeDenied, mesh.CodeConflict, mesh.CodeInvalid, mesh.CodeRetired:
		return true
	default:
		return false
	}
}

// attempt dials all addresses in turn until one answers, and serves the link
// to its end. It says whether there was a link.
func (c *Client) attempt(ctx context.Context) (welcomed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type dialled struct {
		peer  *peer
		hello mesh.Hello
		err   error
	}
	result := make(chan dialled, 1)
	c.set(func(s *Status) { s.State, s.Next = StateConnecting, time.Time{} })
	select { // a change from before this attempt is no reason for the next
	case <-c.cfg.Network:
	default:
	}
	go func() {
		p, err := c.dialer.first(ctx, c.cfg.Addresses, func(ctx context.Context, address string) (*peer, error) {
			return c.dialer.open(ctx, address, mesh.UserNode, c.cfg.Key, "", mesh.ChannelLink)
		})
		if err != nil {
			result <- dialled{err: err}
			return
		}
		hello, err := c.hello(ctx)
		if err != nil {
			p.close()
		}
		result <- dialled{p, hello, err}
	}()
	turn := time.NewTicker(c.cfg.Turn)
	defer turn.Stop()
	for {
		c.cfg.Beat()
		select {
		case r := <-result: // it comes soon after ctx ends, too
			if r.err != nil {
				return false, r.err
			}
			defer r.peer.close()
			return c.serve(ctx, r.peer, r.hello)
		case <-turn.C:
		}
	}
}

// wait returns false when ctx ended first.
func (c *Client) wait(ctx context.Context, delay time.Duration) bool {
	until := c.cfg.Now().Add(delay)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	turn := time.NewTicker(c.cfg.Turn)
	defer turn.Stop()
	for {
		c.cfg.Beat()
		select {
		case <-timer.C:
			return true
		case <-c.cfg.Network:
			// Soon, and still not in step with the rest of the fleet.
			soon := time.Duration(c.cfg.Rand() * float64(c.cfg.BackoffBase))
			if until.Sub(c.cfg.Now()) > soon {
				timer.Reset(soon)
			}
		case <-turn.C:
		case <-ctx.Done():
			return false
		}
	}
}

// backoff is exponential with full jitter: anything between nothing and a
// limit that doubles with each attempt, so that a fleet does not come back in
// step.
func backoff(random func() float64, base, limit time.Duration, attempts int) time.Duration {
	most := limit
	if attempts < 30 && base<<attempts < limit {
		most = base << attempts
	}
	return time.Duration(random() * float64(most))
}
