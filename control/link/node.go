package link

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/frame"
	"github.com/meshctl/mesh/internal/sqlite"
	"github.com/meshctl/mesh/internal/stall"
)

// nodeLink is one node's link. Two goroutines serve it: one reads frames and
// has them handled; the other owns everything that is written, and the SSH
// connection's channels and requests.
type nodeLink struct {
	server  *Server
	conn    *connection
	node    string
	channel ssh.Channel
	out     io.Writer
	// signal says that todo has something. It coalesces.
	signal chan struct{}
	// ended is closed when the link is over.
	ended chan struct{}

	mu   sync.Mutex
	todo todo
	// welcomed is set when the policy took the hello, under mu. What is to be
	// written before that waits for the welcome.
	welcomed bool
	// proofs holds who waits for a proof, by nonce, under mu. Nil until somebody
	// does.
	proofs map[string]chan struct{}
	// parting cuts the connection after Close, under mu. Nil until then.
	parting *time.Timer

	// sent is the newest generation declared on this link. Writer only.
	sent mesh.Generation
	// parked is what waits for a store that can be written. Reader only.
	parked parked
	// blobs is how many blobs are streamed now. It has its own places.
	blobs chan struct{}
}

// todo is what the writer has to do, in this order.
type todo struct {
	// frames are written as they are.
	frames []mesh.Frame
	// ack: acknowledge everything up to acked.
	ack   bool
	acked uint64
	// look: ask the policy for a declaration.
	look bool
	// end: write the last frame, if there is one, and close.
	end  bool
	last *mesh.Frame
}

// heartbeatLength is more than the length of a heartbeat's frame, in bytes.
const heartbeatLength = 320

// blobsAtOnce is how many blobs one node may fetch at a time.
const blobsAtOnce = 4

// serveNode runs a node's link to its end. It calls cancel, which ends ctx.
func (c *connection) serveNode(ctx context.Context, cancel context.CancelFunc) {
	l, requests := c.newNodeLink(ctx)
	if l == nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer func() { _ = c.raw.Close() }()
	defer cancel()
	defer l.over()
	running.Go(func() { l.finish(ctx, l.read(ctx)) })
	l.write(ctx, requests, &running)
}

// newNodeLink waits for the channel of the link; nil when the connection ended
// before.
func (c *connection) newNodeLink(ctx context.Context) (*nodeLink, <-chan *ssh.Request) {
	channel, requests, err := c.firstChannel(ctx, mesh.ChannelLink)
	if err != nil {
		c.log().Debug("a node's connection ended before its link began", "node", c.node, "error", err)
		return nil, nil
	}
	return &nodeLink{
		server:  c.server,
		conn:    c,
		node:    c.node,
		channel: channel,
		out:     stall.NewWriter(channel, 3*c.server.cfg.Heartbeat, func() { _ = c.raw.Close() }),
		signal:  make(chan struct{}, 1),
		ended:   make(chan struct{}),
		blobs:   make(chan struct{}, blobsAtOnce),
	}, requests
}

// over tells whoever waits for a proof.
func (l *nodeLink) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parting != nil {
		l.parting.Stop()
	}
	close(l.ended)
}

// log is made when there is something to say, as that of the connection.
func (l *nodeLink) log() *slog.Logger { return l.conn.log().With("node", l.node) }

// Wake implements control.Waker.
func (l *nodeLink) Wake() { l.do(func(t *todo) { t.look = true }) }

// Close implements control.Waker.
func (l *nodeLink) Close(reason string) {
	last := refusedFrame(mesh.Refused{Code: mesh.CodeConflict, Message: reason})
	switch {
	case strings.HasPrefix(reason, control.ReasonRevoked):
		last = refusedFrame(mesh.Refused{Code: mesh.CodeDenied, Message: reason})
		last.Type = mesh.FrameRevoked
	case strings.HasPrefix(reason, control.ReasonRetired):
		last = refusedFrame(mesh.Refused{Code: mesh.CodeRetired, Message: reason})
	}
	l.end(&last)
}

// Tell implements control.Teller.
func (l *nodeLink) Tell(message string) {
	f, err := mesh.NewFrame(mesh.FrameNotice, 0, mesh.Notice{Message: message})
	if err != nil { // a string always marshals
		return
	}
	l.do(func(t *todo) { t.frames = append(t.frames, f) })
}

