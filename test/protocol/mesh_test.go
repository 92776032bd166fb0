package protocol

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	controllink "github.com/meshctl/mesh/control/link"
	"github.com/meshctl/mesh/control/store"
	hostlink "github.com/meshctl/mesh/host/link"
)

var operator = control.Caller{Name: "root", Door: control.DoorSocket, Role: control.RoleAdmin}

// realControl is a control plane with its real policy and store, on loopback.
type realControl struct {
	*control.Control
	hostKey ssh.Signer
	address string
}

func startRealControl(t *testing.T) *realControl {
	t.Helper()
	dir, hostKey := t.TempDir(), newKey(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), filepath.Join(dir, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := store.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := control.New(t.Context(), control.Config{
		Store: st, Blobs: blobs, Log: testLog(t),
		Addresses:   []string{listener.Addr().String()},
		Fingerprint: controllink.Fingerprint(hostKey.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := controllink.New(controllink.Config{Policy: ctl, HostKey: hostKey, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		if err := st.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return &realControl{Control: ctl, hostKey: hostKey, address: listener.Addr().String()}
}

// enrol issues a token and enrols a machine with it.
func (c *realControl) enrol(t *testing.T, key ssh.Signer, name string) mesh.Token {
	t.Helper()
	issued, err := c.IssueToken(t.Context(), operator, control.TokenRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	token, err := mesh.ParseToken(issued.Token)
	if err != nil {
		t.Fatal(err)
	}
	enrolled, err := hostlink.Enrol(t.Context(), token, key, aMachine(name))
	if err != nil || enrolled.Node != name {
		t.Fatalf("Enrol returned %+v, %v", enrolled, err)
	}
	return token
}

func aMachine(name string) mesh.Enrol {
	return mesh.Enrol{
		HostVersion: "1.0.0", Hostname: name,
		Profile: mesh.Profile{
			OS:   mesh.OS{ID: "debian", Version: "12", Family: "debian"},
			Arch: "amd64", Systemd: 252, Init: "systemd", PackageManager: "apt", DBus: true,
			MachineIDHash: "machine-of-" + name,
		},
		Briefing: mesh.Briefing{Lines: []mesh.Line{{Check: "init", Outcome: mesh.OutcomePass, Detail: "systemd 252"}}},
	}
}

// connect runs a host of the node until stop is called, or the test ends.
func (c *realControl) connect(t *testing.T, key ssh.Signer, h *fakeHost, o *outbox) (client *hostlink.Client, stop func()) {
	t.Helper()
	client, err := hostlink.New(hostlink.Config{
		Addresses: []string{c.address}, Key: key, Fingerprint: controllink.Fingerprint(c.hostKey.PublicKey()),
		Host: h, Outbox: o, Log: testLog(t), BackoffBase: 10 * time.Millisecond, BackoffCap: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- client.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-ran
		}
	}
	t.Cleanup(stop)
	return client, stop
}

func machineOf(name string) *fakeHost {
	h := newHost(name)
	h.hello.MachineIDHash, h.hello.BootID = "machine-of-"+name, "boot-1"
	return h
}

// Shows: M1, M9, M32
func TestAMachineEnrolsGetsWhatIsDeclaredAndCatchesUpAfterItWasAway(t *testing.T) {
	c, key := startRealControl(t), newKey(t)
	c.enrol(t, key, "web-1")
	h, o := machineOf("web-1"), newOutbox()
	_, stop := c.connect(t, key, h, o)
	holds := func(name string, want mesh.Generation) func() bool {
		return func() bool {
			node, err := c.Node(t.Context(), name)
			return err == nil && node.Held == want
		}
	}
	eventually(t, "the node is connected", func() bool {
		node, err := c.Node(t.Context(), "web-1")
		return err == nil && node.State == mesh.NodeEnrolled
	})
	if _, err := c.Declare(t.Context(), operator, motd("one")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node holds g1", holds("web-1", 1))

	stop()
	eventually(t, "the control plane sees that the node is gone", func() bool {
		node, err := c.Node(t.Context(), "web-1")
		return err == nil && node.State == mesh.NodeDisconnected
	})
	if _, err := c.Declare(t.Context(), operator, motd("two")); err != nil {
		t.Fatal(err)
	}
	away, err := c.Node(t.Context(), "web-1")
	if err != nil {
		t.Fatal(err)
	}
	c.connect(t, key, h, o)
	eventually(t, "the node holds g2", holds("web-1", 2))

	if away.Held != 1 || away.Declared != 2 || away.Outstanding.Undelivered == 0 {
		t.Errorf("while the node was away it showed %+v, want g2 undelivered", away.NodeView)
	}
	h.look(func(h *fakeHost) {
		if last := h.declared[len(h.declared)-1]; string(last.Resources[0].File.Content) != "two" {
			t.Errorf("the node got %+v, want the second content", last)
		}
	})
}

func motd(content string) mesh.Document {
	file := &mesh.FileSpec{Type: mesh.FileRegular}
	file.SetContent([]byte(content))
	return mesh.Document{Declaration: "base", Resources: []mesh.DocumentResource{{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/motd", File: file}}}}
}

// Shows: M24
func TestATokenIsUsedOnceAndTheSameMachineMayAskAgain(t *testing.T) {
	c, key := startRealControl(t), newKey(t)
	token := c.enrol(t, key, "web-1")

	again, err := hostlink.Enrol(t.Context(), token, key, aMachine("web-1"))
	if err != nil || again.Node != "web-1" {
		t.Errorf("the machine whose answer was lost asks again and gets %+v, %v", again, err)
	}
	other, err := hostlink.Enrol(t.Context(), token, newKey(t), aMachine("web-2"))
	if err == nil {
		t.Errorf("a second machine enrolled with a used token as %+v", other)
	}
}

func TestARevokedNodeLosesItsLinkAndIsToldWhy(t *testing.T) {
	c, key := startRealControl(t), newKey(t)
	c.enrol(t, key, "web-1")
	h := machineOf("web-1")
	client, _ := c.connect(t, key, h, newOutbox())
	eventually(t, "the host is connected", func() bool { return client.Status().State == hostlink.StateConnected })

	if err := c.Revoke(t.Context(), operator, "web-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host is told", func() bool {
		told := ""
		h.look(func(h *fakeHost) { told = h.revoked })
		return strings.HasPrefix(told, "revoked")
	})

	eventually(t, "the key is refused from then on", func() bool {
		return strings.Contains(client.Status().LastError, "the key of node web-1 was revoked")
	})
}

// Cases: O-152, O-153
func TestACloneIsRefusedAndTheFirstMachineStays(t *testing.T) {
	c, key := startRealControl(t), newKey(t)
	c.enrol(t, key, "web-1")
	first, _ := c.connect(t, key, machineOf("web-1"), newOutbox())
	eventually(t, "the first is connected", func() bool { return first.Status().State == hostlink.StateConnected })
	clone := machineOf("web-1")
	clone.hello.MachineIDHash = "another machine"

	second, _ := c.connect(t, key, clone, newOutbox())

	eventually(t, "the clone is refused and told what to do", func() bool {
		return strings.Contains(second.Status().LastError, "cloned")
	})
	if state := first.Status().State; state != hostlink.StateConnected {
		t.Errorf("the first machine is %s after its clone came", state)
	}
}

func TestContentTooLargeForADeclarationTravelsAsABlob(t *testing.T) {
	c, key := startRealControl(t), newKey(t)
	content := bytes.Repeat([]byte("large "), 100_000)
	if err := c.PutBlob(t.Context(), operator, digest(content), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	c.enrol(t, key, "web-1")
	h := machineOf("web-1")
	c.connect(t, key, h, newOutbox())
	doc := mesh.Document{Declaration: "base", Resources: []mesh.DocumentResource{{Resource: mesh.Resource{
		Kind: mesh.KindFile, Name: "/srv/large",
		File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: digest(content), Size: int64(len(content))},
	}}}}

	if _, err := c.Declare(t.Context(), operator, doc); err != nil {
		t.Fatal(err)
	}

	eventually(t, "the host has the content", func() bool {
		whole := false
		h.look(func(h *fakeHost) { whole = bytes.Equal(h.content[digest(content)], content) })
		return whole
	})
}
