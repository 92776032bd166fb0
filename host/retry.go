package host

import "time"

const (
	retryFirst = 15 * time.Second
	retryMost  = 10 * time.Minute
)

// retry spaces the passes that follow a deferred resource, doubling each time.
type retry struct {
	timer *time.Timer
	next  time.Duration
	armed bool
}

func newRetry() *retry {
	t := time.NewTimer(retryMost)
	t.Stop()
	return &retry{timer: t, next: retryFirst}
}

// What a pass left to be tried again.
const (
	somethingDeferred = "something"
	nothingDeferred   = "nothing"
)

// after arms the timer when something was deferred, and forgets the spacing
// when nothing was.
func (r *retry) after(deferred string) {
	r.timer.Stop()
	r.armed = deferred == somethingDeferred
	if !r.armed {
		r.next = retryFirst
		return
	}
	r.timer.Reset(r.next)
	r.next = min(2*r.next, retryMost)
}

func (r *retry) due() <-chan time.Time {
	if !r.armed {
		return nil
	}
	return r.timer.C
}

func (r *retry) stop() { r.timer.Stop() }
