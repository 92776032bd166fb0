package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

const (
	// channelsAtOnce is how many connections one operator's SSH connection may
	// carry at a time, and connectionsAtOnce how many of those one key may have.
	channelsAtOnce    = 8
	connectionsAtOnce = 16
	// idleTime is how long an operator's SSH connection may carry nothing.
	idleTime = time.Minute
)

// OperatorPolicy knows the operators. It is called from many goroutines.
type OperatorPolicy interface {
	// OperatorByKey returns as whom the holder of the key acts now, and a
	// channel that is closed when they are an operator no more; mesh.CodeDenied
	// when the key is nobody's. The key is as for Policy.
	OperatorByKey(ctx context.Context, key string) (control.Caller, <-chan struct{}, error)
}

// Operators is where the connections of operators come out, each as a net.Conn
// on which HTTP is spoken and that knows its control.Caller: it has a method
// Caller() (control.Caller, error). Closing it refuses what comes later.
func (s *Server) Operators() net.Listener { return s.operators }

// door hands connections from the SSH server to whoever serves operators.
type door struct {
	conns chan net.Conn
	once  sync.Once
	shut  chan struct{}
}

func newDoor() *door { return &door{conns: make(chan net.Conn), shut: make(chan struct{})} }

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.shut:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.shut) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return channelAddr{} }

type channelAddr struct{}

func (channelAddr) Network() string { return "ssh" }
func (channelAddr) String() string  { return mesh.ChannelAPI }

// operatorConn is one channel as a connection with deadlines.
type operatorConn struct {
	net.Conn
	remote net.Addr
	caller func() (control.Caller, error)
}

// RemoteAddr implements net.Conn.
func (c *operatorConn) RemoteAddr() net.Addr { return c.remote }

// Caller returns as whom the other end acts now.
func (c *operatorConn) Caller() (control.Caller, error) { return c.caller() }

// admitOperator is the authentication of an operator; the key is proved after
// it, before anything is served.
func (c *connection) admitOperator(ctx context.Context, key string) (*ssh.Permissions, error) {
	policy := c.server.cfg.Operators
	if policy == nil {
		return nil, errors.New("no such user")
	}
	if _, _, err := policy.OperatorByKey(ctx, key); err != nil {
		return nil, c.refusal(err)
	}
	return &ssh.Permissions{Extensions: map[string]string{extensionKey: key}}, nil
}

// serveOperator carries an operator's connections until the SSH connection
// ends, carries nothing for a while, or the operator is removed.
func (c *connection) serveOperator(ctx context.Context) {
	_, gone, err := c.server.cfg.Operators.OperatorByKey(ctx, c.key)
	if err != nil {
		return // removed between the proof and now
	}
	if !c.server.enterOperator(c.key) {
		c.log().Warn("an operator has too many connections; another was refused")
		return
	}
	defer c.server.leaveOperator(c.key)
	c.deadline.Stop()

	var running sync.WaitGroup
	defer running.Wait()
	defer func() { _ = c.raw.Close() }()
	idle := time.AfterFunc(idleTime, func() { _ = c.raw.Close() })
	defer idle.Stop()
	ended := make(chan struct{}, channelsAtOnce)
	open := 0
	for {
		var err error
		select {
		case next, more := <-c.channels:
			if !more {
				return
			}
			switch {
			case next.ChannelType() != mesh.ChannelAPI:
				err = next.Reject(ssh.UnknownChannelType, "only "+mesh.ChannelAPI+" is served here")
			case open == channelsAtOnce:
				err = next.Reject(ssh.ResourceShortage, "too many connections at a time")
			default:
				open++
				idle.Stop()
				running.Go(func() {
					defer func() { ended <- struct{}{} }()
					c.carry(ctx, next)
				})
			}
		case request, more := <-c.requests:
			if !more {
				return
			}
			err = refuse(request)
		case <-ended:
			if open--; open == 0 {
				idle.Reset(idleTime)
			}
		case <-gone:
			c.log().Info("an operator was removed and their connection is closed")
			return
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// carry hands one channel to whoever serves operators, and moves its bytes
// until either end closes. The pipe gives it the deadlines that a channel lacks.
func (c *connection) carry(ctx context.Context, next ssh.NewChannel) {
	channel, requests, err := next.Accept()
	if err != nil {
		return
	}
	near, far := net.Pipe()
	var moving sync.WaitGroup
	defer moving.Wait()
	over := func() {
		_ = near.Close()
		_ = channel.Close()
	}
	defer over()
	moving.Go(func() { ssh.DiscardRequests(requests) })
	conn := &operatorConn{Conn: far, remote: c.raw.RemoteAddr(), caller: func() (control.Caller, error) {
		caller, _, err := c.server.cfg.Operators.OperatorByKey(ctx, c.key)
		return caller, err
	}}
	select {
	case c.server.operators.conns <- conn:
	case <-c.server.operators.shut:
		return
	case <-ctx.Done():
		return
	}
	moving.Go(func() {
		defer over()
		_, _ = io.CopyBuffer(struct{ io.Writer }{near}, struct{ io.Reader }{channel}, make([]byte, copyBuffer))
	})
	_, _ = io.CopyBuffer(struct{ io.Writer }{channel}, struct{ io.Reader }{near}, make([]byte, copyBuffer))
}

// copyBuffer is how much is moved at a time, in bytes.
const copyBuffer = 32 << 10

func (s *Server) enterOperator(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perOperator[key] >= connectionsAtOnce {
		return false
	}
	s.perOperator[key]++
	return true
}

func (s *Server) leaveOperator(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perOperator[key]--; s.perOperator[key] <= 0 {
		delete(s.perOperator, key)
	}
}
