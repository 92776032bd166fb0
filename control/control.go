package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

// Waker is one live link, as far as policy needs it.
type Waker interface {
	// Wake says that Pending may have something new. It never blocks.
	Wake()
	// Close ends the link and tells the host why. It does not wait.
	Close(reason string)
}

// Teller is a Waker that can tell the host something and keep the link.
type Teller interface {
	// Tell hands over a notice. It does not wait.
	Tell(message string)
}

// What the reason of Waker.Close begins with when the host has to know more than
// that this link ends.
const (
	ReasonRevoked = "revoked"
	ReasonRetired = "retired"
)

// ReasonDeclaredTwice is the reason shown for a node that cannot get what its
// declarations say, because they contradict each other or cannot be evaluated.
const ReasonDeclaredTwice mesh.Reason = "declarations-contradict"

// Config is what a control plane is made of. Store and Blobs are required.
type Config struct {
	Store Store
	Blobs Blobs
	// Compiler prepares declarations. Nil: a new one.
	Compiler *assign.Compiler
	// Now gives the time of every write. Nil: the clock of the machine.
	Now func() time.Time
	// Rand gives the secrets of tokens. Nil: crypto/rand.
	Rand io.Reader
	// Log. Nil: nothing is logged.
	Log *slog.Logger
	// Grants are the providers of credentials that each node has of its own.
	Grants []Grants
	// Readers is that of Grants whose credentials open the repository. Nil:
	// anyone may read it.
	Readers Grants
	// Addresses are host:port pairs of the link; they are put into tokens.
	Addresses []string
	// Fingerprint is that of the link's host key; it is put into tokens.
	Fingerprint [sha256.Size]byte
	// RepositoryURL is where machines find the mesh's repository.
	RepositoryURL string
	// HeartbeatSeconds is told to hosts. Zero: their default.
	HeartbeatSeconds int
	// FlushInterval is how often last contacts are stored. Zero: one minute.
	FlushInterval time.Duration
	// Keep says what is kept of what only grows. Zero: everything that it names.
	Keep Keep
	// SweepInterval is how often what is not kept is forgotten, the first time
	// that long after the start. Zero: one hour.
	SweepInterval time.Duration
}

// Control is the policy of one control plane. All methods may be called at the
// same time.
//
// What it must look at often is kept in memory: nodes, identities and the
// newest declarations. The memory follows the store: it changes after the
// commit, and is read anew by New.
type Control struct {
	store         Store
	blobs         Blobs
	compiler      *assign.Compiler
	now           func() time.Time
	rand          io.Reader
	log           *slog.Logger
	addresses     []string
	fingerprint   [sha256.Size]byte
	repositoryURL string
	heartbeat     int
	flushEvery    time.Duration
	keep          Keep
	sweepEvery    time.Duration
	grants        []Grants
	// readers is nil when anyone may read the repository.
	readers Grants

	// gate holds one ticket. Whoever has it may decide on declarations,
	// enrolments and generations; nobody else changes these.
	gate chan struct{}

	// mu guards what follows. Nothing is stored, sent or called under it.
	mu    sync.Mutex
	nodes map[string]*node
	// keys holds every identity, revoked ones too.
	keys map[string]IdentityRecord
	// set holds the newest revision of each declaration that is not removed.
	set *assign.Set
	// revisions holds the newest revision of each declaration.
	revisions map[string]Revision
	// operators holds those who come from elsewhere, by name.
	operators map[string]*operator

	// encodings has a lock of its own.
	encodings encodings
}

// node is what is kept in memory of a node. Control.mu guards it; slices, maps
// and pointers in it are replaced, never changed.
type node struct {
	NodeRecord
	facts *assign.Facts
	// key is the identity that is good now. Empty: none.
	key string
	// faults is why the node cannot get what its declarations say.
	faults []assign.Fault
	// copyDigest and ledgerDigest identify the recovery copy and the results in
	// the store. Empty: not computed since they changed.
	copyDigest, ledgerDigest string
	// beat is the latest heartbeat on the live link.
	beat mesh.Heartbeat
	// contact is when the node was last heard of; stored tells up to when that
	// is in the store.
	contact, stored time.Time
	live            *live
	// boots holds boot ids that were seen and then superseded by another.
	boots []string
	boot  string
	// resources is what the node was given last, from the write until the node
	// has it on the link that it was written for. Nil: the store has it.
	resources []mesh.Resource
	// told is the last refusal of a link that an event was raised for, and
	// dropped the last message that could not be taken.
	told, dropped string
}

// live is a link that is open.
type live struct {
	waker   Waker
	machine string
	boot    string
	// storeID is that of the hello. settled tells whether the node record has
	// it too; until then the host may lack its recovery copy.
	storeID string
	settled bool
}

