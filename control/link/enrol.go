package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
)

// partingTime is how long the other end has to take a last frame and close
// before the connection is cut.
const partingTime = 700 * time.Millisecond

// serveEnrol answers one enrolment and ends.
func (c *connection) serveEnrol(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	channel, requests, err := c.firstChannel(ctx, mesh.ChannelEnrol)
	if err != nil {
		c.log().Debug("an enrolment ended before it began", "error", err)
		return
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		// From here on nothing else is expected on the connection; it must be
		// read all the same, or it stalls.
		c.discard(requests)
	}()
	answer := c.enrol(ctx, channel)
	c.deadline.Reset(c.server.cfg.HandshakeTimeout)
	err = frame.Write(channel, answer)
	if err != nil {
		c.log().Warn("the answer to an enrolment could not be sent; the machine may ask again", "error", err)
	}
	_ = channel.CloseWrite()
	parting := time.AfterFunc(partingTime, func() { _ = c.raw.Close() })
	defer parting.Stop()
	<-served
}

func (c *connection) enrol(ctx context.Context, channel ssh.Channel) mesh.Frame {
	enrolled, err := c.decideEnrolment(ctx, channel)
	if err != nil {
		return refusedFrame(c.refused(err))
	}
	answer, err := mesh.NewFrame(mesh.FrameEnrolled, 0, enrolled)
	if err != nil {
		return refusedFrame(c.refused(fmt.Errorf("write the answer to an enrolment: %w", err)))
	}
	return answer
}

func (c *connection) decideEnrolment(ctx context.Context, channel ssh.Channel) (mesh.Enrolled, error) {
	f, err := frame.NewReader(channel).Read()
	if err != nil {
		return mesh.Enrolled{}, mesh.Errorf(mesh.CodeInvalid, "the enrolment could not be read: %w", err)
	}
	if f.Type != mesh.FrameEnrol {
		return mesh.Enrolled{}, mesh.Errorf(mesh.CodeInvalid, "an enrolment begins with a frame %q, not %q", mesh.FrameEnrol, f.Type)
	}
	c.deadline.Stop()
	var e mesh.Enrol
	if err := json.Unmarshal(f.Body, &e); err != nil {
		return mesh.Enrolled{}, mesh.Errorf(mesh.CodeInvalid, "the enrolment could not be read: %w", err)
	}
	if err := speaks(e.ProtocolMin, e.ProtocolMax, e.HostVersion); err != nil {
		return mesh.Enrolled{}, err
	}
	return c.server.cfg.Policy.Enrol(ctx, c.key, c.secretHash, c.raw.RemoteAddr().String(), e)
}

// speaks returns an error that says which end to upgrade when the two have no
// protocol in common.
func speaks(least, greatest int, version string) error {
	if least > mesh.ProtocolMax {
		return mesh.Errorf(mesh.CodeInvalid, "mesh-host %s speaks protocol %d and newer, this control plane up to %d; upgrade mesh-control", version, least, mesh.ProtocolMax)
	}
	if greatest < mesh.ProtocolMin {
		return mesh.Errorf(mesh.CodeInvalid, "mesh-host %s speaks protocol up to %d, this control plane %d and newer; upgrade mesh-host", version, greatest, mesh.ProtocolMin)
	}
	return nil
}

func refusedFrame(r mesh.Refused) mesh.Frame {
	f, err := mesh.NewFrame(mesh.FrameRefused, 0, r)
	if err != nil { // two strings always marshal
		return mesh.Frame{Type: mesh.FrameRefused}
	}
	return f
}

// firstChannel accepts the channel that the connection is for. Any other kind
// is refused; io.EOF when the connection ended.
func (c *connection) firstChannel(ctx context.Context, kind string) (ssh.Channel, <-chan *ssh.Request, error) {
	for {
		select {
		case next, open := <-c.channels:
			if !open {
				return nil, nil, io.EOF
			}
			if next.ChannelType() != kind {
				if err := next.Reject(ssh.UnknownChannelType, "open "+kind+" first"); err != nil {
					return nil, nil, fmt.Errorf("reject a channel: %w", err)
				}
				continue
			}
			channel, requests, err := next.Accept()
			if err != nil {
				return nil, nil, fmt.Errorf("accept %s: %w", kind, err)
			}
			return channel, requests, nil
		case request, open := <-c.requests:
			if !open {
				return nil, nil, io.EOF
			}
			if err := refuse(request); err != nil {
				return nil, nil, err
			}
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

func refuse(request *ssh.Request) error {
	if !request.WantReply {
		return nil
	}
	if err := request.Reply(false, nil); err != nil {
		return fmt.Errorf("refuse a request: %w", err)
	}
	return nil
}

// discard refuses everything until the connection ends.
func (c *connection) discard(channelRequests <-chan *ssh.Request) {
	channels, requests := c.channels, c.requests
	var err error
	for channels != nil && requests != nil && err == nil {
		select {
		case next, open := <-channels:
			if !open {
				return
			}
			err = next.Reject(ssh.Prohibited, "nothing else is served here")
		case request, open := <-requests:
			if !open {
				return
			}
			err = refuse(request)
		case request, open := <-channelRequests:
			if !open {
				channelRequests = nil
				continue
			}
			err = refuse(request)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		_ = c.raw.Close()
	}
}
