package lab_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// The nodes whose lives the tests below begin and end, one of each kind of
// package manager.
var mortals = map[string]string{"life-apt": "bookworm-apt", "life-dnf": "trixie-dnf"}

var adoptMortals struct {
	once sync.Once
	err  error
}

// onEachMortal runs a test on the nodes of mortals at once, and returns when it
// has ended on all. Each of them is a node when the test begins and has to be one
// when it ends.
func onEachMortal(t *testing.T, test func(t *testing.T, f *fleet.Fleet, h *lab.Host)) {
	t.Helper()
	f := theMesh(t)
	ctx := lab.TestContext(t)
	adoptMortals.once.Do(func() {
		adopted := make(chan error, len(mortals))
		for name, flavour := range mortals {
			go func() {
				h, err := f.Lab.Ensure(ctx, name, flavour)
				if err == nil {
					err = f.Adopt(ctx, h, "--label", "role=life")
				}
				adopted <- err
			}()
		}
		for range mortals {
			adoptMortals.err = errors.Join(adoptMortals.err, <-adopted)
		}
	})
	if adoptMortals.err != nil {
		t.Fatalf("adopt the nodes whose lives end here: %v", adoptMortals.err)
	}
	publish(t, f, simple("fx-life", "1.0"))
	t.Run("on", func(t *testing.T) {
		for name, flavour := range mortals {
			t.Run(flavour, func(t *testing.T) {
				t.Parallel()
				test(t, f, f.Lab.Host(name))
			})
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// aLife is what the mesh does on a node in the tests below: it makes, it replaces,
// and it finds something that was there.
const aLife = `
  - package: fx-life
  - package: fx-life-there
  - file: /etc/fx-life
    content: "made\n"
  - file: /etc/fx-life-before
    content: "replaced\n"
  - file: /etc/fx-life-dir
    type: directory
`

func live(t *testing.T, f *fleet.Fleet, h *lab.Host) {
	t.Helper()
	there, err := fleet.Installed(lab.TestContext(t), h, "fx-life-there")
	if err == nil && there == "" {
		err = fleet.InstallByHand(lab.TestContext(t), h, simple("fx-life-there", "3.0"))
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, h, "printf 'before\\n' > /etc/fx-life-before; chmod 0640 /etc/fx-life-before")
	declare(t, f, h, "life", aLife)
	applied(t, f, h)
	wantVersion(t, h, "fx-life", "1.0-1")
	wantContent(t, h, "/etc/fx-life-before", "replaced\n")
}

// untouched judges that nothing of aLife is left.
func untouched(t *testing.T, h *lab.Host) {
	t.Helper()
	wantVersion(t, h, "fx-life", "")
	wantVersion(t, h, "fx-life-there", "3.0-1")
	wantContent(t, h, "/etc/fx-life", "(nothing is there)")
	wantContent(t, h, "/etc/fx-life-before", "before\n")
	if got := must(t, h, "stat -c %a /etc/fx-life-before; test ! -e /etc/fx-life-dir && echo gone"); got != "640\ngone" {
		t.Errorf("what was there before is not back as it was: %s", got)
	}
	must(t, h, "rm /etc/fx-life-before")
}

// awaitEvent waits until the newest events of a node hold one of a kind, raised
// after since.
func awaitEvent(t *testing.T, f *fleet.Fleet, node string, kind mesh.EventKind, since time.Time) control.EventView {
	t.Helper()
	var found control.EventView
	eventually(t, "event "+string(kind)+" of "+node, func(ctx context.Context) (bool, string, error) {
		d, err := f.Node(ctx, node)
		if err != nil {
			return false, err.Error(), nil
		}
		for _, e := range d.Events {
			if e.Kind == kind && !e.Received.Before(since) {
				found = e
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%+v", d.Events), nil
	})
	return found
}

// Shows: M29
func TestAHostThatLosesItsStoreRemovesNothingUntilItsRecoveryCopyIsBackAndThenWhatIsItsOwn(t *testing.T) {
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		ctx := lab.TestContext(t)
		for _, way := range []struct{ how, lose string }{
			{"deleted", "rm -f /var/lib/mesh-host/store.db*"},
			// The last one: deleting removes the copy of the damaged one too.
			{"damaged", "rm -f /var/lib/mesh-host/store.db-*; dd if=/dev/urandom of=/var/lib/mesh-host/store.db bs=4096 count=4 conv=notrunc 2>/dev/null"},
		} {
			began := time.Now()
			live(t, f, h)
			if err := h.CutOff(ctx); err != nil {
				t.Fatal(err)
			}
			must(t, h, "systemctl stop mesh-host; "+way.lose+"; systemctl start mesh-host; sleep 1; mesh-host reconcile >/dev/null || true")
			if out := must(t, h, "mesh-host status"); !strings.Contains(out, "held:     -") {
				t.Errorf("%s: a host without its store holds something:\n%s", way.how, out)
			}
			wantContent(t, h, "/etc/fx-life", "made\n")
			if err := h.Reconnect(ctx); err != nil {
				t.Fatal(err)
			}
			awaitEvent(t, f, h.Name(), mesh.EventStoreLost, began)
			eventually(t, "the declaration to be back", func(ctx context.Context) (bool, string, error) {
				out, err := h.Run(ctx, "mesh-host", "status")
				return err == nil && strings.Contains(out.Stdout, "file:/etc/fx-life-before") && !strings.Contains(out.Stdout, "pending"), out.Stdout, nil
			})
			undeclare(t, f, h, "life")
			applied(t, f, h)
			untouched(t, h)
		}
		must(t, h, "test -s /var/lib/mesh-host/store.db.damaged-1")
	})
}

// takeIdentity puts what makes a machine a node onto another.
func takeIdentity(t *testing.T, from, to *lab.Host) {
	t.Helper()
	ctx := lab.TestContext(t)
	for _, file := range []string{"/etc/mesh/host.yaml", "/var/lib/mesh-host/identity/node_ed25519"} {
		data, err := from.ReadFile(ctx, file)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.WriteFile(ctx, file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Shows: M28
func TestOneIdentityOnTwoMachinesIsRefusedForTheSecondAndBothAreTold(t *testing.T) {
	f := theMesh(t)
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) { connected(t, f, h) })
	first, second := f.Lab.Host("life-apt"), f.Lab.Host("life-dnf")
	for range 2 {
		began := time.Now()
		must(t, second, "systemctl stop mesh-host; cp -a /etc/mesh /root/mesh.own; cp -a /var/lib/mesh-host /root/state.own; rm -f /var/lib/mesh-host/store.db*")
		takeIdentity(t, first, second)
		must(t, second, "systemctl start mesh-host")
		for h, want := range map[*lab.Host]string{second: "this link is refused", first: "the second one was refused"} {
			eventually(t, h.Name()+" to be told", func(ctx context.Context) (bool, string, error) {
				out, err := h.Run(ctx, "mesh-host", "status")
				return err == nil && strings.Contains(out.Stdout, want), out.Stdout, nil
			})
		}
		awaitEvent(t, f, first.Name(), control.EventCloned, began)
		if out := must(t, first, "mesh-host status"); !strings.Contains(out, "state:    enrolled") {
			t.Errorf("the machine that was there first is not a node any more:\n%s", out)
		}
		must(t, second, "systemctl stop mesh-host; rm -rf /etc/mesh /var/lib/mesh-host; mv /root/mesh.own /etc/mesh; mv /root/state.own /var/lib/mesh-host; systemctl start mesh-host")
		if _, err := f.AwaitNode(lab.TestContext(t), second.Name(), "to be back", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled }); err != nil {
			t.Fatal(err)
		}
		first, second = second, first
	}
}

// connected waits until a node that may have nothing declared is connected.
func connected(t *testing.T, f *fleet.Fleet, h *lab.Host) {
	t.Helper()
	if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to be connected", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled }); err != nil {
		t.Fatal(err)
	}
}

// Shows: M28, M29
func TestAMachineThatWasMadeAnewTakesItsPlaceAndOwnsWhatTheFormerMade(t *testing.T) {
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		ctx := lab.TestContext(t)
		began := time.Now()
		live(t, f, h)
		before, err := f.Node(ctx, h.Name())
		if err != nil {
			t.Fatal(err)
		}
		must(t, h, "systemctl stop mesh-host; cp -a /var/lib/mesh-host/identity /root/former; rm -rf /var/lib/mesh-host /etc/mesh/host.yaml; printf 'drift_interval: 10s\\n' > /etc/mesh/host.yaml; systemctl start mesh-host")
		if out, err := f.Meshctl(ctx, "token", "issue", "--name", h.Name()); err == nil {
			t.Errorf("a token for a name that is taken was issued:\n%s", out)
		}
		token, _, err := f.Token(ctx, "--replaces", h.Name())
		if err != nil {
			t.Fatal(err)
		}
		must(t, h, "mesh-host enrol "+token)
		applied(t, f, h)
		after, err := f.Node(ctx, h.Name())
		if err != nil {
			t.Fatal(err)
		}
		if after.Key == before.Key || after.Labels["role"] != "life" || len(after.Owned) != len(before.Owned) {
			t.Errorf("key %s became %s, labels %v, owned %v became %v", before.Key, after.Key, after.Labels, before.Owned, after.Owned)
		}
		awaitEvent(t, f, h.Name(), control.EventReplaced, began)
		undeclare(t, f, h, "life")
		applied(t, f, h)
		untouched(t, h)

		// The former identity is refused, whoever has it.
		must(t, h, "systemctl stop mesh-host; cp -a /var/lib/mesh-host/identity /root/own; cp /root/former/* /var/lib/mesh-host/identity/; systemctl start mesh-host")
		eventually(t, "the former key to be refused", func(ctx context.Context) (bool, string, error) {
			out, err := h.Run(ctx, "mesh-host", "status")
			return err == nil && strings.Contains(out.Stdout, "was revoked"), out.Stdout, nil
		})
		must(t, h, "systemctl stop mesh-host; cp /root/own/* /var/lib/mesh-host/identity/; rm -r /root/own /root/former; systemctl start mesh-host")
		connected(t, f, h)
	})
}

// Shows: M30
func TestANodeThatRetiresPutsEverythingBackSaysSoAndForgetsItsMesh(t *testing.T) {
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		ctx := lab.TestContext(t)
		live(t, f, h)
		key := must(t, h, "cat /var/lib/mesh-host/identity/node_ed25519")
		must(t, h, "touch /etc/fx-life-dir/mine")
		if out, err := f.Meshctl(ctx, "node", "retire", h.Name(), "--wait", "0"); err != nil || !strings.Contains(out, "leaves with") {
			t.Fatalf("retire: %v\n%s", err, out)
		}
		row, err := f.AwaitNode(ctx, h.Name(), "to say what it could not remove", func(n control.NodeView) bool { return len(n.Failed) == 1 })
		if err != nil {
			t.Fatal(err)
		}
		if bad := row.Failed[0]; row.State != mesh.NodeEnrolled || !row.Retiring || bad.Resource != "file:/etc/fx-life-dir" {
			t.Errorf("with something of somebody else in the way the row is %+v", row)
		}
		if now := must(t, h, "cat /var/lib/mesh-host/identity/node_ed25519"); now != key {
			t.Error("a node that has not left has another identity")
		}
		must(t, h, "rm /etc/fx-life-dir/mine")
		if _, err := f.AwaitNode(ctx, h.Name(), "to have retired", func(n control.NodeView) bool { return n.State == mesh.NodeRetired }); err != nil {
			t.Fatal(err)
		}
		untouched(t, h)
		wantVersion(t, h, "mesh-host", fleet.Version+"-1")
		eventually(t, "the machine to belong to no mesh", func(ctx context.Context) (bool, string, error) {
			out, err := h.Run(ctx, "mesh-host", "status")
			return err == nil && strings.Contains(out.Stdout, "state:    hosted"), out.Stdout, nil
		})
		if out := must(t, h, "cat /etc/mesh/host.yaml"); strings.Contains(out, "node") || strings.Contains(out, "fingerprint") {
			t.Errorf("the machine still knows its mesh:\n%s", out)
		}
		if now := must(t, h, "cat /var/lib/mesh-host/identity/node_ed25519"); now == key {
			t.Error("the machine keeps the identity of the node that it was")
		}
		d, err := f.Node(ctx, h.Name())
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Owned) != 0 || d.Applied != d.Declared || len(d.Failed) != 0 || d.Events[0].Kind != control.EventRetired {
			t.Errorf("what is known of a node that left is %+v", d)
		}

		// The machine can join again, and its watchdog is content meanwhile.
		undeclare(t, f, h, "life")
		token, _, err := f.Token(ctx, "--replaces", h.Name(), "--label", "role=life")
		if err != nil {
			t.Fatal(err)
		}
		must(t, h, "mesh-host enrol "+token)
		live(t, f, h)
		undeclare(t, f, h, "life")
		applied(t, f, h)
		untouched(t, h)
	})
}

