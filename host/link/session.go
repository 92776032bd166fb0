package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
	"github.com/meshctl/mesh/internal/stall"
)

// window is how many messages may wait for their ack at a time.
const window = 32

// session is one link from its hello to its end. The goroutine that runs loop
// owns it; the others talk to it through channels.
type session struct {
	client *Client
	peer   *peer
	// in brings frames from the reader, out takes frames to the writer.
	in  chan mesh.Frame
	out chan mesh.Frame
	// made brings frames from the goroutines that work for the host.
	made chan mesh.Frame
	// failed brings the first errors of the others; it never blocks them.
	failed chan error
	// describe takes what is to be described.
	describe chan string
	work     worker

	// queue holds what is to be written, in order.
	queue []mesh.Frame
	// after is the last sequence number that was queued, acked the last that
	// was acknowledged; both zero at first. waiting holds those between.
	after, acked uint64
	waiting      []uint64
	// beats counts heartbeats.
	beats uint64
	// heartbeat fires for each of them. Nil until the welcome.
	heartbeat *time.Ticker
}

// hello asks the host who it is. It looks at the machine for that, and a machine
// that is busy takes its time.
func (c *Client) hello(ctx context.Context) (mesh.Hello, error) {
	hello, err := c.cfg.Host.Hello(ctx)
	if err != nil {
		return hello, fmt.Errorf("say hello: %w", err)
	}
	if hello.ProtocolMax == 0 {
		hello.ProtocolMin, hello.ProtocolMax = mesh.ProtocolMin, mesh.ProtocolMax
	}
	return hello, nil
}

// serve says hello and serves the link to its end; welcomed says whether the
// control plane took it.
func (c *Client) serve(ctx context.Context, p *peer, hello mesh.Hello) (welcomed bool, err error) {
	first, err := mesh.NewFrame(mesh.FrameHello, 0, hello)
	if err != nil {
		return false, fmt.Errorf("say hello: %w", err)
	}
	s := &session{
		client:   c,
		peer:     p,
		in:       make(chan mesh.Frame),
		out:      make(chan mesh.Frame),
		made:     make(chan mesh.Frame),
		failed:   make(chan error, 4),
		describe: make(chan string, 8),
		work:     worker{signal: make(chan struct{}, 1)},
		queue:    []mesh.Frame{first},
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer p.close()
	defer cancel()
	running.Go(func() { s.failed <- s.read(ctx) })
	running.Go(func() { s.failed <- s.write(ctx) })
	running.Go(func() { s.hostWork(ctx, &running) })
	running.Go(func() { s.describing(ctx) })

	err = s.loop(ctx)
	welcomed = s.heartbeat != nil
	if welcomed {
		s.heartbeat.Stop()
	}
	return welcomed, s.explain(err)
}

// explain turns the end of a link into a sentence.
func (s *session) explain(err error) error {
	var known *mesh.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case ended(err):
		return mesh.Errorf(mesh.CodeUnavailable, "the link to the control plane at %s was closed: %w", s.peer.address, err)
	default:
		return mesh.Errorf(mesh.CodeUnavailable, "the link to the control plane at %s was lost: %w", s.peer.address, err)
	}
}

