package lab_test

import (
	"context"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// Shows: M27
func TestTheFirstNodeIsRaisedFromABundleAndEnrolsWithATokenLikeAnyOther(t *testing.T) {
	f := theMesh(t)
	ctx := lab.TestContext(t)
	applied(t, f, f.Control)
	d, err := f.Node(ctx, controlHost)
	if err != nil {
		t.Fatal(err)
	}
	want := map[mesh.ResourceID]bool{"package:mesh-host": true, "package:mesh-control": true, "package:meshctl": true}
	for _, r := range d.Results {
		if r.Status.Good() {
			delete(want, r.Resource)
		}
	}
	if len(want) > 0 {
		t.Errorf("the bundle's packages are not among what the first node reports as right: %v are missing in %+v", want, d.Results)
	}
	out, err := f.Meshctl(ctx, "declaration", "show", "bootstrap")
	if err != nil || !strings.Contains(out, "mesh-control") {
		t.Errorf("the bundle's declaration was not taken over as bootstrap: %v\n%s", err, out)
	}
	must(t, f.Control, "systemctl is-active mesh-control.service mesh-host.service")
}

// Shows: M11, M12, M22, M23, M25
func TestTwoPrintedCommandsAdoptAMachineFromTheMeshsOwnSignedRepository(t *testing.T) {
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		wantVersion(t, h, "mesh-host", fleet.Version+"-1")
		if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to be connected", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled }); err != nil {
			t.Fatal(err)
		}
		d, err := f.Node(lab.TestContext(t), h.Name())
		if err != nil {
			t.Fatal(err)
		}
		if d.State != mesh.NodeEnrolled || !d.Eligible {
			t.Errorf("the node is %s, eligible %v: %+v", d.State, d.Eligible, d.Briefing)
		}
		family := "debian"
		if h.Flavour().RPM() {
			family = "rpm"
		}
		if d.Profile.OS.Family != family || d.Profile.Systemd < 247 || !d.Profile.DBus || len(d.Briefing.Lines) < 8 {
			t.Errorf("profile or briefing is not that of this machine: %+v %+v", d.Profile, d.Briefing)
		}
		if out := must(t, h, "mesh-host status"); !strings.Contains(out, "enrolled") {
			t.Errorf("the machine itself says:\n%s", out)
		}
	})
}

// Shows: M11
func TestAMachineWithAnotherKeyInstallsNothingFromTheRepository(t *testing.T) {
	f := theMesh(t)
	l, ctx := lab.Shared(t), lab.TestContext(t)
	// The machines trust a key that somebody else made.
	keys, err := openpgp.Open(t.TempDir(), openpgp.Options{Identity: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := keys.PublicArmored()
	if err != nil {
		t.Fatal(err)
	}
	for name, flavour := range map[string]string{"nokey-apt": "bookworm-apt", "nokey-dnf": "trixie-dnf"} {
		h, err := l.Ensure(ctx, name, flavour)
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := f.Token(ctx)
		if err != nil {
			t.Fatal(err)
		}
		script, err := fleet.Commands(text, h.Flavour().RPM())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.WriteFile(ctx, "/root/stranger.asc", stranger, 0o644); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(script) {
			switch {
			case strings.Contains(line, "apt-helper"):
				line = "cp /root/stranger.asc /etc/apt/keyrings/mesh.asc\n"
			case strings.HasPrefix(line, "curl"):
				line = "cp /root/stranger.asc /etc/pki/rpm-gpg/RPM-GPG-KEY-mesh\n"
			case strings.Contains(line, "sha256sum"):
				line = "rpm --import /etc/pki/rpm-gpg/RPM-GPG-KEY-mesh\n"
			case strings.HasPrefix(line, "mesh-host"):
				line = ""
			}
			lines = append(lines, line)
		}
		if out, err := h.Sh(ctx, strings.Join(lines, "")); err == nil {
			t.Errorf("%s installed from a repository whose key it does not trust:\n%s\n%s", flavour, out.Stdout, out.Stderr)
		}
		wantVersion(t, h, "mesh-host", "")
	}
}

// Shows: M24
func TestATokenWorksOnceAndOnlyForTheControlPlaneThatItNames(t *testing.T) {
	f := theMesh(t)
	l, ctx := lab.Shared(t), lab.TestContext(t)
	h, err := l.Ensure(ctx, "join-1", "bookworm-apt")
	if err != nil {
		t.Fatal(err)
	}
	token, text, err := f.Token(ctx, "--name", "join-1")
	if err != nil {
		t.Fatal(err)
	}
	script, err := fleet.Commands(text, false)
	if err != nil {
		t.Fatal(err)
	}
	install, _, _ := strings.Cut(script, "mesh-host enrol")
	must(t, h, install)

	parsed, err := mesh.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	forged := parsed
	forged.Fingerprint[0] ^= 0xff
	if out, err := h.Run(ctx, "mesh-host", "enrol", forged.String()); err == nil || !strings.Contains(out.Stderr, "token") {
		t.Errorf("a control plane with another key than the token pins was talked to: %v\n%s", err, out.Stderr)
	}
	if out, err := h.Run(ctx, "mesh-host", "enrol", token[:len(token)-3]); err == nil || !strings.Contains(out.Stderr, "damaged") {
		t.Errorf("a token that was cut is not called damaged: %v\n%s", err, out.Stderr)
	}
	if out := must(t, h, "mesh-host status"); !strings.Contains(out, "hosted") {
		t.Errorf("a machine that was refused is not hosted:\n%s", out)
	}
	must(t, h, "mesh-host enrol "+token)
	if _, err := f.AwaitNode(ctx, "join-1", "to be enrolled", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled }); err != nil {
		t.Fatal(err)
	}

	second, err := l.Ensure(ctx, "join-2", "bookworm-apt")
	if err != nil {
		t.Fatal(err)
	}
	must(t, second, install)
	if out, err := second.Run(ctx, "mesh-host", "enrol", token); err == nil {
		t.Errorf("a second machine was enrolled with a token that was used:\n%s", out.Stdout)
	}
	nodes, err := f.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := nodes["join-2"]; there {
		t.Error("a machine that was refused is listed as a node")
	}
	secret := parsed.SecretText()
	if out := must(t, f.Control, "grep -c -a -e "+secret+" -e "+token+" /var/lib/mesh-control/control.db* || true"); strings.Contains(out, ":1") {
		t.Errorf("the control plane stores the token or its secret, not only a hash:\n%s", out)
	}
	if _, err := f.Meshctl(ctx, "node", "revoke", "join-1"); err != nil {
		t.Fatalf("revoke: %v", err)
	}
	eventually(t, "the revoked node to be gone from the link", func(ctx context.Context) (bool, string, error) {
		out, err := h.Run(ctx, "mesh-host", "status")
		return err == nil && strings.Contains(out.Stdout, "disconnected"), out.Stdout, nil
	})
}
