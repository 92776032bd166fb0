package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A place is where one lab lives on this machine. $MESH_LAB_INSTANCE names a
// second lab beside the usual one, with everything of its own; no two share
// anything but the cached roots.
type place struct{ name string }

// instanceVariable names the instance of the lab in the environment.
const instanceVariable = "MESH_LAB_INSTANCE"

// thePlace is the place that the environment names.
func thePlace() (place, error) {
	instance := os.Getenv(instanceVariable)
	if instance == "" {
		return place{"mesh-lab"}, nil
	}
	if !validName.MatchString(instance) {
		return place{}, fmt.Errorf("%s %q is not a short lower-case name", instanceVariable, instance)
	}
	return place{"mesh-lab-" + instance}, nil
}

func (p place) runDir() string   { return filepath.Join("/run", p.name) }
func (p place) records() string  { return filepath.Join(p.runDir(), "hosts") }
func (p place) keptFile() string { return filepath.Join(p.runDir(), "kept") }
func (p place) netns() string    { return p.name }

// disks is where the lab's hosts have their file systems. /run may be small
// and in memory, so they are beside the cached roots.
func (p place) disks() string { return filepath.Join(CacheDir(), p.name+"-hosts") }

func (p place) disk(host string) string { return filepath.Join(p.disks(), host) }

// A State is what a host of the lab is doing. It is written in its record.
type State string

// The states of a host.
const (
	// Off: it has a disk and no processes.
	Off State = "off"
	// Starting: it was started and has not finished booting.
	Starting State = "starting"
	// Up: it answered that it has booted.
	Up State = "up"
)

var steps = map[State][]State{
	Off:      {Starting},
	Starting: {Up, Off},
	Up:       {Off},
}

// Step returns the next state, or an error when no host goes from s to it.
func (s State) Step(to State) (State, error) {
	for _, next := range steps[s] {
		if next == to {
			return to, nil
		}
	}
	return s, fmt.Errorf("a host does not go from %s to %s", s, to)
}

// A Record says what the lab started for one host. It is on disk before
// anything is started, so that whoever comes after a killed lab can end it.
type Record struct {
	Name    string `json:"name"`
	Flavour string `json:"flavour"`
	Addr    string `json:"addr"`  // in the lab's network, without a prefix length
	State   State  `json:"state"` // as last written; the processes decide
	// Nspawn is the process outside, Leader is the host's PID 1. Both are
	// zero while the host is off.
	Nspawn process `json:"nspawn"`
	Leader process `json:"leader"`
	// Disk is the host's directory: the merged root is Disk/root, or the
	// root itself when the file system cannot be layered.
	Disk string `json:"disk"`
}

func (p place) recordPath(host string) string { return filepath.Join(p.records(), host+".json") }

// write puts the record on disk, whole or not at all.
func (p place) write(r Record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record of %s: %w", r.Name, err)
	}
	path := p.recordPath(r.Name)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write record of %s: %w", r.Name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write record of %s: %w", r.Name, err)
	}
	return nil
}

// readAll returns every record, in the order of names.
func (p place) readAll() ([]Record, error) {
	paths, err := filepath.Glob(filepath.Join(p.records(), "*.json"))
	if err != nil {
		return nil, err
	}
	var list []Record
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read lab record: %w", err)
		}
		var r Record
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("read lab record %s: %w", path, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// groups returns the lab's control group, mounting the unified hierarchy in
// the lab's own directory when the machine has it nowhere.
func (p place) groups() (group, error) {
	mount, err := unifiedMount()
	if err != nil {
		return "", fmt.Errorf("look for the unified control groups: %w", err)
	}
	if mount == "" {
		mount = filepath.Join(p.runDir(), "cgroup")
		if err := os.MkdirAll(mount, 0o755); err != nil {
			return "", fmt.Errorf("mount control groups: %w", err)
		}
		if err := unix.Mount("none", mount, "cgroup2", 0, ""); err != nil {
			return "", fmt.Errorf("mount control groups: %w", err)
		}
	}
	return group(filepath.Join(mount, p.name)), nil
}

// unifiedMount returns where the machine has its unified hierarchy, or the
// empty string.
func unifiedMount() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		before, after, _ := strings.Cut(sc.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(kind) > 0 && kind[0] == "cgroup2" && fields[3] == "/" {
			return fields[4], nil
		}
	}
	return "", sc.Err()
}

// clean ends and removes everything that the records and the lab's own
// control group name. Nothing else is touched.
func (p place) clean(ctx context.Context, log io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	list, err := p.readAll()
	if err != nil {
		return err
	}
	all, err := p.groups()
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.Nspawn.alive() {
			say(log, "ending %s (%s), which an earlier lab left", r.Name, r.Flavour)
		}
	}
	if err := all.killAll(ctx); err != nil {
		return fmt.Errorf("end the lab's processes: %w", err)
	}
	for _, r := range list {
		for _, proc := range []process{r.Leader, r.Nspawn} {
			if err := proc.kill(); err != nil {
				return fmt.Errorf("end %s: %w", r.Name, err)
			}
		}
	}
	if err := all.remove(ctx); err != nil {
		return err
	}
	for _, r := range list {
		if err := removeDisk(r.Disk); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(p.disks())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the lab's disks: %w", err)
	}
	for _, e := range entries {
		if err := removeDisk(filepath.Join(p.disks(), e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(p.disks()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the lab's disks: %w", err)
	}
	for _, r := range list {
		if err := os.Remove(p.recordPath(r.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of %s: %w", r.Name, err)
		}
	}
	if err := p.removeNetwork(ctx); err != nil {
		return err
	}
	if err := os.Remove(p.keptFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mark of a kept lab: %w", err)
	}
	return nil
}
