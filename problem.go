package mesh

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one fault in something that a person or a pipeline wrote.
type Problem struct {
	// File is the name under which the document was read. Empty: none.
	File string `json:"file,omitempty"`
	// Line and Column count from 1; zero means not known.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path leads to the fault, as in "resources[2].mode". Empty: the whole.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// String writes the problem on one line: file, line, column, path, message.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		b.WriteByte(':')
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, "%d:", p.Column)
		}
	}
	if p.Path != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(p.Path)
		b.WriteByte(':')
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems lists every fault that was found. It is an error when it is not
// empty; use Err.
type Problems []Problem

// Add appends a fault at path.
func (ps *Problems) Add(path, message string) {
	*ps = append(*ps, Problem{Path: path, Message: message})
}

// Error writes one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns ps as an error, nil when there is no problem.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Code classifies an error for a caller that has to decide what to do next.
type Code string

// The codes. An error without one is CodeInternal.
const (
	// CodeInvalid: the request itself is wrong; nothing was done.
	CodeInvalid Code = "invalid"
	// CodeConflict: it contradicts something that is there; nothing was done.
	CodeConflict Code = "conflict"
	// CodeNotFound: what was named does not exist.
	CodeNotFound Code = "not-found"
	// CodeDenied: the caller may not do this.
	CodeDenied Code = "denied"
	// CodeRetired: the node has left the mesh, and everything that the mesh owned
	// on it was gone or put back when it did.
	CodeRetired Code = "retired"
	// CodeUnavailable: it may work later; nothing was done.
	CodeUnavailable Code = "unavailable"
	// CodeInternal: a fault of ours; the log has more.
	CodeInternal Code = "internal"
)

// Error is an error meant for an operator: one sentence, a code, and where it
// applies the faults behind it.
type Error struct {
	Code    Code     `json:"code"`
	Message string   `json:"message"`
	Details Problems `json:"problems,omitempty"`
	// Err is the cause. It is not sent.
	Err error `json:"-"`
}

// Error returns the sentence, then the problems, one a line.
func (e *Error) Error() string {
	if len(e.Details) == 0 {
		return e.Message
	}
	return e.Message + "\n" + e.Details.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error from a code and a sentence.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// CodeOf returns the code of err; CodeInternal when it has none, empty for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var ps Problems
	if errors.As(err, &ps) {
		return CodeInvalid
	}
	return CodeInternal
}
