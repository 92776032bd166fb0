package lab_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// result waits until the control plane holds a result of a resource of the node
// that the judge accepts, and returns it.
func result(t *testing.T, f *fleet.Fleet, h *lab.Host, id mesh.ResourceID, what string, judge func(mesh.Result) bool) mesh.Result {
	t.Helper()
	var found mesh.Result
	eventually(t, string(id)+" on "+h.Name()+" to be "+what, func(ctx context.Context) (bool, string, error) {
		d, err := f.Node(ctx, h.Name())
		if err != nil {
			return false, err.Error(), nil
		}
		i := slices.IndexFunc(d.Results, func(r mesh.Result) bool { return r.Resource == id })
		if i < 0 {
			return false, "nothing is known of it", nil
		}
		found = d.Results[i]
		return judge(found), fmt.Sprintf("%s (%s) %s", found.Status, found.Reason, found.Detail), nil
	})
	return found
}

// drifted waits for a drift of a resource that was told with these words.
func drifted(t *testing.T, f *fleet.Fleet, h *lab.Host, id mesh.ResourceID, words ...string) {
	t.Helper()
	eventually(t, "a drift of "+string(id)+" to be told", func(ctx context.Context) (bool, string, error) {
		d, err := f.Node(ctx, h.Name())
		if err != nil {
			return false, err.Error(), nil
		}
		var seen []string
		for _, e := range d.Events {
			if e.Kind != mesh.EventDrift || e.Resource != id {
				continue
			}
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Detail, w) }) {
				return true, "", nil
			}
			seen = append(seen, e.Detail)
		}
		return false, fmt.Sprintf("%q", seen), nil
	})
}

// noted judges that what the host said of a change holds these words.
func noted(t *testing.T, h *lab.Host, id mesh.ResourceID, words string) {
	t.Helper()
	said := must(t, h, "journalctl -u mesh-host -o cat | grep 'resource changed' | grep -F '"+string(id)+"' || true")
	if !strings.Contains(said, words) {
		t.Errorf("of the change of %s it is said %q; want %q in it", id, said, words)
	}
}

// unit is a service that notes its starts and reloads in /run/fx-log, and that
// refuses to start with a configuration that says so.
const unit = `
  - file: /etc/systemd/system/fx-unit.service
    content: |
      [Service]
      ExecStartPre=/bin/sh -c 'if grep -q broken /etc/fx-a; then echo fx refuses its configuration; exit 1; fi; echo start >>/run/fx-log'
      ExecStart=/bin/sh -c 'grep -q dies /etc/fx-a && { sleep 0.5; exit 7; }; exec sleep infinity'
      ExecReload=/bin/sh -c 'echo reload >>/run/fx-log'
    on_change: {restart: [fx-unit.service]}
`

func unitWith(a, action string) string {
	text := unit
	for _, name := range []string{"a", "b", "c"} {
		content := "1"
		if name == "a" {
			content = a
		}
		text += fmt.Sprintf("  - file: /etc/fx-%s\n    content: %q\n    on_change: {%s: [fx-unit.service]}\n", name, content, action)
	}
	return text
}

