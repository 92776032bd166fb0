package lab_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// Shows: M1, M4, M6, M8
func TestADeclarationIsAppliedWhenItIsWrittenAndWhatIsUndeclaredIsPutBack(t *testing.T) {
	publish(t, theMesh(t), simple("fx-new", "1.0"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		ctx := lab.TestContext(t)
		if err := fleet.InstallByHand(ctx, h, simple("fx-there", "3.0")); err != nil {
			t.Fatal(err)
		}
		must(t, h, "printf 'before\\n' > /etc/fx-before; chown daemon:daemon /etc/fx-before; chmod 0640 /etc/fx-before; printf 'mine\\n' > /etc/fx-mine")
		declare(t, f, h, "apply", `
  - package: fx-new
    version: 1.0-1
  - package: fx-there
  - file: /etc/fx-before
    content: "after\n"
    owner: root
    group: root
    mode: "0644"
  - file: /etc/fx-dir
    type: directory
    mode: "0750"
  - file: /etc/fx-dir/link
    type: symlink
    target: /etc/fx-before
    requires: ["file:/etc/fx-dir"]
`)
		applied(t, f, h)
		wantVersion(t, h, "fx-new", "1.0-1")
		wantContent(t, h, "/etc/fx-before", "after\n")
		if got := must(t, h, "stat -c '%U %G %a' /etc/fx-before; stat -c '%F %a' /etc/fx-dir; readlink /etc/fx-dir/link"); got != "root root 644\ndirectory 750\n/etc/fx-before" {
			t.Errorf("owner, mode, directory and link are:\n%s", got)
		}
		if out := must(t, h, "mesh-host status -o json"); !strings.Contains(out, `"last_pass_trigger": "declared"`) && !strings.Contains(out, `"last_pass_trigger": "drift"`) {
			t.Errorf("the pass was not made because a declaration came:\n%s", out)
		}

		undeclare(t, f, h, "apply")
		applied(t, f, h)
		wantVersion(t, h, "fx-new", "")
		wantVersion(t, h, "fx-there", "3.0-1")
		wantContent(t, h, "/etc/fx-before", "before\n")
		wantContent(t, h, "/etc/fx-mine", "mine\n")
		if got := must(t, h, "stat -c '%U %G %a' /etc/fx-before; test ! -e /etc/fx-dir && echo gone"); got != "daemon daemon 640\ngone" {
			t.Errorf("what was there before is not back as it was: %s", got)
		}
	})
}

// Shows: M1
func TestADeclarationArrivesOnTheOpenLinkWithinAMoment(t *testing.T) {
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		applied(t, f, h)
		declare(t, f, h, "moment", "  - file: /etc/fx-moment\n    content: \"now\\n\"\n")
		// Shorter than the drift interval (10 s), so that no timer can have done it.
		ctx, cancel := context.WithTimeout(lab.TestContext(t), 8*time.Second)
		defer cancel()
		err := lab.WaitFor(ctx, "the file to be there", func(ctx context.Context) (bool, string, error) {
			out, err := h.Run(ctx, "cat", "/etc/fx-moment")
			return err == nil && out.Stdout == "now\n", out.Stdout + out.Stderr, nil
		})
		if err != nil {
			t.Error(err)
		}
		applied(t, f, h)
		if out := must(t, h, "journalctl -u mesh-host -o cat | grep 'pass ended' | grep trigger=declared | tail -n 1"); out == "" {
			t.Error("no pass says that it was made because a declaration came")
		}
		undeclare(t, f, h, "moment")
		applied(t, f, h)
	})
}

// Shows: M2
func TestDriftIsFoundByLookingReportedAndPutRight(t *testing.T) {
	publish(t, theMesh(t), simple("fx-drift", "1.0"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "drift", "  - file: /etc/fx-drift\n    content: \"right\\n\"\n  - package: fx-drift\n")
		applied(t, f, h)
		remove := "dpkg --remove fx-drift"
		if h.Flavour().RPM() {
			remove = "rpm -e fx-drift"
		}
		must(t, h, "echo wrong > /etc/fx-drift; "+remove)
		eventually(t, "both to be put right", func(ctx context.Context) (bool, string, error) {
			out, err := h.Run(ctx, "cat", "/etc/fx-drift")
			if err != nil {
				return false, err.Error(), nil
			}
			version, err := fleet.Installed(ctx, h, "fx-drift")
			return out.Stdout == "right\n" && version == "1.0-1", out.Stdout + version, err
		})
		eventually(t, "both drifts to be known to the control plane", func(ctx context.Context) (bool, string, error) {
			d, err := f.Node(ctx, h.Name())
			if err != nil {
				return false, err.Error(), nil
			}
			seen := map[mesh.ResourceID]bool{}
			for _, e := range d.Events {
				if e.Kind == mesh.EventDrift {
					seen[e.Resource] = true
				}
			}
			return seen["file:/etc/fx-drift"] && seen["package:fx-drift"], fmt.Sprint(seen), nil
		})
		applied(t, f, h)
		undeclare(t, f, h, "drift")
		applied(t, f, h)
	})
}