// end makes the writer write last, if there is one, and close. The connection
// is cut after partingTime whether or not the writer got that far.
func (l *nodeLink) end(last *mesh.Frame) {
	l.mu.Lock()
	if l.parting == nil {
		l.parting = time.AfterFunc(partingTime, func() { _ = l.conn.raw.Close() })
	}
	l.mu.Unlock()
	l.do(func(t *todo) {
		if !t.end {
			t.end, t.last = true, last
		}
	})
}

// do changes what the writer has to do, and tells it.
func (l *nodeLink) do(change func(*todo)) {
	l.mu.Lock()
	change(&l.todo)
	l.mu.Unlock()
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

func (l *nodeLink) take() todo {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.welcomed {
		return todo{end: l.todo.end, last: l.todo.last}
	}
	t := l.todo
	l.todo = todo{acked: t.acked, end: t.end}
	return t
}

// write serves the connection until it ends. It never waits for the policy but
// in look.
func (l *nodeLink) write(ctx context.Context, channelRequests <-chan *ssh.Request, running *sync.WaitGroup) {
	if err := l.turn(ctx, channelRequests, running); err != nil && ctx.Err() == nil {
		l.log().Info("a link was lost while writing", "error", err)
	}
}

// turn is the loop of write. A whole fleet waits in it, as in read. So they and
// what calls them keep little on their stacks: the runtime gives back half of a
// stack only when no more than a quarter of it is in use. What a heartbeat asks
// for is done aside, or it would make them grow again and again; what is long is
// done in place, since a stack of its own would cost more than it saves.
func (l *nodeLink) turn(ctx context.Context, channelRequests <-chan *ssh.Request, running *sync.WaitGroup) error {
	for {
		var err error
		select {
		case <-l.signal:
			var over bool
			if l.onlyAck() {
				err = aside(func() (err error) { over, err = l.work(ctx); return err })
			} else {
				over, err = l.work(ctx)
			}
			if over {
				l.part(channelRequests)
				return err
			}
		case next, open := <-l.conn.channels:
			if !open {
				return nil
			}
			err = l.offered(ctx, next, running)
		case request, open := <-l.conn.requests:
			if !open {
				return nil
			}
			err = refuse(request)
		case request, open := <-channelRequests:
			if !open {
				channelRequests = nil
				continue
			}
			err = refuse(request)
		}
		if err != nil {
			return err
		}
	}
}

// onlyAck reports whether there is nothing to do but to acknowledge.
func (l *nodeLink) onlyAck() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.todo.frames) == 0 && !l.todo.look && !l.todo.end
}

// aside does some work on a stack that ends with it, and waits for it.
func aside(work func() error) error {
	done := make(chan error)
	go func() { done <- work() }()
	return <-done
}

// work does what there is to do; over means that the link ends with it.
func (l *nodeLink) work(ctx context.Context) (over bool, err error) {
	t := l.take()
	for _, f := range t.frames {
		if err := frame.Write(l.out, f); err != nil {
			return false, err
		}
	}
	if t.ack {
		f, err := mesh.NewFrame(mesh.FrameAck, 0, mesh.Ack{Seq: t.acked})
		if err != nil {
			return false, fmt.Errorf("make an ack: %w", err)
		}
		if err := frame.Write(l.out, f); err != nil {
			return false, err
		}
	}
	if t.end {
		if t.last != nil {
			return true, frame.Write(l.out, *t.last)
		}
		return true, nil
	}
	if t.look {
		return false, l.declare(ctx)
	}
	return false, nil
}

// part leaves the other end time to take the last frame and close.
func (l *nodeLink) part(channelRequests <-chan *ssh.Request) {
	_ = l.channel.CloseWrite()
	l.conn.discard(channelRequests)
}

// declare sends the newest declaration that the node does not hold.
func (l *nodeLink) declare(ctx context.Context) error {
	d, err := l.server.cfg.Policy.Pending(ctx, l.node)
	if err != nil {
		return fmt.Errorf("look for a declaration: %w", err)
	}
	if d == nil || d.Generation <= l.sent {
		return nil
	}
	l.sent = d.Generation
	err = frame.WriteParts(l.out, mesh.FrameDeclare, 0, d.Body...)
	if errors.Is(err, frame.ErrTooLarge) {
		l.log().Error("a declaration is too large to send; the node keeps the one it has until a smaller one is written", "generation", d.Generation, "error", err)
		return nil
	}
	return err
}

