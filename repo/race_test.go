package repo_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/repotest"
)

// Shows: M11
func TestClientsThatUpdateWhilePublishersRaceNeverSeeAHalfTree(t *testing.T) {
	race(t, 8, 25, 2, 1, 12)
}

// race has publishers publish packages, each a number of them, while apt and dnf
// clients update all the time, until they have made so many updates at least.
func race(t *testing.T, publishers, each, apts, dnfs int, want int64) {
	t.Helper()
	s := serve(t)
	publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Name: "first"}), repotest.RPM(repotest.Spec{Name: "first"}))
	clients := []func() (string, error){}
	for range apts {
		a := newApt(t, s, "stable")
		clients = append(clients, func() (string, error) {
			return run(t, a.root, a.args("apt-get", "update", "-o", "APT::Update::Error-Mode=any")...)
		})
	}
	for range dnfs {
		d := newDnf(t, s, "stable")
		clients = append(clients, func() (string, error) { return run(t, d.root, d.args("makecache", "--refresh")...) })
	}

	ctx, stop := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	var updates atomic.Int64
	for _, update := range clients {
		readers.Go(func() {
			for ctx.Err() == nil {
				if out, err := update(); err != nil {
					t.Errorf("a client's update failed: %v\n%s", err, out)
				}
				updates.Add(1)
			}
		})
	}
	for p := range publishers {
		writers.Go(func() {
			for i := range each {
				name := fmt.Sprintf("from-%d-number-%d", p, i)
				if _, err := tryPublish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Name: name}), repotest.RPM(repotest.Spec{Name: name})); err != nil {
					t.Errorf("publish %s: %v", name, err)
				}
			}
		})
	}
	writers.Wait()
	// The clients have to be caught in the middle often enough to mean something.
	deadline := time.NewTimer(20*time.Second + time.Duration(want)*2*time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; updates.Load() < want; n++ {
		select {
		case <-deadline.C:
			t.Fatalf("the clients made %d updates only", updates.Load())
		case <-tick.C:
			publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Name: fmt.Sprintf("later-%d", n)}), repotest.RPM(repotest.Spec{Name: fmt.Sprintf("later-%d", n)}))
		}
	}
	stop()
	readers.Wait()

	list, err := s.repo.List(t.Context(), "stable")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, p := range list {
		have[string(p.Format)+"/"+p.Name] = true
	}
	for p := range publishers {
		for i := range each {
			for _, f := range []repo.Format{repo.Deb, repo.RPM} {
				if id := fmt.Sprintf("%s/from-%d-number-%d", f, p, i); !have[id] {
					t.Errorf("%s was published with success and is not listed", id)
				}
			}
		}
	}
	if err := s.repo.Check(t.Context()); err != nil {
		t.Errorf("the repository does not verify after the race: %v", err)
	}
	t.Logf("%d updates, generation %d", updates.Load(), s.repo.Generation())
}