// Shows: M3, M10
func TestANodeWithNothingToDoIsHeardOfAndSilenceShowsAndNothingExpires(t *testing.T) {
	f := theMesh(t)
	h := f.Lab.Host("apt-1")
	applied(t, f, h)
	ctx := lab.TestContext(t)
	row, err := f.AwaitNode(ctx, h.Name(), "to be listed", func(control.NodeView) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	later, err := f.AwaitNode(ctx, h.Name(), "to be heard of again with nothing to do", func(n control.NodeView) bool { return n.LastContact.After(row.LastContact) })
	if err != nil {
		t.Fatal(err)
	}
	if later.Declared != row.Declared {
		t.Errorf("something was declared meanwhile: %v then %v", row.Declared, later.Declared)
	}
	if err := h.CutOff(ctx); err != nil {
		t.Fatal(err)
	}
	silent, err := f.AwaitNode(ctx, h.Name(), "to be silent", func(n control.NodeView) bool { return n.State == mesh.NodeDisconnected })
	if err != nil {
		t.Fatal(err)
	}
	if len(silent.Failed) > 0 || silent.Outstanding.Undelivered > 0 || silent.Applied != silent.Declared {
		t.Errorf("silence alone changed what is said of the node: %+v", silent)
	}
	if err := h.Reconnect(ctx); err != nil {
		t.Fatal(err)
	}
	applied(t, f, h)
}

// Shows: M9, M32
func TestADisconnectedNodeKeepsItsLastDeclarationAndTheNewOneIsOutstanding(t *testing.T) {
	f := theMesh(t)
	for _, name := range []string{"apt-1", "dnf-1"} {
		t.Run(meshHosts[name], func(t *testing.T) {
			h := f.Lab.Host(name)
			ctx := lab.TestContext(t)
			declare(t, f, h, "cut", "  - file: /etc/fx-cut\n    content: \"one\\n\"\n")
			applied(t, f, h)
			if err := h.CutOff(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := f.AwaitNode(ctx, name, "to be disconnected", func(n control.NodeView) bool { return n.State == mesh.NodeDisconnected }); err != nil {
				t.Fatal(err)
			}
			declare(t, f, h, "cut", "  - file: /etc/fx-cut\n    content: \"two\\n\"\n")
			row, err := f.AwaitNode(ctx, name, "to be outstanding", func(n control.NodeView) bool { return n.Outstanding.Undelivered == 1 })
			if err != nil {
				t.Fatal(err)
			}
			if len(row.Failed) > 0 {
				t.Errorf("what was not delivered is said to have failed: %+v", row)
			}
			must(t, h, "echo edited > /etc/fx-cut")
			eventually(t, "the last declaration to be kept without a link", func(ctx context.Context) (bool, string, error) {
				out, err := h.Run(ctx, "cat", "/etc/fx-cut")
				return out.Stdout == "one\n", out.Stdout, err
			})
			if err := h.Reconnect(ctx); err != nil {
				t.Fatal(err)
			}
			applied(t, f, h)
			wantContent(t, h, "/etc/fx-cut", "two\n")
			undeclare(t, f, h, "cut")
			applied(t, f, h)
		})
	}
}

// Shows: M8, M9
func TestOneThingThatCannotBeDoneIsFailedAndTheRestIsDone(t *testing.T) {
	publish(t, theMesh(t), simple("fx-can", "1.0"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "cannot", "  - package: fx-can\n  - package: fx-cannot\n  - file: /etc/fx-needs\n    content: x\n    requires: [package:fx-can]\n")
		bad := failed(t, f, h, "package:fx-cannot")
		if bad.Status != mesh.StatusFailed || bad.Reason != mesh.ReasonNotAvailable {
			t.Errorf("a package that nobody has is %s (%s): %s", bad.Status, bad.Reason, bad.Detail)
		}
		wantVersion(t, h, "fx-can", "1.0-1")
		wantContent(t, h, "/etc/fx-needs", "x")
		undeclare(t, f, h, "cannot")
		applied(t, f, h)
	})
}

// Shows: M4
func TestAPackageManagerThatSaysSuccessAndDoesNothingIsNotBelieved(t *testing.T) {
	publish(t, theMesh(t), simple("fx-lie", "1.0"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		tool := "/usr/bin/apt-get"
		if h.Flavour().RPM() {
			tool = must(t, h, "readlink -f /usr/bin/dnf")
		}
		must(t, h, "mv "+tool+" "+tool+`.honest; printf '#!/bin/sh\nexit 0\n' > `+tool+"; chmod 755 "+tool)
		declare(t, f, h, "lie", "  - package: fx-lie\n")
		bad := failed(t, f, h, "package:fx-lie")
		if bad.Status.Good() {
			t.Errorf("a lie was believed: %+v", bad)
		}
		wantVersion(t, h, "fx-lie", "")
		must(t, h, "mv "+tool+".honest "+tool)
		applied(t, f, h)
		wantVersion(t, h, "fx-lie", "1.0-1")
		undeclare(t, f, h, "lie")
		applied(t, f, h)
	})
}

// slowToConfigure is a package whose script runs long enough to be caught at it.
func slowToConfigure(name string) packaging.SimplePackage {
	p := simple(name, "1.0")
	p.Scripts.PostInstall = "#!/bin/sh\ntouch /run/" + name + "-began\nsleep 6\nexit 0\n"
	return p
}

func awaitBegun(t *testing.T, h *lab.Host, name string) {
	t.Helper()
	eventually(t, "the script of "+name+" to run", func(ctx context.Context) (bool, string, error) {
		out, err := h.Run(ctx, "test", "-e", "/run/"+name+"-began")
		return err == nil, out.Stderr, nil
	})
}

// Shows: M5, M13
// Cases: O-140, O-150
func TestAHostThatIsKilledInTheMiddleOfATransactionFinishesItAndTheRest(t *testing.T) {
	publish(t, theMesh(t), slowToConfigure("fx-kill"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "kill", "  - package: fx-kill\n  - file: /etc/fx-kill\n    content: \"after\\n\"\n    requires: [package:fx-kill]\n")
		awaitBegun(t, h, "fx-kill")
		before := must(t, h, "systemctl show -p MainPID --value mesh-host")
		must(t, h, "kill -9 "+before)
		applied(t, f, h)
		wantVersion(t, h, "fx-kill", "1.0-1")
		wantContent(t, h, "/etc/fx-kill", "after\n")
		if now := must(t, h, "systemctl show -p MainPID --value mesh-host"); now == before || now == "0" {
			t.Errorf("the host has process %s, and %s was killed", now, before)
		}
		undeclare(t, f, h, "kill")
		applied(t, f, h)
	})
}