// Shows: M31, M32
func TestANodeThatIsLostIsRefusedWithinAMomentAndGoesOnWithItsLastDeclaration(t *testing.T) {
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		ctx := lab.TestContext(t)
		live(t, f, h)
		if _, err := f.Meshctl(ctx, "node", "revoke", h.Name()); err != nil {
			t.Fatal(err)
		}
		revoked := time.Now()
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := lab.WaitFor(short, "the link to be closed", func(ctx context.Context) (bool, string, error) {
			out, err := h.Run(ctx, "mesh-host", "status")
			return err == nil && strings.Contains(out.Stdout, "state:    disconnected"), out.Stdout, nil
		}); err != nil {
			t.Error(err)
		}
		t.Logf("the link was seen closed %s after the answer", time.Since(revoked).Round(10*time.Millisecond))
		row, err := f.AwaitNode(ctx, h.Name(), "to be revoked", func(n control.NodeView) bool { return n.State == mesh.NodeRevoked })
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(row.Note, "may still be running "+row.Held.String()) {
			t.Errorf("the row does not say what the machine may still be doing: %+v", row)
		}
		must(t, h, "echo edited > /etc/fx-life; systemctl restart mesh-host")
		eventually(t, "the last declaration to be kept, and the key to be refused", func(ctx context.Context) (bool, string, error) {
			out, err := h.Sh(ctx, "cat /etc/fx-life; mesh-host status")
			return err == nil && strings.HasPrefix(out.Stdout, "made\n") && strings.Contains(out.Stdout, "was revoked"), out.Stdout, nil
		})

		// It is found again, and takes its own place with another key.
		must(t, h, "systemctl stop mesh-host; rm -rf /var/lib/mesh-host/identity; printf 'drift_interval: 10s\\n' > /etc/mesh/host.yaml; systemctl start mesh-host")
		token, _, err := f.Token(ctx, "--replaces", h.Name())
		if err != nil {
			t.Fatal(err)
		}
		must(t, h, "mesh-host enrol "+token)
		applied(t, f, h)
		undeclare(t, f, h, "life")
		applied(t, f, h)
		untouched(t, h)
	})
}

