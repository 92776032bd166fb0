// Command testsum runs one or more go test commands, counts what passed,
// failed and was skipped, and ends with one line that says so. It fails when a
// test fails, a package does not build, nothing ran at all, or a test was
// skipped without leave; it does not decide which tests are run.
//
// Usage: testsum [-skips refuse|list] -- COMMAND... [-- COMMAND...]
//
// Each COMMAND is a go test with its flags; -json is added.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	skips := flag.String("skips", "refuse", "what a skipped test means: refuse (the run fails) or list")
	flag.Parse()
	commands := split(flag.Args())
	if len(commands) == 0 || *skips != "refuse" && *skips != "list" {
		fmt.Fprintln(os.Stderr, "usage: testsum [-skips refuse|list] -- go test ... [-- go test ...]")
		os.Exit(2)
	}
	// The tests are in this process group and get the signal themselves; this
	// process stays to say what came of it.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)

	t := newTally(os.Stdout)
	sound := true
	for _, command := range commands {
		if err := run(t, command); err != nil {
			sound = false
			fmt.Printf("%v: %v\n", command, err)
		}
	}
	os.Exit(conclude(os.Stdout, t, sound, *skips == "refuse"))
}

// split cuts args at each "--".
func split(args []string) [][]string {
	var commands [][]string
	for len(args) > 0 {
		end := slices.Index(args, "--")
		if end < 0 {
			end = len(args)
		}
		if end > 0 {
			commands = append(commands, args[:end])
		}
		args = args[min(end+1, len(args)):]
	}
	return commands
}

// run gives one command's events to t. A test that fails is not an error here:
// t knows it. An error is a command that did not run or failed without saying
// why.
func run(t *tally, command []string) error {
	if len(command) < 2 || command[1] != "test" {
		return errors.New("is not a go test command")
	}
	before := t.totals().failed
	cmd := exec.Command(command[0], slices.Concat(command[1:2], []string{"-json"}, command[2:])...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := t.read(out)
	err = cmd.Wait()
	if readErr != nil {
		return readErr
	}
	if err != nil && t.totals().failed == before {
		return err
	}
	return nil
}

// conclude prints the end of the run and returns its exit code: 0 when
// everything that should run did and passed, else 1.
func conclude(out io.Writer, t *tally, sound, refuseSkips bool) int {
	for _, line := range t.slowest() {
		fmt.Fprintf(out, "SLOW    %s\n", line)
	}
	skipped := t.skips()
	for _, line := range skipped {
		fmt.Fprintf(out, "SKIPPED %s\n", line)
	}
	for _, each := range t.of("") {
		if each.outcome != "pass" && each.outcome != "skip" && !(each.parent && t.below(each, each.outcome)) {
			fmt.Fprintf(out, "FAILED  %s %s\n", short(each.pkg), each.name)
		}
	}
	for _, line := range t.broken {
		fmt.Fprintf(out, "BROKEN  %s\n", line)
	}
	sum := t.totals()
	code := 0
	if sum.failed > 0 || !sound {
		code = 1
	}
	if sum.passed+sum.failed+sum.skipped == 0 {
		fmt.Fprintln(out, "no test ran, which is no success")
		code = 1
	}
	if len(skipped) > 0 && refuseSkips {
		fmt.Fprintln(out, "a skipped test shows nothing, so this run does not pass")
		code = 1
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return code
}
