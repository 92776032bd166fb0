package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Gateway is the address of the machine in the lab's network: a server that
// a test runs through Listen or Command is reached by the hosts there.
const Gateway = "10.77.0.1"

// The lab's bridge, and the host parts of the addresses that hosts get.
const (
	bridge = "br0"
	// gatewayMAC is said, or the bridge takes the lowest address among its ports:
	// another one when a host comes or goes, and what the others know of the
	// gateway would be wrong for up to a minute.
	gatewayMAC = "02:00:0a:4d:00:01"
	firstHost  = 10
	lastHost   = 250
)

// netnsPath is the file that stands for the lab's network namespace.
func (p place) netnsPath() string { return filepath.Join("/run/netns", p.netns()) }

// ensureNetwork makes the lab's namespace and bridge. It is a network of its
// own: no address, route or interface of the machine changes.
func (p place) ensureNetwork(ctx context.Context) error {
	if _, err := os.Stat(p.netnsPath()); err == nil {
		return nil
	}
	steps := [][]string{
		{"netns", "add", p.netns()},
		{"-n", p.netns(), "link", "set", "lo", "up"},
		{"-n", p.netns(), "link", "add", bridge, "address", gatewayMAC, "type", "bridge", "forward_delay", "0", "stp_state", "0"},
		{"-n", p.netns(), "address", "add", Gateway + "/24", "dev", bridge},
		{"-n", p.netns(), "link", "set", bridge, "up"},
	}
	for _, s := range steps {
		if err := runQuiet(exec.CommandContext(ctx, "ip", s...)); err != nil {
			return fmt.Errorf("make the lab's network: %w", err)
		}
	}
	return nil
}

// removeNetwork removes the namespace, if it is there.
func (p place) removeNetwork(ctx context.Context) error {
	if _, err := os.Stat(p.netnsPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := runQuiet(exec.CommandContext(ctx, "ip", "netns", "delete", p.netns())); err != nil {
		return fmt.Errorf("remove the lab's network: %w", err)
	}
	return nil
}

// port is the name of the bridge's end of a host's cable. Names of hosts are
// short enough that nspawn does not shorten it.
func port(host string) string { return "vb-" + host }

// setPort plugs a host's cable in ("up") or out ("down").
func (p place) setPort(ctx context.Context, host, state string) error {
	return runQuiet(exec.CommandContext(ctx, "ip", "-n", p.netns(), "link", "set", port(host), state))
}

// portForwards reports whether the bridge passes traffic to and from a host.
func (p place) portForwards(ctx context.Context, host string) bool {
	out, err := exec.CommandContext(ctx, "ip", "-n", p.netns(), "-oneline", "-details", "link", "show", port(host)).Output()
	return err == nil && strings.Contains(string(out), "state UP") && strings.Contains(string(out), "state forwarding")
}

// dropPort removes a cable that a dead host left, if it is still there: the
// kernel removes it on its own time, and a host that boots again at once
// would find the name taken.
func (p place) dropPort(ctx context.Context, host string) error {
	if exec.CommandContext(ctx, "ip", "-n", p.netns(), "link", "show", port(host)).Run() != nil {
		return nil
	}
	err := runQuiet(exec.CommandContext(ctx, "ip", "-n", p.netns(), "link", "delete", port(host)))
	if err != nil && exec.CommandContext(ctx, "ip", "-n", p.netns(), "link", "show", port(host)).Run() != nil {
		return nil
	}
	return err
}

// freeAddr returns the lowest address that no record has.
func freeAddr(taken []Record) (string, error) {
	used := map[string]bool{}
	for _, r := range taken {
		used[r.Addr] = true
	}
	for n := firstHost; n <= lastHost; n++ {
		addr := netip.AddrFrom4([4]byte{10, 77, 0, byte(n)}).String()
		if !used[addr] {
			return addr, nil
		}
	}
	return "", errors.New("the lab's network has no free address")
}

// DialContext connects from the machine to an address in the lab's network.
// The host part of addr must be an IP address. It fits http.Transport.
func (l *Lab) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return inNetwork(l.place, func() (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
}

// Listen opens a listening socket of this process in the lab's network,
// usually at Gateway, where every host reaches it.
func (l *Lab) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	return inNetwork(l.place, func() (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, addr)
	})
}

// inNetwork opens a socket in the lab's namespace. A socket stays in the
// namespace of the thread that opened it.
func inNetwork[T any](p place, open func() (T, error)) (T, error) {
	type answer struct {
		socket T
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		defer func() { done <- a }()
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			a.err = fmt.Errorf("remember the own network: %w", err)
			return
		}
		defer home.Close()
		away, err := os.Open(p.netnsPath())
		if err != nil {
			a.err = fmt.Errorf("open the lab's network: %w", err)
			return
		}
		defer away.Close()
		if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
			a.err = fmt.Errorf("enter the lab's network: %w", err)
			return
		}
		a.socket, a.err = open()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
	}()
	a := <-done
	return a.socket, a.err
}
