package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// The mesh that the tests below share: one control plane and, of every package
// manager, at least one node.
const controlHost = "ctl-1"

var meshHosts = map[string]string{
	controlHost: "bookworm-apt",
	"apt-1":     "bullseye-apt",
	"dnf-1":     "trixie-dnf",
	"dnf5-1":    "sid-dnf5",
	"apt-2":     "bullseye-apt",
	"dnf-2":     "trixie-dnf",
}

// nodes are those of meshHosts that most tests go over, in this order. spares are
// for tests that take a node for themselves for long.
var (
	nodes  = []string{controlHost, "apt-1", "dnf-1", "dnf5-1"}
	spares = []string{"apt-2", "dnf-2"}
)

var sharedMesh struct {
	once  sync.Once
	fleet *fleet.Fleet
	err   error
}

// theMesh returns the shared mesh, raising it for the first test that asks:
// first node from the bundle, the others adopted with the printed commands.
func theMesh(t *testing.T) *fleet.Fleet {
	t.Helper()
	l, ctx := lab.Shared(t), lab.TestContext(t)
	sharedMesh.once.Do(func() { sharedMesh.fleet, sharedMesh.err = raiseMesh(ctx, l) })
	if sharedMesh.err != nil {
		t.Fatalf("raise the mesh: %v", sharedMesh.err)
	}
	return sharedMesh.fleet
}

func raiseMesh(ctx context.Context, l *lab.Lab) (*fleet.Fleet, error) {
	bundle, err := fleet.BuildBundle(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	booted := make(chan error, len(meshHosts))
	for name, flavour := range meshHosts {
		go func() {
			_, err := l.Ensure(ctx, name, flavour)
			booted <- err
		}()
	}
	for range meshHosts {
		err = errors.Join(err, <-booted)
	}
	if err != nil {
		return nil, err
	}
	f, err := fleet.Raise(ctx, l, l.Host(controlHost), bundle, os.Stderr)
	if err != nil {
		return nil, err
	}
	if err := f.PublishBundle(ctx); err != nil {
		return nil, err
	}
	others := slices.Concat(nodes[1:], spares)
	adopted := make(chan error, len(others))
	for _, name := range others {
		go func() { adopted <- f.Adopt(ctx, l.Host(name), "--label", "role=test") }()
	}
	for range others {
		err = errors.Join(err, <-adopted)
	}
	return f, err
}

// onEachNode runs a test on all nodes at once.
func onEachNode(t *testing.T, test func(t *testing.T, f *fleet.Fleet, h *lab.Host)) {
	t.Helper()
	f := theMesh(t)
	for _, name := range nodes {
		t.Run(meshHosts[name], func(t *testing.T) {
			t.Parallel()
			test(t, f, f.Lab.Host(name))
		})
	}
}

// only is a declaration for one node, named after the test's purpose.
func only(name string, h *lab.Host, resources string) string {
	return fmt.Sprintf("declaration: %s\nselect: name == %q\nresources:\n%s", declName(name, h), h.Name(), resources)
}

func declName(name string, h *lab.Host) string { return name + "-" + h.Name() }

// declare writes a document, and has it removed when the test ends.
func declare(t *testing.T, f *fleet.Fleet, h *lab.Host, name, resources string) {
	t.Helper()
	ctx := lab.TestContext(t)
	if out, err := f.Declare(ctx, only(name, h, resources), "--wait", "0"); err != nil {
		t.Fatalf("declare: %v\n%s", err, out)
	}
}

func undeclare(t *testing.T, f *fleet.Fleet, h *lab.Host, name string) {
	t.Helper()
	if out, err := f.Meshctl(lab.TestContext(t), "declaration", "remove", declName(name, h)); err != nil {
		t.Fatalf("remove declaration: %v\n%s", err, out)
	}
}

// applied waits until the node has applied everything.
func applied(t *testing.T, f *fleet.Fleet, h *lab.Host) {
	t.Helper()
	if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to have applied everything", fleet.Applied); err != nil {
		t.Fatal(err)
	}
}

// failed waits until exactly one resource of the node is bad, and returns it.
func failed(t *testing.T, f *fleet.Fleet, h *lab.Host, id mesh.ResourceID) control.FailedView {
	t.Helper()
	row, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to have failed "+string(id), func(n control.NodeView) bool {
		return len(n.Failed) == 1 && n.Failed[0].Resource == id
	})
	if err != nil {
		t.Fatal(err)
	}
	return row.Failed[0]
}

func content(t *testing.T, h *lab.Host, path string) string {
	t.Helper()
	data, err := h.ReadFile(lab.TestContext(t), path)
	if errors.Is(err, fs.ErrNotExist) {
		return "(nothing is there)"
	}
	if err != nil {
		t.Fatalf("read %s on %s: %v", path, h.Name(), err)
	}
	return string(data)
}

func wantContent(t *testing.T, h *lab.Host, path, want string) {
	t.Helper()
	if got := content(t, h, path); got != want {
		t.Fatalf("%s on %s holds %q, not %q", path, h.Name(), got, want)
	}
}

func wantVersion(t *testing.T, h *lab.Host, name, want string) {
	t.Helper()
	got, err := fleet.Installed(lab.TestContext(t), h, name)
	if err != nil {
		t.Fatalf("ask the package database of %s for %s: %v", h.Name(), name, err)
	}
	if got != want {
		t.Fatalf("%s on %s has version %q installed, not %q", name, h.Name(), got, want)
	}
}

func publish(t *testing.T, f *fleet.Fleet, p packaging.SimplePackage) {
	t.Helper()
	if err := f.Publish(lab.TestContext(t), p); err != nil {
		t.Fatalf("publish %s: %v", p.Name, err)
	}
}

func simple(name, version string) packaging.SimplePackage {
	return packaging.SimplePackage{Name: name, Version: version,
		Files: []packaging.SimpleFile{{Path: "/usr/share/" + name + "/version", Content: []byte(version + "\n")}}}
}

// eventually waits for something on one host.
func eventually(t *testing.T, what string, cond func(ctx context.Context) (bool, string, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(lab.TestContext(t), 90*time.Second)
	defer cancel()
	if err := lab.WaitFor(ctx, what, cond); err != nil {
		t.Fatal(err)
	}
}
