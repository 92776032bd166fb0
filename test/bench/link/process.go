package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// process is a child whose memory and CPU are read from the kernel.
type process struct {
	cmd *exec.Cmd
}

// memory returns what is resident, and the most that ever was, in bytes.
func (p process) memory() (now, peak int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case name == "VmRSS" && err == nil:
			now = kib << 10
		case name == "VmHWM" && err == nil:
			peak = kib << 10
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, errors.New("the kernel does not say how much memory the process has")
	}
	return now, peak, nil
}

// cpu returns the CPU time used so far.
func (p process) cpu() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// What follows the name in parentheses: the state is the first field.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

// end stops the process and waits for it.
func (p process) end() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // it was told to
	}
	return err
}

// prototype is a child that serves one.
type prototype struct {
	process
	address string
	in      io.WriteCloser
	out     *bufio.Scanner
}

func startPrototype(ctx context.Context, t transport) (*prototype, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &prototype{process: process{exec.CommandContext(ctx, self, "-prototype", t.name)}}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if !p.out.Scan() {
		return nil, errors.Join(errors.New("the prototype did not start"), p.end())
	}
	p.address = p.out.Text()
	return p, nil
}

// say gives an order and waits until it is done.
func (p *prototype) say(order string) error {
	if _, err := fmt.Fprintln(p.in, order); err != nil {
		return err
	}
	if !p.out.Scan() || p.out.Text() != "done" {
		return fmt.Errorf("the prototype does not answer %q", order)
	}
	return nil
}
