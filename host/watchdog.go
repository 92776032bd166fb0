package host

import (
	"context"
	"sync"
	"time"
)

// Beats collects proof that loops turn. A watchdog ping is sent only while
// every loop that ever beat did so lately.
type Beats struct {
	now func() time.Time

	mu   sync.Mutex
	last map[string]time.Time // guarded by mu
}

// NewBeats makes a Beats that reads the time from now.
func NewBeats(now func() time.Time) *Beats {
	return &Beats{now: now, last: make(map[string]time.Time)}
}

// Loop returns the function with which the named loop proves that it turns.
// The loop counts as turning from this call on.
func (b *Beats) Loop(name string) func() {
	beat := func() {
		now := b.now()
		b.mu.Lock()
		b.last[name] = now
		b.mu.Unlock()
	}
	beat()
	return beat
}

// End says that the named loop has ended, and is not to turn any more.
func (b *Beats) End(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, name)
}

// Stuck names a loop that has not turned for longer than limit; empty: none.
func (b *Beats) Stuck(limit time.Duration) string {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, at := range b.last {
		if now.Sub(at) > limit {
			return name
		}
	}
	return ""
}

// watchdogLoop pings the service manager while all loops turn.
func (h *Host) watchdogLoop(ctx context.Context) error {
	limit := h.cfg.Notify.Watchdog()
	if limit <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	ticker := time.NewTicker(limit / 4)
	defer ticker.Stop()
	for {
		if stuck := h.cfg.Beats.Stuck(limit / 2); stuck != "" {
			h.cfg.Log.ErrorContext(ctx, "a loop does not turn; the watchdog gets no ping", "loop", stuck)
		} else if err := h.cfg.Notify.Ping(); err != nil {
			h.cfg.Log.WarnContext(ctx, "the watchdog could not be pinged", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