// New reads the store and makes a Control. Every node is disconnected.
func New(ctx context.Context, cfg Config) (*Control, error) {
	if cfg.Store == nil || cfg.Blobs == nil {
		return nil, errors.New("a control plane needs a store and blobs")
	}
	c := &Control{
		store:         cfg.Store,
		blobs:         cfg.Blobs,
		compiler:      cfg.Compiler,
		now:           cfg.Now,
		rand:          cfg.Rand,
		log:           cfg.Log,
		addresses:     cfg.Addresses,
		fingerprint:   cfg.Fingerprint,
		repositoryURL: cfg.RepositoryURL,
		heartbeat:     cfg.HeartbeatSeconds,
		flushEvery:    cfg.FlushInterval,
		keep:          cfg.Keep,
		sweepEvery:    cfg.SweepInterval,
		grants:        cfg.Grants,
		readers:       cfg.Readers,
		gate:          make(chan struct{}, 1),
		nodes:         make(map[string]*node),
		keys:          make(map[string]IdentityRecord),
		revisions:     make(map[string]Revision),
		operators:     make(map[string]*operator),
	}
	if c.compiler == nil {
		compiler, err := assign.New()
		if err != nil {
			return nil, err
		}
		c.compiler = compiler
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.rand == nil {
		c.rand = rand.Reader
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.flushEvery == 0 {
		c.flushEvery = time.Minute
	}
	if c.sweepEvery == 0 {
		c.sweepEvery = time.Hour
	}
	if err := c.load(ctx); err != nil {
		return nil, err
	}
	if err := c.catchUp(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Control) load(ctx context.Context) error {
	if err := c.loadOperators(ctx); err != nil {
		return err
	}
	revisions, err := c.store.Declarations(ctx)
	if err != nil {
		return fmt.Errorf("read declarations: %w", err)
	}
	var sources []*assign.Source
	for _, r := range revisions {
		c.revisions[r.Name] = r
		if r.Removed {
			continue
		}
		source, ps := c.compiler.Prepare(r.Document)
		if len(ps) > 0 {
			return fmt.Errorf("prepare declaration %s revision %d: %w", r.Name, r.Revision, ps)
		}
		source.Number(r.Revision)
		sources = append(sources, source)
	}
	c.set = assign.NewSet(sources...)

	identities, err := c.store.Identities(ctx)
	if err != nil {
		return fmt.Errorf("read identities: %w", err)
	}
	records, err := c.store.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("read nodes: %w", err)
	}
	good := make(map[string]string, len(identities))
	for _, id := range identities {
		c.keys[id.Key] = id
		if id.Revoked.IsZero() {
			good[id.Node] = id.Key
		}
	}
	for _, r := range records {
		n := &node{NodeRecord: r, key: good[r.Name], contact: r.LastContact, stored: r.LastContact}
		n.facts = c.factsOf(ctx, n)
		if r.State == mesh.NodeEnrolled && r.Briefing.Eligible() && !r.Retiring {
			n.faults = c.set.Compile(n.facts).Faults
		}
		c.nodes[r.Name] = n
	}
	return nil
}

// factsOf returns what declarations can see of a node, and what it gets because
// of who it is. Only an enrolled node has anything of its own.
func (c *Control) factsOf(ctx context.Context, n *node) *assign.Facts {
	var own assign.Own
	if n.State == mesh.NodeEnrolled {
		own = c.own(ctx, n.Name, n.key, n.Profile)
	}
	return assign.NewFacts(n.Name, n.Labels, n.Profile, own)
}

// Run stores last contacts, and what nodes received, from time to time until ctx
// ends, and once more then, and forgets what is not kept. It returns nil when ctx
// ended.
func (c *Control) Run(ctx context.Context) error {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { c.sweeps(ctx) })
	ticker := time.NewTicker(c.flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := c.flush(ctx); err != nil && ctx.Err() == nil {
				c.log.Error("last contacts could not be stored; tried again with the next batch", "error", err)
			}
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			return c.flush(last)
		}
	}
}

func (c *Control) flush(ctx context.Context) error {
	c.mu.Lock()
	var contacts []Contact
	for name, n := range c.nodes {
		if n.contact.After(n.stored) {
			contacts = append(contacts, Contact{Node: name, At: n.contact, Held: n.Held, Drift: n.Drift})
		}
	}
	c.mu.Unlock()
	if len(contacts) == 0 {
		return nil
	}
	if err := c.store.StoreContacts(ctx, contacts); err != nil {
		return fmt.Errorf("store last contacts: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, contact := range contacts {
		if n := c.nodes[contact.Node]; n != nil {
			n.stored = contact.At
		}
	}
	return nil
}

// enter takes the ticket of the gate; leave gives it back.
func (c *Control) enter(ctx context.Context) error {
	select {
	case c.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Control) leave() { <-c.gate }

// snapshot returns a copy of what is known of a node.
func (c *Control) snapshot(name string) (node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		return node{}, false
	}
	return *n, true
}

// unknownNode tells an operator, who may have mistyped the name.
func (c *Control) unknownNode(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return mesh.Errorf(mesh.CodeNotFound, "there is no node %q; %smeshctl nodes lists those there are", bounded(name, 80), didYouMean(name, maps.Keys(c.nodes)))
}

// noNode tells a node.
func noNode(name string) error {
	return mesh.Errorf(mesh.CodeNotFound, "there is no node %q; meshctl nodes lists those there are", name)
}
