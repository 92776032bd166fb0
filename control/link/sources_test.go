package link

import (
	"fmt"
	"net"
	"testing"
	"time"
)

func TestASourceIsAnAddressOrThePrefixThatOneCustomerHas(t *testing.T) {
	for address, want := range map[string]source{
		"192.0.2.7:4000":               "192.0.2.7",
		"[::ffff:192.0.2.7]:4000":      "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:4000":  "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:22":    "2001:db8:1:2::/64",
		"[fe80::1%eth0]:22":            "fe80::/64",
		"[2001:db8:1:3:ffff::1]:12345": "2001:db8:1:3::/64",
	} {
		if got := sourceOf(textAddr(address)); got != want {
			t.Errorf("%s comes from %q, want %q", address, got, want)
		}
	}
}

type textAddr string

func (textAddr) Network() string  { return "tcp" }
func (a textAddr) String() string { return string(a) }

var _ net.Addr = textAddr("")

func TestWrongTokensAreTakenForAWhileAndThenOnlySlowly(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := newSources(1, 1, func() time.Time { return now })
	for i := range wrongTokens {
		if rest := s.wait("evil"); rest != 0 {
			t.Fatalf("after %d wrong tokens the source has to wait %s, want not yet", i, rest)
		}
		if last := s.guessed("evil"); last != (i == wrongTokens-1) {
			t.Errorf("wrong token %d uses up the patience: %v", i+1, last)
		}
	}
	if rest := s.wait("evil"); rest != wrongTokenEvery {
		t.Errorf("after %d wrong tokens the source has to wait %s, want %s", wrongTokens, rest, wrongTokenEvery)
	}
	if rest := s.wait("other"); rest != 0 {
		t.Errorf("another source has to wait %s, want not at all", rest)
	}
	now = now.Add(wrongTokenEvery)
	if rest := s.wait("evil"); rest != 0 {
		t.Errorf("after %s the source has still to wait %s", wrongTokenEvery, rest)
	}
	guesses := 0
	for range 24 * 3600 {
		now = now.Add(time.Second)
		if s.wait("evil") == 0 {
			s.guessed("evil")
			guesses++
		}
	}
	if most := 24*3600/int(wrongTokenEvery/time.Second) + wrongTokens; guesses > most {
		t.Errorf("in a day %d guesses were looked at, want at most %d", guesses, most)
	}
}

func TestNoMoreSourcesAreRememberedThanThereIsRoomFor(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := newSources(1, 1, func() time.Time { return now })
	for i := range 3 * guessersKept {
		s.guessed(source(fmt.Sprint(i)))
		now = now.Add(time.Millisecond)
	}
	if len(s.guessers) > guessersKept {
		t.Errorf("%d sources are remembered, want at most %d", len(s.guessers), guessersKept)
	}
}
