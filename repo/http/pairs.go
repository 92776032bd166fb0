package http

import (
	"net"
	"strings"
	"sync"
	"time"

	"github.com/meshctl/mesh/repo"
)

const (
	// pairWindow is how long after a document its signature is expected.
	pairWindow = time.Minute
	// maxPairs bounds what is remembered; beyond it the oldest is forgotten.
	maxPairs = 1024
)

// pairs remembers which generation of a signed document a client was given, so
// that the signature that it fetches next is the one over that document. The
// client is known by its connection, or else by the name that it reads under, or
// else by its address. Nothing goes wrong when the memory is lost: the client gets
// the current signature, as it would from any web server.
type pairs struct {
	now func() time.Time

	mu     sync.Mutex
	served []served // oldest first
}

type served struct {
	conn, host string
	document   string
	snapshot   repo.Snapshot
	at         time.Time
}

func newPairs(now func() time.Time) *pairs { return &pairs{now: now} }

// document returns the signed document that a path belongs to, and whether the
// path is the signature.
func document(p string) (doc string, signature bool) {
	switch {
	case strings.HasSuffix(p, "/repodata/repomd.xml"), strings.HasPrefix(p, "dists/") && strings.HasSuffix(p, "/Release"):
		return p, false
	case strings.HasSuffix(p, "/repodata/repomd.xml.asc"):
		return strings.TrimSuffix(p, ".asc"), true
	case strings.HasPrefix(p, "dists/") && strings.HasSuffix(p, "/Release.gpg"):
		return strings.TrimSuffix(p, ".gpg"), true
	}
	return "", false
}

// choose returns the snapshot from which a client's request is answered.
func (s *pairs) choose(remote, reader, p string, current repo.Snapshot) repo.Snapshot {
	doc, signature := document(p)
	if doc == "" {
		return current
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	if reader != "" {
		host = "for/" + reader // no address has a slash
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.served) > 0 && (len(s.served) >= maxPairs || now.Sub(s.served[0].at) > pairWindow) {
		s.served = s.served[1:]
	}
	if !signature {
		s.served = append(s.served, served{conn: remote, host: host, document: doc, snapshot: current, at: now})
		return current
	}
	byHost := -1
	for i := len(s.served) - 1; i >= 0; i-- {
		e := s.served[i]
		if e.document != doc {
			continue
		}
		if e.conn == remote {
			return e.snapshot
		}
		if e.host == host && byHost < 0 {
			byHost = i
		}
	}
	if byHost >= 0 {
		return s.served[byHost].snapshot
	}
	return current
}