// Shows: M4
func TestUnitsAreReloadedAndRestartedOnceAndWhatDoesNotComeBackIsSaid(t *testing.T) {
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "units", unitWith("1", "restart"))
		applied(t, f, h)
		if log := must(t, h, "cat /run/fx-log"); log != "start" {
			t.Errorf("four files asked for a restart, and the unit saw %q", log)
		}
		if state := must(t, h, "systemctl show -p ActiveState -p NeedDaemonReload fx-unit.service"); !strings.Contains(state, "ActiveState=active") || !strings.Contains(state, "NeedDaemonReload=no") {
			t.Errorf("the unit is %s", state)
		}

		declare(t, f, h, "units", unitWith("2", "reload"))
		applied(t, f, h)
		if log := must(t, h, "cat /run/fx-log"); log != "start\nreload" {
			t.Errorf("one file asked for a reload, and the unit saw %q", log)
		}

		declare(t, f, h, "units", unitWith("broken", "restart"))
		bad := failed(t, f, h, "file:/etc/fx-a")
		if bad.Status != mesh.StatusFailed || bad.Reason != mesh.ReasonUnit {
			t.Errorf("a unit that does not come back is %s (%s): %s", bad.Status, bad.Reason, bad.Detail)
		}
		r := result(t, f, h, "file:/etc/fx-a", "failed", func(r mesh.Result) bool { return r.Status == mesh.StatusFailed })
		if !strings.Contains(r.Output, "fx refuses its configuration") {
			t.Errorf("the last lines of its journal are not told: %q", r.Output)
		}
		wantContent(t, h, "/etc/fx-a", "broken")

		declare(t, f, h, "units", unitWith("3", "restart"))
		applied(t, f, h)
		if state := must(t, h, "systemctl is-active fx-unit.service"); state != "active" {
			t.Errorf("with a good configuration the unit is %s", state)
		}

		// It dies a moment after its restart.
		declare(t, f, h, "units", unitWith("dies", "restart"))
		unitFailed := func(words string) func(mesh.Result) bool {
			return func(r mesh.Result) bool {
				return r.Status == mesh.StatusFailed && r.Reason == mesh.ReasonUnit && strings.Contains(r.Detail, words)
			}
		}
		result(t, f, h, "file:/etc/fx-a", "failed by a unit that dies", unitFailed("status 7"))
		// The declaration names a unit that there is not, and is corrected.
		declare(t, f, h, "units", strings.ReplaceAll(unitWith("4", "restart"), "{restart: [fx-unit.service]}\n  - file: /etc/fx-b", "{restart: [fx-nuit.service]}\n  - file: /etc/fx-b"))
		result(t, f, h, "file:/etc/fx-a", "failed by a unit that is not there", unitFailed("no unit fx-nuit.service"))
		declare(t, f, h, "units", unitWith("4", "restart"))
		applied(t, f, h)
		if state := must(t, h, "systemctl is-active fx-unit.service"); state != "active" {
			t.Errorf("with the right unit named it is %s", state)
		}
		// An admin stopped it: a reload does not start it.
		must(t, h, "systemctl stop fx-unit.service")
		declare(t, f, h, "units", unitWith("5", "reload"))
		applied(t, f, h)
		if state := must(t, h, "systemctl is-active fx-unit.service || true"); state != "inactive" {
			t.Errorf("a unit that was stopped on purpose is %s after a reload", state)
		}
		if r := result(t, f, h, "file:/etc/fx-a", "changed", func(r mesh.Result) bool { return r.Status.Good() }); !strings.Contains(r.Detail, "does not run") {
			t.Errorf("that it was not reloaded is not said: %s %q", r.Status, r.Detail)
		}
		undeclare(t, f, h, "units")
		applied(t, f, h)
		must(t, h, "systemctl stop fx-unit.service || true; rm -f /run/fx-log")
		if state := must(t, h, "systemctl show -p LoadState --value fx-unit.service"); state != "not-found" {
			t.Errorf("after its file went the unit is %s", state)
		}
	})
}

func withConffile(name, version, content string) packaging.SimplePackage {
	p := simple(name, version)
	p.Files = append(p.Files, packaging.SimpleFile{Path: "/etc/" + name + ".conf", Content: []byte(content), Config: true})
	return p
}

// installByHand puts a package onto a host past the mesh, as an admin or a
// nightly job does.
func installByHand(t *testing.T, h *lab.Host, p packaging.SimplePackage) {
	t.Helper()
	if err := fleet.InstallByHand(lab.TestContext(t), h, p); err != nil {
		t.Fatal(err)
	}
}

// upgradeByHand upgrades a package past the mesh, keeping what was edited.
func upgradeByHand(t *testing.T, h *lab.Host, p packaging.SimplePackage) {
	t.Helper()
	kind, command := packaging.Deb, "dpkg -i --force-confold"
	if h.Flavour().RPM() {
		kind, command = packaging.RPM, "rpm -U --nosignature"
	}
	data, err := packaging.BuildSimple(p, kind)
	if err != nil {
		t.Fatal(err)
	}
	path := "/root/upgrade-" + p.Name
	if err := h.WriteFile(lab.TestContext(t), path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, h, command+" "+path)
}

