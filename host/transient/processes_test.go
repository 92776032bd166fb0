package transient

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestALookAtTheProcessesThatDoesNotComeBackIsLeftAndNotMadeASecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, hangs := newLooker(), make(chan struct{})
		began := time.Now()
		if _, ok := within(t.Context(), l, lookLimit, func() int { <-hangs; return 1 }); ok || time.Since(began) != lookLimit {
			t.Errorf("after %s it is answered: %v", time.Since(began), ok)
		}
		if _, ok := within(t.Context(), l, lookLimit, func() int { t.Error("a second look was made"); return 2 }); ok {
			t.Error("beside a look that has not come back there is an answer")
		}
		close(hangs)
		synctest.Wait()
		if n, ok := within(t.Context(), l, lookLimit, func() int { return 3 }); !ok || n != 3 {
			t.Errorf("after it came back the answer is %d, %v", n, ok)
		}
		gone, end := context.WithCancel(t.Context())
		end()
		hangs = make(chan struct{})
		if _, ok := within(gone, l, lookLimit, func() int { <-hangs; return 4 }); ok {
			t.Error("a host that is to end gets an answer")
		}
		close(hangs)
	})
}
