package pkg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrAdopted says that a command which an earlier life of this process had
// started was found at work and has ended now. The command asked for did not
// run; whoever gets this looks at the machine and decides anew.
var ErrAdopted = errors.New("an earlier command was found at work")

// Runner runs a tool that changes the machine, where it outlives this process.
type Runner interface {
	// Run waits until the command has ended. The error means that how it ended
	// could not be learned, so that it may have done anything or may still be at
	// it. Standard input is empty.
	Run(ctx context.Context, c Command) (Outcome, error)
}

// Command is one run of a tool.
type Command struct {
	// Name is a label that may be part of a unit's name: "install", "update".
	Name string
	// Argv is the program, with its full path, and its arguments.
	Argv []string
	// Env is the whole environment, as KEY=value.
	Env []string
	// Timeout after which the command is stopped. Zero: never.
	Timeout time.Duration
}

// Outcome is how a command ended.
type Outcome struct {
	ExitStatus int
	// TimedOut: it was stopped because of its Timeout. ExitStatus is then not 0.
	TimedOut bool
	// Doing is the command line of what ran last below a command that was
	// stopped. Empty: not known.
	Doing string
	// Left lists the command lines of what a command that succeeded started and
	// left running outside of every service.
	Left []string
	// Adopted: this is the end of a command that was found at work, started with
	// other arguments or with ones that are no longer known.
	Adopted bool
	// Output is the last 64 KiB of what it wrote to both streams.
	Output string
}

// During says what a command that was stopped was at.
func During(o Outcome) string {
	if o.Doing == "" {
		return ""
	}
	return fmt.Sprintf(" while it ran %q", o.Doing)
}

// LeftNote tells of what a command left running.
func LeftNote(o Outcome) []Note {
	if len(o.Left) == 0 {
		return nil
	}
	return []Note{{Text: "a script left running, outside of every service: " + some(o.Left)}}
}

// Reader runs a tool that only looks. It is an ordinary child.
type Reader interface {
	// Read returns what the tool wrote and its exit status. The error means that
	// it did not run or did not end by itself, or wrote more than fits.
	Read(ctx context.Context, argv, env []string) (Reading, error)
}

// Reading is what a tool that looked said.
type Reading struct {
	ExitStatus int
	Stdout     string
	Stderr     string
}

// LastLines returns the last n lines of a tool's output, for a report.
func LastLines(output string, n int) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.ToValidUTF8(strings.Join(lines, "\n"), "?")
}
