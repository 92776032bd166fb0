package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/link"
)

// machine is a host whose disk and package manager cost nothing: its end of
// the link is the real one, and what it is told is as wanted at once.
type machine struct {
	number int
	name   string
	key    ssh.Signer
	enrol  mesh.Enrol
	fleet  *fleet

	mu      sync.Mutex
	held    mesh.Generation
	applied mesh.Generation
	results []mesh.Result
	seq     uint64
	box     []mesh.Frame
	changed chan struct{}
}

func newMachine(f *fleet, number int) (*machine, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("node-%05d", number)
	e := mesh.Enrol{
		ProtocolMin: mesh.ProtocolMin, ProtocolMax: mesh.ProtocolMax, HostVersion: "1.0.0", Hostname: name,
		Profile: mesh.Profile{
			OS: mesh.OS{ID: "debian", Version: "12", Family: "debian"}, Arch: "amd64", MachineIDHash: fmt.Sprintf("%064x", number),
		},
		Briefing: mesh.Briefing{Lines: []mesh.Line{{Check: "bench", Outcome: mesh.OutcomePass, Detail: "a machine of a measurement"}}},
	}
	for i := range installed {
		e.Inventory.Packages = append(e.Inventory.Packages, mesh.InstalledPackage{Name: fmt.Sprintf("package-%03d", i), Version: "1.0-1", Arch: "amd64"})
	}
	return &machine{number: number, name: name, key: key, enrol: e, fleet: f, changed: make(chan struct{}, 1)}, nil
}

// installed is how many packages a machine's inventory names.
const installed = 50

func (m *machine) Hello(context.Context) (mesh.Hello, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return mesh.Hello{
		ProtocolMin: mesh.ProtocolMin, ProtocolMax: mesh.ProtocolMax, Node: m.name, HostVersion: m.enrol.HostVersion,
		BootID: "boot of " + m.name, MachineIDHash: m.enrol.Profile.MachineIDHash, StoreID: "store of " + m.name, Sequence: m.seq,
		Held: m.held, Applied: m.applied, Ledger: mesh.LedgerDigest(m.results), OwnedDigest: mesh.OwnedDigest(nil),
		ProfileDigest: m.enrol.Profile.Digest(), InventoryDigest: m.enrol.Inventory.Digest(),
	}, nil
}

func (m *machine) Heartbeat(context.Context) (mesh.Heartbeat, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return mesh.Heartbeat{Held: m.held, Applied: m.applied, Ledger: mesh.LedgerDigest(m.results), Pending: len(m.box)}, nil
}

func (m *machine) Describe(_ context.Context, want string) (any, mesh.FrameType, error) {
	switch want {
	case mesh.WantProfile:
		return m.enrol.Profile, mesh.FrameProfile, nil
	case mesh.WantInventory:
		return m.enrol.Inventory, mesh.FrameInventory, nil
	case mesh.WantBriefing:
		return m.enrol.Briefing, mesh.FrameBriefing, nil
	}
	return nil, "", fmt.Errorf("nothing is known about %q", want)
}

func (m *machine) Want(_ context.Context, wants []string) error {
	for _, want := range wants {
		switch want {
		case mesh.WantReport:
			m.mu.Lock()
			m.report()
			m.mu.Unlock()
		case mesh.WantOwned:
			m.queue(mesh.FrameOwned, mesh.OwnedChange{Full: true})
		}
	}
	return nil
}

// Declare holds what came.
func (m *machine) Declare(_ context.Context, d mesh.Declaration, _ func(context.Context, string, io.Writer) error) (mesh.Received, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = d.Generation
	m.fleet.first.CompareAndSwap(0, time.Now().UnixNano())
	m.fleet.got <- m.number
	apply := m.fleet.applying()
	go func() {
		<-apply
		m.apply(d)
	}()
	return mesh.Received{Generation: d.Generation, Held: d.Generation}, nil
}

// apply reports that everything was made so.
func (m *machine) apply(d mesh.Declaration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d.Generation <= m.applied {
		return
	}
	m.applied = d.Generation
	m.results = m.results[:0]
	for _, r := range d.Resources {
		m.results = append(m.results, mesh.Result{Resource: r.ID(), Status: mesh.StatusChanged, Generation: d.Generation, Want: r.Digest(), At: time.Now().UTC()})
	}
	m.report()
}

// report is called with mu held.
func (m *machine) report() {
	now := time.Now().UTC()
	m.seq++
	f, err := mesh.NewFrame(mesh.FrameReport, m.seq, mesh.Report{
		Generation: m.applied, Pass: m.seq, Trigger: mesh.TriggerDeclared, State: mesh.GenerationApplied, Started: now, Ended: now,
		Full: true, Results: m.results, Ledger: mesh.LedgerDigest(m.results),
	})
	if err != nil {
		m.fleet.fault(err)
		return
	}
	m.put(f)
}

func (m *machine) queue(t mesh.FrameType, body any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	f, err := mesh.NewFrame(t, m.seq, body)
	if err != nil {
		m.fleet.fault(err)
		return
	}
	m.put(f)
}

// put is called with mu held.
func (m *machine) put(f mesh.Frame) {
	m.box = append(m.box, f)
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *machine) Recover(context.Context, mesh.Recover) error { return nil }

func (m *machine) Revoked(_ context.Context, reason string) {
	m.fleet.fault(errors.New(m.name + " is told that it is no node: " + reason))
}

func (m *machine) Next(_ context.Context, after uint64, most int) ([]mesh.Frame, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next []mesh.Frame
	for _, f := range m.box {
		if f.Seq > after && len(next) < most {
			next = append(next, f)
		}
	}
	return next, nil
}

func (m *machine) Acked(_ context.Context, seq uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.box[:0]
	for _, f := range m.box {
		if f.Seq > seq {
			left = append(left, f)
		}
	}
	m.box = left
	if len(left) == 0 {
		m.fleet.acked <- m.number
	}
	return nil
}

// waiting is how many messages were not acked yet.
func (m *machine) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.box)
}

// holds reports whether a resource is among what was applied.
func (m *machine) holds(id mesh.ResourceID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.results {
		if r.Resource == id {
			return true
		}
	}
	return false
}

func (m *machine) Changed() <-chan struct{} { return m.changed }

// client is the machine's end of the link.
func (m *machine) client(address string, fingerprint [32]byte) (*link.Client, error) {
	return link.New(link.Config{
		Addresses: []string{address}, Key: m.key, Fingerprint: fingerprint, Host: m, Outbox: m, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialerFrom(m.number).DialContext(ctx, network, address)
		},
	})
}