// read takes frames until the link ends, and returns why it did. See turn.
func (l *nodeLink) read(ctx context.Context) error {
	in := stall.NewReader(l.channel, l.server.cfg.HandshakeTimeout, func() { _ = l.conn.raw.Close() })
	frames := frame.NewReader(in)
	var storeID string
	err := aside(func() (err error) { storeID, err = l.begin(ctx, in, frames); return err })
	if err != nil {
		in.Stop()
		return err
	}
	for err == nil {
		var length int
		switch length, err = frames.Wait(); {
		case err != nil:
		case length <= heartbeatLength:
			err = aside(func() error { return l.next(ctx, storeID, frames) })
		default:
			err = l.next(ctx, storeID, frames)
		}
	}
	return l.left(in, err)
}

// next takes one frame.
func (l *nodeLink) next(ctx context.Context, storeID string, frames *frame.Reader) error {
	f, err := frames.Read()
	if err != nil {
		return err
	}
	return l.handle(ctx, storeID, f)
}

// left sees to what a link that was welcomed leaves, and returns why it ended.
func (l *nodeLink) left(in *stall.Reader, err error) error {
	in.Stop()
	l.server.drop(l)
	l.server.cfg.Policy.Disconnect(l.node, l)
	if in.Silent() {
		return fmt.Errorf("nothing came for %s: %w", in.Patience, err)
	}
	return err
}

// begin takes the hello and welcomes the host, or refuses it. It returns the
// host's store.
func (l *nodeLink) begin(ctx context.Context, in *stall.Reader, frames *frame.Reader) (storeID string, err error) {
	hello, err := l.hello(frames)
	if err != nil {
		refusal := refusedFrame(l.conn.refused(err))
		l.end(&refusal)
		return "", err
	}
	welcome, recovery, err := l.server.cfg.Policy.Connect(ctx, l.node, hello, l)
	if err != nil {
		refusal := refusedFrame(l.conn.refused(err))
		l.end(&refusal)
		return "", fmt.Errorf("connect: %w", err)
	}
	l.conn.deadline.Stop()
	welcome.Protocol = min(hello.ProtocolMax, mesh.ProtocolMax)
	if welcome.HeartbeatSeconds == 0 {
		welcome.HeartbeatSeconds = int(l.server.cfg.Heartbeat / time.Second)
	}
	in.Patience = 3 * l.server.cfg.Heartbeat
	if welcome.HeartbeatSeconds > 0 {
		in.Patience = 3 * time.Duration(welcome.HeartbeatSeconds) * time.Second
	}
	if err := l.welcome(welcome, recovery); err != nil {
		l.server.cfg.Policy.Disconnect(l.node, l)
		return "", err
	}
	l.server.add(l)
	l.log().Info("a node is connected", "held", hello.Held, "version", hello.HostVersion)
	return hello.StoreID, nil
}

// hello reads the first frame.
func (l *nodeLink) hello(frames *frame.Reader) (mesh.Hello, error) {
	f, err := frames.Read()
	if err != nil {
		return mesh.Hello{}, mesh.Errorf(mesh.CodeInvalid, "the hello could not be read: %w", err)
	}
	if f.Type != mesh.FrameHello {
		return mesh.Hello{}, mesh.Errorf(mesh.CodeInvalid, "a link begins with a frame %q, not %q", mesh.FrameHello, f.Type)
	}
	var hello mesh.Hello
	if err := json.Unmarshal(f.Body, &hello); err != nil {
		return mesh.Hello{}, mesh.Errorf(mesh.CodeInvalid, "the hello could not be read: %w", err)
	}
	if err := speaks(hello.ProtocolMin, hello.ProtocolMax, hello.HostVersion); err != nil {
		return mesh.Hello{}, err
	}
	if hello.Node != l.node {
		return mesh.Hello{}, mesh.Errorf(mesh.CodeDenied, "this key belongs to the node %q, and the host says that it is %q", l.node, hello.Node)
	}
	return hello, nil
}

func (l *nodeLink) welcome(welcome mesh.Welcome, recovery *mesh.Recover) error {
	f, err := mesh.NewFrame(mesh.FrameWelcome, 0, welcome)
	if err != nil {
		return fmt.Errorf("write a welcome: %w", err)
	}
	frames := []mesh.Frame{f}
	if recovery != nil {
		parts, err := recoverFrames(recovery.Owned)
		if err != nil {
			return err
		}
		frames = append(frames, parts...)
	}
	l.do(func(t *todo) {
		// The policy may have woken this link since it took the hello: welcome and
		// recovery copy go before all of that.
		l.welcomed = true
		t.frames = append(frames, t.frames...)
		t.look = true
	})
	return nil
}

func (l *nodeLink) isWelcome() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.welcomed
}

// recoverPart is the length of what one frame of a recovery copy carries, in
// bytes. One entry more than that still fits into a frame.
const recoverPart = 6 << 20

