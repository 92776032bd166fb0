package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

// stuck has the first write of a path get no further than its rename.
func (s *site) stuck(name string) (goOn chan struct{}) {
	goOn = make(chan struct{})
	first := true
	s.cfg.Label = func(_ context.Context, path, _, _ string) (string, error) {
		if path == s.path(name) && first {
			first = false
			<-goOn
		}
		return "", nil
	}
	s.restart()
	return goOn
}

// Shows: M4, M7
func TestAWriteThatDoesNotComeBackIsUnknownAndEverythingElseIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		goOn := s.stuck("slow")
		began := time.Now()
		s.declare(s.file("a", "1"), s.file("slow", "old"), s.file("z", "1"))
		s.says("a", mesh.StatusChanged, "")
		s.says("slow", mesh.StatusUnknown, mesh.ReasonTimeout)
		s.notes("slow", "has not answered for "+s.path("slow")+" since")
		s.says("z", mesh.StatusChanged, "")
		if s.out.State != mesh.GenerationFailed {
			t.Errorf("the pass is %s", s.out.State)
		}
		if took := time.Since(began); took > 2*time.Minute+file.Patience || s.beats < int(took/(6*time.Second)) {
			t.Errorf("the pass took %s, with %d beats", took, s.beats)
		}

		// Nobody else acts on the path, whatever is declared, and nobody waits again.
		began = time.Now()
		said := s.result("slow").Detail
		s.drift()
		s.says("slow", mesh.StatusUnknown, mesh.ReasonTimeout)
		if s.result("slow").Detail != said {
			t.Errorf("the same is said in other words: %q, and before %q", s.result("slow").Detail, said)
		}
		s.declare(s.file("slow", "new"), s.file("z", "1"))
		s.says("slow", mesh.StatusUnknown, mesh.ReasonTimeout)
		s.declare()
		s.says("slow", mesh.StatusUnknown, mesh.ReasonTimeout)
		s.says("z", mesh.StatusRemoved, "")
		s.gone("slow")
		if took := time.Since(began); took != 0 {
			t.Errorf("what does not answer was waited for again, %s", took)
		}

		// It comes back, and has written what was declared when it began.
		close(goOn)
		synctest.Wait()
		s.is("slow", "old")
		s.declare(s.file("slow", "new"))
		s.says("slow", mesh.StatusChanged, "")
		s.is("slow", "new")
		if len(s.events) != 0 {
			t.Errorf("our own write is told as somebody's: %+v", s.events)
		}
		s.declare()
		s.says("slow", mesh.StatusRemoved, "")
		s.gone("slow")
	})
}

func TestOfAFileSystemOfTheMachinesOwnOnlyThePathIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		own := s.mkdir("own", 0o755)
		if err := unix.Mount("own", own, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(own, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}()
		goOn := s.stuck("own/slow")
		s.declare(s.file("own/slow", "1"), s.file("own/b", "1"))
		s.says("own/slow", mesh.StatusUnknown, mesh.ReasonTimeout)
		s.says("own/b", mesh.StatusChanged, "")
		close(goOn)
		synctest.Wait()
	})
}

func TestAPassInWhichACallDoesNotComeBackEndsWhenTheHostIsToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		goOn := s.stuck("slow")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			d := mesh.Declaration{Node: "n", Generation: 1, Resources: []mesh.Resource{s.file("slow", "1")}}
			_, err := s.r.Run(ctx, d, mesh.TriggerDeclared, func() bool { return false })
			ended <- err
		}()
		synctest.Wait()
		began := time.Now()
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(began) > 20*time.Second {
			t.Errorf("the pass ended with %v after %s", err, time.Since(began))
		}
		close(goOn)
		synctest.Wait()
		s.restart()
		s.declare(s.file("slow", "1"))
		s.says("slow", mesh.StatusChanged, "")
	})
}

// TestAFileSystemThatDoesNotAnswerHoldsNothingElseUp has the kernel itself wait:
// for a file system whose server reads no request.
//
// Shows: M4
func TestAFileSystemThatDoesNotAnswerHoldsNothingElseUp(t *testing.T) {
	s := newSite(t)
	s.patience = 500 * time.Millisecond
	s.restart()
	if err := os.Mkdir(s.path("net"), 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs /dev/fuse, to mount a file system that does not answer: ", err)
	}
	gone := false
	goAway := func() {
		if !gone {
			gone = true
			if err := errors.Join(server.Close(), unix.Unmount(s.path("net"), unix.MNT_DETACH)); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(goAway)
	if err := unix.Mount("silent", s.path("net"), "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		gone = true
		t.Fatal(errors.Join(err, server.Close()))
	}
	var declared []mesh.Resource
	for _, name := range []string{"net/x", "a", "net/y", "net/d/z", "network"} {
		declared = append(declared, s.file(name, "1"))
	}
	s.declare(declared...)
	for _, name := range []string{"net/x", "net/y", "net/d/z"} {
		s.says(name, mesh.StatusUnknown, mesh.ReasonTimeout)
		s.notes(name, "the file system at "+s.path("net")+" has not answered")
	}
	for _, name := range []string{"a", "network"} {
		s.says(name, mesh.StatusChanged, "")
		s.is(name, "1")
	}

	goAway()
	// The call comes back by itself; until it has, the passes say so.
	for s.drift(); s.result("net/x").Status == mesh.StatusUnknown; s.drift() {
		time.Sleep(time.Millisecond)
	}
	s.says("net/x", mesh.StatusChanged, "")
	s.says("net/y", mesh.StatusChanged, "")
	s.says("net/d/z", mesh.StatusFailed, mesh.ReasonParent)
}
