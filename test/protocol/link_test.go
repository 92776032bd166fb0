package protocol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	controllink "github.com/meshctl/mesh/control/link"
	hostlink "github.com/meshctl/mesh/host/link"
)

// pair is one control plane and one host on one network.
type pair struct {
	network *network
	policy  *policy
	server  *controllink.Server
	host    *fakeHost
	outbox  *outbox
	client  *hostlink.Client
}

// startPair connects web-1 to a control plane.
func startPair(t *testing.T, change ...func(*hostlink.Config)) *pair {
	t.Helper()
	p := &pair{network: newNetwork(), policy: newPolicy(), host: newHost("web-1"), outbox: newOutbox()}
	hostKey, nodeKey := newKey(t), newKey(t)
	p.policy.know(nodeKey, "web-1")
	p.server = startControl(t, p.network, p.policy, hostKey)
	p.client = startHost(t, p.network, p.host, p.outbox, nodeKey, hostKey.PublicKey(), change...)
	synctest.Wait()
	return p
}

func (p *pair) state() hostlink.State { return p.client.Status().State }

func event(seq uint64) mesh.Frame {
	f, err := mesh.NewFrame(mesh.FrameEvent, seq, mesh.Event{Kind: mesh.EventDrift, Detail: "x"})
	if err != nil {
		panic(err)
	}
	return f
}

// Shows: M1
func TestADeclarationArrivesOnTheOpenLinkWithoutAnyoneAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		began := time.Now()

		p.policy.declare(mesh.Declaration{Node: "web-1", Generation: 1})
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if got := policy.received["web-1"].Held; got != 1 || time.Since(began) != 0 {
				t.Errorf("after %s the node holds %s, want g1 at once", time.Since(began), got)
			}
		})
	})
}

func TestANewerDeclarationStopsTheStoringOfAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.host.look(func(h *fakeHost) {
			h.hold = func(d mesh.Declaration) bool { return d.Generation == 1 }
		})
		p.policy.declare(mesh.Declaration{Node: "web-1", Generation: 1})
		synctest.Wait()

		p.policy.declare(mesh.Declaration{Node: "web-1", Generation: 2})
		synctest.Wait()

		p.host.look(func(h *fakeHost) {
			if len(h.declared) != 1 || h.declared[0].Generation != 2 {
				t.Errorf("the host stored %+v, want generation 2 alone", h.declared)
			}
		})
	})
}

func TestTheRecoveryCopyIsStoredBeforeAnyDeclaration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.recovery = &mesh.Recover{Owned: []mesh.Owned{{Resource: "file:/etc/motd"}}}
		p.pending["web-1"] = &mesh.Declaration{Node: "web-1", Generation: 4}
		startControl(t, n, p, hostKey)
		startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey())
		synctest.Wait()

		h.look(func(h *fakeHost) {
			if got := strings.Join(h.order, " "); got != "recover declare" {
				t.Errorf("the host stored %q, want the recovery copy and then the declaration", got)
			}
		})
	})
}

// Shows: M29
func TestADeclarationThatIsWrittenWhileALinkIsMadeWaitsForTheWelcomeAndTheRecoveryCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.recovery = &mesh.Recover{Owned: []mesh.Owned{{Resource: "file:/etc/motd"}}}
		p.pending["web-1"] = &mesh.Declaration{Node: "web-1", Generation: 4}
		p.meeting = func(w control.Waker) {
			w.Wake()
			w.(control.Teller).Tell("another machine has this node's key")
			time.Sleep(time.Second) // as a busy store takes it, so that the link could write
		}
		startControl(t, n, p, hostKey)
		client := startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey())
		time.Sleep(10 * time.Second)
		synctest.Wait()

		h.look(func(h *fakeHost) {
			if got := strings.Join(h.order, " "); got != "recover declare" {
				t.Errorf("the host stored %q, want the recovery copy and then the declaration", got)
			}
		})
		if status := client.Status(); status.Notice == "" {
			t.Errorf("what was told while the link was made did not arrive: %+v", status)
		}
	})
}

