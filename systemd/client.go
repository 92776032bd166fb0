package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

var (
	// ErrUnknown says that the outcome could not be found out: the bus was lost
	// and did not come back, or the unit that held the answer is gone. It means
	// neither success nor failure; look again with [Client.Adopt] or
	// [Client.Unit], or report "unknown".
	ErrUnknown = errors.New("outcome unknown")
	// ErrExists says that a unit of that name is already loaded: another run
	// holds the name. Use [Client.Adopt] to find out what it is doing.
	ErrExists = errors.New("unit already exists")
	// ErrUnreachable says that the service manager could not be reached, and
	// that the request was not sent.
	ErrUnreachable = errors.New("service manager not reachable")
)

// Client is a connection to the service manager (PID 1). It is safe for
// concurrent use. A connection that is lost is made again by the next call.
type Client struct {
	dial func(ctx context.Context) (*sd.Conn, error)

	mu     sync.Mutex // guards the two fields below; not held while waiting for an answer
	conn   *link      // nil while there is no connection
	closed bool
}

// link is one connection with the function that ends its context.
type link struct {
	*sd.Conn
	cancel context.CancelFunc
}

func (l *link) end() {
	l.Close()
	l.cancel()
}

// Connect opens a connection to PID 1 over the system bus or, for root when
// there is no bus, over systemd's private socket. The context bounds only the
// connecting. An error wraps [ErrUnreachable].
func Connect(ctx context.Context) (*Client, error) {
	c := &Client{dial: sd.NewWithContext}
	if _, err := c.connection(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends the connection. Transient units that were started keep running.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		c.conn.end()
		c.conn = nil
	}
}

// connection returns the live connection, making a new one if needed.
func (c *Client) connection(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: client is closed", ErrUnreachable)
	}
	if c.conn != nil && c.conn.Connected() {
		l := c.conn
		c.mu.Unlock()
		return l, nil
	}
	c.mu.Unlock()

	// The library ties the connection's life to the context that dialled it, so
	// it gets one of its own which the caller's context ends only while dialling.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	conn, err := c.dial(life)
	if !stop() && err == nil {
		conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	l := &link{Conn: conn, cancel: cancel}

	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		l.end()
		return nil, fmt.Errorf("%w: client is closed", ErrUnreachable)
	case c.conn != nil && c.conn.Connected():
		l.end() // another caller was faster
	default:
		if c.conn != nil {
			c.conn.end()
		}
		c.conn = l
	}
	return c.conn, nil
}

// reconnectPause is how long a read waits before it tries a lost bus again.
const reconnectPause = 200 * time.Millisecond

// answerLimit is how long an answer of the service manager is waited for. It is
// long for one that is loaded or started anew, and short for one that hangs.
const answerLimit = 2 * time.Minute

// read asks a question that may be asked again. It reconnects and repeats for
// as long as the bus is lost, until ctx ends or answerLimit has passed; then the
// error wraps ErrUnknown.
func (c *Client) read(ctx context.Context, ask func(context.Context, *link) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for {
		l, err := c.connection(ctx)
		if err == nil {
			if err = ask(ctx, l); err == nil {
				return nil
			}
			if !lost(l, err) {
				return err
			}
		}
		if c.isClosed() {
			return err
		}
		if waitErr := pause(ctx, reconnectPause); waitErr != nil {
			return fmt.Errorf("%w: the service manager did not answer: %w (%w)", ErrUnknown, err, waitErr)
		}
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// lost tells whether err means that the answer did not arrive, rather than that
// the service manager answered with a refusal.
func lost(l *link, err error) bool {
	if err == nil {
		return false
	}
	if l != nil && !l.Connected() {
		return true
	}
	switch errorName(err) {
	case "":
	case "org.freedesktop.DBus.Error.NoReply",
		"org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.Timeout",
		"org.freedesktop.DBus.Error.TimedOut",
		"org.freedesktop.DBus.Error.ServiceUnknown",
		"org.freedesktop.DBus.Error.NameHasNoOwner":
		return true
	default:
		return false
	}
	var netErr net.Error
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.As(err, &netErr)
}

// errorName is the D-Bus error name that err carries, or "".
func errorName(err error) string {
	var byValue dbus.Error
	if errors.As(err, &byValue) {
		return byValue.Name
	}
	var byPointer *dbus.Error
	if errors.As(err, &byPointer) {
		return byPointer.Name
	}
	return ""
}

// pause waits for d or for the end of ctx, whose error it then returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
