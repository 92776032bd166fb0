package protocol

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// network is a network in memory, so that tests of time need not wait. It can
// swallow bytes and cut connections.
type network struct {
	mu sync.Mutex
	// listeners by address, under mu.
	listeners map[string]*listener
	conns     []*conn
	// down: nothing can be dialled. swallows: see swallow.
	down, swallows bool
}

func newNetwork() *network { return &network{listeners: map[string]*listener{}} }

type address string

func (a address) Network() string { return "memory" }
func (a address) String() string  { return string(a) }

type listener struct {
	address address
	queue   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (n *network) listen(at string) net.Listener {
	l := &listener{address: address(at), queue: make(chan net.Conn, 1024), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[at] = l
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.address }

func (n *network) dial(_ context.Context, _, at string) (net.Conn, error) {
	return n.dialFrom("10.0.0.9:40000", at)
}

func (n *network) dialFrom(from address, at string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[at]
	if l == nil || n.down {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(at), Err: errors.New("no route to host")}
	}
	there, back := newPipe(), newPipe()
	there.swallow(n.swallows)
	back.swallow(n.swallows)
	client := &conn{in: back, out: there, local: from, remote: l.address}
	server := &conn{in: there, out: back, local: l.address, remote: from}
	n.conns = append(n.conns, client, server)
	select {
	case l.queue <- server:
		return client, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(at), Err: errors.New("connection refused")}
	}
}

// swallow makes everything that is written from now on vanish, on connections
// that there are and that come, until it is called with false. Nobody is told,
// not even of a connection that the other end closed.
func (n *network) swallow(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.swallows = on
	for _, c := range n.conns {
		c.out.swallow(on)
	}
}

// cut ends every connection.
func (n *network) cut() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (n *network) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

type pipe struct {
	mu   sync.Mutex
	some *sync.Cond
	data []byte
	// closed: the reader gets no more. left: the writer has closed. deaf: the
	// reader has.
	closed, left, deaf bool
	swallows           bool
}

func newPipe() *pipe {
	p := &pipe{}
	p.some = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) swallow(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallows = on
}

// close ends the pipe for its reader, and for its writer if word gets through.
func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.deaf = true, true
	p.some.Broadcast()
}

// leave ends the pipe for its writer, and for its reader if word gets through.
func (p *pipe) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	p.closed = p.closed || !p.swallows
	p.some.Broadcast()
}

type conn struct {
	in, out       *pipe
	local, remote address
}

func (c *conn) Read(b []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	for len(c.in.data) == 0 && !c.in.closed {
		c.in.some.Wait()
	}
	if len(c.in.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.in.data)
	c.in.data = c.in.data[n:]
	return n, nil
}

func (c *conn) Write(b []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.left || c.out.deaf && !c.out.swallows {
		return 0, net.ErrClosed
	}
	if !c.out.swallows {
		c.out.data = append(c.out.data, b...)
	}
	c.out.some.Broadcast()
	return len(b), nil
}

func (c *conn) Close() error {
	c.in.close()
	c.out.leave()
	return nil
}

func (c *conn) LocalAddr() net.Addr              { return c.local }
func (c *conn) RemoteAddr() net.Addr             { return c.remote }
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
