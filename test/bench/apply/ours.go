package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/store"
)

// cost is what something took of the machine.
type cost struct {
	cpu, wall time.Duration
}

// spent measures the CPU and the time that f takes in this process.
func spent(f func() error) (cost, error) {
	before, err := usage()
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return cost{}, err
	}
	wall := time.Since(began)
	after, err := usage()
	return cost{cpu: after - before, wall: wall}, err
}

// withChildren is spent with the processes that f runs and waits for.
func withChildren(f func() error) (cost, error) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &before); err != nil {
		return cost{}, fmt.Errorf("read the CPU time of children: %w", err)
	}
	c, err := spent(f)
	if err != nil {
		return cost{}, err
	}
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &after); err != nil {
		return cost{}, fmt.Errorf("read the CPU time of children: %w", err)
	}
	c.cpu += time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	return c, nil
}

func usage() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// plain is what any program must do that looks at files by their content: stat
// each and hash it.
func plain(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = f.Stat()
		h := sha256.New()
		if err == nil {
			_, err = io.Copy(h, f)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		_ = h.Sum(nil)
	}
	return nil
}

// host is the part of a host that makes passes, over a store and files.
type host struct {
	store *store.Store
	r     *reconcile.Reconciler
	d     mesh.Declaration
}

func newHost(ctx context.Context, state string, files []string, content func(i int) []byte) (*host, error) {
	st, _, err := store.Open(ctx, state, false, time.Now)
	if err != nil {
		return nil, err
	}
	h := &host{store: st, d: mesh.Declaration{Node: "bench", Generation: 1}}
	for i, path := range files {
		spec := &mesh.FileSpec{Type: mesh.FileRegular, Owner: "root", Group: "root", Mode: "0644"}
		spec.SetContent(content(i))
		h.d.Resources = append(h.d.Resources, mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec})
	}
	if err := st.Hold(ctx, h.d); err != nil {
		return nil, err
	}
	h.forget()
	return h, nil
}

// forget makes the host what it is after its daemon was started anew.
func (h *host) forget() {
	quiet := slog.New(slog.DiscardHandler)
	h.r = reconcile.New(reconcile.Config{
		Store: h.store, Providers: []resource.Provider{file.NewPatient(file.New(file.Config{Content: h.store, Logger: quiet}), file.Patience, func() {})}, Now: time.Now, Log: quiet,
	})
}

// finds proves that a pass finds a file whose content was changed to another of
// the same length, and puts it right.
func (h *host) finds(ctx context.Context, path string, n int) error {
	right, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, bytes.ToUpper(right), 0o644); err != nil {
		return err
	}
	out, err := h.r.Run(ctx, h.d, mesh.TriggerDrift, func() bool { return false })
	if err != nil {
		return err
	}
	if out.Count(mesh.StatusChanged) != 1 || out.Count(mesh.StatusOK) != n-1 {
		return errors.New("a damaged file was not found")
	}
	return h.pass(ctx, mesh.StatusOK)
}

// pass makes one pass as the daemon does: the declaration comes from the store.
// It is an error unless every file ends with the status.
func (h *host) pass(ctx context.Context, status mesh.Status) error {
	d, err := h.store.Declaration(ctx)
	if err != nil {
		return err
	}
	out, err := h.r.Run(ctx, *d, mesh.TriggerDrift, func() bool { return false })
	if err != nil {
		return err
	}
	if n := out.Count(status); n != len(d.Resources) || out.State != mesh.GenerationApplied {
		return fmt.Errorf("%d of %d files are %s, and the pass is %s", n, len(d.Resources), status, out.State)
	}
	return nil
}

func content(i int) []byte {
	line := fmt.Sprintf("# file %d of the comparison, as a configuration file would be\n", i)
	var b []byte
	for len(b) < 4000 {
		b = append(b, line...)
	}
	return b
}

func names(dir string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, filepath.Join(dir, fmt.Sprintf("f%04d.conf", i)))
	}
	return out
}
