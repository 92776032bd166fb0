package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/host/link"
	"github.com/meshctl/mesh/test/bench/service"
)

// fleet is a control plane in a process of its own, as it ships, and machines
// in this one.
type fleet struct {
	process
	program string
	config  string
	socket  string
	address string
	pinned  [32]byte
	api     *api.Client

	machines []*machine
	// got is sent to when a machine holds a declaration, acked when the control
	// plane has committed all that a machine had to say.
	got, acked chan int
	// first is when the first machine held what was pushed last, in nanoseconds of
	// the clock; zero: none does.
	first atomic.Int64

	mu     sync.Mutex
	faults []error // under mu
	// apply is closed once machines may apply what they hold. Under mu.
	apply chan struct{}
}

// hold keeps machines from applying what they get from now on, until it is let
// go. What a push takes is measured by itself: hosts apply on processors of their
// own and take their time, and these machines share the control plane's, which
// records what they report meanwhile.
func (f *fleet) hold() (letGo func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := make(chan struct{})
	f.apply = held
	return sync.OnceFunc(func() { close(held) })
}

func (f *fleet) applying() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apply
}

// fault keeps what must not happen in a measurement.
func (f *fleet) fault(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, err)
}

func (f *fleet) sound() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) > 0 {
		return fmt.Errorf("%d things went wrong, the first: %w", len(f.faults), f.faults[0])
	}
	return nil
}

// Ports of the control plane, on loopback addresses that nothing else uses.
const (
	linkAddress       = "127.77.0.1:7022"
	repositoryAddress = "127.77.0.1:7080"
)

// newFleet builds and starts a control plane below dir.
func newFleet(ctx context.Context, dir string, n int) (*fleet, error) {
	f := &fleet{
		program: filepath.Join(dir, "mesh-control"), config: filepath.Join(dir, "control.yaml"), socket: filepath.Join(dir, "api.sock"),
		address: linkAddress, got: make(chan int, 4*n), acked: make(chan int, 64*n),
	}
	f.hold()()
	build := exec.CommandContext(ctx, "go", "build", "-o", f.program, "./cmd/mesh-control")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the control plane: %w: %s", err, out)
	}
	text := fmt.Sprintf("state_dir: %s\nlink_listen: %s\nrepository_listen: %s\nsocket: %s\naddresses: [\"%s\"]\nlog_level: error\n",
		filepath.Join(dir, "state"), linkAddress, repositoryAddress, f.socket, linkAddress)
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	for i := range n {
		m, err := newMachine(f, i)
		if err != nil {
			return nil, err
		}
		f.machines = append(f.machines, m)
	}
	return f, nil
}

// start starts the control plane and waits until it answers.
func (f *fleet) start(ctx context.Context) error {
	f.cmd = exec.CommandContext(ctx, f.program, "serve", "--config", f.config)
	f.cmd.Stderr = os.Stderr
	var err error
	if f.cmd.Env, err = service.Environment(); err != nil {
		return err
	}
	if err := f.cmd.Start(); err != nil {
		return err
	}
	f.api = api.NewClient(f.socket)
	// The first start makes keys, which may take a while.
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := f.api.Health(limit)
		if err == nil {
			return nil
		}
		if !pause(limit, 50*time.Millisecond) {
			return errors.Join(fmt.Errorf("the control plane does not answer: %w", err), f.end())
		}
	}
}

// pause returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// enrolling is how many machines enrol at a time.
const enrolling = 32

// enrol makes every machine a node, with a token of its own.
func (f *fleet) enrol(ctx context.Context) error {
	next := make(chan *machine)
	var running sync.WaitGroup
	for range enrolling {
		running.Go(func() {
			for m := range next {
				if err := f.enrolOne(ctx, m); err != nil {
					f.fault(err)
				}
			}
		})
	}
	for _, m := range f.machines {
		next <- m
	}
	close(next)
	running.Wait()
	return f.sound()
}