// Shows: M2, M6
func TestFilesThatPackagesAlsoClaimOnRealPackageManagers(t *testing.T) {
	publish(t, theMesh(t), withConffile("fx-back", "1.0", "P\n"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		t.Run("O-050", func(t *testing.T) {
			installByHand(t, h, withConffile("fx-own", "1.0", "P\n"))
			declare(t, f, h, "own", "  - file: /etc/fx-own.conf\n    content: \"A\\n\"\n")
			applied(t, f, h)
			noted(t, h, "file:/etc/fx-own.conf", "package fx-own")
			wantContent(t, h, "/etc/fx-own.conf", "A\n")
			undeclare(t, f, h, "own")
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-own.conf", "P\n")
		})
		t.Run("O-051", func(t *testing.T) {
			if h.Flavour().RPM() {
				return // rpm brings a deleted configuration file back
			}
			installByHand(t, h, withConffile("fx-back", "1.0", "P\n"))
			must(t, h, "rm /etc/fx-back.conf; dpkg --remove fx-back")
			declare(t, f, h, "back", "  - package: fx-back\n")
			applied(t, f, h)
			wantVersion(t, h, "fx-back", "1.0-1")
			wantContent(t, h, "/etc/fx-back.conf", "(nothing is there)")
			noted(t, h, "package:fx-back", "/etc/fx-back.conf")
			undeclare(t, f, h, "back")
			applied(t, f, h)
		})
		t.Run("O-052", func(t *testing.T) {
			installByHand(t, h, withConffile("fx-again", "1.0", "P\n"))
			declare(t, f, h, "again", "  - file: /etc/fx-again.conf\n    absent: true\n")
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-again.conf", "(nothing is there)")
			p := withConffile("fx-again", "2.0", "P2\n")
			p.Scripts.PostInstall = "#!/bin/sh\necho P2 >/etc/fx-again.conf\n"
			upgradeByHand(t, h, p)
			drifted(t, f, h, "file:/etc/fx-again.conf", "had appeared", "package fx-again")
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-again.conf", "(nothing is there)")
			undeclare(t, f, h, "again")
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-again.conf", "P\n")
		})
		t.Run("O-053", func(t *testing.T) {
			installByHand(t, h, withConffile("fx-moved", "1.0", "P\n"))
			declare(t, f, h, "moved", "  - file: /etc/fx-moved.conf\n    content: \"A\\n\"\n  - package: fx-moved\n")
			applied(t, f, h)
			p := withConffile("fx-moved", "2.0", "the new default\n")
			// What an upgrade does that does not ask: the edited one is moved aside.
			p.Scripts.PostInstall = "#!/bin/sh\nmv /etc/fx-moved.conf /etc/fx-moved.conf.aside\necho the new default >/etc/fx-moved.conf\n"
			upgradeByHand(t, h, p)
			drifted(t, f, h, "file:/etc/fx-moved.conf", "had been changed")
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-moved.conf", "A\n")
			wantContent(t, h, "/etc/fx-moved.conf.aside", "A\n")
			undeclare(t, f, h, "moved")
			applied(t, f, h)
		})
	})
}

func mainPID(t *testing.T, h *lab.Host) string {
	t.Helper()
	return must(t, h, "systemctl show -p MainPID --value mesh-host")
}

// sound judges that the package database has nothing half done in it.
func sound(t *testing.T, h *lab.Host) {
	t.Helper()
	check := "dpkg --audit"
	if h.Flavour().RPM() {
		check = "rpm --verifydb"
	}
	if out := must(t, h, check); out != "" {
		t.Errorf("%s says %s", check, out)
	}
}

