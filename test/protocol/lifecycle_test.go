package protocol

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Shows: M29
func TestARecoveryCopyLongerThanAFrameArrivesWholeBeforeAnyDeclaration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		undo := json.RawMessage(`"` + strings.Repeat("x", 4<<20-2) + `"`)
		p.recovery = &mesh.Recover{}
		for i := range 9 { // 36 MiB, and a frame has 16
			p.recovery.Owned = append(p.recovery.Owned, mesh.Owned{Resource: mesh.ResourceID(fmt.Sprint("file:/", i)), Undo: undo})
		}
		p.pending["web-1"] = &mesh.Declaration{Node: "web-1", Generation: 4}
		startControl(t, n, p, hostKey)
		startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey())
		synctest.Wait()

		h.look(func(h *fakeHost) {
			seen := 0
			for i, r := range h.recovers {
				seen += len(r.Owned)
				if r.More != (i < len(h.recovers)-1) {
					t.Errorf("part %d of %d says that more follows: %v", i+1, len(h.recovers), r.More)
				}
			}
			if seen != 9 || len(h.recovers) < 3 || h.order[len(h.order)-1] != "declare" || strings.Count(strings.Join(h.order, " "), "declare") != 1 {
				t.Errorf("%d entries came in %d parts, in the order %v", seen, len(h.recovers), h.order)
			}
		})
	})
}

// leaver is a host that notes that it is told that it has left.
type leaver struct {
	*fakeHost
	told atomic.Int64
}

func (l *leaver) Retired(context.Context, string) { l.told.Add(1) }

// Shows: M30
func TestAHostIsToldThatItHasLeftOnItsLinkAndAgainWhenItDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), &leaver{fakeHost: newHost("web-1")}, newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		startControl(t, n, p, hostKey)
		startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey())
		synctest.Wait()
		if h.told.Load() != 0 {
			t.Fatal("a host with a link was told that it has left")
		}
		p.look(func(p *policy) {
			clear(p.nodes)
			p.unknown = mesh.Errorf(mesh.CodeRetired, "the node has left")
		})
		p.close("web-1", control.ReasonRetired+": as the test says")
		synctest.Wait()
		if got := h.told.Load(); got != 1 {
			t.Errorf("on its link it was told %d times", got)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := h.told.Load(); got < 2 {
			t.Errorf("when it dialled again it was told %d times in all", got)
		}
	})
}

// Shows: M28
func TestANoticeIsShownOnTheMachineAndTheLinkStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p, h, hostKey, nodeKey := newNetwork(), newPolicy(), newHost("web-1"), newKey(t), newKey(t)
		p.know(nodeKey, "web-1")
		startControl(t, n, p, hostKey)
		client := startHost(t, n, h, newOutbox(), nodeKey, hostKey.PublicKey())
		synctest.Wait()
		var w control.Waker
		p.look(func(p *policy) { w = p.wakers["web-1"] })
		teller, can := w.(control.Teller)
		if !can {
			t.Fatal("a link cannot tell its host anything")
		}
		teller.Tell("somebody else\x1b has your key")
		synctest.Wait()
		if got := client.Status(); !strings.HasPrefix(string(got.State), "connected") || got.Notice != "somebody else has your key" {
			t.Errorf("the status is %+v", got)
		}
	})
}
