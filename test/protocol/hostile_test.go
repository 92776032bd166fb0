package protocol

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	controllink "github.com/meshctl/mesh/control/link"
	"github.com/meshctl/mesh/internal/frame"
)

// scanKey returns the fingerprint that the control plane shows.
func scanKey(t *testing.T, n *network) [32]byte {
	t.Helper()
	tcp, err := n.dial(context.Background(), "tcp", controlAt)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	var shown ssh.PublicKey
	_, _, _, err = ssh.NewClientConn(tcp, controlAt, &ssh.ClientConfig{HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
		shown = key
		return errors.New("seen enough")
	}})
	if shown == nil {
		t.Fatalf("the control plane showed no key: %v", err)
	}
	return controllink.Fingerprint(shown)
}

func TestAHostileFirstFrameEndsTheLinkAndNoOther(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"a length of 4 GB":         {0xff, 0xff, 0xff, 0xff},
		"a length above the limit": binary.BigEndian.AppendUint32(nil, mesh.FrameLimit+1),
		"no JSON":                  append([]byte{0, 0, 0, 5}, "hello"...),
		"JSON of another shape":    append([]byte{0, 0, 0, 7}, "[1,2,3]"...),
		"no type":                  append([]byte{0, 0, 0, 2}, "{}"...),
		"an empty frame":           {0, 0, 0, 0},
		"a body of another shape":  append([]byte{0, 0, 0, 28}, `{"type":"hello","body":[17]}`...),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				key := newKey(t)
				p.policy.know(key, "evil")
				link, err := dialRaw(p.network, mesh.UserNode, key, "", mesh.ChannelLink)
				if err != nil {
					t.Fatal(err)
				}
				defer link.close()
				if _, err := link.channel.Write(bytes); err != nil {
					t.Fatal(err)
				}

				f, err := link.frames.Read()
				if err == nil && f.Type == mesh.FrameRefused {
					_, err = link.frames.Read()
				}
				if err == nil {
					t.Errorf("the control plane says %s and goes on after %s", show(f), name)
				}
				p.policy.look(func(policy *policy) {
					if policy.links != 1 || policy.dropped != 0 {
						t.Errorf("there are %d links and %d ended, want the one of web-1 untouched", policy.links, policy.dropped)
					}
				})
			})
		})
	}
}

func TestAClientThatSaysNothingIsClosedAfterTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		startControl(t, n, newPolicy(), newKey(t))
		tcp, err := n.dial(t.Context(), "tcp", controlAt)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()

		_, err = tcp.Read(make([]byte, 1))

		if err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("the read ended with %v after %s, want the end after 10 s", err, time.Since(began))
		}
	})
}

func TestAHandshakeThatStallsIsClosedAndItsPlaceGivenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		startControl(t, n, p, newKey(t), func(c *controllink.Config) { c.MaxHandshakes = 2 })
		for i := range 2 {
			stall(t, n, address(fmt.Sprintf("10.0.0.%d:40000", 66+i)))
		}
		synctest.Wait()
		began := time.Now()

		link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		defer link.close()

		if waited := time.Since(began); waited != 30*time.Second {
			t.Errorf("a node got its place after %s, want the 30 s that two stalled handshakes may take", waited)
		}
	})
}

// stall begins a handshake from an address and says no more.
func stall(t *testing.T, n *network, from address) {
	t.Helper()
	tcp, err := n.dialFrom(from, controlAt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tcp.Write([]byte("SSH-2.0-stall\r\n")); err != nil {
		t.Fatal(err)
	}
}

// The attack: one machine of the network begins a handshake in every place that
// there is, says no more, and begins others when these are closed.
func TestOneSourceCannotKeepNodesFromShakingHands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		startControl(t, n, p, newKey(t))
		for i := range 200 {
			stall(t, n, address(fmt.Sprintf("10.0.0.66:%d", 40000+i)))
		}
		synctest.Wait()
		began := time.Now()

		link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		defer link.close()

		if waited := time.Since(began); waited != 0 {
			t.Errorf("a node got its place after %s, want at once", waited)
		}
	})
}

func TestANodeThatSaysNoHelloIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		startControl(t, n, p, newKey(t))
		link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		defer link.close()
		began := time.Now()

		_, err = link.frames.Read()

		if err == nil || time.Since(began) > 31*time.Second {
			t.Errorf("the link ended with %v after %s, want an end within 30 s", err, time.Since(began))
		}
	})
}

func TestBlobsAreNotGivenToALinkThatIsNotWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		content := []byte("secret")
		p.blobs[digest(content)] = content
		startControl(t, n, p, newKey(t))
		link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		defer link.close()

		channel, _, err := link.conn.OpenChannel(mesh.ChannelBlob, []byte(digest(content)))

		if err == nil {
			_ = channel.Close()
			t.Error("a blob was given out before the hello")
		}
	})
}

func TestSixtyFourBlobsAtATimeAreNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		content := []byte(strings.Repeat("x", 8<<20)) // more than a window, so that nobody finishes
		p.blobs[digest(content)] = content
		startControl(t, n, p, newKey(t))
		link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
		if err != nil {
			t.Fatal(err)
		}
		defer link.close()
		link.say(t, frameOf(t, mesh.FrameHello, mesh.Hello{ProtocolMin: 1, ProtocolMax: 1, Node: "web-1"}))
		if _, err := link.frames.Read(); err != nil {
			t.Fatal(err)
		}

		served := 0
		for range 64 {
			channel, requests, err := link.conn.OpenChannel(mesh.ChannelBlob, []byte(digest(content)))
			if err != nil {
				continue
			}
			served++
			go ssh.DiscardRequests(requests)
			defer func() { _ = channel.Close() }()
		}

		if served != 4 {
			t.Errorf("%d blobs are streamed to one node at a time, want 4", served)
		}
	})
}

// welcomedRaw is a node's link that a test plays by hand, after the welcome.
func welcomedRaw(t *testing.T, n *network, p *policy) *raw {
	t.Helper()
	key := newKey(t)
	p.know(key, "web-1")
	link, err := dialRaw(n, mesh.UserNode, key, "", mesh.ChannelLink)
	if err != nil {
		t.Fatal(err)
	}
	link.say(t, frameOf(t, mesh.FrameHello, mesh.Hello{ProtocolMin: 1, ProtocolMax: 1, Node: "web-1"}))
	if f, err := link.frames.Read(); err != nil || f.Type != mesh.FrameWelcome {
		t.Fatalf("a hello is answered with %s, %v", show(f), err)
	}
	return link
}

func TestARevokedNodeThatDoesNotCloseIsCutWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		began := time.Now()

		p.close("web-1", "revoked")
		_ = link.conn.Wait()

		if after := time.Since(began); after > time.Second {
			t.Errorf("the connection of a revoked node lived on for %s", after)
		}
	})
}

func TestARevokedNodeThatReadsNothingIsCutWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		large := &mesh.FileSpec{Type: mesh.FileRegular}
		large.SetContent(make([]byte, 4<<20)) // more than a window of the channel
		p.declare(mesh.Declaration{Node: "web-1", Generation: 1, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "/x", File: large}}})
		synctest.Wait()
		began := time.Now()

		p.close("web-1", "revoked")
		_ = link.conn.Wait()

		if after := time.Since(began); after > time.Second {
			t.Errorf("the connection of a revoked node that reads nothing lived on for %s", after)
		}
	})
}

func TestANodeThatReadsNothingIsCutAfterThreeHeartbeatsThoughItSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		large := &mesh.FileSpec{Type: mesh.FileRegular}
		large.SetContent(make([]byte, 4<<20))
		p.declare(mesh.Declaration{Node: "web-1", Generation: 1, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "/x", File: large}}})
		began, ended := time.Now(), make(chan struct{})
		go func() { _ = link.conn.Wait(); close(ended) }()

		for alive := true; alive; {
			_ = frame.Write(link.channel, frameOf(t, mesh.FrameHeartbeat, mesh.Heartbeat{}))
			select {
			case <-ended:
				alive = false
			case <-time.After(mesh.HeartbeatInterval):
			}
			if time.Since(began) > time.Hour {
				t.Fatal("a node that has read nothing for an hour still has its link")
			}
		}

		if after := time.Since(began); after > 3*mesh.HeartbeatInterval+time.Second {
			t.Errorf("a node that reads nothing was cut after %s, want three heartbeats", after)
		}
	})
}

func TestAMessageWhoseBodyIsNoJSONIsDroppedAndTheLinkStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		link.say(t, mesh.Frame{Type: mesh.FrameReceived, Seq: 1, Body: []byte(`{"generation":}`)})
		link.say(t, frameOf(t, mesh.FrameHeartbeat, mesh.Heartbeat{}))

		for answers := range 2 {
			var ack mesh.Ack
			f, err := link.frames.Read()
			if err == nil {
				err = unmarshal(f.Body, &ack)
			}
			if err != nil || f.Type != mesh.FrameAck || ack.Seq != 1 {
				t.Fatalf("answer %d is %s of %d, %v; want that message 1 need not come again", answers+1, f.Type, ack.Seq, err)
			}
			synctest.Wait()
			if answers == 0 {
				link.say(t, frameOf(t, mesh.FrameHeartbeat, mesh.Heartbeat{}))
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, taken := p.received["web-1"]; taken {
			t.Error("a message that is no JSON was taken")
		}
	})
}

func TestADeclarationIsSentOnceHoweverOftenTheLinkIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		server := startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		for range 5 {
			p.declare(mesh.Declaration{Node: "web-1", Generation: 1})
			synctest.Wait()
		}
		go func() { _ = server.Prove(t.Context(), "web-1") }()

		first, err := link.frames.Read()
		if err != nil {
			t.Fatal(err)
		}
		second, err := link.frames.Read()

		if err != nil || first.Type != mesh.FrameDeclare || second.Type != mesh.FrameProve {
			t.Errorf("five wakes were answered with %s and %s (%v), want one declaration", first.Type, second.Type, err)
		}
	})
}

func TestUsersThatDoNotExistAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, key := newNetwork(), newPolicy(), newKey(t)
		p.know(key, "web-1")
		startControl(t, n, p, newKey(t))
		for _, user := range []string{"root", "", "operator", "enrol ", "Node"} {
			link, err := dialRaw(n, user, key, "secret", mesh.ChannelLink)
			if err == nil {
				link.close()
				t.Errorf("the user %q was let in", user)
			}
		}
	})
}

func frameOf(t *testing.T, kind mesh.FrameType, body any) mesh.Frame {
	t.Helper()
	f, err := mesh.NewFrame(kind, 0, body)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAMessageThatCannotBeStoredIsAnErrorInTheLogAndComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		n, p, h, o, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newOutbox(), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.handle = errors.New("store event: input/output error")
		startControl(t, n, p, hostKey, func(c *controllink.Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		startHost(t, n, h, o, nodeKey, hostKey.PublicKey())
		o.add(event(1))
		time.Sleep(time.Minute)
		synctest.Wait()

		p.look(func(p *policy) {
			if len(p.recorded) != 1 || p.links != 2 {
				t.Errorf("%d messages are recorded after %d links, want the one on the second", len(p.recorded), p.links)
			}
		})
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "node=web-1") || !strings.Contains(text, "input/output error") {
			t.Errorf("the log of errors is\n%s\nwant one line with the node and the error", text)
		}
	})
}

// Shows: M32
func TestALinkStaysWhileNothingCanBeStoredAndWhatWasSaidIsStoredOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		n, p, h, o, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newOutbox(), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.blocked = &mesh.Error{Code: mesh.CodeUnavailable, Message: "the disk of the control plane is full", Err: syscall.ENOSPC}
		startControl(t, n, p, hostKey, func(c *controllink.Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		startHost(t, n, h, o, nodeKey, hostKey.PublicKey())
		o.add(event(1), event(2), event(3))
		time.Sleep(10 * time.Minute)
		p.declare(mesh.Declaration{Node: "web-1", Generation: 7})
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		p.look(func(p *policy) {
			if len(p.recorded) != 0 || p.links != 1 || o.waiting() != 3 {
				t.Errorf("while nothing can be stored %d messages are recorded, %d of 3 wait on the host, after %d links", len(p.recorded), o.waiting(), p.links)
			}
			p.blocked = nil
		})
		h.look(func(h *fakeHost) {
			if len(h.declared) != 1 {
				t.Errorf("%d declarations arrived meanwhile, want one", len(h.declared))
			}
		})
		o.add(event(4))
		time.Sleep(31 * time.Second)
		synctest.Wait()

		p.look(func(p *policy) {
			var order []uint64
			for _, f := range p.frames {
				if f.Seq > 0 {
					order = append(order, f.Seq)
				}
			}
			if !slices.Equal(order, []uint64{1, 2, 3, 4}) || p.links != 1 || o.waiting() != 0 || p.received["web-1"].Held != 7 {
				t.Errorf("with room again %v are recorded, %d wait, %s is held, after %d links", order, o.waiting(), p.received["web-1"].Held, p.links)
			}
		})
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "node=web-1") || !strings.Contains(text, "disk") {
			t.Errorf("the log of errors is\n%s\nwant one line with the node and why", text)
		}
	})
}

func TestALinkThatWouldHaveToKeepTooMuchEndsAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, o, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newOutbox(), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.blocked = syscall.ENOSPC
		startControl(t, n, p, hostKey)
		startHost(t, n, h, o, nodeKey, hostKey.PublicKey())
		for seq := range uint64(5) {
			f := frameOf(t, mesh.FrameEvent, mesh.Event{Kind: mesh.EventDrift, Detail: strings.Repeat("x", 100<<10)})
			f.Seq = seq + 1
			o.add(f)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		p.look(func(p *policy) {
			if p.links < 2 || len(p.recorded) != 0 {
				t.Errorf("%d messages are recorded after %d links", len(p.recorded), p.links)
			}
			p.blocked = nil
		})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		p.look(func(p *policy) {
			if len(p.recorded) != 5 || o.waiting() != 0 {
				t.Errorf("with room again %d messages are recorded and %d wait", len(p.recorded), o.waiting())
			}
		})
	})
}

func TestMessagesWithoutABodyCountTowardsWhatALinkKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork(), newPolicy()
		p.blocked = syscall.ENOSPC
		startControl(t, n, p, newKey(t))
		link := welcomedRaw(t, n, p)
		defer link.close()
		for seq := range uint64(10_000) {
			if err := frame.Write(link.channel, mesh.Frame{Type: mesh.FrameEvent, Seq: seq + 1}); err != nil {
				return // the link has ended
			}
		}
		ended := make(chan struct{})
		go func() { _ = link.conn.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Second):
			t.Error("ten thousand messages are kept for a node that says nothing in them")
		}
	})
}
