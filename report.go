package mesh

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Status is what a host says of one resource after it looked.
type Status string

// The statuses. All but StatusPending end a resource's part of a pass.
const (
	// StatusPending: the current pass has not come to it yet.
	StatusPending Status = "pending"
	// StatusOK: already as wanted; nothing was written.
	StatusOK Status = "ok"
	// StatusChanged: written, and read back as wanted.
	StatusChanged Status = "changed"
	// StatusRemoved: no longer declared, and read back as gone or put back.
	StatusRemoved Status = "removed"
	// StatusFailed: not reached.
	StatusFailed Status = "failed"
	// StatusDeferred: a passing obstacle; nothing was done; tried again.
	StatusDeferred Status = "deferred"
	// StatusUnknown: the state could not be read; nothing was done on the
	// strength of it.
	StatusUnknown Status = "unknown"
	// StatusConflict: it would overwrite or delete what somebody else made.
	StatusConflict Status = "conflict"
	// StatusSkipped: something it requires is not there.
	StatusSkipped Status = "skipped"
)

// Statuses lists every status.
func Statuses() []Status {
	return []Status{StatusPending, StatusOK, StatusChanged, StatusRemoved, StatusFailed, StatusDeferred, StatusUnknown, StatusConflict, StatusSkipped}
}

// Step moves a result from one status to the next. A pass begins at pending
// and ends in one of the others; a new pass begins at pending again. Anything
// else is refused.
func (s Status) Step(to Status) (Status, error) {
	if !slices.Contains(Statuses(), s) || !slices.Contains(Statuses(), to) {
		return s, fmt.Errorf("a result cannot go from %q to %q: not a status", s, to)
	}
	if (s == StatusPending) == (to == StatusPending) {
		return s, fmt.Errorf("a result cannot go from %q to %q", s, to)
	}
	return to, nil
}

// Good reports whether the resource is as wanted.
func (s Status) Good() bool {
	return s == StatusOK || s == StatusChanged || s == StatusRemoved
}

// Bad reports whether the resource counts as failed for its generation.
func (s Status) Bad() bool {
	return s == StatusFailed || s == StatusUnknown || s == StatusConflict || s == StatusSkipped
}

// Result is what became of one resource in a pass.
type Result struct {
	Resource ResourceID `json:"resource"`
	Status   Status     `json:"status"`
	// Reason is set for every status that is not good. See the constants.
	Reason Reason `json:"reason,omitempty"`
	// Detail is for the operator: why it is not good, or what was met while it
	// was made good. Never content.
	Detail string `json:"detail,omitempty"`
	// Output is the last lines that the tool wrote, where there was one.
	Output string `json:"output,omitempty"`
	// Generation under which the status was reached.
	Generation Generation `json:"generation"`
	// Want is the digest of what was wanted. Empty for a removal.
	Want string `json:"want,omitempty"`
	// At is the host's own time. It orders nothing.
	At time.Time `json:"at"`
}

// GenerationState says how far a node has come with a generation.
type GenerationState string

// The states of a generation on a node.
const (
	// GenerationOutstanding: not every resource has been decided.
	GenerationOutstanding GenerationState = "outstanding"
	// GenerationApplied: every resource is as wanted, read back.
	GenerationApplied GenerationState = "applied"
	// GenerationFailed: the pass ended, and at least one resource is not.
	GenerationFailed GenerationState = "failed"
)

// StateOf computes how far a generation has come from the results of its
// resources. Anything pending or deferred leaves it outstanding.
func StateOf(results []Result) GenerationState {
	state := GenerationApplied
	for _, r := range results {
		switch {
		case r.Status.Good():
		case r.Status.Bad():
			if state != GenerationOutstanding {
				state = GenerationFailed
			}
		default:
			state = GenerationOutstanding
		}
	}
	return state
}

// Trigger says why a pass was made.
type Trigger string

// The triggers of a pass.
const (
	TriggerDeclared Trigger = "declared" // a declaration arrived
	TriggerResumed  Trigger = "resumed"  // the host started
	TriggerDrift    Trigger = "drift"    // the drift timer
	TriggerRetry    Trigger = "retry"    // something was deferred
	TriggerAsked    Trigger = "asked"    // an admin asked on the machine
)

// Report is what a host says about one pass.
type Report struct {
	Generation Generation `json:"generation"`
	// Pass counts the passes of this host's store, from 1.
	Pass    uint64          `json:"pass"`
	Trigger Trigger         `json:"trigger"`
	State   GenerationState `json:"state"`
	Started time.Time       `json:"started"`
	Ended   time.Time       `json:"ended"`
	// Full: Results is everything that the ledger holds. Otherwise it is what
	// differs from what was reported before.
	Full    bool     `json:"full,omitempty"`
	Results []Result `json:"results,omitempty"`
	// Gone lists resources that the ledger no longer holds.
	Gone []ResourceID `json:"gone,omitempty"`
	// Kept lists what the host owns, is not declared and was not released.
	Kept []ResourceID `json:"kept,omitempty"`
	// Ledger is the digest of the ledger after the pass.
	Ledger string `json:"ledger"`
}

// LedgerDigest identifies the results that a ledger holds, whatever their
// order, generation and time. Both sides compute it over what they hold.
func LedgerDigest(results []Result) string {
	lines := make([]string, 0, len(results))
	for _, r := range results {
		lines = append(lines, strings.Join([]string{string(r.Resource), string(r.Status), string(r.Reason), r.Want}, "\x00"))
	}
	slices.Sort(lines)
	return digestJSON(lines)
}

// EventKind names a kind of event.
type EventKind string

// The events that a host raises. Each Ending is one too, of the package that
// is the host itself.
const (
	EventDrift     EventKind = "drift"      // a managed resource was found changed
	EventStoreLost EventKind = "store-lost" // the host began with a new store
	EventRefused   EventKind = "refused"    // a declaration was refused
	EventInvalid   EventKind = "invalid"    // a declaration had faults
)

// Event is something that happened on a node and must not be lost.
type Event struct {
	Kind     EventKind  `json:"kind"`
	Resource ResourceID `json:"resource,omitempty"`
	Detail   string     `json:"detail"`
	At       time.Time  `json:"at"`
}
