// Package resource says what every kind of resource must be able to do on a
// host, and in which words it reports. The contract of Provider is tested by
// package resourcetest against every implementation.
//
// It applies nothing itself, and it knows no order between resources, no
// ledger and no store: that is package reconcile.
package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// Diff is what Check found to differ from what is wanted. The zero Diff means
// that everything is as wanted.
type Diff struct {
	Fields []Field
}

// Field is one property that differs. Have and Want are for people: short, and
// never content. Content is named by its digest.
type Field struct {
	Name string
	Have string
	Want string
}

// Zero reports whether nothing differs.
func (d Diff) Zero() bool { return len(d.Fields) == 0 }

// Add appends a property that differs.
func (d *Diff) Add(name, have, want string) {
	d.Fields = append(d.Fields, Field{Name: name, Have: have, Want: want})
}

// String writes the diff on one line, as in `mode 0600, not 0644; owner u, not root`.
func (d Diff) String() string {
	parts := make([]string, len(d.Fields))
	for i, f := range d.Fields {
		parts[i] = fmt.Sprintf("%s %s, not %s", f.Name, orNothing(f.Have), orNothing(f.Want))
	}
	return strings.Join(parts, "; ")
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// Provider is one kind of resource. The reconciler calls it from one goroutine.
// Every error that a provider can name is an *Error; any other error is
// reported as failed with reason internal.
type Provider interface {
	// Kind is the kind of resource that this provider is for.
	Kind() mesh.Kind
	// Check reads the machine and says what differs. It changes nothing. It is
	// also the read-back after Apply, so it must read through another path than
	// the one that Apply writes through. When the state cannot be read the error
	// is Unknown; absence is a Diff, not an error.
	Check(ctx context.Context, want mesh.Resource) (Diff, error)
	// Capture reads what must be known to undo the management of want: how it
	// came about and what stood there before. It changes nothing. The reconciler
	// calls it once, before the first Apply or when the first Check finds
	// everything as wanted, and stores the result before anything is written.
	Capture(ctx context.Context, want mesh.Resource) (mesh.Owned, error)
	// Apply brings about what d says is missing. After a crash anywhere in it,
	// calling it again with a new Diff gets to the same end.
	Apply(ctx context.Context, want mesh.Resource, d Diff) error
	// Wrote returns what Remove later compares with, after a Check that found
	// everything as wanted. Nil when the kind needs none.
	Wrote(ctx context.Context, want mesh.Resource) ([]byte, error)
	// Remove undoes the management of owned: deletes what the mesh created, puts
	// back what it replaced, leaves what existed. It refuses with Conflict when
	// somebody changed the thing since. Removing what is gone already succeeds.
	Remove(ctx context.Context, owned mesh.Owned) error
	// CheckRemoved is the read-back of Remove: what still differs from "gone or
	// put back".
	CheckRemoved(ctx context.Context, owned mesh.Owned) (Diff, error)
}

// Announcer is a Provider that says before every Apply what is about to be
// written, so that what a crash leaves between a write and its read-back is
// still known as the mesh's own.
type Announcer interface {
	Provider
	// Announce is called after Check found a difference, and stored before Apply.
	// Owned is what Capture returned, now or long ago. It changes nothing on the
	// machine.
	Announce(ctx context.Context, want mesh.Resource, owned mesh.Owned) (Announcement, error)
}

// Announcement is what is known before a write.
type Announcement struct {
	// Owned is what the store must hold before the write begins.
	Owned mesh.Owned
	// Edited says in a sentence what somebody changed since the last read-back,
	// which the write will overwrite. Empty: nothing.
	Edited string
	// Notes are sentences for the operator that stand with the result when the
	// write was read back, as that another name of the file keeps what it held.
	Notes []string
}

// Noter is a Provider that has something to say about a thing after it was
// changed and read back as wanted.
type Noter interface {
	Provider
	// Notes returns sentences for the operator. It changes nothing.
	Notes(ctx context.Context, want mesh.Resource) []string
}

// Tidier is a Provider whose writes may leave something behind when they are cut
// off.
type Tidier interface {
	Provider
	// Tidy takes that away. It is called for a resource of which a write was cut
	// off, and which is as wanted. What cannot be taken away is left.
	Tidy(ctx context.Context, id mesh.ResourceID)
}

// Holder is a Provider of resources that may leave properties open.
type Holder interface {
	Provider
	// Hold returns want with the properties that it leaves open as they were last
	// verified. Where nothing was, they stay open.
	Hold(want mesh.Resource, owned mesh.Owned) mesh.Resource
}

// Change is one resource of a set, with what is missing.
type Change struct {
	Want mesh.Resource
	Diff Diff
	// Resumed: an earlier pass was about to bring it about, and what came of that
	// was never learned. What is found half done is then the mesh's own work.
	Resumed bool
}

// SetProvider is a Provider that brings about several resources in one step,
// such as one transaction of a package manager.
type SetProvider interface {
	Provider
	// ApplySet is Apply for all changes together. The result has one error a
	// change, nil where nothing is known to have gone wrong. One change that
	// cannot be done must not stop the others.
	ApplySet(ctx context.Context, changes []Change) []error
	// RemoveSet is Remove for all together, in the same way.
	RemoveSet(ctx context.Context, owned []mesh.Owned) []error
}

// PassStarter is a Provider that wants to know when a pass begins, to read
// once what all its checks need.
type PassStarter interface {
	// StartPass forgets what was read in an earlier pass. declared is everything
	// that this pass is for, of every kind, in the order of the declaration.
	StartPass(ctx context.Context, declared []mesh.Resource)
}

// Error is an outcome that a provider names.
type Error struct {
	// Status is failed, deferred, unknown or conflict.
	Status mesh.Status
	Reason mesh.Reason
	// Detail is one sentence for the operator, without content.
	Detail string
	// Output is the last lines that a tool wrote. Empty: there was no tool.
	Output string
	// Harm: the write did more than was asked for. The error stands although the
	// thing itself reads back as wanted.
	Harm bool
	// Err is the cause. Nil: the detail says all.
	Err error
}

// Error writes status, reason and detail on one line.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s): %s", e.Status, e.Reason, e.Detail)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Failed makes the error for what was not reached.
func Failed(reason mesh.Reason, cause error, format string, args ...any) *Error {
	return newError(mesh.StatusFailed, reason, cause, format, args)
}

// Deferred makes the error for a passing obstacle; nothing was done.
func Deferred(reason mesh.Reason, cause error, format string, args ...any) *Error {
	return newError(mesh.StatusDeferred, reason, cause, format, args)
}

// Unknown makes the error for a state that could not be read.
func Unknown(reason mesh.Reason, cause error, format string, args ...any) *Error {
	return newError(mesh.StatusUnknown, reason, cause, format, args)
}

// Conflict makes the error for what somebody else made or changed.
func Conflict(reason mesh.Reason, cause error, format string, args ...any) *Error {
	return newError(mesh.StatusConflict, reason, cause, format, args)
}

// WithOutput returns e with the last lines of a tool's output.
func (e *Error) WithOutput(output string) *Error {
	e.Output = output
	return e
}

func newError(status mesh.Status, reason mesh.Reason, cause error, format string, args []any) *Error {
	return &Error{Status: status, Reason: reason, Detail: fmt.Sprintf(format, args...), Err: cause}
}

// AsError returns err as an *Error: itself when it is one, otherwise failed
// with reason internal. Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Status: mesh.StatusFailed, Reason: mesh.ReasonInternal, Detail: err.Error(), Err: err}
}
