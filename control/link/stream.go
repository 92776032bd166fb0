package link

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
	"github.com/meshctl/mesh/internal/stall"
)

// offered answers a channel that the host opened during its link.
func (l *nodeLink) offered(ctx context.Context, next ssh.NewChannel, running *sync.WaitGroup) error {
	if next.ChannelType() != mesh.ChannelBlob {
		return next.Reject(ssh.UnknownChannelType, "only "+mesh.ChannelBlob+" can be opened beside the link")
	}
	if !l.isWelcome() {
		return next.Reject(ssh.Prohibited, "say hello first")
	}
	sum := string(next.ExtraData())
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 || hex.EncodeToString(raw) != sum {
		return next.Reject(ssh.ConnectionFailed, "a blob is named by the 64 hexadecimal digits of its SHA-256")
	}
	select {
	case l.blobs <- struct{}{}:
	default:
		return next.Reject(ssh.ResourceShortage, "too many blobs at a time on this link")
	}
	running.Go(func() {
		defer func() { <-l.blobs }()
		if err := l.blob(ctx, next, sum); err != nil && ctx.Err() == nil {
			l.log().Warn("a blob was not delivered; the host asks again", "sha256", sum, "error", err)
		}
	})
	return nil
}

// blob streams one blob and closes its channel. A host tells a blob that ended
// from one that broke off by its digest.
func (l *nodeLink) blob(ctx context.Context, next ssh.NewChannel, sum string) error {
	content, err := l.server.cfg.Policy.OpenBlob(ctx, l.node, sum)
	if err != nil {
		if rejectErr := next.Reject(ssh.ConnectionFailed, l.conn.refused(err).Message); rejectErr != nil {
			return fmt.Errorf("reject a blob: %w", rejectErr)
		}
		return fmt.Errorf("open a blob: %w", err)
	}
	defer func() { _ = content.Close() }()
	channel, requests, err := next.Accept()
	if err != nil {
		return fmt.Errorf("accept a blob's channel: %w", err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		ssh.DiscardRequests(requests)
	}()
	defer func() {
		_ = channel.Close()
		<-drained
	}()
	out := stall.NewWriter(channel, 3*l.server.cfg.Heartbeat, func() { _ = l.conn.raw.Close() })
	// The plain struct hides that a file can copy itself, in large writes.
	if _, err := io.CopyBuffer(out, struct{ io.Reader }{content}, make([]byte, frame.Chunk)); err != nil {
		return fmt.Errorf("send a blob: %w", err)
	}
	return nil
}
