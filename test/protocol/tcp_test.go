package protocol

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	controllink "github.com/meshctl/mesh/control/link"
	hostlink "github.com/meshctl/mesh/host/link"
)

// serveTCP serves p on loopback until the test ends, and returns the address.
func serveTCP(t *testing.T, cfg controllink.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = testLog(t)
	server, err := controllink.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v after its ctx ended", err)
		}
	})
	return listener.Addr().String()
}

// eventually waits until there says yes, which it has to within 30 s.
func eventually(t *testing.T, what string, there func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !there() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to this: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// cuttingProxy forwards to address and cuts each connection after limit bytes
// from the host, wherever in a frame that is. It returns its own address.
func cuttingProxy(t *testing.T, address string, limit *atomic.Int64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = in.Close() }()
				out, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				back := make(chan struct{})
				go func() {
					defer close(back)
					_, _ = io.Copy(in, out)
					_ = in.Close()
				}()
				_, _ = io.CopyN(out, in, limit.Load())
				_ = in.Close()
				_ = out.Close()
				<-back
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); limit.Store(0); running.Wait() })
	return listener.Addr().String()
}

// Shows: M32
// Cases: O-145
func TestOverTCPNothingIsLostOrRecordedTwiceWhenConnectionsBreakInsideFrames(t *testing.T) {
	p, nodeKey, hostKey := newPolicy(), newKey(t), newKey(t)
	p.know(nodeKey, "web-1")
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	p.blobs[digest(content)] = content
	address := serveTCP(t, controllink.Config{Policy: p, HostKey: hostKey})
	var limit atomic.Int64
	limit.Store(6000) // a handshake takes about 4,000
	h, o := newHost("web-1"), newOutbox()
	client, err := hostlink.New(hostlink.Config{
		Addresses:   []string{cuttingProxy(t, address, &limit)},
		Key:         nodeKey,
		Fingerprint: controllink.Fingerprint(hostKey.PublicKey()),
		Host:        h, Outbox: o, Log: testLog(t),
		BackoffBase: time.Millisecond, BackoffCap: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- client.Run(ctx) }()
	defer func() { stop(); <-ran }()
	const messages = 300
	for seq := range uint64(messages) {
		o.add(event(seq + 1))
	}
	p.declare(withBlob(1, digest(content), int64(len(content))))

	// What fits before a cut grows until all of it does.
	for o.waiting() > 0 && limit.Load() < 1<<20 {
		time.Sleep(20 * time.Millisecond)
		limit.Add(97)
	}
	limit.Store(1 << 30)
	eventually(t, "all messages acknowledged and the declaration held", func() bool {
		held := mesh.Generation(0)
		p.look(func(p *policy) { held = p.received["web-1"].Held })
		return o.waiting() == 0 && held == 1
	})

	p.look(func(p *policy) {
		if len(p.recorded) != messages || p.links < 3 {
			t.Errorf("%d of %d messages are recorded after %d links; there have to be some breaks and all messages", len(p.recorded), messages, p.links)
		}
	})
}

func TestAnIdleLinkCostsTheControlPlaneFiveGoroutines(t *testing.T) {
	p, hostKey := newPolicy(), newKey(t)
	address := serveTCP(t, controllink.Config{Policy: p, HostKey: hostKey})
	const links = 20
	var open []*raw
	defer func() {
		for _, l := range open {
			l.close()
		}
	}()
	for range links {
		key := newKey(t)
		p.know(key, "web-1")
		tcp, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		l, err := shakeRaw(tcp, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
		l.say(t, frameOf(t, mesh.FrameHello, mesh.Hello{ProtocolMin: 1, ProtocolMax: 1, Node: "web-1"}))
		if _, err := l.frames.Read(); err != nil {
			t.Fatal(err)
		}
	}
	// Three are the SSH library's, which this test's own clients have too, so
	// count by who started them.
	stacks := make([]byte, 8<<20)
	text := string(stacks[:runtime.Stack(stacks, true)])
	ours := 0
	for goroutine := range strings.SplitSeq(text, "\n\n") {
		if strings.Contains(goroutine, "control/link.(*nodeLink).read(") || strings.Contains(goroutine, "control/link.(*nodeLink).write(") {
			ours++
		}
	}
	theirs := strings.Count(text, "ssh.(*mux).loop(") + strings.Count(text, "ssh.(*handshakeTransport).kexLoop(") + strings.Count(text, "ssh.(*handshakeTransport).readLoop(")

	if ours != 2*links || theirs != 2*3*links {
		t.Errorf("%d links have %d goroutines of ours and %d of the SSH library on both ends, want %d and %d", links, ours, theirs, 2*links, 2*3*links)
	}
}

func TestAHundredHostsThatComeAtOnceAreAllServed(t *testing.T) {
	p, hostKey := newPolicy(), newKey(t)
	address := serveTCP(t, controllink.Config{Policy: p, HostKey: hostKey, MaxHandshakes: 4, MaxUnauthenticated: 8})
	const hosts = 100
	var running sync.WaitGroup
	var failed atomic.Int64
	for range hosts {
		key := newKey(t)
		p.know(key, "web-1")
		running.Go(func() {
			tcp, err := net.Dial("tcp", address)
			if err != nil {
				failed.Add(1)
				return
			}
			l, err := shakeRaw(tcp, mesh.UserNode, key, "", mesh.ChannelLink)
			if err != nil {
				failed.Add(1)
				return
			}
			l.close()
		})
	}
	running.Wait()

	if failed.Load() > 0 {
		t.Errorf("%d of %d hosts were turned away", failed.Load(), hosts)
	}
}