// Shows: M5, M13
func TestTheHostIsStoppedAndStartedInTheMiddleOfItsWork(t *testing.T) {
	restarts := simple("fx-restarts", "1.0")
	restarts.Scripts.PostInstall = "#!/bin/sh\nsystemctl restart mesh-host\n"
	greedy := simple("fx-greedy", "1.0")
	greedy.Scripts.PostInstall = "#!/bin/sh\ndd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null || exit 1\n"
	killed := simple("fx-killed", "1.0")
	killed.Scripts.PostInstall = "#!/bin/sh\ntest -e /run/fx-spared || kill -9 $PPID\n"
	for _, p := range []packaging.SimplePackage{restarts, greedy, killed, slowToConfigure("fx-stop"), slowToConfigure("fx-early")} {
		publish(t, theMesh(t), p)
	}
	for _, name := range []string{"apt-1", "dnf-1"} {
		t.Run(meshHosts[name], func(t *testing.T) {
			t.Parallel()
			f := theMesh(t)
			h := f.Lab.Host(name)
			t.Run("O-139", func(t *testing.T) {
				before := mainPID(t, h)
				declare(t, f, h, "restarts", "  - package: fx-restarts\n")
				applied(t, f, h)
				wantVersion(t, h, "fx-restarts", "1.0-1")
				sound(t, h)
				if now := mainPID(t, h); now == before || now == "0" {
					t.Errorf("the host has process %s, and before it had %s", now, before)
				}
				undeclare(t, f, h, "restarts")
				applied(t, f, h)
			})
			t.Run("O-140", func(t *testing.T) {
				declare(t, f, h, "stop", "  - package: fx-stop\n")
				awaitBegun(t, h, "fx-stop")
				began := time.Now()
				must(t, h, "systemctl restart mesh-host")
				if took := time.Since(began); took > time.Minute {
					t.Errorf("the restart took %v", took)
				}
				applied(t, f, h)
				wantVersion(t, h, "fx-stop", "1.0-1")
				sound(t, h)
				undeclare(t, f, h, "stop")
				applied(t, f, h)
			})
			t.Run("O-150", func(t *testing.T) {
				declare(t, f, h, "early", "  - package: fx-early\n  - package: fx-greedy\n    requires: [package:fx-early]\n")
				awaitBegun(t, h, "fx-early")
				for range 2 {
					must(t, h, "systemctl restart mesh-host")
				}
				applied(t, f, h)
				wantVersion(t, h, "fx-greedy", "1.0-1")
				if out := must(t, h, "journalctl -u mesh-host -o cat --since -5min | grep -c 'reason=locked' || true"); out != "0" {
					t.Errorf("the host met its own lock %s times", out)
				}
				undeclare(t, f, h, "early")
				applied(t, f, h)
			})
			t.Run("O-142", func(t *testing.T) {
				must(t, h, "systemctl set-property --runtime mesh-host.service MemoryMax=120M")
				before := mainPID(t, h)
				declare(t, f, h, "memory", "  - package: fx-greedy\n")
				applied(t, f, h)
				wantVersion(t, h, "fx-greedy", "1.0-1")
				undeclare(t, f, h, "memory")
				applied(t, f, h)
				if !h.Flavour().RPM() {
					declare(t, f, h, "memory", "  - package: fx-killed\n")
					bad := failed(t, f, h, "package:fx-killed")
					if bad.Status != mesh.StatusFailed || bad.Reason == mesh.ReasonInternal {
						t.Errorf("a package manager that was killed is %s (%s): %s", bad.Status, bad.Reason, bad.Detail)
					}
					must(t, h, "touch /run/fx-spared")
					applied(t, f, h)
					wantVersion(t, h, "fx-killed", "1.0-1")
					sound(t, h)
					undeclare(t, f, h, "memory")
					applied(t, f, h)
				}
				if now := mainPID(t, h); now != before {
					t.Errorf("the host itself was lost: process %s, and before %s", now, before)
				}
				must(t, h, "systemctl set-property --runtime mesh-host.service MemoryMax=infinity")
			})
			t.Run("O-155", func(t *testing.T) {
				declare(t, f, h, "named", "  - file: /etc/fx-named\n    content: \"A\\n\"\n")
				applied(t, f, h)
				stamp := must(t, h, "stat -c '%i %Z' /etc/fx-named")
				old := must(t, h, "hostname")
				must(t, h, "hostname somebody-else; systemctl restart mesh-host")
				applied(t, f, h)
				if now := must(t, h, "stat -c '%i %Z' /etc/fx-named"); now != stamp {
					t.Errorf("under another name of the machine the file was written again: %s, and before %s", now, stamp)
				}
				rows, err := f.Nodes(lab.TestContext(t))
				if err != nil {
					t.Fatal(err)
				}
				_, same := rows[name]
				if _, other := rows["somebody-else"]; other || !same {
					t.Errorf("the nodes are %v", rows)
				}
				must(t, h, "hostname "+old)
				undeclare(t, f, h, "named")
				applied(t, f, h)
			})
		})
	}
}
