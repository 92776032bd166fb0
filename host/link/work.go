package link

import (
	"context"
	"sync"
	"time"

	mesh "github.com/meshctl/mesh"
)

// worker holds what the control plane sent and the host has not stored yet.
// The newest declaration replaces one that still waits, and stops one that is
// being stored.
type worker struct {
	signal chan struct{}

	mu sync.Mutex
	// recovery holds the parts of a recovery copy, in order.
	recovery    []mesh.Recover
	declaration *mesh.Declaration
	// stop ends the ctx of the declaration that is being stored. Nil: none is.
	stop context.CancelFunc
}

func (w *worker) put(change func(*worker)) {
	w.mu.Lock()
	change(w)
	if w.declaration != nil && w.stop != nil {
		w.stop()
	}
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (w *worker) takeRecovery() *mesh.Recover {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.recovery) == 0 {
		return nil
	}
	r := w.recovery[0]
	w.recovery = w.recovery[1:]
	return &r
}

// takeDeclaration takes nothing while a part of a recovery copy waits: that is
// stored before any declaration.
func (w *worker) takeDeclaration(stop context.CancelFunc) *mesh.Declaration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.recovery) > 0 {
		return nil
	}
	d := w.declaration
	w.declaration, w.stop = nil, stop
	return d
}

// waits reports whether there is something to take.
func (w *worker) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.recovery) > 0 || w.declaration != nil
}

// hostWork hands recovery copies and declarations to the host, one at a time.
func (s *session) hostWork(ctx context.Context, running *sync.WaitGroup) {
	for {
		select {
		case <-s.work.signal:
		case <-ctx.Done():
			return
		}
		for s.work.waits() && ctx.Err() == nil {
			s.workOnce(ctx, running)
		}
	}
}

// workOnce hands over what waits: the parts of a recovery copy, and then the
// newest declaration.
func (s *session) workOnce(ctx context.Context, running *sync.WaitGroup) {
	for r := s.work.takeRecovery(); r != nil; r = s.work.takeRecovery() {
		s.insist(ctx, "the recovery copy could not be stored; it is tried again", func(ctx context.Context) error {
			return s.client.cfg.Host.Recover(ctx, *r)
		})
	}
	one, stop := context.WithCancel(ctx)
	defer stop()
	d := s.work.takeDeclaration(stop)
	if d == nil {
		return
	}
	s.insist(one, "a declaration could not be stored; it is tried again", func(one context.Context) error {
		received, err := s.client.cfg.Host.Declare(one, *d, s.fetch(*d, running))
		if err != nil {
			return err
		}
		// What is stored is said even when a newer one came meanwhile.
		s.tell(ctx, mesh.FrameReceived, received)
		return nil
	})
}

// tell has a frame of the host's written. It is dropped when the link ends.
func (s *session) tell(ctx context.Context, kind mesh.FrameType, body any) {
	f, err := mesh.NewFrame(kind, 0, body)
	if err != nil {
		s.client.cfg.Log.Error("what the host says could not be written", "type", kind, "error", err)
		return
	}
	select {
	case s.made <- f:
	case <-ctx.Done():
	}
}

// insist calls again until the call works or ctx ends.
func (s *session) insist(ctx context.Context, trouble string, call func(context.Context) error) {
	cfg := s.client.cfg
	for attempts := 0; ; attempts++ {
		err := call(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		cfg.Log.Warn(trouble, "error", err)
		// Half of it is certain, so that a full disk is not asked in a loop.
		most := min(cfg.BackoffBase<<min(attempts, 20), cfg.BackoffCap)
		timer := time.NewTimer(most/2 + time.Duration(cfg.Rand()*float64(most)/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// describing answers what the control plane asks about this machine. What goes
// wrong is asked again with the next hello.
func (s *session) describing(ctx context.Context) {
	for {
		select {
		case want := <-s.describe:
			body, kind, err := s.client.cfg.Host.Describe(ctx, want)
			if err != nil {
				if ctx.Err() == nil {
					s.client.cfg.Log.Warn("this machine could not be described; the control plane asks again when the link is next made", "want", want, "error", err)
				}
				continue
			}
			s.tell(ctx, kind, body)
		case <-ctx.Done():
			return
		}
	}
}
