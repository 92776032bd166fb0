// Package link is the control plane's end of the link: an SSH server to which
// machines come to enrol, nodes come to stay, and operators come to ask.
//
// It authenticates, carries frames, acknowledges what the policy committed and
// notices when a link is dead. It decides nothing about nodes and operators: a
// Policy does.
package link

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
)

// Config is what a Server is made of.
type Config struct {
	// Policy and HostKey must be set.
	Policy  Policy
	HostKey ssh.Signer
	// Log must be set.
	Log *slog.Logger
	// Operators knows the operators. Nil: none come through this door.
	Operators OperatorPolicy
	// MaxHandshakes is how many key exchanges run at a time; one source may have
	// a quarter of these places. Zero: 64.
	MaxHandshakes int
	// MaxUnauthenticated is how many connections may be open that have not
	// proved who they are. Beyond it nothing is accepted until one has, or was
	// closed. Zero: 1024.
	MaxUnauthenticated int
	// MaxPerSource is how many of these one source may have: an IPv4 address, or
	// a 64-bit prefix of IPv6. More are closed at once. Zero: 256.
	MaxPerSource int
	// GreetingTimeout is how long a new connection may say nothing. Zero: 10 s.
	GreetingTimeout time.Duration
	// HandshakeTimeout is how long the key exchange, the authentication and the
	// hello or enrol frame may take together. Zero: 30 s.
	HandshakeTimeout time.Duration
	// Heartbeat is the interval in which a host sends when the welcome names
	// none. Zero: mesh.HeartbeatInterval.
	Heartbeat time.Duration
	// Now is the clock. Nil: the machine's.
	Now func() time.Time
	// Rand gives the nonces of proofs. Nil: crypto/rand.
	Rand io.Reader
}

// Server accepts links. Make it with New.
type Server struct {
	cfg Config
	// slots bounds the handshakes that run, unproven the connections that have
	// not authenticated.
	slots    chan struct{}
	unproven chan struct{}
	sources  *sources
	// operators is where the connections of operators come out.
	operators *door

	mu sync.Mutex
	// perOperator counts the connections of each key, under mu.
	perOperator map[string]int
	// links holds the welcomed links by node, under mu. There may be two for a
	// moment, while the policy replaces one.
	links map[string][]*nodeLink
}

// New makes a server; it does nothing until Serve.
func New(cfg Config) (*Server, error) {
	if cfg.Policy == nil || cfg.HostKey == nil || cfg.Log == nil {
		return nil, errors.New("a link server needs a policy, a host key and a log")
	}
	cfg.MaxHandshakes = orDefault(cfg.MaxHandshakes, 64)
	cfg.MaxUnauthenticated = orDefault(cfg.MaxUnauthenticated, 1024)
	cfg.MaxPerSource = orDefault(cfg.MaxPerSource, 256)
	cfg.GreetingTimeout = orDefault(cfg.GreetingTimeout, 10*time.Second)
	cfg.HandshakeTimeout = orDefault(cfg.HandshakeTimeout, 30*time.Second)
	cfg.Heartbeat = orDefault(cfg.Heartbeat, mesh.HeartbeatInterval)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	return &Server{
		cfg:         cfg,
		slots:       make(chan struct{}, cfg.MaxHandshakes),
		unproven:    make(chan struct{}, cfg.MaxUnauthenticated),
		sources:     newSources(cfg.MaxPerSource, (cfg.MaxHandshakes+3)/4, cfg.Now),
		operators:   newDoor(),
		perOperator: make(map[string]int),
		links:       make(map[string][]*nodeLink),
	}, nil
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// acceptPause is how long Serve waits after the kernel refused a connection,
// for want of descriptors as a rule.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections until ctx ends, then closes all of them and waits
// for everything that it started. It returns nil when ctx ended, and closes
// the listener in any case.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	defer func() { _ = listener.Close() }()

	troubled := false
	for {
		select {
		case s.unproven <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := listener.Accept()
		if err != nil {
			<-s.unproven
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept a link: %w", err)
			}
			if !troubled {
				s.cfg.Log.Error("cannot accept links for the moment", "error", err)
			}
			troubled = true
			if !wait(ctx, acceptPause) {
				return nil
			}
			continue
		}
		troubled = false
		from := sourceOf(conn.RemoteAddr())
		share := s.sources.enter(from)
		if share == nil {
			// It is told nothing, and nothing is spent on it.
			_ = conn.Close()
			<-s.unproven
			continue
		}
		running.Go(func() { s.serve(ctx, conn, from, share) })
	}
}

// wait returns false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve owns one connection from its acceptance to its end. It holds a place
// in unproven, and one of its source, when it is called.
func (s *Server) serve(ctx context.Context, raw net.Conn, from source, share *share) {
	defer func() { _ = raw.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := s.admit(ctx, raw, from, share)
	if c == nil {
		return
	}
	defer c.deadline.Stop()
	switch c.user {
	case mesh.UserNode:
		c.serveNode(ctx, cancel)
	case mesh.UserEnrol:
		c.serveEnrol(ctx)
	default:
		c.serveOperator(ctx)
	}
}

// admit finds out who has connected, and gives back the places that serve holds
// for it; nil when that was not proved.
func (s *Server) admit(ctx context.Context, raw net.Conn, from source, share *share) *connection {
	c := &connection{server: s, raw: raw, source: from}
	err := c.authenticate(ctx, share)
	s.sources.leave(c.source)
	<-s.unproven
	if err != nil {
		if ctx.Err() == nil {
			c.log().Debug("a connection did not authenticate", "error", err)
		}
		return nil
	}
	return c
}

// Prove asks the node to answer now, and returns nil when it did: the link
// works in both directions at this moment.
func (s *Server) Prove(ctx context.Context, node string) error {
	s.mu.Lock()
	var l *nodeLink
	if held := s.links[node]; len(held) > 0 {
		l = held[len(held)-1]
	}
	s.mu.Unlock()
	if l == nil {
		return mesh.Errorf(mesh.CodeUnavailable, "%s has no link at the moment; it dials when it can", node)
	}
	return l.prove(ctx)
}

func (s *Server) add(l *nodeLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l.node] = append(s.links[l.node], l)
}

func (s *Server) drop(l *nodeLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []*nodeLink
	for _, other := range s.links[l.node] {
		if other != l {
			rest = append(rest, other)
		}
	}
	if len(rest) == 0 {
		delete(s.links, l.node)
		return
	}
	s.links[l.node] = rest
}
