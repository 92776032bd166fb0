package link

import (
	"context"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/sqlite"
)

// parkedLimit bounds what waits on one link for a store that cannot be written,
// in bytes.
const parkedLimit = 256 << 10

// parked is what a node said and the store could not take, in order. The
// goroutine that reads owns it.
type parked struct {
	frames []mesh.Frame
	bytes  int
}

// handle has one frame taken. While the store cannot be written, what the node
// says waits here in order, and is not acknowledged. The link stays meanwhile:
// heartbeats are answered, and each of them, as whatever else comes, is the
// occasion to try again. An error ends the link; the host then sends again what
// was not acknowledged.
func (l *nodeLink) handle(ctx context.Context, storeID string, f mesh.Frame) error {
	blocked := error(nil)
	for len(l.parked.frames) > 0 && blocked == nil {
		first := l.parked.frames[0]
		err := l.takeFrame(ctx, storeID, first)
		switch {
		case sqlite.CannotWrite(err):
			blocked = err
		case err != nil:
			return err
		default:
			l.parked.frames, l.parked.bytes = l.parked.frames[1:], l.parked.bytes-parkedSize(first)
			if len(l.parked.frames) == 0 {
				l.parked.frames = nil
				l.log().Info("what a node said is stored again")
			}
		}
	}
	// A heartbeat is not stored, and a proof neither.
	if blocked == nil || f.Type == mesh.FrameHeartbeat || f.Type == mesh.FrameProof {
		err := l.takeFrame(ctx, storeID, f)
		if !sqlite.CannotWrite(err) {
			return err
		}
		blocked = err
	}
	if l.parked.bytes+parkedSize(f) > parkedLimit {
		return blocked
	}
	if len(l.parked.frames) == 0 {
		l.log().Error("what a node says cannot be stored; it waits, and the link stays", "type", f.Type, "seq", f.Seq, "error", blocked)
	}
	l.parked.frames, l.parked.bytes = append(l.parked.frames, f), l.parked.bytes+parkedSize(f)
	return nil
}

// parkedSize is what a frame counts: one without a body takes memory, too.
func parkedSize(f mesh.Frame) int { return len(f.Body) + 128 }
