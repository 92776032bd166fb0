package link

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// wrongTokens is how many wrong tokens may come from one source at once, and
	// wrongTokenEvery how long it takes until one of them is forgotten.
	wrongTokens     = 10
	wrongTokenEvery = 30 * time.Second
	// guessersKept bounds how many sources of wrong tokens are remembered.
	guessersKept = 4096
)

// source is where a connection comes from: an IPv4 address, or the 64 bits of
// an IPv6 address that one customer of a network has to themselves.
type source string

func sourceOf(a net.Addr) source {
	bound, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return source(a.String())
	}
	ip := bound.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if prefix, err := ip.Prefix(64); err == nil {
			return source(prefix.String())
		}
	}
	return source(ip.String())
}

// sources keeps one source from taking what is there for all: the places of
// connections that have not proved who they are, and the patience for wrong
// tokens.
type sources struct {
	now func() time.Time
	// most is how many unproven connections one source may have.
	most int

	mu sync.Mutex
	// unproven counts connections; what is zero is not in it. Under mu.
	unproven map[source]int
	// guessers holds when the last of the wrong tokens of a source will be
	// forgotten. Under mu.
	guessers map[source]time.Time
}

func newSources(most int, now func() time.Time) *sources {
	return &sources{now: now, most: most, unproven: make(map[source]int), guessers: make(map[source]time.Time)}
}

// enter takes a place for a connection; false when the source has no more.
func (s *sources) enter(from source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unproven[from] >= s.most {
		return false
	}
	s.unproven[from]++
	return true
}

func (s *sources) leave(from source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unproven[from]--; s.unproven[from] <= 0 {
		delete(s.unproven, from)
	}
}

// wait returns how long nothing that the source says of tokens is looked at;
// zero: it is looked at.
func (s *sources) wait(from source) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, known := s.guessers[from]
	if !known {
		return 0
	}
	return max(0, until.Sub(s.now())-(wrongTokens-1)*wrongTokenEvery)
}

// guessed notes a wrong token. It returns true for the one that uses up the
// patience.
func (s *sources) guessed(from source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if len(s.guessers) >= guessersKept {
		s.forget(now)
	}
	until := s.guessers[from]
	if until.Before(now) {
		until = now
	}
	until = until.Add(wrongTokenEvery)
	s.guessers[from] = until
	return until.Sub(now) > (wrongTokens-1)*wrongTokenEvery
}

// forget makes room: what is over goes, and one more if nothing was. The caller
// has mu.
func (s *sources) forget(now time.Time) {
	var first source
	for from, until := range s.guessers {
		if until.Before(now) {
			delete(s.guessers, from)
		} else if first == "" || until.Before(s.guessers[first]) {
			first = from
		}
	}
	if len(s.guessers) >= guessersKept {
		delete(s.guessers, first)
	}
}
