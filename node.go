package mesh

import (
	"fmt"
	"slices"
)

// NodeState says where a machine is in its life with the mesh.
type NodeState string

// The states. Only enrolled and disconnected are nodes of the mesh, the same
// node in two situations; retired and revoked are how it left.
const (
	NodeUnmanaged    NodeState = "unmanaged"
	NodeHosted       NodeState = "hosted"
	NodeEnrolled     NodeState = "enrolled"
	NodeDisconnected NodeState = "disconnected"
	NodeRetired      NodeState = "retired"
	NodeRevoked      NodeState = "revoked"
)

var nodeSteps = map[NodeState][]NodeState{
	NodeUnmanaged:    {NodeHosted},
	NodeHosted:       {NodeUnmanaged, NodeEnrolled},
	NodeEnrolled:     {NodeDisconnected, NodeRetired, NodeRevoked},
	NodeDisconnected: {NodeEnrolled, NodeRetired, NodeRevoked},
	NodeRetired:      nil,
	NodeRevoked:      nil,
}

// NodeStates lists every state.
func NodeStates() []NodeState {
	return []NodeState{NodeUnmanaged, NodeHosted, NodeEnrolled, NodeDisconnected, NodeRetired, NodeRevoked}
}

// Step moves a node to another state, or refuses.
func (s NodeState) Step(to NodeState) (NodeState, error) {
	if !slices.Contains(nodeSteps[s], to) {
		return s, fmt.Errorf("a node cannot go from %q to %q", s, to)
	}
	return to, nil
}

// Profile is what a machine can run.
type Profile struct {
	OS OS `json:"os"`
	// Arch as Go writes it: amd64, arm64.
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	// Systemd is the version number of PID 1; zero when it is not systemd.
	Systemd int `json:"systemd"`
	// Init is the name of PID 1.
	Init string `json:"init"`
	// PackageManager is apt, dnf, dnf5, or empty when none is known.
	PackageManager        string `json:"package_manager"`
	PackageManagerVersion string `json:"package_manager_version,omitempty"`
	// Virtualization as systemd-detect-virt names it; "none" on metal.
	Virtualization string `json:"virtualization,omitempty"`
	// MemoryBytes is the memory of the machine.
	MemoryBytes int64  `json:"memory_bytes"`
	Disks       []Disk `json:"disks,omitempty"`
	// DBus: the system bus answers.
	DBus bool `json:"dbus"`
	// MachineIDHash is a keyed hash of the machine id; the id itself stays.
	MachineIDHash string `json:"machine_id_hash"`
}

// OS names a distribution, from os-release.
type OS struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	// Family is debian or rpm, after the package database that is there.
	Family string `json:"family"`
	Name   string `json:"name,omitempty"`
}

// Disk is one mounted file system of interest.
type Disk struct {
	Mount     string `json:"mount"`
	SizeBytes int64  `json:"size_bytes"`
	FreeBytes int64  `json:"free_bytes"`
}

// Inventory is what is on a machine.
type Inventory struct {
	Packages []InstalledPackage `json:"packages,omitempty"`
	// Units lists the enabled unit files.
	Units []string `json:"units,omitempty"`
	// Networks lists interface names with their addresses.
	Networks []Network `json:"networks,omitempty"`
	// Host says how the host stands with its own version. Nil: it says nothing.
	Host *HostUpgrade `json:"host,omitempty"`
}

// InstalledPackage is one row of the package database.
type InstalledPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Arch    string `json:"arch,omitempty"`
}

// Network is one interface of a machine.
type Network struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses,omitempty"`
}

// Digest identifies a profile; it is resent when it changes. Free disk space
// does not count.
func (p Profile) Digest() string {
	p.Disks = slices.Clone(p.Disks)
	for i := range p.Disks {
		p.Disks[i].FreeBytes = 0
	}
	return digestJSON(p)
}

// Digest identifies an inventory; it is resent when it changes.
func (i Inventory) Digest() string { return digestJSON(i) }

// Outcome is how one line of a briefing, or a whole briefing, came out.
type Outcome string

// The outcomes, from good to bad.
const (
	OutcomePass Outcome = "pass"
	OutcomeWarn Outcome = "warn"
	OutcomeFail Outcome = "fail"
)

// Line is one check of a briefing.
type Line struct {
	Check   string  `json:"check"`
	Outcome Outcome `json:"outcome"`
	// Detail says what was seen, and for a line that did not pass what to do.
	Detail string `json:"detail"`
}

// Briefing is what a host finds when it asks whether it can do its work here.
type Briefing struct {
	Lines []Line `json:"lines"`
}

// Outcome is the worst outcome of the lines. A briefing without lines, or with
// an outcome that is not known, fails: nobody looked.
func (b Briefing) Outcome() Outcome {
	worst := OutcomePass
	if len(b.Lines) == 0 {
		return OutcomeFail
	}
	for _, line := range b.Lines {
		switch line.Outcome {
		case OutcomePass:
		case OutcomeWarn:
			if worst == OutcomePass {
				worst = OutcomeWarn
			}
		default:
			worst = OutcomeFail
		}
	}
	return worst
}

// Failed lists the lines that failed.
func (b Briefing) Failed() []Line {
	var failed []Line
	for _, line := range b.Lines {
		if line.Outcome != OutcomePass && line.Outcome != OutcomeWarn {
			failed = append(failed, line)
		}
	}
	return failed
}

// Eligible reports whether the node may be assigned declarations: no line of
// its latest briefing failed.
func (b Briefing) Eligible() bool { return b.Outcome() != OutcomeFail }