func TestADeclarationThatCouldNotBeStoredIsTriedAgainOnTheSameLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.host.look(func(h *fakeHost) { h.trouble = errors.New("no space left on device") })
		p.policy.declare(mesh.Declaration{Node: "web-1", Generation: 1})
		time.Sleep(5 * time.Minute)
		p.host.look(func(h *fakeHost) { h.trouble = nil })
		time.Sleep(time.Minute)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if policy.received["web-1"].Held != 1 || policy.links != 1 {
				t.Errorf("the node holds %s after %d links, want g1 on the first", policy.received["web-1"].Held, policy.links)
			}
		})
	})
}

// Shows: M3
func TestANodeWithNothingToDoSendsAHeartbeatEvery30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)

		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			heartbeats := 0
			for _, f := range policy.frames {
				if f.Type == mesh.FrameHeartbeat {
					heartbeats++
				}
			}
			if heartbeats != 20 || policy.links != 1 {
				t.Errorf("%d heartbeats came on %d links in ten minutes, want 20 on one", heartbeats, policy.links)
			}
		})
	})
}

// Shows: M3
func TestBothEndsNoticeAHalfDeadLinkWithinThreeHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		time.Sleep(45 * time.Second)
		var hostAfter, controlAfter time.Duration
		began := time.Now()

		p.network.swallow(true)
		for hostAfter == 0 || controlAfter == 0 {
			time.Sleep(time.Second)
			synctest.Wait()
			if hostAfter == 0 && p.state() != hostlink.StateConnected {
				hostAfter = time.Since(began)
			}
			p.policy.look(func(policy *policy) {
				if controlAfter == 0 && policy.dropped == policy.links {
					controlAfter = time.Since(began)
				}
			})
			if time.Since(began) > time.Hour {
				break
			}
		}

		for end, after := range map[string]time.Duration{"host": hostAfter, "control plane": controlAfter} {
			if after == 0 || after > 3*mesh.HeartbeatInterval || after < mesh.HeartbeatInterval {
				t.Errorf("the %s noticed after %s (0s: never) that the link is dead, want one to three heartbeats of 30 s", end, after)
			}
		}
	})
}

// Shows: M32
func TestAHostThatComesBackIsConnectedAndDeliversWhatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		time.Sleep(time.Minute)
		p.network.setDown(true)
		p.network.cut()
		time.Sleep(21 * 24 * time.Hour)
		p.outbox.add(event(3), event(4), event(9))
		p.policy.declare(mesh.Declaration{Node: "web-1", Generation: 5})

		p.network.setDown(false)
		time.Sleep(61 * time.Second)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if len(policy.recorded) != 3 || policy.received["web-1"].Held != 5 {
				t.Errorf("a minute after the network came back %d of 3 messages are recorded and the node holds %s, want g5", len(policy.recorded), policy.received["web-1"].Held)
			}
		})
	})
}

func TestAChangeOfTheNetworkIsUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{}, 1)
		p := startPair(t, func(c *hostlink.Config) {
			c.Network = changed
			c.Rand = func() float64 { return 0.99 }
		})
		p.network.setDown(true)
		p.network.cut()
		time.Sleep(time.Hour) // the waits between attempts are a minute long by now
		for time.Until(p.client.Status().Next) < 30*time.Second {
			time.Sleep(time.Second)
		}

		p.network.setDown(false)
		changed <- struct{}{}
		time.Sleep(time.Second)
		synctest.Wait()

		if state := p.state(); state != hostlink.StateConnected {
			t.Errorf("a second after the network came back the link is %s", state)
		}
	})
}

func TestTheWaitsBetweenAttemptsGrowToAMinuteAndNoFurther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var attempts []time.Duration
		began := time.Now()
		startHost(t, n, newHost("web-1"), newOutbox(), newKey(t), newKey(t).PublicKey(), func(c *hostlink.Config) {
			c.Rand = func() float64 { return 1 }
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				attempts = append(attempts, time.Since(began).Round(time.Second))
				return n.dial(ctx, network, address)
			}
		})
		time.Sleep(200 * time.Second)
		synctest.Wait()

		if got, want := fmt.Sprint(attempts), "[0s 1s 3s 7s 15s 31s 1m3s 2m3s 3m3s]"; got != want {
			t.Errorf("attempts were made at %s, want %s", got, want)
		}
	})
}

