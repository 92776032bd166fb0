// Command link compares what links cost the control plane, and how long a
// write takes to reach every machine, beside plain TCP, TLS and a bare SSH
// server that carry the same number of bytes to the same number of clients, in
// one run on one machine. It prints a table, and writes docs/bench-link.md and
// out/bench-link.json.
//
// The control plane is the program that ships, in a process of its own, with
// its store on disk; the machines are many in this process, each with the
// host's own end of the link, and their disks and package managers cost
// nothing: what a host does with a declaration is measured elsewhere. They apply
// what was pushed to all when the last one has it.
//
// Usage: link [-nodes 10000] [-rounds 3] [-rest 150s]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"time"
)

func main() {
	nodes := flag.Int("nodes", 10000, "how many machines")
	rounds := flag.Int("rounds", 3, "how often each push is made; the median counts")
	rest := flag.Duration("rest", 150*time.Second, "how long the control plane is left alone before its settled memory is read")
	child := flag.String("prototype", "", "for the program itself: serve one")
	flag.Parse()
	if *child != "" {
		if err := servePrototype(*child); err != nil {
			fmt.Fprintln(os.Stderr, "prototype:", err)
			os.Exit(1)
		}
		return
	}
	// All machines share the collector of this process, which no host does, and
	// which every contender's clients would pay for. It is kept from running often.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := bench{nodes: *nodes, rounds: *rounds, rest: *rest, load: loadAverage()}
	err := b.run(ctx)
	if err == nil {
		err = b.write()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-link:", err)
		os.Exit(1)
	}
}

// sizes are what is pushed, in bytes.
var sizes = []int{2 << 10, 64 << 10}

type bench struct {
	nodes, rounds int
	rest          time.Duration
	load          string
	rows          []row
	// What only the whole has.
	writes map[int][]pushed
	groups []time.Duration
	list   []time.Duration
	idle   time.Duration
	// returned is how long all machines took to be back after the control plane
	// was started again.
	returned []time.Duration
}

// row is what one contender took.
type row struct {
	name string
	// connected is how long each client took when all dialled at once.
	connected []time.Duration
	// handshake is the CPU time of the server for one client.
	handshake time.Duration
	// pushes by size, from the order to the last client that had it.
	pushes map[int][]time.Duration
	// Memory of the server in bytes, for one client but for peak: after the
	// connections, the same settled, settled after all pushes.
	connectedMemory, settled, pushed float64
	peak                             int64
}

