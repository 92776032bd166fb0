package lab_test

import (
	"context"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// reconfigure adds a line to the control plane's configuration and restarts it.
// The returned function takes the line away again.
func reconfigure(t *testing.T, f *fleet.Fleet, line string) (restore func()) {
	t.Helper()
	restart := func(change string) {
		must(t, f.Control, change+"; systemctl restart mesh-control")
		for _, name := range nodes {
			applied(t, f, f.Lab.Host(name))
		}
	}
	restart("cp -p /etc/mesh/control.yaml /etc/mesh/control.yaml.before; echo '" + line + "' >> /etc/mesh/control.yaml")
	return func() { restart("mv /etc/mesh/control.yaml.before /etc/mesh/control.yaml") }
}

// refresh has the package manager read the mesh's repository anew. It fails when
// it cannot.
func refresh(h *lab.Host) string {
	if h.Flavour().RPM() {
		return "dnf --disablerepo='*' --enablerepo=mesh --refresh makecache"
	}
	return "apt-get update -o Dir::Etc::sourcelist=sources.list.d/mesh.sources -o Dir::Etc::sourceparts=- -o APT::Update::Error-Mode=any"
}

// Shows: M31
func TestARepositoryForNodesIsReadByEachWithItsOwnCredentialUntilItIsRevoked(t *testing.T) {
	f := theMesh(t)
	ctx := lab.TestContext(t)
	defer reconfigure(t, f, "repository_readers: nodes")()

	// A machine that is not a node yet installs with what stands beside its token.
	flavours := map[string]string{"grant-apt": "bookworm-apt", "grant-dnf": "trixie-dnf"}
	adopted := make(chan error, len(flavours))
	for name, flavour := range flavours {
		go func() {
			h, err := f.Lab.Ensure(ctx, name, flavour)
			if err == nil {
				err = f.Adopt(ctx, h)
			}
			adopted <- err
		}()
	}
	for range flavours {
		if err := <-adopted; err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{"grant-apt": "/etc/apt/auth.conf.d/mesh.conf", "grant-dnf": "/etc/dnf/vars/mesh_reader"}
	for name := range flavours {
		h := f.Lab.Host(name)
		applied(t, f, h)
		if own := content(t, h, files[name]); !strings.Contains(own, name) || strings.Contains(own, "token-") {
			t.Errorf("the credential of %s is not its own: %q", name, own)
		}
		if mode := must(t, h, "stat -c '%U %a' "+files[name]); mode != "root 600" {
			t.Errorf("the credential of %s is readable to others: %s", name, mode)
		}
	}
	// Those who were nodes before can read too, dnf5 and an old apt among them.
	for _, name := range append([]string{"grant-apt", "grant-dnf"}, nodes...) {
		must(t, f.Lab.Host(name), refresh(f.Lab.Host(name)))
	}
	if out := must(t, f.Control, "curl -s -o /dev/null -w '%{http_code}' http://localhost:7080/dists/stable/InRelease || true"); out != "401" {
		t.Errorf("without a credential the repository answers %q, want 401", out)
	}

	for name := range flavours {
		if _, err := f.Meshctl(ctx, "node", "revoke", name); err != nil {
			t.Fatal(err)
		}
		h := f.Lab.Host(name)
		if out, err := h.Sh(ctx, "rm -rf /var/cache/dnf /var/cache/libdnf5 /var/lib/apt/lists/*; "+refresh(h)); err == nil || !strings.Contains(out.Stdout+out.Stderr, "401") {
			t.Errorf("a moment after it was revoked %s reads the repository: %v\n%s\n%s", name, err, out.Stdout, out.Stderr)
		}
	}
	must(t, f.Lab.Host("dnf-1"), refresh(f.Lab.Host("dnf-1")))
}

// canary stands for content that must not be seen.
const canary = "canary-2f7b1c9e40d8"

func TestSensitiveContentIsNowhereButInItsFileAndTheStores(t *testing.T) {
	f := theMesh(t)
	ctx := lab.TestContext(t)
	h := f.Lab.Host("apt-1")
	long := strings.Repeat(canary+"\n", 8000) // travels as a blob
	if err := f.Control.WriteFile(ctx, "/root/canary-long", []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file as it should be, one that fails, one that was there before and one
	// that somebody edits: every way in which a host has something to say.
	must(t, h, "echo before > /etc/fx-canary-there")
	resources := `
  - {file: /etc/fx-canary, content: "` + canary + `\n", sensitive: true, mode: "0600"}
  - {file: /etc/fx-canary-long, source: /root/canary-long, sensitive: true}
  - {file: /etc/fx-canary-there, content: "` + canary + ` there\n", sensitive: true}
  - {file: /etc/fx-canary-for, content: "` + canary + ` ${node.name}\n", template: true, sensitive: true}
  - {file: /nowhere/fx-canary, content: "` + canary + `\n", sensitive: true}
  - {file: /etc/fx-canary-who, content: "` + canary + `\n", sensitive: true, owner: nobody-has-this-name}
`
	declare(t, f, h, "canary", resources)
	if _, err := f.AwaitNode(ctx, h.Name(), "to have failed two", func(n control.NodeView) bool { return len(n.Failed) == 2 }); err != nil {
		t.Fatal(err)
	}
	wantContent(t, h, "/etc/fx-canary", canary+"\n")
	wantContent(t, h, "/etc/fx-canary-long", long)
	wantContent(t, h, "/etc/fx-canary-for", canary+" apt-1\n")
	must(t, h, "echo "+canary+"-edited >> /etc/fx-canary")
	eventually(t, "the edit to be known", func(ctx context.Context) (bool, string, error) {
		d, err := f.Node(ctx, h.Name())
		if err != nil {
			return false, err.Error(), nil
		}
		for _, e := range d.Events {
			if e.Kind == mesh.EventDrift && e.Resource == "file:/etc/fx-canary" {
				return true, "", nil
			}
		}
		return false, "no drift", nil
	})
	// And two writes that are refused.
	if out, err := f.Declare(ctx, strings.Replace(only("canary", h, resources), "sensitive: true, mode: \"0600\"", "sensitive: true, mode: wrong", 1)); err == nil || strings.Contains(out, canary) {
		t.Errorf("a document with a fault was taken, or its content shown: %v\n%s", err, out)
	}
	if out, err := f.Declare(ctx, "declaration: canary-two\nselect: name == \"apt-1\"\nresources:\n  - {file: /etc/fx-canary, content: \""+canary+" two\\n\", sensitive: true}\n"); err == nil || strings.Contains(out, canary) {
		t.Errorf("a contradiction was taken, or its content shown: %v\n%s", err, out)
	}

	name := declName("canary", h)
	seen := map[string]string{}
	for what, script := range map[string]string{
		"the control plane's log": "journalctl --no-pager -o export",
		"every listing":           "for o in text json; do meshctl nodes -o $o; meshctl node show apt-1 -o $o; meshctl declaration list -o $o; meshctl declaration show " + name + " -o $o; meshctl audit --limit 1000 -o $o; meshctl operator list -o $o; meshctl packages list -o $o; done; meshctl declare --wait 5s $(ls -t /root/declare-*.yaml | sed -n 3p) 2>&1 || true",
		"the raw API":             "for p in nodes nodes/apt-1 declarations declarations/" + name + " declarations/" + name + "/progress 'audit?limit=10000'; do curl -s --unix-socket /run/mesh-control/api.sock \"http://x/v1/$p\"; done",
	} {
		out, err := f.Control.Sh(ctx, script)
		if err != nil {
			t.Fatalf("look at %s: %v\n%s", what, err, out.Stderr)
		}
		seen[what] = out.Stdout + out.Stderr
	}
	out, err := h.Sh(ctx, "journalctl --no-pager -o export; mesh-host status; mesh-host status -o json; cat /proc/$(systemctl show -p MainPID --value mesh-host)/cmdline; ls -R /run/mesh-host /tmp /var/tmp")
	if err != nil {
		t.Fatal(err)
	}
	seen["the node's log and status"] = out.Stdout + out.Stderr
	for what, text := range seen {
		if len(text) < 200 || !strings.Contains(text, "canary-apt-1") && !strings.Contains(text, "fx-canary") {
			t.Errorf("%s does not speak of the file at all: the test looked in the wrong place (%d bytes)", what, len(text))
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, canary) && !strings.Contains(line, "journalctl") {
				t.Errorf("%s holds the content:\n%s", what, line)
			}
		}
	}
	undeclare(t, f, h, "canary")
	applied(t, f, h)
	wantContent(t, h, "/etc/fx-canary-there", "before\n")
}

func TestTheControlPlaneRunsConfined(t *testing.T) {
	f := theMesh(t)
	out := must(t, f.Control, "systemd-analyze security --threshold=20 --no-pager mesh-control.service && echo within")
	if !strings.HasSuffix(out, "within") {
		t.Errorf("the exposure of the running service is above 2.0:\n%s", out)
	}
	status := must(t, f.Control, "cat /proc/$(systemctl show -p MainPID --value mesh-control)/status")
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process lacks %q:\n%s", want, status)
		}
	}
	// What the mount namespace of the process lets it do, whatever its user may.
	enter := "nsenter -t $(systemctl show -p MainPID --value mesh-control) -m -- "
	for _, path := range []string{"/etc", "/usr", "/var/lib", "/root", "/boot"} {
		if out, err := f.Control.Sh(lab.TestContext(t), enter+"touch "+path+"/fx-confined"); err == nil {
			t.Errorf("the service could write to %s: %s", path, out.Stdout)
		}
	}
	if got := must(t, f.Control, "ps -o user= -p $(systemctl show -p MainPID --value mesh-control)"); !strings.HasPrefix("mesh-control", strings.TrimSuffix(got, "+")) {
		t.Errorf("the service runs as %q", got)
	}
	must(t, f.Control, enter+"touch /var/lib/mesh-control/fx-confined && rm /var/lib/mesh-control/fx-confined")
	if got := must(t, f.Control, "find /var/lib/mesh-control/keys -type f -perm /077; stat -c %a /var/lib/mesh-control"); got != "700" {
		t.Errorf("keys that others may read, or a state directory that is open: %s", got)
	}
}