// ended reports whether a stream is simply over.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// loop turns until the link ends. It waits for nothing but its channels and
// the host's memory, so that a beat means that it turns.
func (s *session) loop(ctx context.Context) error {
	c := s.client
	turn := time.NewTicker(c.cfg.Turn)
	defer turn.Stop()
	channelRequests := s.peer.channelRequests
	for {
		c.cfg.Beat()
		var (
			out       chan<- mesh.Frame
			next      mesh.Frame
			heartbeat <-chan time.Time
			changed   <-chan struct{}
			refresh   <-chan string
		)
		if len(s.queue) > 0 {
			out, next = s.out, s.queue[0]
		}
		if s.heartbeat != nil { // welcomed
			heartbeat, changed, refresh = s.heartbeat.C, c.cfg.Outbox.Changed(), c.refresh
		}
		var err error
		select {
		case out <- next:
			s.queue = slices.Delete(s.queue, 0, 1)
		case f := <-s.in:
			err = s.take(ctx, f)
		case f := <-s.made:
			s.queue = append(s.queue, f)
		case <-heartbeat:
			err = s.beat(ctx)
		case <-changed:
			err = s.fill(ctx)
		case want := <-refresh:
			s.ask(want)
		case <-turn.C:
		case err = <-s.failed:
		case next, open := <-s.peer.channels:
			if !open {
				return s.ending(ctx)
			}
			err = next.Reject(ssh.Prohibited, "a host opens channels and accepts none")
		case request, open := <-s.peer.requests:
			if !open {
				return s.ending(ctx)
			}
			err = refuse(request)
		case request, open := <-channelRequests:
			if !open {
				channelRequests = nil
				continue
			}
			err = refuse(request)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// ending returns why the connection is gone. The reader knows, and may still
// hold a last frame that says it.
func (s *session) ending(ctx context.Context) error {
	for {
		select {
		case f := <-s.in:
			if f.Type != mesh.FrameRefused && f.Type != mesh.FrameRevoked {
				continue
			}
			return s.refused(ctx, f)
		case err := <-s.failed:
			return err
		}
	}
}

// take does what a frame of the control plane asks for.
func (s *session) take(ctx context.Context, f mesh.Frame) error {
	c := s.client
	switch f.Type {
	case mesh.FrameWelcome:
		var welcome mesh.Welcome
		if err := decode(f, &welcome); err != nil {
			return err
		}
		return s.welcomed(ctx, welcome)
	case mesh.FrameRefused, mesh.FrameRevoked:
		return s.refused(ctx, f)
	case mesh.FrameDeclare:
		d, err := decodeDeclaration(f.Body)
		if err != nil {
			return fmt.Errorf("read %s: %w", f.Type, err)
		}
		s.work.put(func(w *worker) { w.declaration = &d })
	case mesh.FrameRecover:
		var r mesh.Recover
		if err := decode(f, &r); err != nil {
			return err
		}
		s.work.put(func(w *worker) { w.recovery = append(w.recovery, r) })
	case mesh.FrameNotice:
		var notice mesh.Notice
		if err := decode(f, &notice); err != nil {
			return err
		}
		c.noticed(printable(notice.Message))
	case mesh.FrameProve:
		// The body goes back as it came: the nonce is the control plane's.
		s.queue = append(s.queue, mesh.Frame{Type: mesh.FrameProof, Body: f.Body})
	case mesh.FrameAck:
		var ack mesh.Ack
		if err := decode(f, &ack); err != nil {
			return err
		}
		return s.ack(ctx, ack.Seq)
	default:
		// A newer control plane may send what this host does not know.
		c.cfg.Log.Debug("a frame of an unknown type is ignored", "type", f.Type)
	}
	return nil
}

func decode(f mesh.Frame, body any) error {
	if err := json.Unmarshal(f.Body, body); err != nil {
		return fmt.Errorf("read %s: %w", f.Type, err)
	}
	return nil
}

func (s *session) welcomed(ctx context.Context, welcome mesh.Welcome) error {
	c := s.client
	if s.heartbeat != nil {
		return errors.New("a second welcome came")
	}
	if welcome.Protocol < mesh.ProtocolMin || welcome.Protocol > mesh.ProtocolMax {
		return mesh.Errorf(mesh.CodeInvalid, "the control plane at %s chose protocol %d, which this host does not speak; upgrade mesh-control", s.peer.address, welcome.Protocol)
	}
	s.heartbeat = time.NewTicker(interval(welcome, c.cfg.Heartbeat))
	skew := time.Duration(0)
	if !welcome.Now.IsZero() {
		skew = welcome.Now.Sub(c.cfg.Now())
	}
	c.connected(s.peer.address, skew)
	var wants []string
	for _, want := range welcome.Want {
		switch want {
		case mesh.WantProfile, mesh.WantInventory, mesh.WantBriefing:
			s.ask(want)
		case mesh.WantReport, mesh.WantOwned:
			wants = append(wants, want)
		}
	}
	if len(wants) > 0 {
		if err := c.cfg.Host.Want(ctx, wants); err != nil {
			return fmt.Errorf("prepare what the control plane lacks: %w", err)
		}
	}
	return s.fill(ctx)
}

// interval is how often heartbeats are sent on this link.
func interval(welcome mesh.Welcome, standard time.Duration) time.Duration {
	const longest = time.Hour
	if welcome.HeartbeatSeconds <= 0 {
		return standard
	}
	return min(time.Duration(min(welcome.HeartbeatSeconds, 3600))*time.Second, longest)
}

// refused ends the link with the control plane's own words.
func (s *session) refused(ctx context.Context, f mesh.Frame) error {
	var refused mesh.Refused
	if err := decode(f, &refused); err != nil {
		return err
	}
	err := refusal(s.peer.address, refused)
	if f.Type == mesh.FrameRevoked {
		s.client.cfg.Host.Revoked(ctx, printable(refused.Message))
	}
	return err
}

// ask has something described, unless so much waits already that it is asked
// for again with the next hello.
func (s *session) ask(want string) {
	select {
	case s.describe <- want:
	default:
	}
}

// beat queues a heartbeat, unless the last one is still there.
func (s *session) beat(ctx context.Context) error {
	if slices.ContainsFunc(s.queue, func(f mesh.Frame) bool { return f.Type == mesh.FrameHeartbeat }) {
		return nil
	}
	heartbeat, err := s.client.cfg.Host.Heartbeat(ctx)
	if err != nil {
		return fmt.Errorf("make a heartbeat: %w", err)
	}
	s.beats++
	heartbeat.Sequence = s.beats
	f, err := mesh.NewFrame(mesh.FrameHeartbeat, 0, heartbeat)
	if err != nil {
		return fmt.Errorf("make a heartbeat: %w", err)
	}
	s.queue = append(s.queue, f)
	return nil
}

// fill queues messages of the outbox as far as the window allows.
func (s *session) fill(ctx context.Context) error {
	free := window - len(s.waiting)
	if free <= 0 {
		return nil
	}
	frames, err := s.client.cfg.Outbox.Next(ctx, s.after, free)
	if err != nil {
		return fmt.Errorf("read what waits to be delivered: %w", err)
	}
	for _, f := range frames {
		if f.Seq <= s.after {
			return fmt.Errorf("the outbox gave message %d after %d", f.Seq, s.after)
		}
		s.after = f.Seq
		s.waiting = append(s.waiting, f.Seq)
		s.queue = append(s.queue, f)
	}
	return nil
}

// ack lets the outbox forget what the control plane committed. An ack of what
// was never sent would lose messages, and ends the link instead. An ack that
// acknowledges nothing new answers a heartbeat.
func (s *session) ack(ctx context.Context, seq uint64) error {
	if seq > s.after {
		return mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s acknowledged message %d and %d was the last that this host sent; nothing is forgotten and the link is made anew", s.peer.address, seq, s.after)
	}
	if seq <= s.acked {
		return nil
	}
	if err := s.client.cfg.Outbox.Acked(ctx, seq); err != nil {
		return fmt.Errorf("record an ack: %w", err)
	}
	s.acked = seq
	s.waiting = slices.DeleteFunc(s.waiting, func(sent uint64) bool { return sent <= seq })
	return s.fill(ctx)
}

// read brings frames to the loop until the link ends, and returns why it did.
func (s *session) read(ctx context.Context) error {
	in := stall.NewReader(s.peer.channel, s.client.cfg.HandshakeTimeout, s.peer.close)
	defer in.Stop()
	frames := frame.NewReader(in)
	for {
		f, err := frames.Read()
		if err != nil {
			if in.Silent() {
				return mesh.Errorf(mesh.CodeUnavailable, "nothing came from the control plane at %s for %s, so the link counts as dead", s.peer.address, in.Patience)
			}
			return err
		}
		if f.Type == mesh.FrameWelcome {
			var welcome mesh.Welcome
			if err := decode(f, &welcome); err != nil {
				return err
			}
			in.Patience = 3 * interval(welcome, s.client.cfg.Heartbeat)
		}
		select {
		case s.in <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write sends what the loop hands it. A write that makes no progress for three
// heartbeats ends the link.
func (s *session) write(ctx context.Context) error {
	out := stall.NewWriter(s.peer.channel, 3*s.client.cfg.Heartbeat, s.peer.close)
	for {
		select {
		case f := <-s.out:
			err := frame.Write(out, f)
			if errors.Is(err, frame.ErrTooLarge) {
				s.client.cfg.Log.Error("a message is too large to send and is dropped", "type", f.Type, "seq", f.Seq, "error", err)
				continue
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
