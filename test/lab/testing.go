package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shared is the lab of the test binary.
var shared struct {
	mu    sync.Mutex
	lab   *Lab
	err   error
	tests map[testing.TB]bool // those that have asked
}

// Main runs a test binary that uses Shared. It closes the lab afterwards,
// also when the run is interrupted, and prints what took how long. A binary
// that is killed outright leaves things that the next Open cleans.
//
// The lab is the instance that is named, so that several such binaries can run
// at once, unless the environment names one; then they wait for each other. An
// empty name is the usual lab.
func Main(m *testing.M, instance string) {
	if os.Getenv(instanceVariable) == "" {
		if err := os.Setenv(instanceVariable, instance); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
			os.Exit(1)
		}
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		closeShared()
		os.Exit(130)
	}()
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// closeShared closes the lab if a test opened it. The lock stays held: no
// test may open another one on the way out.
func closeShared() error {
	shared.mu.Lock()
	l := shared.lab
	if l == nil {
		shared.mu.Unlock()
		return nil
	}
	fmt.Fprintln(os.Stderr, "lab: what took how long:")
	for _, t := range l.Timings() {
		fmt.Fprintf(os.Stderr, "lab:   %6.1fs %s\n", t.Took.Seconds(), t.What)
	}
	return l.Close()
}

// Shared returns the one lab of this test binary, opening it for the first
// test that asks. When t fails, what explains it is collected from every
// host into out/lab/TESTNAME in the project ($MESH_LAB_OUT names another
// directory). It skips t, with the reason, when the caller is not root; any
// other obstacle fails t.
func Shared(t testing.TB) *Lab {
	t.Helper()
	shared.mu.Lock()
	if shared.lab == nil && shared.err == nil {
		shared.lab, shared.err = Open(context.Background(), os.Stderr)
	}
	if shared.tests == nil {
		shared.tests = map[testing.TB]bool{}
	}
	l, err, again := shared.lab, shared.err, shared.tests[t]
	shared.tests[t] = true
	shared.mu.Unlock()
	if errors.Is(err, ErrNotRoot) {
		t.Skipf("NOT RUN: %v", err)
	}
	if err != nil {
		t.Fatalf("open the lab: %v", err)
	}
	if again {
		return l
	}
	began := time.Now()
	t.Cleanup(func() {
		l.mu.Lock()
		l.timings = append(l.timings, Timing{"test " + t.Name(), time.Since(began)})
		l.mu.Unlock()
		if !t.Failed() {
			return
		}
		dir := filepath.Join(evidenceDir(), strings.ReplaceAll(t.Name(), "/", "-"))
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("clear old evidence: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, h := range l.Hosts() {
			if err := h.Collect(ctx, dir); err != nil {
				t.Logf("some evidence is missing: %v", err)
			}
		}
		t.Logf("evidence is in %s", dir)
	})
	return l
}

// TestContext is the context of a test, ended early enough before the
// deadline of the binary that evidence can still be collected.
func TestContext(t *testing.T) context.Context {
	t.Helper()
	deadline, has := t.Deadline()
	if !has {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(-30*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// evidenceDir is out/lab in the project that the test runs in.
func evidenceDir() string {
	if dir := os.Getenv("MESH_LAB_OUT"); dir != "" {
		return dir
	}
	wd, err := os.Getwd()
	if err != nil {
		return filepath.Join(os.TempDir(), "mesh-lab-out")
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "out", "lab")
		} else if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return filepath.Join(wd, "out", "lab")
		}
	}
}
