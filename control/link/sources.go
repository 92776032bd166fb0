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
// connections that have not proved who they are, those of handshakes, and the
// patience for wrong tokens.
type sources struct {
	now func() time.Time
	// most is how many unproven connections one source may have, handshakes how
	// many of them may be shaking hands.
	most, handshakes int

	mu sync.Mutex
	// shares holds every source that has unproven connections. Under mu.
	shares map[source]*share
	// guessers holds when the last of the wrong tokens of a source will be
	// forgotten. Under mu.
	guessers map[source]time.Time
}

// share is what one source has of the places for all.
type share struct {
	// unproven counts its connections that have proved nothing. Under
	// sources.mu.
	unproven int
	// slots bounds those of them that shake hands.
	slots chan struct{}
}

func newSources(most, handshakes int, now func() time.Time) *sources {
	return &sources{now: now, most: most, handshakes: handshakes, shares: make(map[source]*share), guessers: make(map[source]time.Time)}
}

// enter takes a place for a connection; nil when the source has no more.
func (s *sources) enter(from source) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shares[from]
	if sh == nil {
		sh = &share{slots: make(chan struct{}, s.handshakes)}
		s.shares[from] = sh
	}
	if sh.unproven >= s.most {
		return nil
	}
	sh.unproven++
	return sh
}

func (s *sources) leave(from source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shares[from]
	if sh.unproven--; sh.unproven == 0 {
		delete(s.shares, from)
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
