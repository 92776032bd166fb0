package control

import (
	"context"
	"errors"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/fault"
)

// Keep says what is kept of what only grows. Zero keeps all of it.
type Keep struct {
	// Audit is for how long entries of the audit log are kept.
	Audit time.Duration
	// Revisions is how many revisions of a declaration are kept.
	Revisions int
	// Left is for how long it is kept what a node that left had reported and was
	// given.
	Left time.Duration
}

// What no setting says.
const (
	// tokensFor is for how long a token is known after it expired: a machine that
	// lost the answer to its enrolment may ask with it once more.
	tokensFor = 30 * 24 * time.Hour
	// removedFor is for how long the revisions of a declaration that was removed
	// are kept. That it was removed, and the number of its last revision, is kept
	// for ever.
	removedFor = 90 * 24 * time.Hour
	// blobsFor is for how long content is kept that nothing names: what names it
	// is written after it was uploaded.
	blobsFor = 24 * time.Hour
	// sweepRows bounds one transaction of a sweep, and sweepRevisions one that
	// forgets revisions, whose documents are large.
	sweepRows      = 500
	sweepRevisions = 20
)

// Swept is what a sweep removed.
type Swept struct {
	Audit, Tokens, Revisions, Sequences, Nodes, Names int
	Blobs                                             SweptBlobs
}

// sweeps forgets what is not kept, from time to time until ctx ends.
func (c *Control) sweeps(ctx context.Context) {
	ticker := time.NewTicker(c.sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.store.Crowded():
		case <-ctx.Done():
			return
		}
		swept, err := c.Sweep(ctx)
		if swept != (Swept{}) {
			c.log.Info("what is kept no longer was removed", "audit", swept.Audit, "tokens", swept.Tokens, "revisions", swept.Revisions,
				"stores", swept.Sequences, "nodes", swept.Nodes, "names", swept.Names, "blobs", swept.Blobs.Count, "bytes", swept.Blobs.Bytes)
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, ErrBusy):
			c.log.Info("content that nothing names stays until no backup is made any more")
		default:
			c.log.Error("what is kept no longer could not all be removed; tried again with the next sweep", "error", err)
		}
	}
}

// Sweep forgets what is not kept. It may be ended, or killed, at any point: what
// it did is done, and the next one goes on. Content goes last, when nothing names
// it any more.
func (c *Control) Sweep(ctx context.Context) (Swept, error) {
	var (
		swept Swept
		errs  []error
		now   = c.now()
	)
	steps := []struct {
		name  string
		due   bool
		count *int
		limit int
		once  func(limit int) (int, error)
	}{
		{"audit", c.keep.Audit > 0, &swept.Audit, sweepRows, func(limit int) (int, error) {
			return c.store.ForgetAudit(ctx, now.Add(-c.keep.Audit), limit)
		}},
		{"tokens", true, &swept.Tokens, sweepRows, func(limit int) (int, error) {
			return c.store.ForgetTokens(ctx, now.Add(-tokensFor), limit)
		}},
		{"revisions", c.keep.Revisions > 0, &swept.Revisions, sweepRevisions, func(limit int) (int, error) {
			return c.store.ForgetRevisions(ctx, c.keep.Revisions, now.Add(-removedFor), limit)
		}},
		{"sequences", true, &swept.Sequences, sweepRows, func(limit int) (int, error) {
			return c.store.ForgetSequences(ctx, limit)
		}},
	}
	for _, step := range steps {
		if !step.due {
			continue
		}
		n, err := repeat(ctx, step.limit, step.once)
		*step.count += n
		errs = append(errs, wrap(err, "forget %s", step.name))
		fault.Point("sweep.after-" + step.name)
	}
	if c.keep.Left > 0 {
		n, err := c.forgetLeft(ctx, now.Add(-c.keep.Left))
		swept.Nodes = n
		errs = append(errs, wrap(err, "forget nodes that left"))
		fault.Point("sweep.after-nodes")
	}
	var err error
	swept.Names, err = c.store.ForgetNames(ctx, sweepRows)
	errs = append(errs, wrap(err, "forget names"))
	swept.Blobs, err = c.blobs.Sweep(ctx, blobsFor, c.store.Named)
	errs = append(errs, wrap(err, "remove content"))
	return swept, errors.Join(errs...)
}

// repeat removes until nothing is left to be removed.
func repeat(ctx context.Context, limit int, once func(limit int) (int, error)) (int, error) {
	total := 0
	for {
		n, err := once(limit)
		total += n
		// A step may do its work in parts of its own, so that less than the limit
		// does not mean that it is done.
		if err != nil || n == 0 {
			return total, err
		}
		fault.Point("sweep.between")
		if err := ctx.Err(); err != nil {
			return total, err
		}
	}
}

// forgetLeft forgets what nodes that left had reported and were given.
func (c *Control) forgetLeft(ctx context.Context, before time.Time) (int, error) {
	names, err := c.store.Left(ctx, before)
	if err != nil {
		return 0, err
	}
	for i, name := range names {
		if err := c.forgetNode(ctx, name); err != nil {
			return i, err
		}
	}
	return len(names), nil
}

// forgetNode forgets one node. It has the gate, so that no machine takes the
// node's place half way.
func (c *Control) forgetNode(ctx context.Context, name string) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	if n, known := c.snapshot(name); !known || n.State == mesh.NodeEnrolled {
		return nil
	}
	for {
		n, err := c.store.ForgetNode(ctx, name, sweepRows)
		if err != nil {
			return err
		}
		if n < sweepRows {
			break
		}
		fault.Point("sweep.half-node")
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	c.note(name, func(n *node) {
		r := &n.NodeRecord
		r.Declared, r.Digest, r.Released, r.Kept = 0, "", nil, nil
		r.Refused, r.RefusedWhy = 0, ""
		r.Profile, r.Briefing = mesh.Profile{}, mesh.Briefing{}
		n.facts, n.copyDigest, n.ledgerDigest = c.factsOf(ctx, n), "", ""
	})
	return nil
}
