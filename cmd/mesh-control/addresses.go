package main

import (
	"bufio"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ownAddresses lists this machine's global addresses, those towards the default
// route first. It needs no netlink socket, which a service may be denied, and
// sends nothing. Without any address it returns none.
func ownAddresses() []netip.Addr {
	var found []netip.Addr
	add := func(a netip.Addr) {
		if a = a.Unmap(); worthTelling(a) && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	// Connecting a datagram socket only asks the kernel for the route. The
	// addresses are of the ranges for documentation.
	for _, towards := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		if c, err := net.Dial("udp", towards); err == nil {
			if local, ok := c.LocalAddr().(*net.UDPAddr); ok {
				add(local.AddrPort().Addr())
			}
			c.Close()
		}
	}
	for _, table := range []struct {
		path string
		read func(io.Reader) []netip.Addr
	}{{"/proc/net/fib_trie", fibTrie}, {"/proc/net/if_inet6", ifInet6}} {
		f, err := os.Open(table.path)
		if err != nil {
			continue // a kernel without that protocol
		}
		for _, a := range table.read(f) {
			add(a)
		}
		f.Close()
	}
	return found
}

// worthTelling reports whether another machine could reach this one there.
func worthTelling(a netip.Addr) bool {
	return a.IsGlobalUnicast() && a.Zone() == ""
}

// fibTrie reads the machine's own IPv4 addresses out of the kernel's routing
// table: a line with the address, and below it "/32 host LOCAL".
func fibTrie(r io.Reader) []netip.Addr {
	var (
		found []netip.Addr
		last  netip.Addr
	)
	for s := bufio.NewScanner(r); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if text, leaf := strings.CutPrefix(line, "|-- "); leaf {
			last, _ = netip.ParseAddr(text) // invalid: worth telling nobody
		} else if line == "/32 host LOCAL" && !slices.Contains(found, last) {
			found = append(found, last)
		}
	}
	return found
}

// Flags of an IPv6 address that is about to go or is not there yet.
const (
	ipv6Temporary  = 0x01
	ipv6Dadfailed  = 0x08
	ipv6Deprecated = 0x20
	ipv6Tentative  = 0x40
)

// ifInet6 reads the kernel's list of IPv6 addresses: address, interface index,
// prefix length, scope, flags, interface, all but the last in hexadecimal.
func ifInet6(r io.Reader) []netip.Addr {
	var found []netip.Addr
	for s := bufio.NewScanner(r); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 6 {
			continue
		}
		raw, err := hex.DecodeString(fields[0])
		flags, flagErr := strconv.ParseUint(fields[4], 16, 32)
		a, ok := netip.AddrFromSlice(raw)
		if err != nil || flagErr != nil || !ok || flags&(ipv6Temporary|ipv6Dadfailed|ipv6Deprecated|ipv6Tentative) != 0 {
			continue
		}
		found = append(found, a)
	}
	return found
}

// reachable lists host:port pairs for a listener: where it listens when that is
// one address, and every own address when it listens on all of them.
func reachable(listener net.Addr, own []netip.Addr) []string {
	bound, err := netip.ParseAddrPort(listener.String())
	if err != nil {
		return nil
	}
	if !bound.Addr().IsUnspecified() {
		return []string{netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port()).String()}
	}
	var out []string
	for _, a := range own {
		if len(out) < maxAddresses {
			out = append(out, netip.AddrPortFrom(a, bound.Port()).String())
		}
	}
	return out
}
