package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// onSmallDisk moves a plane that is not in use yet onto a file system of 4 MiB.
func onSmallDisk(t *testing.T) *plane {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("mesh-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a file system that can be filled needs root and the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newPlane(t)
	p.stop()
	p.dir = dir
	p.start()
	return p
}

// fill leaves no byte free, and returns what frees them again.
func (p *plane) fill() (free func()) {
	p.t.Helper()
	name := filepath.Join(p.dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		p.t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(bytes.Repeat([]byte{1}, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		p.t.Fatalf("filling the disk ended with %v", err)
	}
	if err := f.Close(); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			p.t.Error(err)
		}
	}
}

func TestOnAFullDiskEveryWriteSaysSoReadsGoOnAndWithRoomAllIsWell(t *testing.T) {
	p := onSmallDisk(t)
	ctx := context.Background()
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/motd", "hello")))
	h.apply()
	free := p.fill()

	n := 0
	writes := []struct {
		name string
		do   func() error
	}{
		{"declare", func() error {
			_, err := p.Declare(ctx, root, doc("other", `name == "nobody"`, file("/etc/other", strings.Repeat(fmt.Sprint(n), 10<<10))))
			return err
		}},
		{"issue a token", func() error { _, err := p.IssueToken(ctx, root, control.TokenRequest{}); return err }},
		{"label", func() error {
			_, err := p.Label(ctx, root, "web-1", map[string]string{"n": fmt.Sprint(n)}, nil)
			return err
		}},
		{"upload", func() error {
			r, sum := large("/x", fmt.Sprint("upload ", n))
			return p.PutBlob(ctx, root, sum, bytes.NewReader(r.File.Content))
		}},
		{"record a publication", func() error { return p.RecordRepository(ctx, root, "packages published", strings.Repeat("x", 1000)) }},
		{"take an event", func() error {
			return h.try(mesh.FrameEvent, mesh.Event{Kind: mesh.EventDrift, Detail: strings.Repeat("x", 1000)})
		}},
	}
	for _, w := range writes {
		// What fits into room that the database has already is written.
		var err error
		for range 3000 {
			n++
			if err = w.do(); err != nil {
				break
			}
		}
		wantCode(t, w.name, err, mesh.CodeUnavailable, "disk of the control plane is full")
	}
	rows, err := p.Nodes(ctx)
	if err != nil || len(rows) != 1 || rows[0].Applied != h.held {
		t.Errorf("the nodes are %+v, %v", rows, err)
	}
	if d := h.detail(); d.State != mesh.NodeEnrolled || len(h.link.reasons()) > 0 {
		t.Errorf("the node is %s, its link was closed: %q", d.State, h.link.reasons())
	}
	if _, err := p.Audit(ctx, 10); err != nil {
		t.Errorf("the audit log gave %v", err)
	}
	before, err := p.Declaration(ctx, "web", 0)
	if err != nil {
		t.Errorf("the declaration gave %v", err)
	}

	free()
	for _, w := range writes {
		n++
		if err := w.do(); err != nil {
			t.Errorf("with room again: %s: %v", w.name, err)
		}
	}
	labels := h.detail().Labels
	p.restart()
	if after, err := p.Declaration(ctx, "web", 0); err != nil || after.Revision != before.Revision {
		t.Errorf("after a restart the declaration is %+v, %v", after, err)
	}
	if got := h.detail().Labels; got["n"] != labels["n"] {
		t.Errorf("what is kept in memory was %v, and in the store is %v", labels, got)
	}
}
