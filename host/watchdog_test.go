package host_test

import (
	"context"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
)

// Shows: M17
func TestAWatchdogIsPingedWhileTheLoopsTurnAndNotWhenOneIsStuck(t *testing.T) {
	const limit = 2 * time.Minute
	in(t, enrolled, func(b *bench) {
		b.manager.watchdog = limit
		stuck := make(chan struct{})
		turning := true
		b.passes.make = func(_ context.Context, _ mesh.Declaration, superseded func() bool) (reconcile.Outcome, error) {
			for turning { // a long pass whose resources end
				superseded()
				time.Sleep(20 * time.Second)
				if time.Now().Minute() == 50 {
					turning = false
				}
			}
			<-stuck
			return reconcile.Outcome{State: mesh.GenerationApplied}, nil
		}
		b.start()
		if b.manager.pingsSince(time.Time{}) == 0 {
			t.Error("a daemon that started does not ping")
		}
		b.wait(10 * time.Minute)
		b.declare(1)
		began := time.Now()
		b.wait(30 * time.Minute)
		for at := began; at.Before(began.Add(28 * time.Minute)); at = at.Add(time.Minute) {
			if b.manager.pingsSince(at) == b.manager.pingsSince(at.Add(time.Minute)) {
				t.Errorf("a long pass that turns got no ping in the minute after %s", at.Sub(began))
			}
		}
		b.wait(15 * time.Minute) // the pass is stuck meanwhile
		last := time.Now()
		b.wait(10 * time.Minute)
		if n := b.manager.pingsSince(last); n != 0 {
			t.Errorf("a stuck loop was covered by %d pings", n)
		}
		if !strings.Contains(b.log.String(), "loop=reconcile") {
			t.Error("the log does not say which loop is stuck")
		}
		close(stuck)
		b.wait(time.Minute)
		if b.manager.pingsSince(last) == 0 {
			t.Error("after the loop turned again there are no pings")
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAStuckLinkStopsThePingsAndALinkThatIsNotMadeDoesNot(t *testing.T) {
	for name, c := range map[string]struct {
		settings host.Settings
		beats    bool
		pings    bool
	}{
		"stuck link": {enrolled, false, false},
		"link turns": {enrolled, true, true},
		"no link":    {host.Settings{}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, c.settings, func(b *bench) {
				b.manager.watchdog = 2 * time.Minute
				b.cfg.Dial = func(host.Settings, *host.Host) host.Link {
					l := &link{}
					if beat := b.cfg.Beats.Loop("link"); c.beats {
						l.beat = beat
					}
					return l
				}
				b.start()
				b.wait(10 * time.Minute)
				from := time.Now()
				b.wait(10 * time.Minute)
				if n := b.manager.pingsSince(from); (n > 0) != c.pings {
					t.Errorf("%d pings in ten minutes", n)
				}
				if err := b.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
