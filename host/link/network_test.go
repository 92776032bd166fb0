package link

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAnAddressThatAppearsIsNoticed(t *testing.T) {
	type outcome struct {
		setUp error
		seen  bool
	}
	done := make(chan outcome, 1)
	go func() {
		// A network of this thread's own; the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- outcome{setUp: err}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		changed, stop, err := WatchNetwork(ctx)
		if err != nil {
			done <- outcome{setUp: err}
			return
		}
		defer stop()
		if err := loopbackUp(); err != nil {
			done <- outcome{setUp: err}
			return
		}
		select {
		case <-changed:
			done <- outcome{seen: true}
		case <-ctx.Done():
			done <- outcome{}
		}
	}()

	got := <-done
	if errors.Is(got.setUp, unix.EPERM) {
		t.Skip("needs root, to have a network of its own in which an address can appear: ", got.setUp)
	}
	if got.setUp != nil {
		t.Fatal(got.setUp)
	}
	if !got.seen {
		t.Error("an interface came up with an address, and within 10 s nobody noticed")
	}
}

// loopbackUp brings lo up, by which it gets its address.
func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

func TestWatchingTheNetworkEndsWhenItIsTold(t *testing.T) {
	_, stop, err := WatchNetwork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()

	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Error("stop did not return within 10 s")
	}
}