func (f *fleet) enrolOne(ctx context.Context, m *machine) error {
	issued, err := f.api.IssueToken(ctx, control.TokenRequest{Name: m.name, Labels: map[string]string{"group": fmt.Sprint(m.number % groups)}})
	if err != nil {
		return err
	}
	token, err := mesh.ParseToken(issued.Token)
	if err != nil {
		return err
	}
	answer, err := link.Enrol(ctx, token, m.key, m.enrol)
	if err != nil {
		return err
	}
	if !answer.Eligible {
		return fmt.Errorf("%s is not eligible: %v", m.name, answer.Why)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pinned = token.Fingerprint
	return nil
}

// groups is into how many parts labels divide the fleet.
const groups = 50

// links are the machines' ends, running.
type links struct {
	clients []*link.Client
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// connect lets every machine dial at once and waits until all are connected. It
// returns how long each took, from the beginning.
func (f *fleet) connect(ctx context.Context) (*links, []time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &links{cancel: cancel}
	for _, m := range f.machines {
		c, err := m.client(f.address, f.pinned)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		l.clients = append(l.clients, c)
	}
	began := time.Now()
	for _, c := range l.clients {
		l.running.Go(func() {
			if err := c.Run(ctx); err != nil {
				f.fault(err)
			}
		})
	}
	took, err := l.await(ctx, began)
	if err == nil {
		err = f.sound()
	}
	if err != nil {
		l.end()
		return nil, nil, err
	}
	return l, took, nil
}

// await waits until every machine has been connected since began.
func (l *links) await(ctx context.Context, began time.Time) ([]time.Duration, error) {
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		var took []time.Duration
		var trouble string
		for _, c := range l.clients {
			s := c.Status()
			if s.State == link.StateConnected && s.Since.After(began) {
				took = append(took, s.Since.Sub(began))
			} else {
				trouble = s.LastError
			}
		}
		if len(took) == len(l.clients) {
			return took, nil
		}
		if !pause(limit, 50*time.Millisecond) {
			return nil, fmt.Errorf("%d of %d machines are connected; one that is not says: %s", len(took), len(l.clients), trouble)
		}
	}
}

func (l *links) end() {
	l.cancel()
	l.running.Wait()
}

// pushed is what a write to the whole fleet took.
type pushed struct {
	// write is how long the write itself took, received the time from its
	// return until the last machine held it. Then all of them applied it, and
	// applied is the time until the control plane had committed the last report.
	write, received, applied time.Duration
	cpu                      time.Duration
}

// push writes a file of size bytes to every machine.
func (f *fleet) push(ctx context.Context, size int) (pushed, error) {
	content := make([]byte, size)
	stamp := fmt.Sprintf("%d bytes at %d\n", size, time.Now().UnixNano())
	for i := range content {
		content[i] = stamp[i%len(stamp)]
	}
	if err := f.quiet(ctx); err != nil {
		return pushed{}, err
	}
	before, err := f.cpu()
	if err != nil {
		return pushed{}, err
	}
	drain(f.got)
	drain(f.acked)
	f.first.Store(0)
	letGo := f.hold()
	defer letGo()
	began := time.Now()
	answer, err := f.api.Declare(ctx, document("everywhere", "", "/etc/bench/everywhere", content))
	if err != nil {
		return pushed{}, err
	}
	returned := time.Now()
	if answer.Nodes != len(f.machines) {
		return pushed{}, fmt.Errorf("the write changed %d of %d nodes", answer.Nodes, len(f.machines))
	}
	p := pushed{write: returned.Sub(began)}
	if err := count(ctx, f.got, len(f.machines)); err != nil {
		return pushed{}, fmt.Errorf("machines that hold what was written: %w", err)
	}
	held := time.Now()
	// The write waits for a processor behind the pushes that it starts.
	if first := time.Unix(0, f.first.Load()); first.Before(returned) {
		returned = first
	}
	p.received = held.Sub(returned)
	letGo()
	if err := count(ctx, f.acked, len(f.machines)); err != nil {
		return pushed{}, fmt.Errorf("machines whose report was committed: %w", err)
	}
	p.applied = time.Since(held)
	after, err := f.cpu()
	if err != nil {
		return pushed{}, err
	}
	p.cpu = after - before
	if err := f.counted(ctx, answer); err != nil {
		return pushed{}, err
	}
	return p, f.sound()
}

// counted waits until the control plane says of every node that it applied what
// was written. A report may overtake the word that it was received.
func (f *fleet) counted(ctx context.Context, d control.Declared) error {
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		progress, err := f.api.Progress(limit, d.Declaration, d.Revision)
		if err != nil {
			return err
		}
		if progress.Applied == len(f.machines) {
			return nil
		}
		if !pause(limit, 20*time.Millisecond) {
			return fmt.Errorf("the control plane counts %d of %d nodes as applied", progress.Applied, len(f.machines))
		}
	}
}

func document(name, selection, path string, content []byte) mesh.Document {
	spec := &mesh.FileSpec{}
	spec.SetContent(content)
	return mesh.Document{Declaration: name, Select: selection, Resources: []mesh.DocumentResource{
		{Resource: mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec}},
	}}
}

func drain(c chan int) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

// count waits until n different machines came through c.
func count(ctx context.Context, c chan int, n int) error {
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	seen := make(map[int]bool, n)
	for len(seen) < n {
		select {
		case number := <-c:
			seen[number] = true
		case <-limit.Done():
			return fmt.Errorf("%d of %d came", len(seen), n)
		}
	}
	return nil
}

// quiet waits until no machine has anything to say any more.
func (f *fleet) quiet(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		waiting := 0
		for _, m := range f.machines {
			waiting += m.waiting()
		}
		if waiting == 0 {
			return f.sound()
		}
		if !pause(limit, 20*time.Millisecond) {
			return fmt.Errorf("%d messages of machines are not committed", waiting)
		}
	}
}

// divide writes a declaration for each part of the fleet. It returns how long
// each of these writes took.
func (f *fleet) divide(ctx context.Context) ([]time.Duration, error) {
	var took []time.Duration
	for i := range groups {
		began := time.Now()
		name := fmt.Sprintf("group-%02d", i)
		answer, err := f.api.Declare(ctx, document(name, fmt.Sprintf(`labels.group == "%d"`, i), "/etc/bench/group", []byte(name+"\n")))
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		if want := (len(f.machines) + groups - 1 - i) / groups; answer.Nodes != want {
			return nil, fmt.Errorf("%s changed %d nodes, want %d", name, answer.Nodes, want)
		}
	}
	// All of them are to be held, not only written.
	for _, m := range f.machines {
		for !m.holds("file:/etc/bench/group") {
			if !pause(ctx, 20*time.Millisecond) {
				return nil, ctx.Err()
			}
		}
	}
	return took, f.quiet(ctx)
}