func (b *bench) run(ctx context.Context) (err error) {
	if err := os.MkdirAll("out", 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("out", "bench-link-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	for _, t := range transports {
		b.say("%s with %d clients", t.name, b.nodes)
		r, err := b.prototype(ctx, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		b.rows = append(b.rows, r)
	}
	r, err := b.mesh(ctx, dir)
	if err != nil {
		return fmt.Errorf("mesh: %w", err)
	}
	b.rows = append(b.rows, r)
	return nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

func (b *bench) prototype(ctx context.Context, t transport) (r row, err error) {
	r = row{name: t.name, pushes: map[int][]time.Duration{}}
	p, err := startPrototype(ctx, t)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	if err := p.say("settle"); err != nil {
		return r, err
	}
	base, _, err := p.memory()
	if err != nil {
		return r, err
	}
	perClient := func() float64 {
		now, _, memoryErr := p.memory()
		err = errors.Join(err, memoryErr)
		return float64(now-base) / float64(b.nodes)
	}
	before, err := p.cpu()
	if err != nil {
		return r, err
	}
	clients, took, err := dialPrototype(ctx, t, p.address, b.nodes)
	if err != nil {
		return r, err
	}
	defer clients.close()
	r.connected = took
	after, err := p.cpu()
	if err != nil {
		return r, err
	}
	r.handshake = (after - before) / time.Duration(b.nodes)
	if !pause(ctx, 2*time.Second) {
		return r, ctx.Err()
	}
	r.connectedMemory = perClient()
	if err := p.say("settle"); err != nil {
		return r, err
	}
	r.settled = perClient()
	for _, size := range sizes {
		for range b.rounds {
			began := time.Now()
			answered := make(chan error, 1)
			go func() { answered <- p.say(fmt.Sprintf("push %d", size)) }()
			for range b.nodes {
				select {
				case <-clients.got:
				case <-ctx.Done():
					return r, ctx.Err()
				}
			}
			r.pushes[size] = append(r.pushes[size], time.Since(began))
			if err := <-answered; err != nil {
				return r, err
			}
		}
	}
	if err := p.say("settle"); err != nil {
		return r, err
	}
	r.pushed = perClient()
	_, r.peak, _ = p.memory()
	return r, err
}

func (b *bench) mesh(ctx context.Context, dir string) (r row, err error) {
	r = row{name: "mesh", pushes: map[int][]time.Duration{}}
	b.writes = map[int][]pushed{}
	f, err := newFleet(ctx, dir, b.nodes)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.end()) }()
	base, _, err := f.memory()
	if err != nil {
		return r, err
	}
	perClient := func() float64 {
		now, _, memoryErr := f.memory()
		err = errors.Join(err, memoryErr)
		return float64(now-base) / float64(b.nodes)
	}
	b.say("mesh: %d machines enrol", b.nodes)
	if err := f.enrol(ctx); err != nil {
		return r, err
	}
	// A node's first link tells things that are written down once.
	first, _, err := f.connect(ctx)
	if err != nil {
		return r, err
	}
	first.end()
	// Begun anew, so that what enrolling took is not counted.
	if err := f.end(); err != nil {
		return r, err
	}
	if err := f.start(ctx); err != nil {
		return r, err
	}
	before, err := f.cpu()
	if err != nil {
		return r, err
	}
	b.say("mesh: they connect")
	l, took, err := f.connect(ctx)
	if err != nil {
		return r, err
	}
	defer l.end()
	r.connected = took
	after, err := f.cpu()
	if err != nil {
		return r, err
	}
	r.handshake = (after - before) / time.Duration(b.nodes)
	if !pause(ctx, 2*time.Second) {
		return r, ctx.Err()
	}
	r.connectedMemory = perClient()
	if _, r.peak, err = f.memory(); err != nil {
		return r, err
	}
	before, err = f.cpu()
	if err != nil {
		return r, err
	}
	b.say("mesh: at rest for %v", b.rest)
	if !pause(ctx, b.rest) {
		return r, ctx.Err()
	}
	r.settled = perClient()
	if after, err = f.cpu(); err != nil {
		return r, err
	}
	b.idle = after - before
	b.say("mesh: %d declarations", groups)
	if b.groups, err = f.divide(ctx); err != nil {
		return r, err
	}
	for _, size := range sizes {
		b.say("mesh: %d bytes to all", size)
		for range b.rounds {
			p, err := f.push(ctx, size)
			if err != nil {
				return r, err
			}
			b.writes[size] = append(b.writes[size], p)
			r.pushes[size] = append(r.pushes[size], p.received)
		}
	}
	for range b.rounds {
		began := time.Now()
		nodes, err := f.api.Nodes(ctx)
		if err != nil {
			return r, err
		}
		if len(nodes) != b.nodes {
			return r, fmt.Errorf("%d of %d nodes are listed", len(nodes), b.nodes)
		}
		b.list = append(b.list, time.Since(began))
	}
	b.say("mesh: at rest for %v", b.rest)
	if !pause(ctx, b.rest) {
		return r, ctx.Err()
	}
	r.pushed = perClient()
	b.say("mesh: the control plane is started again")
	if err := f.end(); err != nil {
		return r, err
	}
	began := time.Now()
	if err := f.start(ctx); err != nil {
		return r, err
	}
	if b.returned, err = l.await(ctx, began); err != nil {
		return r, err
	}
	_, peak, err := f.memory()
	r.peak = max(r.peak, peak)
	return r, err
}
