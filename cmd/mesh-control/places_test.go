package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api/apitest"
)

const trie = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.0.0/24 2 0 2
        |-- 10.77.0.0
           /24 link UNICAST
        |-- 10.77.0.5
           /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
Local:
        |-- 10.77.0.5
           /32 host LOCAL
        |-- 192.168.1.9
           /32 host LOCAL
`

const inet6 = `00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000163efffe000001 02 40 20 80     eth0
20010db8000000000000000000000005 02 40 00 80     eth0
20010db8000000000000000000000666 02 40 00 01     eth0
fd000000000000000000000000000007 02 40 00 80     eth0
short
`

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestOwnAddressesAreReadOutOfTheKernelsTables(t *testing.T) {
	if got := fibTrie(strings.NewReader(trie)); !slices.Equal(got, addrs("10.77.0.5", "127.0.0.1", "192.168.1.9")) {
		t.Errorf("IPv4: %v", got)
	}
	var told []netip.Addr
	for _, a := range ifInet6(strings.NewReader(inet6)) {
		if worthTelling(a) {
			told = append(told, a)
		}
	}
	if want := addrs("2001:db8::5", "fd00::7"); !slices.Equal(told, want) {
		t.Errorf("IPv6 to tell: %v, want %v: neither loopback, link-local nor temporary ones", told, want)
	}
	for _, a := range ownAddresses() {
		if !worthTelling(a) {
			t.Errorf("this machine would tell %v", a)
		}
	}
}

func tcp(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

func TestMachinesAreToldWhereTheyCanReachTheControlPlane(t *testing.T) {
	own := func() []netip.Addr { return addrs("10.0.0.1", "2001:db8::5") }
	for name, c := range map[string]struct {
		places places
		links  []string
		url    string
	}{
		"all interfaces": {places{link: tcp("[::]:7022"), pool: tcp("[::]:7080"), own: own}, []string{"10.0.0.1:7022", "[2001:db8::5]:7022"}, "http://10.0.0.1:7080"},
		"one address":    {places{link: tcp("127.0.0.1:4000"), pool: tcp("127.0.0.1:4001"), own: own}, []string{"127.0.0.1:4000"}, "http://127.0.0.1:4001"},
		"told addresses": {places{config: config{addresses: []string{"mesh.example.org:22"}}, link: tcp("[::]:7022"), pool: tcp("[::]:7080"), own: own}, []string{"mesh.example.org:22"}, "http://mesh.example.org:7080"},
		"told URL":       {places{config: config{repositoryURL: "https://p.example.org"}, link: tcp("[::]:1"), pool: tcp("[::]:2"), own: own}, []string{"10.0.0.1:1", "[2001:db8::5]:1"}, "https://p.example.org"},
	} {
		url, err := c.places.repository()
		if got := c.places.links(); !slices.Equal(got, c.links) || url != c.url || err != nil {
			t.Errorf("%s: %v and %q (%v), want %v and %q", name, got, url, err, c.links, c.url)
		}
	}
}

func TestWithoutAnAddressNoTokenIsMade(t *testing.T) {
	fake := &apitest.Operator{}
	o := operator{Operator: fake, places: places{link: tcp("[::]:7022"), pool: tcp("[::]:7080"), own: func() []netip.Addr { return nil }}}

	_, err := o.IssueToken(t.Context(), control.Caller{}, control.TokenRequest{})
	if mesh.CodeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), "--address") {
		t.Fatalf("error %v, want unavailable with the next step", err)
	}
	_, err = o.IssueToken(t.Context(), control.Caller{}, control.TokenRequest{Addresses: []string{"a,b:1"}})
	if mesh.CodeOf(err) != mesh.CodeInvalid {
		t.Fatalf("error %v for an address that is none, want invalid", err)
	}
	if entries, _ := fake.Audit(t.Context(), 10); len(entries) != 0 {
		t.Fatalf("tokens were made: %v", entries)
	}
	issued, err := o.IssueToken(t.Context(), control.Caller{}, control.TokenRequest{Addresses: []string{"mesh.example.org:7022"}})
	if err != nil {
		t.Fatal(err)
	}
	if token, err := mesh.ParseToken(issued.Token); err != nil || !slices.Equal(token.Addresses, []string{"mesh.example.org:7022"}) {
		t.Fatalf("token holds %v (%v), want the address that was named", token.Addresses, err)
	}
}

func TestStagesStopInTheirOrderEachAfterTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped []string
		part := func(name string) stage {
			return stage{name, func(ctx context.Context) error {
				<-ctx.Done()
				stopped = append(stopped, name) // only one stage stops at a time
				return nil
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- runStages(ctx, []stage{part("a"), part("b"), part("c")}, func() { stopped = append(stopped, "said") })
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil || !slices.Equal(stopped, []string{"said", "a", "b", "c"}) {
			t.Fatalf("stopped %v with %v, want said, a, b, c", stopped, err)
		}
	})
}

func TestAStageThatEndsByItselfEndsTheProgramWithAnError(t *testing.T) {
	broken := errors.New("broken")
	other := false
	err := runStages(t.Context(), []stage{
		{"keeps on", func(ctx context.Context) error { <-ctx.Done(); other = true; return nil }},
		{"breaks", func(context.Context) error { return broken }},
	}, func() {})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "breaks ended while it was needed") || !other {
		t.Fatalf("error %v, other stopped: %v; want the cause, the name, and the other stopped", err, other)
	}
}
