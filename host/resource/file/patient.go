package file

import (
	"bufio"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

const (
	// Patience is how long a call may get nowhere before it is left to itself.
	Patience = 3 * time.Minute
	// farewell is how long a call may still take when the host is to end.
	farewell = 10 * time.Second
	// lessPatience divides it while another call is left to itself, so that a pass
	// over many that get nowhere ends.
	lessPatience = 10
	// leftMost bounds how many calls are left to themselves at a time.
	leftMost = 64
	// patientTurn is how often a wait for a call turns.
	patientTurn = 5 * time.Second
)

// A Patient is the Provider for files of which every call ends, whatever the
// kernel does. A call on a file system that does not answer, as of a server that
// is gone, cannot be ended: it is left to itself, and comes out as unknown. Until
// it comes back nobody else acts on its path, nor on anything else of the same
// mounted file system. What a call may have written is seen by the next look.
type Patient struct {
	// inner is used by one call at a time, and never after a call was left.
	inner    *Provider
	patience time.Duration
	// beat is called again and again while a call is waited for, at each turn.
	beat func()
	turn *time.Ticker
	// calls goes to the goroutine that makes them; nil: there is none. It stays
	// from call to call, since its stack has to grow for the first one.
	calls chan<- func()
	// left are the calls that have not come back.
	left []leftCall
	// mounts are where file systems are mounted. Nil: to be read.
	mounts []mountPoint
}

// leftCall is a call that was left to itself.
type leftCall struct {
	id mesh.ResourceID
	// mount is where the file system that does not answer is mounted. Empty: not
	// known.
	mount string
	since time.Time
	// back is closed when it comes back.
	back chan struct{}
}

var (
	_ resource.Provider    = (*Patient)(nil)
	_ resource.PassStarter = (*Patient)(nil)
	_ resource.Announcer   = (*Patient)(nil)
	_ resource.Holder      = (*Patient)(nil)
	_ resource.Tidier      = (*Patient)(nil)
)

// NewPatient makes a Patient of a provider that nobody else uses.
func NewPatient(p *Provider, patience time.Duration, beat func()) *Patient {
	return &Patient{inner: p, patience: patience, beat: beat, turn: time.NewTicker(min(patientTurn, patience/lessPatience))}
}

// Close ends what waits for the next call. Nothing is asked afterwards.
func (p *Patient) Close() {
	p.turn.Stop()
	p.endCaller()
}

// endCaller lets the goroutine that makes calls end after the one that it is at.
func (p *Patient) endCaller() {
	if p.calls != nil {
		close(p.calls)
		p.calls = nil
	}
}

// Kind returns mesh.KindFile.
func (p *Patient) Kind() mesh.Kind { return mesh.KindFile }

// StartPass implements resource.PassStarter.
func (p *Patient) StartPass(ctx context.Context, declared []mesh.Resource) {
	p.mounts = nil
	p.inner.StartPass(ctx, declared)
}

// Hold implements resource.Holder.
func (p *Patient) Hold(want mesh.Resource, owned mesh.Owned) mesh.Resource {
	return p.inner.Hold(want, owned)
}

// Check implements resource.Provider.
func (p *Patient) Check(ctx context.Context, want mesh.Resource) (resource.Diff, error) {
	return ask(ctx, p, want.ID(), func(ctx context.Context, inner *Provider) (resource.Diff, error) { return inner.Check(ctx, want) })
}

// Capture implements resource.Provider.
func (p *Patient) Capture(ctx context.Context, want mesh.Resource) (mesh.Owned, error) {
	return ask(ctx, p, want.ID(), func(ctx context.Context, inner *Provider) (mesh.Owned, error) { return inner.Capture(ctx, want) })
}

// Announce implements resource.Announcer.
func (p *Patient) Announce(ctx context.Context, want mesh.Resource, owned mesh.Owned) (resource.Announcement, error) {
	return ask(ctx, p, want.ID(), func(ctx context.Context, inner *Provider) (resource.Announcement, error) {
		return inner.Announce(ctx, want, owned)
	})
}

// Apply implements resource.Provider.
func (p *Patient) Apply(ctx context.Context, want mesh.Resource, d resource.Diff) error {
	return p.do(ctx, want.ID(), func(ctx context.Context, inner *Provider) error { return inner.Apply(ctx, want, d) })
}

// Wrote implements resource.Provider.
func (p *Patient) Wrote(ctx context.Context, want mesh.Resource) ([]byte, error) {
	if p.inner.lastPath == want.Name {
		// It was looked at just now, and the kernel is not asked.
		return p.inner.Wrote(ctx, want)
	}
	return ask(ctx, p, want.ID(), func(ctx context.Context, inner *Provider) ([]byte, error) { return inner.Wrote(ctx, want) })
}

// Remove implements resource.Provider.
func (p *Patient) Remove(ctx context.Context, owned mesh.Owned) error {
	return p.do(ctx, owned.Resource, func(ctx context.Context, inner *Provider) error { return inner.Remove(ctx, owned) })
}

// CheckRemoved implements resource.Provider.
func (p *Patient) CheckRemoved(ctx context.Context, owned mesh.Owned) (resource.Diff, error) {
	return ask(ctx, p, owned.Resource, func(ctx context.Context, inner *Provider) (resource.Diff, error) {
		return inner.CheckRemoved(ctx, owned)
	})
}

// Tidy implements resource.Tidier.
func (p *Patient) Tidy(ctx context.Context, id mesh.ResourceID) {
	// What cannot be taken away is left.
	_ = p.do(ctx, id, func(ctx context.Context, inner *Provider) error { inner.Tidy(ctx, id); return nil })
}

func (p *Patient) do(ctx context.Context, id mesh.ResourceID, work func(context.Context, *Provider) error) error {
	_, err := ask(ctx, p, id, func(ctx context.Context, inner *Provider) (struct{}, error) { return struct{}{}, work(ctx, inner) })
	return err
}

// ask makes one call, and leaves it when it gets nowhere. When ctx ends the call
// has a moment to end as it would.
func ask[T any](ctx context.Context, p *Patient, id mesh.ResourceID, work func(context.Context, *Provider) (T, error)) (T, error) {
	var none T
	if err := p.waits(id); err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	answered, back := make(chan answer, 1), make(chan struct{})
	inner := p.inner
	// What comes back after it was left ends at its next turn.
	working, stop := context.WithCancel(ctx)
	defer stop()
	if p.calls == nil {
		p.calls = caller()
	}
	p.calls <- func() {
		defer close(back)
		value, err := work(working, inner)
		answered <- answer{value, err}
	}
	patience := p.patience
	if len(p.left) > 0 {
		patience /= lessPatience
	}
	ending := ctx.Done()
	var enough <-chan time.Time
	turns, moved := inner.turns.Load(), time.Now()
	for {
		select {
		case a := <-answered:
			return a.value, a.err
		case <-ending:
			ending = nil
			enough = time.After(min(farewell, patience))
		case <-enough:
			p.leave(id, back)
			return none, ctx.Err()
		case <-p.turn.C:
			p.beat()
			if now := inner.turns.Load(); now != turns {
				turns, moved = now, time.Now()
			}
			if time.Since(moved) >= patience {
				return none, p.leave(id, back).unanswered(id)
			}
		}
	}
}

// caller starts a goroutine that makes calls until the channel is closed.
func caller() chan<- func() {
	calls := make(chan func())
	go func() {
		for call := range calls {
			call()
		}
	}()
	return calls
}

// leave leaves a call to itself, with the goroutine that makes it, and goes on
// with a provider that it cannot spoil.
func (p *Patient) leave(id mesh.ResourceID, back chan struct{}) leftCall {
	p.endCaller()
	p.inner = p.inner.fresh()
	p.mounts = nil
	c := leftCall{id: id, mount: p.mountOf(id.Name()), since: p.inner.now(), back: back}
	p.left = append(p.left, c)
	return c
}

// unanswered is the error of a resource that a call which was left stands for.
func (c leftCall) unanswered(id mesh.ResourceID) error {
	since := c.since.UTC().Format("2006-01-02 15:04:05Z")
	if c.mount != "" {
		return resource.Unknown(mesh.ReasonTimeout, nil, "the file system at %s has not answered since %s; what lies there is left alone until it does, and looked at again then", c.mount, since)
	}
	return resource.Unknown(mesh.ReasonTimeout, nil, "the kernel has not answered for %s since %s; it is left alone until it does, and looked at again then", id.Name(), since)
}

// waits says why a resource is left alone for now; nil: it is not.
func (p *Patient) waits(id mesh.ResourceID) error {
	p.left = slices.DeleteFunc(p.left, func(c leftCall) bool {
		select {
		case <-c.back:
			return true
		default:
			return false
		}
	})
	for _, c := range p.left {
		if c.id == id || c.mount != "" && c.mount == p.mountOf(id.Name()) {
			return c.unanswered(id)
		}
	}
	if len(p.left) >= leftMost {
		return resource.Unknown(mesh.ReasonTimeout, nil, "the kernel has not answered for %d other files; no more are looked at until it does", leftMost)
	}
	return nil
}

// mountOf returns where the file system of a path is mounted, told by its name
// alone: what does not answer must not be asked. Empty: not known, or one of this
// machine's own, of which not everything stands still when one path does.
func (p *Patient) mountOf(path string) string {
	if p.mounts == nil {
		p.mounts = mountPoints()
	}
	var best mountPoint
	for _, m := range p.mounts {
		if len(m.path) >= len(best.path) && (path == m.path || strings.HasPrefix(path, m.path+"/")) {
			best = m
		}
	}
	if best.local {
		return ""
	}
	return best.path
}

// mountPoint is where a file system is mounted.
type mountPoint struct {
	path string
	// local: it is one of this machine's own.
	local bool
}

// mountPoints lists where something is mounted below the root, the last one on
// top. The kernel answers that from memory.
func mountPoints() []mountPoint {
	points := []mountPoint{}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return points
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, mountsLimit))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[4] != "/" {
			points = append(points, mountPoint{unescape(fields[4]), slices.Contains(answering, typeOf(fields))})
		}
	}
	return points
}