// Shows: M32
func TestMessagesAreRecordedOnceThroughALinkThatIsCutAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		const messages = 200
		go func() {
			for seq := range uint64(messages) {
				p.outbox.add(event(seq + 1))
				time.Sleep(100 * time.Millisecond)
			}
		}()
		for range 12 {
			time.Sleep(1700 * time.Millisecond)
			p.network.cut()
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if len(policy.recorded) != messages || p.outbox.waiting() != 0 {
				t.Errorf("%d of %d messages are recorded after %d links, and %d still wait", len(policy.recorded), messages, policy.links, p.outbox.waiting())
			}
		})
	})
}

func TestTheBeatGoesOnWhileNothingCanBeReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, longest := time.Now(), time.Duration(0)
		p := startPair(t, func(c *hostlink.Config) {
			c.Beat = func() {
				longest = max(longest, time.Since(last))
				last = time.Now()
			}
		})
		time.Sleep(time.Minute)
		p.network.swallow(true) // new connections hang in the handshake
		time.Sleep(10 * time.Minute)
		p.network.setDown(true)
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		if longest > 5*time.Second {
			t.Errorf("the loop stood still for %s, want at most 5 s", longest)
		}
	})
}

func TestTheBeatGoesOnWhileTheHostLooksAtABusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, longest := time.Now(), time.Duration(0)
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		h.looking = 25 * time.Second
		startControl(t, n, p, hostKey)
		client := startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey(), func(c *hostlink.Config) {
			c.Beat = func() {
				longest = max(longest, time.Since(last))
				last = time.Now()
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()

		if state := client.Status().State; longest > 5*time.Second || state != hostlink.StateConnected {
			t.Errorf("the loop stood still for %s while the machine was looked at, want at most 5 s; the link is %s", longest, state)
		}
	})
}

func TestALargeContentArrivesWholeBesideTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		content := bytes.Repeat([]byte("0123456789abcdef"), 300_000)
		p.policy.look(func(policy *policy) { policy.blobs[digest(content)] = content })

		p.policy.declare(withBlob(1, digest(content), int64(len(content))))
		synctest.Wait()

		p.host.look(func(h *fakeHost) {
			if !bytes.Equal(h.content[digest(content)], content) || len(h.declared) != 1 {
				t.Errorf("of %d bytes %d arrived", len(content), len(h.content[digest(content)]))
			}
		})
	})
}

func TestContentThatIsNotWhatWasDeclaredIsNotUsed(t *testing.T) {
	content := []byte("as declared")
	for name, served := range map[string][]byte{
		"other":   []byte("something e"),
		"cut":     []byte("as decl"),
		"longer":  []byte("as declared, and more"),
		"missing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPair(t)
				if served != nil {
					p.policy.look(func(policy *policy) { policy.blobs[digest(content)] = served })
				}
				p.policy.declare(withBlob(1, digest(content), int64(len(content))))
				time.Sleep(time.Minute)
				synctest.Wait()
				taken := len(p.host.declared)

				p.policy.look(func(policy *policy) { policy.blobs[digest(content)] = content })
				time.Sleep(2 * time.Minute)
				synctest.Wait()

				p.host.look(func(h *fakeHost) {
					if taken != 0 || len(h.declared) != 1 {
						t.Errorf("%d declarations were taken with %s content and %d with the right one, want 0 and 1", taken, name, len(h.declared))
					}
				})
			})
		})
	}
}

func withBlob(g mesh.Generation, sum string, size int64) mesh.Declaration {
	return mesh.Declaration{Node: "web-1", Generation: g, Resources: []mesh.Resource{{
		Kind: mesh.KindFile, Name: "/srv/large",
		File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: sum, Size: size},
	}}}
}

func TestARevokedNodeIsToldWithinASecondAndDialsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		time.Sleep(time.Minute)
		p.policy.look(func(policy *policy) { clear(policy.nodes) })

		p.policy.close("web-1", "revoked by ops on 2026-11-30")
		time.Sleep(time.Second)
		synctest.Wait()

		p.host.look(func(h *fakeHost) {
			if h.revoked != "revoked by ops on 2026-11-30" {
				t.Errorf("the host was told %q", h.revoked)
			}
		})
		status := p.client.Status()
		if wait := time.Until(status.Next); status.State != hostlink.StateWaiting || !status.Final || wait < 29*time.Second-time.Second {
			t.Errorf("after a revocation the link is %+v and dials in %s, want a wait of half a minute at least", status, wait)
		}
	})
}

