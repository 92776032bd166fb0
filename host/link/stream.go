package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/stall"
)

// fetch returns the function that fetches content of d. What it writes counts
// only when it returns nil: then length and SHA-256 are those declared.
func (s *session) fetch(d mesh.Declaration, running *sync.WaitGroup) func(context.Context, string, io.Writer) error {
	sizes := make(map[string]int64)
	for _, r := range d.Resources {
		if r.File != nil && r.File.SHA256 != "" {
			sizes[r.File.SHA256] = r.File.Size
		}
	}
	return func(ctx context.Context, sum string, w io.Writer) error {
		size, named := sizes[sum]
		if !named {
			return mesh.Errorf(mesh.CodeInvalid, "generation %s names no content %s", d.Generation, sum)
		}
		channel, err := s.openBlob(ctx, sum, running)
		if err != nil {
			return err
		}
		defer func() { _ = channel.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = channel.Close() })
		defer stop()
		in := stall.NewReader(channel, 3*s.client.cfg.Heartbeat, func() { _ = channel.Close() })
		defer in.Stop()
		hash := sha256.New()
		n, err := io.Copy(io.MultiWriter(w, hash), io.LimitReader(in, size+1))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("fetch content %s: %w", sum, err)
		case n != size || hex.EncodeToString(hash.Sum(nil)) != sum:
			return mesh.Errorf(mesh.CodeUnavailable, "the content %s arrived damaged or cut (%d bytes came, %d were declared); it is not used and is fetched again", sum, n, size)
		}
		return nil
	}
}

// openBlob opens the channel of a blob, or gives up when ctx ends.
func (s *session) openBlob(ctx context.Context, sum string, running *sync.WaitGroup) (ssh.Channel, error) {
	type opened struct {
		channel  ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	result := make(chan opened, 1)
	running.Go(func() {
		channel, requests, err := s.peer.conn.OpenChannel(mesh.ChannelBlob, []byte(sum))
		if err == nil && ctx.Err() != nil {
			_ = channel.Close()
		}
		result <- opened{channel, requests, err}
		if err == nil {
			ssh.DiscardRequests(requests)
		}
	})
	select {
	case o := <-result:
		var rejected *ssh.OpenChannelError
		if errors.As(o.err, &rejected) {
			return nil, mesh.Errorf(mesh.CodeUnavailable, "the control plane does not give out the content %s: %s", sum, printable(rejected.Message))
		}
		if o.err != nil {
			return nil, fmt.Errorf("ask for content %s: %w", sum, o.err)
		}
		return o.channel, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
