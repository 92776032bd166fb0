package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
)

const (
	enrolHandshake = 45 * time.Second
	// enrolAnswer is how long the control plane may take to decide.
	enrolAnswer = 2 * time.Minute
)

// Enrol proves the token and the key to the control plane that the token pins,
// says what e says, and returns what was decided; it is stored there by then.
// Nothing at all is sent to an address that shows another key. An error with
// mesh.CodeUnavailable may go away: the same call may be made again, with the
// same key and token, even when the answer to the first was lost.
func Enrol(ctx context.Context, token mesh.Token, key ssh.Signer, e mesh.Enrol) (mesh.Enrolled, error) {
	d := newDialer(nil, token.Fingerprint, "the token", enrolHandshake)
	if e.ProtocolMax == 0 {
		e.ProtocolMin, e.ProtocolMax = mesh.ProtocolMin, mesh.ProtocolMax
	}
	request, err := introduction(e)
	if err != nil {
		return mesh.Enrolled{}, err
	}
	p, err := d.first(ctx, token.Addresses, func(ctx context.Context, address string) (*peer, error) {
		return d.open(ctx, address, mesh.UserEnrol, key, token.SecretText(), mesh.ChannelEnrol)
	})
	if err != nil {
		return mesh.Enrolled{}, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer p.close()
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	deadline := time.AfterFunc(enrolAnswer, p.close)
	defer deadline.Stop()
	running.Go(func() { ssh.DiscardRequests(p.requests) })
	running.Go(func() { ssh.DiscardRequests(p.channelRequests) })
	running.Go(func() {
		for next := range p.channels {
			_ = next.Reject(ssh.Prohibited, "a host accepts no channels")
		}
	})
	return askToEnrol(p, request)
}

// introduction makes the frame of an enrolment. What the control plane asks for
// again on the link is left out of one that is too long: nothing is removed from
// a machine on the strength of what it has not said yet.
func introduction(e mesh.Enrol) (mesh.Frame, error) {
	for _, shorten := range []func(){func() {}, func() { e.Owned = nil }, func() { e.Inventory = mesh.Inventory{} }} {
		shorten()
		request, err := mesh.NewFrame(mesh.FrameEnrol, 0, e)
		if err != nil {
			return mesh.Frame{}, fmt.Errorf("describe this machine: %w", err)
		}
		if frame.Fits(request) {
			return request, nil
		}
	}
	return mesh.Frame{}, mesh.Errorf(mesh.CodeInvalid, "what this machine applied from a bundle is too long to be handed over (%d bytes can be); apply a bundle without large files, then enrol", mesh.FrameLimit)
}

func askToEnrol(p *peer, request mesh.Frame) (mesh.Enrolled, error) {
	if err := frame.Write(p.channel, request); err != nil {
		return mesh.Enrolled{}, mesh.Errorf(mesh.CodeUnavailable, "the control plane at %s did not take the enrolment: %w; run the same command again", p.address, err)
	}
	frames := frame.NewReader(p.channel)
	for {
		f, err := frames.Read()
		if err != nil {
			return mesh.Enrolled{}, mesh.Errorf(mesh.CodeUnavailable, "the answer of the control plane at %s was lost: %w; run the same command again with the same token, which works whether or not this machine was enrolled", p.address, err)
		}
		switch f.Type {
		case mesh.FrameEnrolled:
			var enrolled mesh.Enrolled
			if err := decode(f, &enrolled); err != nil {
				return mesh.Enrolled{}, err
			}
			if enrolled.Node == "" {
				return mesh.Enrolled{}, errors.New("the control plane enrolled this machine without a name")
			}
			return enrolled, nil
		case mesh.FrameRefused:
			var refused mesh.Refused
			if err := decode(f, &refused); err != nil {
				return mesh.Enrolled{}, err
			}
			return mesh.Enrolled{}, refusal(p.address, refused)
		}
	}
}
