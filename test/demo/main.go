// Command demo shows the main job of the mesh on three real hosts, from nothing
// to every kind of outcome, and checks each step: it exits non-zero at the
// first that does not hold. It leaves nothing running.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// limit bounds the whole run, the building of roots included.
const limit = 30 * time.Minute

// The hosts: an apt host with the control plane, one with dnf, and one with an
// old systemd.
var hosts = []struct{ name, flavour string }{
	{"ctl-1", "bookworm-apt"},
	{"web-1", "trixie-dnf"},
	{"db-1", "bullseye-apt"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: "+err.Error())
		os.Exit(1)
	}
}

// show tells the story on standard output.
type show struct {
	ctx   context.Context
	began time.Time
	steps int
	lab   *lab.Lab
	fleet *fleet.Fleet
}

// step begins a chapter.
func (s *show) step(format string, args ...any) {
	s.steps++
	fmt.Printf("\n%2d. %s  [%s]\n", s.steps, fmt.Sprintf(format, args...), time.Since(s.began).Round(100*time.Millisecond))
}

// holds says what was seen to hold.
func (s *show) holds(format string, args ...any) {
	fmt.Printf("    ✓ %s\n", fmt.Sprintf(format, args...))
}

// quote shows what a program printed.
func (s *show) quote(command, text string) {
	fmt.Printf("    $ %s\n", command)
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Print("      " + line)
	}
	fmt.Println()
}

func (s *show) host(name string) *lab.Host { return s.lab.Host(name) }

func run(ctx context.Context) (err error) {
	s := &show{ctx: ctx, began: time.Now()}
	progress := &indented{w: os.Stdout}
	s.step("Prepare the roots of three hosts (cached after the first time), and build the packages")
	if err := lab.EnsureTools(ctx, progress); err != nil {
		return err
	}
	var flavours []lab.Flavour
	for _, h := range hosts {
		f, err := lab.FlavourNamed(h.flavour)
		if err != nil {
			return err
		}
		flavours = append(flavours, f)
	}
	if err := lab.EnsureRoots(ctx, progress, flavours...); err != nil {
		return err
	}
	bundle, err := fleet.BuildBundle(ctx, progress)
	if err != nil {
		return err
	}
	s.holds("mesh-host, mesh-control and meshctl are packed as deb and rpm in %s", filepath.Base(bundle))

	s.step("Boot three hosts: %s", describe())
	if s.lab, err = lab.Open(ctx, progress); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.collect())
		}
		err = errors.Join(err, s.lab.Close())
		if err == nil {
			fmt.Printf("\nAll %d steps held. Nothing is left running. [%s]\n", s.steps, time.Since(s.began).Round(100*time.Millisecond))
		}
	}()
	if err := s.boot(); err != nil {
		return err
	}
	for _, chapter := range []func() error{
		s.firstNode(bundle), s.adopt, s.allApplied, s.cutOff, s.doesNotExist, s.handEdit, s.killed, s.undeclared, s.finish,
	} {
		if err := chapter(); err != nil {
			return err
		}
	}
	return nil
}

func describe() string {
	parts := make([]string, len(hosts))
	for i, h := range hosts {
		parts[i] = h.name + " (" + h.flavour + ")"
	}
	return strings.Join(parts, ", ")
}

func (s *show) boot() error {
	booted := make(chan error, len(hosts))
	for _, h := range hosts {
		go func() {
			_, err := s.lab.Boot(s.ctx, h.name, h.flavour)
			booted <- err
		}()
	}
	var all error
	for range hosts {
		all = errors.Join(all, <-booted)
	}
	if all != nil {
		return all
	}
	for _, h := range hosts {
		out, err := s.host(h.name).Run(s.ctx, "systemctl", "--version")
		if err != nil {
			return err
		}
		version, _, _ := strings.Cut(out.Stdout, "\n")
		s.holds("%s is up at %s with %s", h.name, s.host(h.name).Addr(), version)
	}
	return nil
}

// collect keeps what explains a failure.
func (s *show) collect() error {
	dir := filepath.Join("out", "demo")
	fmt.Printf("\nA step did not hold; journals and stores are kept in %s\n", dir)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
	defer cancel()
	var all error
	for _, h := range hosts {
		if host := s.host(h.name); host != nil {
			all = errors.Join(all, host.Collect(ctx, dir))
		}
	}
	return all
}

// indented shows progress apart from the story.
type indented struct {
	w      io.Writer
	inLine bool
}

func (i *indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if !i.inLine {
			line = "      " + line
		}
		i.inLine = !strings.HasSuffix(line, "\n")
		if _, err := io.WriteString(i.w, line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