func TestRevokingOneNodeLeavesTheLinksOfOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		other, key := newHost("db-1"), newKey(t)
		p.policy.know(key, "db-1")
		var pinned [32]byte
		startHost(t, p.network, other, newOutbox(), key, newKey(t).PublicKey(), func(c *hostlink.Config) {
			c.Fingerprint = p.fingerprint(t)
			pinned = c.Fingerprint
		})
		synctest.Wait()

		p.policy.close("web-1", "revoked")
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if policy.wakers["db-1"] == nil {
				t.Errorf("db-1 (pinning %s) lost its link when web-1 was revoked", mesh.FingerprintText(pinned))
			}
		})
	})
}

// fingerprint asks the control plane for its key, as ssh-keyscan would.
func (p *pair) fingerprint(t *testing.T) [32]byte {
	t.Helper()
	return scanKey(t, p.network)
}

func TestANodeAnswersWhenAskedForProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)

		err := p.server.Prove(t.Context(), "web-1")

		if err != nil {
			t.Errorf("Prove returned %v on a link that works", err)
		}
	})
}

func TestProofOfALinkThatSwallowsIsNotGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.network.swallow(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		err := p.server.Prove(ctx, "web-1")

		if codeOf(err) != mesh.CodeUnavailable {
			t.Errorf("Prove returned %v on a link that swallows everything, want %s", err, mesh.CodeUnavailable)
		}
	})
}

func TestWhatTheHostFindsChangedIsSentAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		p.host.look(func(h *fakeHost) { h.bodies[mesh.WantProfile] = mesh.Profile{Arch: "arm64"} })

		p.client.Refresh(mesh.WantProfile)
		synctest.Wait()

		p.policy.look(func(policy *policy) {
			if len(policy.frames) != 1 || policy.frames[0].Type != mesh.FrameProfile {
				t.Errorf("the control plane got %v, want the profile", policy.frames)
			}
		})
	})
}

func TestARefusedLinkIsToldWhyInTheControlPlanesWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, hostKey, nodeKey := newNetwork(), newPolicy(), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		p.connect = mesh.Errorf(mesh.CodeConflict, "web-1 is connected from another machine; if this one is a clone, enrol it")
		startControl(t, n, p, hostKey)
		client := startHost(t, n, newHost("web-1"), newOutbox(), nodeKey, hostKey.PublicKey())
		time.Sleep(time.Second)
		synctest.Wait()

		sentence := client.Status().Sentence(time.Now())
		if !strings.Contains(sentence, "if this one is a clone, enrol it") || !strings.Contains(sentence, "keeps the declaration") {
			t.Errorf("status says %q, want the control plane's words and what happens next", sentence)
		}
	})
}

// Shows: M24
func TestAHostSendsNothingToAControlPlaneWithAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, nodeKey := newNetwork(), newPolicy(), newKey(t)
		p.know(nodeKey, "web-1")
		startControl(t, n, p, newKey(t))
		client := startHost(t, n, newHost("web-1"), newOutbox(), nodeKey, newKey(t).PublicKey())
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		p.look(func(p *policy) {
			if p.links != 0 || p.asked != 0 {
				t.Errorf("a control plane with another key was shown a key %d times and had %d links", p.asked, p.links)
			}
		})
		if got := client.Status().LastError; !strings.Contains(got, "shows key SHA256:") || !strings.Contains(got, "nothing was sent") {
			t.Errorf("status says %q, want both fingerprints and that nothing was sent", got)
		}
	})
}

func TestASecondAddressIsTriedWhenTheFirstDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t, func(c *hostlink.Config) { c.Addresses = []string{"nowhere.test:7022", controlAt} })

		if status := p.client.Status(); status.State != hostlink.StateConnected || status.Address != controlAt {
			t.Errorf("the link is %+v, want one to %s", status, controlAt)
		}
	})
}

func TestAWakerNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t)
		var waker control.Waker
		p.policy.look(func(policy *policy) { waker = policy.wakers["web-1"] })
		p.network.cut()
		synctest.Wait()
		began := time.Now()

		for range 1000 {
			waker.Wake()
			waker.Close("over")
		}

		if time.Since(began) != 0 {
			t.Errorf("a thousand calls took %s on a link that is gone", time.Since(began))
		}
	})
}