// recoverFrames cuts a recovery copy into frames.
func recoverFrames(owned []mesh.Owned) ([]mesh.Frame, error) {
	var frames []mesh.Frame
	for first := true; first || len(owned) > 0; first = false {
		size, n := 0, 0
		for n < len(owned) && (n == 0 || size < recoverPart) {
			size += len(owned[n].Undo) + len(owned[n].Wrote) + 2*len(owned[n].Resource) + 128
			n++
		}
		f, err := mesh.NewFrame(mesh.FrameRecover, 0, mesh.Recover{Owned: owned[:n], More: n < len(owned)})
		if err != nil {
			return nil, fmt.Errorf("write a recovery copy: %w", err)
		}
		frames = append(frames, f)
		owned = owned[n:]
	}
	return frames, nil
}

// takeFrame has one frame taken, and acknowledges it.
func (l *nodeLink) takeFrame(ctx context.Context, storeID string, f mesh.Frame) error {
	switch f.Type {
	case mesh.FrameProof:
		l.proven(f)
		return nil
	case mesh.FrameProfile, mesh.FrameInventory, mesh.FrameBriefing, mesh.FrameReceived,
		mesh.FrameHeartbeat, mesh.FrameReport, mesh.FrameOwned, mesh.FrameEvent, mesh.FrameGoodbye:
		err := l.server.cfg.Policy.Handle(ctx, l.node, storeID, f)
		switch {
		case err == nil:
		case mesh.CodeOf(err) == mesh.CodeInvalid:
			// It can never be taken, and must not hold up what waits behind it.
			l.log().Error("a message of a node cannot be taken and is dropped", "type", f.Type, "seq", f.Seq, "error", err)
		default:
			return &notTaken{fmt.Errorf("take %s: %w", f.Type, err)}
		}
	case mesh.FrameHello, mesh.FrameEnrol:
		return fmt.Errorf("a frame %q came in the middle of a link", f.Type)
	default:
		// A newer host may send what this control plane does not know.
		l.log().Debug("a frame of an unknown type is ignored", "type", f.Type, "seq", f.Seq)
		if f.Seq == 0 {
			return nil
		}
	}
	if f.Seq > 0 || f.Type == mesh.FrameHeartbeat {
		l.do(func(t *todo) { t.ack, t.acked = true, max(t.acked, f.Seq) })
	}
	return nil
}

// notTaken is why a message could not be taken. It is sent again.
type notTaken struct{ error }

// Unwrap returns what the policy said.
func (e *notTaken) Unwrap() error { return e.error }

// finish ends the link after the reader did, and logs why.
func (l *nodeLink) finish(ctx context.Context, err error) {
	var untaken *notTaken
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &untaken) && (mesh.CodeOf(err) == mesh.CodeInternal || sqlite.CannotWrite(err)):
		l.log().Error("a message of a node could not be stored; the link ends, and the node sends it again", "error", err)
	case errors.Is(err, io.EOF):
		l.log().Info("a node closed its link")
	default:
		l.log().Info("a link ended", "error", err)
	}
	l.end(nil)
}

// prove sends a nonce and waits until it comes back.
func (l *nodeLink) prove(ctx context.Context) error {
	var random [16]byte
	if _, err := io.ReadFull(l.server.cfg.Rand, random[:]); err != nil {
		return fmt.Errorf("make a nonce: %w", err)
	}
	nonce := hex.EncodeToString(random[:])
	f, err := mesh.NewFrame(mesh.FrameProve, 0, mesh.Prove{Nonce: nonce})
	if err != nil {
		return fmt.Errorf("write a request for proof: %w", err)
	}
	proof := make(chan struct{})
	l.mu.Lock()
	if l.proofs == nil {
		l.proofs = make(map[string]chan struct{})
	}
	l.proofs[nonce] = proof
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.proofs, nonce)
	}()
	l.do(func(t *todo) { t.frames = append(t.frames, f) })
	select {
	case <-proof:
		return nil
	case <-l.ended:
		return mesh.Errorf(mesh.CodeUnavailable, "the link of %s ended before it answered", l.node)
	case <-ctx.Done():
		return mesh.Errorf(mesh.CodeUnavailable, "%s did not answer: %w", l.node, ctx.Err())
	}
}

func (l *nodeLink) proven(f mesh.Frame) {
	var proof mesh.Prove
	if err := json.Unmarshal(f.Body, &proof); err != nil {
		l.log().Debug("a proof could not be read", "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting, known := l.proofs[proof.Nonce]; known {
		close(waiting)
		delete(l.proofs, proof.Nonce)
	}
}
