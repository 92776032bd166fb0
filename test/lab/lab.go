package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// validName keeps names usable as file names, host names and, with a prefix,
// as names of network interfaces.
var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,11}$`)

// ErrKept says that a lab which somebody raised to keep is there, and that
// the caller would have to take it away.
var ErrKept = errors.New("a lab that was raised to stay is running; take it down first (lab down, or make lab-down)")

// A Lab is a set of hosts on one network. One process at a time has it.
type Lab struct {
	place  place
	log    io.Writer
	group  group
	unlock func()

	mu      sync.Mutex // guards what follows; nothing is started under it
	hosts   map[string]*Host
	timings []Timing
}

// A Timing is how long one slow thing took.
type Timing struct {
	What string
	Took time.Duration
}

// Open takes the lab of this machine: it installs missing tools, waits for
// another process that has the lab, ends what an earlier lab left, and makes
// the network. It returns ErrNotRoot, or ErrKept when somebody raised a lab
// to stay. log gets progress in plain words; nil means none.
func Open(ctx context.Context, log io.Writer) (*Lab, error) {
	l, err := take(ctx, log)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.place.keptFile()); err == nil {
		l.unlock()
		return nil, ErrKept
	}
	if err := l.place.clean(ctx, l.log); err != nil {
		l.unlock()
		return nil, fmt.Errorf("clean an earlier lab: %w", err)
	}
	if err := l.begin(ctx); err != nil {
		l.unlock()
		return nil, err
	}
	return l, nil
}

// Keep takes the lab as Open does, but continues one that is kept, and marks
// it as one that stays when the process ends. Release gives it up.
func Keep(ctx context.Context, log io.Writer) (*Lab, error) {
	l, err := take(ctx, log)
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(l.place.keptFile())
	if errors.Is(err, fs.ErrNotExist) {
		err = l.place.clean(ctx, l.log)
	}
	if err == nil {
		err = os.WriteFile(l.place.keptFile(), nil, 0o600)
	}
	if err == nil {
		err = l.begin(ctx)
	}
	if err == nil {
		err = l.adopt()
	}
	if err != nil {
		l.unlock()
		return nil, fmt.Errorf("keep the lab: %w", err)
	}
	return l, nil
}

// TakeDown ends and removes the lab of this machine, kept or left over.
func TakeDown(ctx context.Context, log io.Writer) error {
	l, err := take(ctx, log)
	if err != nil {
		return err
	}
	defer l.unlock()
	return l.place.clean(ctx, l.log)
}

// Attach gives access to the hosts of a lab that another process raised,
// without taking it: nothing is cleaned, and Close must not be called.
func Attach(log io.Writer) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	p, err := thePlace()
	if err != nil {
		return nil, err
	}
	l := &Lab{place: p, log: &lineWriter{w: log}, hosts: map[string]*Host{}, unlock: func() {}}
	if l.group, err = p.groups(); err != nil {
		return nil, err
	}
	return l, l.adopt()
}

// take installs the tools and gets the lock.
func take(ctx context.Context, log io.Writer) (*Lab, error) {
	if err := EnsureTools(ctx, log); err != nil {
		return nil, err
	}
	p, err := thePlace()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.records(), 0o700); err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	log = &lineWriter{w: log}
	if err := raiseLimits(log); err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, log, p.runDir()+"/lock", "another process has the lab")
	if err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	return &Lab{place: p, log: log, hosts: map[string]*Host{}, unlock: unlock}, nil
}

// begin makes what all hosts share.
func (l *Lab) begin(ctx context.Context) error {
	var err error
	if l.group, err = l.place.groups(); err != nil {
		return err
	}
	if err := l.group.make(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.place.disks(), 0o755); err != nil {
		return fmt.Errorf("make the lab's disks: %w", err)
	}
	return l.place.ensureNetwork(ctx)
}

// adopt makes hosts of the records.
func (l *Lab) adopt() error {
	list, err := l.place.readAll()
	if err != nil {
		return err
	}
	for _, r := range list {
		f, err := FlavourNamed(r.Flavour)
		if err != nil {
			return fmt.Errorf("adopt host %s: %w", r.Name, err)
		}
		if r.State != Off && !r.Nspawn.alive() {
			r.State, r.Nspawn, r.Leader = Off, process{}, process{}
		}
		l.hosts[r.Name] = &Host{lab: l, flavour: f, record: r}
	}
	return nil
}

// Boot makes a new host of a flavour and boots it. It returns when systemd on
// it says that the boot is over ("running" or "degraded"), and an error with
// the end of the console when that does not come about within two minutes.
// A name is a lower-case word of at most twelve letters, digits and dashes,
// used once in a lab. Several hosts may boot at once.
func (l *Lab) Boot(ctx context.Context, name, flavour string) (*Host, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("boot %q: a host's name is at most twelve lower-case letters, digits and dashes", name)
	}
	f, err := FlavourNamed(flavour)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	base, err := EnsureRoot(ctx, l.log, f)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	began := time.Now()
	h, err := l.reserve(name, f)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	if err := makeDisk(ctx, l.log, h.record.Disk, base); err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	if err := personalise(h.Root(), h.record); err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	if err := h.start(ctx); err != nil {
		return nil, fmt.Errorf("boot %s: %w", name, err)
	}
	l.took(fmt.Sprintf("boot %s %s", name, flavour), time.Since(began))
	return h, nil
}

// Ensure returns the host of that name, booting it when the lab has none. A
// host of that name and another flavour is an error.
func (l *Lab) Ensure(ctx context.Context, name, flavour string) (*Host, error) {
	l.mu.Lock()
	h := l.hosts[name]
	l.mu.Unlock()
	if h == nil {
		return l.Boot(ctx, name, flavour)
	}
	if h.flavour.Name != flavour {
		return nil, fmt.Errorf("host %s is %s, not %s", name, h.flavour.Name, flavour)
	}
	return h, nil
}

// reserve gives a host its name, address and record.
func (l *Lab) reserve(name string, f Flavour) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[name] != nil {
		return nil, errors.New("the lab has a host of that name")
	}
	var taken []Record
	for _, h := range l.hosts {
		taken = append(taken, h.snapshot())
	}
	addr, err := freeAddr(taken)
	if err != nil {
		return nil, err
	}
	h := &Host{lab: l, flavour: f, record: Record{
		Name: name, Flavour: f.Name, Addr: addr, State: Off, Disk: l.place.disk(name),
	}}
	if err := l.place.write(h.record); err != nil {
		return nil, err
	}
	l.hosts[name] = h
	return h, nil
}

// Host returns the host of that name, or nil.
func (l *Lab) Host(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

// Hosts lists the lab's hosts in the order of their names.
func (l *Lab) Hosts() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*Host
	for _, h := range l.hosts {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *Host) int { return strings.Compare(a.record.Name, b.record.Name) })
	return list
}

// Timings lists what was slow, in the order in which it ended.
func (l *Lab) Timings() []Timing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.timings)
}

func (l *Lab) took(what string, d time.Duration) {
	say(l.log, "%s %.1fs", what, d.Seconds())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timings = append(l.timings, Timing{what, d})
}

// Close ends every host of the lab, removes disks, records and network, and
// gives the lab up.
func (l *Lab) Close() error {
	defer l.unlock()
	if err := l.place.clean(context.Background(), nil); err != nil {
		return fmt.Errorf("close the lab: %w", err)
	}
	return nil
}

// Release gives up a lab that was taken with Keep; its hosts go on.
func (l *Lab) Release() { l.unlock() }

// A lineWriter lets several hosts report progress at once.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer // nil drops everything
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil {
		return len(b), nil
	}
	return w.w.Write(b)
}