// Shows: M5
// Cases: O-141
func TestAMachineThatLosesPowerInTheMiddleOfATransactionConvergesAfterTheBoot(t *testing.T) {
	f := theMesh(t)
	publish(t, f, slowToConfigure("fx-power"))
	for _, name := range []string{"apt-1", "dnf-1"} {
		t.Run(meshHosts[name], func(t *testing.T) {
			h := f.Lab.Host(name)
			ctx := lab.TestContext(t)
			declare(t, f, h, "power", "  - package: fx-power\n  - file: /etc/fx-power\n    content: \"after\\n\"\n    requires: [package:fx-power]\n")
			awaitBegun(t, h, "fx-power")
			if err := h.PowerLoss(ctx); err != nil {
				t.Fatal(err)
			}
			if err := h.BootAgain(ctx); err != nil {
				t.Fatal(err)
			}
			applied(t, f, h)
			wantVersion(t, h, "fx-power", "1.0-1")
			wantContent(t, h, "/etc/fx-power", "after\n")
			undeclare(t, f, h, "power")
			applied(t, f, h)
		})
	}
}

// Shows: M7
func TestANewerDeclarationSupersedesTheOneBeingAppliedAtTheNextResource(t *testing.T) {
	publish(t, theMesh(t), slowToConfigure("fx-super"))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		declare(t, f, h, "super", "  - package: fx-super\n  - file: /etc/fx-never\n    content: x\n    requires: [package:fx-super]\n")
		awaitBegun(t, h, "fx-super")
		declare(t, f, h, "super", "  - package: fx-super\n  - file: /etc/fx-instead\n    content: \"newer\\n\"\n")
		applied(t, f, h)
		wantContent(t, h, "/etc/fx-instead", "newer\n")
		if got := must(t, h, "journalctl -u mesh-host -o cat | grep -c 'supersedes' || true"); got == "0" {
			t.Error("the host does not say that a declaration was superseded")
		}
		wantContent(t, h, "/etc/fx-never", "(nothing is there)")
		if out := must(t, h, "mesh-host status"); strings.Contains(out, "fx-never") {
			t.Errorf("the superseded resource is still in the ledger:\n%s", out)
		}
		undeclare(t, f, h, "super")
		applied(t, f, h)
	})
}

// Shows: M12
func TestTheHostItselfIsAnOrdinaryPackageAndItsRepositoryAnOrdinaryFile(t *testing.T) {
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		if h.Name() == controlHost {
			return // the bundle declares its package already
		}
		path := "/etc/apt/sources.list.d/mesh.sources"
		if h.Flavour().RPM() {
			path = "/etc/yum.repos.d/mesh.repo"
		}
		source := content(t, h, path)
		var indented strings.Builder
		for line := range strings.Lines(source) {
			indented.WriteString("      " + line)
		}
		declare(t, f, h, "self", fmt.Sprintf("  - file: %s\n    content: |\n%s\n  - package: mesh-host\n    version: \"%s-1\"\n", path, strings.TrimRight(indented.String(), "\n"), fleet.Version))
		applied(t, f, h)
		wantVersion(t, h, "mesh-host", fleet.Version+"-1")
		undeclare(t, f, h, "self")
		applied(t, f, h)
		wantVersion(t, h, "mesh-host", fleet.Version+"-1")
		if got := content(t, h, path); got != source {
			t.Errorf("the admin's source is not as it was:\n%s", got)
		}
	})
}
