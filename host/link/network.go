package link

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// networkPause is the least time between two signs that the network changed,
// for machines on which it changes all the time.
const networkPause = 5 * time.Second

// WatchNetwork returns a channel that is sent to when the kernel says that an
// address or a route changed, and a function that ends it and waits. A change
// while nobody receives is kept, once.
func WatchNetwork(ctx context.Context) (changed <-chan struct{}, stop func(), err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("watch the network: %w", err)
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("watch the network: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(ctx, func() { _ = socket.Close() })
	signs := make(chan struct{}, 1)
	var running sync.WaitGroup
	running.Go(func() {
		defer release()
		defer func() { _ = socket.Close() }()
		watch(ctx, socket, signs)
	})
	return signs, func() { cancel(); running.Wait() }, nil
}

func watch(ctx context.Context, socket *os.File, signs chan<- struct{}) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return // only a closed file has none
	}
	buffer := make([]byte, 8<<10)
	for {
		if err := raw.Read(func(fd uintptr) bool { return drained(int(fd), buffer) }); err != nil {
			return // closed
		}
		select {
		case signs <- struct{}{}:
		default:
		}
		timer := time.NewTimer(networkPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// drained takes all that waits, because one change has many messages, and
// reports whether there was any. What the messages say does not matter. A
// queue that ran over is a change, too.
func drained(fd int, buffer []byte) (found bool) {
	for {
		switch _, err := unix.Read(fd, buffer); err {
		case nil:
			found = true
		case unix.EINTR:
		case unix.EAGAIN:
			return found
		default:
			return true
		}
	}
}