// Shows: M7, M29
func TestAControlPlaneThatIsRestoredPushesNothingToANodeThatKnowsMoreUntilItIsConfirmed(t *testing.T) {
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "restore", "  - file: /etc/fx-restore\n    content: \"older\\n\"\n")
		applied(t, f, h)
	})
	f := theMesh(t)
	ctx := lab.TestContext(t)
	must(t, f.Control, "rm -f /root/mesh.tar; mesh-control backup /root/mesh.tar")
	if got := must(t, f.Control, "stat -c '%a %U' /root/mesh.tar; find /var/lib/mesh-control -user root | wc -l"); got != "600 root\n0" {
		t.Errorf("the mode of the backup, and files of root in the state directory: %s", got)
	}
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "restore", "  - file: /etc/fx-restore\n    content: \"newer\\n\"\n")
		applied(t, f, h)
	})
	must(t, f.Control, "systemctl stop mesh-control; mesh-control restore --aside /root/mesh.tar; systemctl start mesh-control")
	onEachMortal(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		row, err := f.AwaitNode(ctx, h.Name(), "to be back with more than is known", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled && n.Ahead })
		if err != nil {
			t.Fatal(err)
		}
		if row.Held <= row.Declared || row.Outstanding.Undelivered != 1 {
			t.Errorf("the row is %+v", row)
		}
		declare(t, f, h, "restore", "  - file: /etc/fx-restore\n    content: \"after\\n\"\n")
		must(t, h, "mesh-host reconcile >/dev/null || true")
		wantContent(t, h, "/etc/fx-restore", "newer\n")
		if out := must(t, f.Control, "mesh-control recover"); !strings.Contains(out, h.Name()) {
			t.Errorf("the node is not among those to confirm:\n%s", out)
		}
		must(t, f.Control, "mesh-control recover "+h.Name())
		applied(t, f, h)
		wantContent(t, h, "/etc/fx-restore", "after\n")
		undeclare(t, f, h, "restore")
		applied(t, f, h)
		wantContent(t, h, "/etc/fx-restore", "(nothing is there)")
	})
	for _, name := range nodes {
		connected(t, f, f.Lab.Host(name))
	}
}
