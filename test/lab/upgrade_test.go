package lab_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// newVersion is a whole release of real programs, newer than the fleet's.
const newVersion = "0.2.0"

var newRelease struct {
	once sync.Once
	err  error
}

// theNewRelease builds the new release and publishes it.
func theNewRelease(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	newRelease.once.Do(func() {
		ctx := lab.TestContext(t)
		bundle, err := fleet.BuildRelease(ctx, newVersion, os.Stderr)
		if err != nil {
			newRelease.err = err
			return
		}
		files, err := filepath.Glob(filepath.Join(bundle, "*"))
		if err != nil {
			newRelease.err = err
			return
		}
		newRelease.err = publishFiles(ctx, f, files)
	})
	if newRelease.err != nil {
		t.Fatalf("publish the new release: %v", newRelease.err)
	}
}

func publishFiles(ctx context.Context, f *fleet.Fleet, files []string) error {
	argv := []string{"publish"}
	for _, file := range files {
		if !strings.HasSuffix(file, ".deb") && !strings.HasSuffix(file, ".rpm") {
			continue
		}
		remote := "/root/releases/" + filepath.Base(file)
		if err := f.Control.CopyIn(ctx, file, remote); err != nil {
			return err
		}
		argv = append(argv, remote)
	}
	_, err := f.Meshctl(ctx, argv...)
	return err
}

// aBadRelease publishes packages of the host that are bad in some way.
func aBadRelease(t *testing.T, f *fleet.Fleet, packages map[string]string) {
	t.Helper()
	var files []string
	for _, file := range packages {
		files = append(files, file)
	}
	if err := publishFiles(lab.TestContext(t), f, files); err != nil {
		t.Fatalf("publish a bad release: %v", err)
	}
}

// taken holds one lock for each host that a test has for itself.
var taken sync.Map

// alone waits until a test has the host for itself, until it ends.
func alone(t *testing.T, h *lab.Host) {
	t.Helper()
	lock, _ := taken.LoadOrStore(h.Name(), &sync.Mutex{})
	mu := lock.(*sync.Mutex)
	mu.Lock()
	t.Cleanup(mu.Unlock)
}

// wantHost declares a version of the host for one node, and a note that shows
// that the rest is applied.
func wantHost(t *testing.T, f *fleet.Fleet, h *lab.Host, version, note string, flags ...string) {
	t.Helper()
	resources := fmt.Sprintf("  - package: mesh-host\n    version: %q\n  - file: /etc/fx-host-note\n    content: %q\n", version+"-1", note)
	if out, err := f.Declare(lab.TestContext(t), only("host", h, resources), append(flags, "--wait", "0")...); err != nil {
		t.Fatalf("declare: %v\n%s", err, out)
	}
}

// awaitHost waits until the control plane says of the node's host what judge
// wants.
func awaitHost(t *testing.T, f *fleet.Fleet, h *lab.Host, what string, judge func(control.NodeDetail) bool) control.NodeDetail {
	t.Helper()
	var seen control.NodeDetail
	ctx, cancel := context.WithTimeout(lab.TestContext(t), 3*time.Minute)
	defer cancel()
	err := lab.WaitFor(ctx, h.Name()+" "+what, func(ctx context.Context) (bool, string, error) {
		d, err := f.Node(ctx, h.Name())
		if err != nil {
			return false, err.Error(), nil
		}
		seen = d
		last := "nothing"
		if d.Host != nil {
			last = fmt.Sprintf("%+v, last %+v", *d.Host, d.Host.Last)
		}
		return d.Host != nil && judge(d), fmt.Sprintf("host version %s, failed %v, host %s", d.HostVersion, d.Failed, last), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// ended waits for the ending of an upgrade to a version.
func ended(t *testing.T, f *fleet.Fleet, h *lab.Host, to string, endings ...mesh.Ending) mesh.Event {
	t.Helper()
	var found mesh.Event
	awaitHost(t, f, h, fmt.Sprintf("to end an upgrade to %s as %v", to, endings), func(d control.NodeDetail) bool {
		for _, e := range d.Events {
			for _, ending := range endings {
				if e.Kind == mesh.EventKind(ending) && strings.Contains(e.Detail, " to "+to+"-1") {
					found = e.Event
					return true
				}
			}
		}
		return false
	})
	return found
}

// canGoBack waits until the host says that it could be rolled back.
func canGoBack(t *testing.T, f *fleet.Fleet, h *lab.Host) control.NodeDetail {
	t.Helper()
	return awaitHost(t, f, h, "to be able to go back", func(d control.NodeDetail) bool { return d.Host.CanRollBack })
}

// guardGone waits until nothing of the guard is left.
func guardGone(t *testing.T, h *lab.Host) {
	t.Helper()
	eventually(t, "the guard to be gone from "+h.Name(), func(ctx context.Context) (bool, string, error) {
		out, err := h.Run(ctx, "sh", "-c", "ls /etc/systemd/system | grep guard; systemctl list-timers --all --no-legend | grep mesh-host-guard; true")
		return strings.TrimSpace(out.Stdout) == "", out.Stdout, err
	})
}

// Shows: M12, M13, M14, M15, M16, M20
func TestUpgradeOfTheHostByDeclarationIsOrdinaryAndConfirmedAfterOneReconcile(t *testing.T) {
	theNewRelease(t, theMesh(t))
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		if h.Name() == controlHost {
			return // the bundle declares its package; a test of its own upgrades it
		}
		before := canGoBack(t, f, h)
		if before.Host.Confirmed != fleet.Version+"-1" {
			t.Fatalf("version %s is confirmed, not %s-1", before.Host.Confirmed, fleet.Version)
		}
		process := show(t, h, "MainPID")
		wantHost(t, f, h, newVersion, "up")
		ended(t, f, h, newVersion, mesh.EndingUpgraded)
		applied(t, f, h)
		wantVersion(t, h, "mesh-host", newVersion+"-1")
		if now := show(t, h, "MainPID"); now == process {
			t.Errorf("the same process %s runs", now)
		}
		awaitHost(t, f, h, "to be confirmed for the new version", func(d control.NodeDetail) bool {
			return d.HostVersion == newVersion && d.Host.CanRollBack && d.Host.Confirmed == newVersion+"-1" && d.Host.Last != nil && d.Host.Last.Ending == mesh.EndingUpgraded
		})
		guardGone(t, h)
		// And down again, the same way.
		wantHost(t, f, h, fleet.Version, "down")
		ended(t, f, h, fleet.Version, mesh.EndingUpgraded)
		applied(t, f, h)
		wantVersion(t, h, "mesh-host", fleet.Version+"-1")
		undeclare(t, f, h, "host")
		applied(t, f, h)
	})
}

// wayBackTook prints the time from the first failed start of a version to the
// confirmed one running again.
func wayBackTook(t *testing.T, h *lab.Host, version string) {
	t.Helper()
	out := must(t, h, `
first=$(journalctl -u mesh-host -o short-unix | grep "Failed with result\|Main process exited" | tail -n 40 | head -n 1 | cut -d ' ' -f 1)
back=$(journalctl -u mesh-host -o short-unix | grep 'mesh-host starts.*version=`+fleet.Version+`' | tail -n 1 | cut -d ' ' -f 1)
echo "$first $back"`)
	var first, back float64
	if _, err := fmt.Sscan(out, &first, &back); err == nil && back > first {
		t.Logf("%s (%s): from the first failed start of %s to the confirmed version running again: %.1f s", h.Name(), h.Flavour().Name, version, back-first)
	}
}

// stillHere checks that a node runs the version that it is confirmed for, and
// goes on with everything else.
func stillHere(t *testing.T, f *fleet.Fleet, h *lab.Host, note string) {
	t.Helper()
	wantVersion(t, h, "mesh-host", fleet.Version+"-1")
	eventually(t, "the rest of the declaration to be applied on "+h.Name(), func(ctx context.Context) (bool, string, error) {
		out, err := h.Run(ctx, "cat", "/etc/fx-host-note")
		return err == nil && out.Stdout == note, out.Stdout, nil
	})
	guardGone(t, h)
	d := canGoBack(t, f, h)
	if d.HostVersion != fleet.Version || d.Host.Confirmed != fleet.Version+"-1" {
		t.Errorf("%s runs %s and is confirmed for %s", h.Name(), d.HostVersion, d.Host.Confirmed)
	}
}

// impatient makes the service manager of a host wait for seconds where it waits
// for minutes.
func impatient(t *testing.T, h *lab.Host) {
	t.Helper()
	must(t, h, `mkdir -p /etc/systemd/system/mesh-host.service.d
printf '[Service]\nTimeoutStartSec=8s\nWatchdogSec=20s\n' >/etc/systemd/system/mesh-host.service.d/impatient.conf
systemctl daemon-reload`)
}

// Shows: M14
func TestUpgradeToWhatCannotRunHereIsPutBackBeforeTheHostEnds(t *testing.T) {
	f := theMesh(t)
	t.Parallel()
	h := f.Lab.Host("dnf-1")
	alone(t, h)
	canGoBack(t, f, h)
	for _, bad := range []struct {
		version  string
		packages map[string]string
		said     string
	}{
		{"0.3.1", spoiled(t, "0.3.1", "unfit", nil, nil), "cannot run on this machine"},
		{"0.3.2", spoiled(t, "0.3.2", "good", map[string][]byte{"mesh-host.service": {}}, nil), "not sound"},
		{"0.3.3", spoiled(t, "0.3.3", "good", nil, []byte("\x7fELF\x02\x01\x01")), "the new program"},
	} {
		version := bad.version
		t.Run(bad.said, func(t *testing.T) {
			aBadRelease(t, f, bad.packages)
			process := show(t, h, "MainPID")
			wantHost(t, f, h, version, version)
			if e := ended(t, f, h, version, mesh.EndingPutBack); !strings.Contains(e.Detail, bad.said) {
				t.Errorf("what is reported does not say %q: %s", bad.said, e.Detail)
			}
			stillHere(t, f, h, version)
			if now := show(t, h, "MainPID"); now != process {
				t.Errorf("the host ended: process %s, then %s", process, now)
			}
			if d := failed(t, f, h, "package:mesh-host"); d.Reason != mesh.ReasonPutBack && d.Reason != mesh.ReasonRefused {
				t.Errorf("the resource failed for %s: %s", d.Reason, d.Detail)
			}
		})
	}
	undeclare(t, f, h, "host")
	applied(t, f, h)
}

// Shows: M17, M18, M19, M21
func TestUpgradeToWhatDoesNotLiveIsRolledBackReportedAndRefusedUntilANewWrite(t *testing.T) {
	f := theMesh(t)
	t.Parallel()
	h := f.Lab.Host("apt-2")
	alone(t, h)
	canGoBack(t, f, h)
	// Its own rollback script is broken too: it is not the one that counts.
	aBadRelease(t, f, spoiled(t, "0.4.0", "crash", map[string][]byte{"rollback": []byte("#!/bin/sh\nexit 1\n")}, nil))
	wantHost(t, f, h, "0.4.0", "first")
	e := ended(t, f, h, "0.4.0", mesh.EndingByServiceManager, mesh.EndingByGuard)
	wayBackTook(t, h, "0.4.0")
	stillHere(t, f, h, "first")
	if !strings.Contains(e.Detail, "this version cannot start") {
		t.Errorf("the report does not hold the last words of the version: %s", e.Detail)
	}
	bad := failed(t, f, h, "package:mesh-host")
	if bad.Reason != mesh.ReasonRefused {
		t.Errorf("the version is not refused but %s: %s", bad.Reason, bad.Detail)
	}
	ended(t, f, h, "0.4.0", mesh.EndingRefused)

	// A generation that another declaration causes does not name it anew.
	declare(t, f, h, "other", "  - file: /etc/fx-host-other\n    content: x\n")
	eventually(t, "the other declaration to be applied", func(ctx context.Context) (bool, string, error) {
		out, err := h.Run(ctx, "cat", "/etc/fx-host-other")
		return err == nil && out.Stdout == "x", out.Stdout, nil
	})
	wantVersion(t, h, "mesh-host", fleet.Version+"-1")
	if bad := failed(t, f, h, "package:mesh-host"); bad.Reason != mesh.ReasonRefused {
		t.Errorf("after another write it is %s: %s", bad.Reason, bad.Detail)
	}
	attempts := func(d control.NodeDetail) (n int) {
		for _, e := range d.Events {
			if e.Kind == mesh.EventKind(mesh.EndingByServiceManager) || e.Kind == mesh.EventKind(mesh.EndingByGuard) {
				n++
			}
		}
		return n
	}
	before, err := f.Node(lab.TestContext(t), h.Name())
	if err != nil {
		t.Fatal(err)
	}
	// A new revision names it anew, and it is tried once more.
	wantHost(t, f, h, "0.4.0", "first", "--anew")
	awaitHost(t, f, h, "to have been rolled back once more", func(d control.NodeDetail) bool { return attempts(d) > attempts(before) })
	stillHere(t, f, h, "first")
	undeclare(t, f, h, "other")
	undeclare(t, f, h, "host")
	applied(t, f, h)
}

// Shows: M17, M18
func TestUpgradeToWhatHangsIsRolledBackWithTheNetworkGone(t *testing.T) {
	f := theMesh(t)
	t.Parallel()
	for name, story := range map[string]struct{ version, behaviour string }{
		"dnf5-1": {"0.5.0", "hang"},
		"dnf-2":  {"0.5.1", "silent"},
	} {
		t.Run(story.behaviour, func(t *testing.T) {
			t.Parallel()
			h, ctx := f.Lab.Host(name), lab.TestContext(t)
			alone(t, h)
			canGoBack(t, f, h)
			impatient(t, h)
			aBadRelease(t, f, spoiled(t, story.version, story.behaviour, nil, nil))
			wantHost(t, f, h, story.version, story.version)
			eventually(t, story.version+" to be started", func(ctx context.Context) (bool, string, error) {
				out, err := h.Sh(ctx, "tail -n 1 /var/lib/mesh-host/starts")
				return strings.HasPrefix(out.Stdout, "begin") && strings.Contains(out.Stdout, story.version), out.Stdout, err
			})
			if err := h.CutOff(ctx); err != nil {
				t.Fatal(err)
			}
			long, cancel := context.WithTimeout(ctx, 4*time.Minute)
			defer cancel()
			err := h.WaitFor(long, "the version that lives to be back", func(ctx context.Context) (bool, string, error) {
				out, err := h.Sh(ctx, "mesh-host status 2>&1 || true; tail -n 3 /var/lib/mesh-host/starts")
				return strings.Contains(out.Stdout, "version:  "+fleet.Version), out.Stdout, err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Reconnect(ctx); err != nil {
				t.Fatal(err)
			}
			ended(t, f, h, story.version, mesh.EndingByServiceManager, mesh.EndingByGuard)
			wayBackTook(t, h, story.version)
			stillHere(t, f, h, story.version)
			must(t, h, "rm -r /etc/systemd/system/mesh-host.service.d; systemctl daemon-reload")
			undeclare(t, f, h, "host")
			applied(t, f, h)
		})
	}
}

// Shows: M20
func TestUpgradeIsConfirmedWithoutANetworkAndAfterPowerWasLostInTheInstallation(t *testing.T) {
	f := theMesh(t)
	t.Parallel()
	theNewRelease(t, f)
	for _, name := range []string{"apt-1", "dnf-1"} {
		t.Run(meshHosts[name], func(t *testing.T) {
			t.Parallel()
			h, ctx := f.Lab.Host(name), lab.TestContext(t)
			alone(t, h)
			canGoBack(t, f, h)
			wantHost(t, f, h, newVersion, "dark")
			// The power goes while the package manager is at work.
			eventually(t, "the installation to begin on "+name, func(ctx context.Context) (bool, string, error) {
				out, err := h.Sh(ctx, "grep -h phase /var/lib/mesh-host/upgrade/state.json 2>/dev/null || true; ls /etc/systemd/system; systemctl is-active mesh-host-packages.service || true")
				return strings.Contains(out.Stdout, "mesh-host-guard.timer") && strings.Contains(out.Stdout, "activ"), out.Stdout, err
			})
			if err := h.PowerLoss(ctx); err != nil {
				t.Fatal(err)
			}
			if err := h.BootAgain(ctx); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the new version to be installed on "+name, func(ctx context.Context) (bool, string, error) {
				v, err := fleet.Installed(ctx, h, "mesh-host")
				return v == newVersion+"-1", v, err
			})
			if err := h.CutOff(ctx); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the new version to be confirmed on "+name+", which has no network", func(ctx context.Context) (bool, string, error) {
				out, err := h.Sh(ctx, "cat /var/lib/mesh-host/kit/confirmed; mesh-host status 2>&1 || true")
				return strings.HasPrefix(out.Stdout, newVersion+"-1\n") && strings.Contains(out.Stdout, "version:  "+newVersion), out.Stdout, err
			})
			guardGone(t, h)
			if err := h.Reconnect(ctx); err != nil {
				t.Fatal(err)
			}
			applied(t, f, h)
			wantHost(t, f, h, fleet.Version, "light")
			awaitHost(t, f, h, "to be back at the older version", func(d control.NodeDetail) bool {
				return d.HostVersion == fleet.Version && d.Host.CanRollBack && d.Host.Confirmed == fleet.Version+"-1"
			})
			undeclare(t, f, h, "host")
			applied(t, f, h)
		})
	}
}

// byHand installs packages of the host as somebody does who knows no mesh.
func byHand(t *testing.T, h *lab.Host, packages map[string]string) {
	t.Helper()
	path := "/root/by-hand." + format(h)
	if err := h.CopyIn(lab.TestContext(t), packages[format(h)], path); err != nil {
		t.Fatal(err)
	}
	must(t, h, map[string]string{"deb": "dpkg -i ", "rpm": "rpm -U --oldpackage "}[format(h)]+path)
}

// released are the files of a release of real programs.
func released(t *testing.T, version string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../out/fleet/" + map[bool]string{true: "", false: version + "/"}[version == fleet.Version] + "packages/mesh-host*")
	if err != nil || len(files) != 2 {
		t.Fatalf("the packages of release %s are %v, %v", version, files, err)
	}
	byFormat := map[string]string{}
	for _, file := range files {
		byFormat[strings.TrimPrefix(filepath.Ext(file), ".")] = file
	}
	return byFormat
}

// Shows: M14, M17
func TestUpgradeBySomebodyElseIsJudgedAsOneThatWasDeclared(t *testing.T) {
	f := theMesh(t)
	t.Parallel()
	theNewRelease(t, f)
	for _, name := range []string{"apt-1", "dnf5-1"} {
		t.Run(meshHosts[name], func(t *testing.T) {
			t.Parallel()
			h := f.Lab.Host(name)
			alone(t, h)
			canGoBack(t, f, h)
			byHand(t, h, spoiled(t, "0.6.0", "good", map[string][]byte{"mesh-host.service": {}}, nil))
			ended(t, f, h, "0.6.0", mesh.EndingPutBack)
			wantVersion(t, h, "mesh-host", fleet.Version+"-1")
			guardGone(t, h)

			byHand(t, h, released(t, newVersion))
			ended(t, f, h, newVersion, mesh.EndingElsewhere)
			byHand(t, h, released(t, fleet.Version))
			ended(t, f, h, fleet.Version, mesh.EndingElsewhere)
			canGoBack(t, f, h)
		})
	}
}

// settled is the judgement that a node is connected and nothing declared for it,
// if anything is, is open or failed.
func settled(n control.NodeView) bool {
	return fleet.Applied(n) || n.State == mesh.NodeEnrolled && n.Declared == 0
}

// Shows: M16, M27
func TestUpgradeOfTheControlPlaneByDeclarationBringsEveryLinkBack(t *testing.T) {
	f := theMesh(t)
	theNewRelease(t, f)
	ctx, h := lab.TestContext(t), f.Control
	bootstrap := func(version string) {
		t.Helper()
		text := fmt.Sprintf("declaration: bootstrap\nselect: name == %q\nresources:\n", h.Name())
		for _, name := range packaging.Names() {
			text += fmt.Sprintf("  - package: %s\n    version: %q\n", name, version+"-1")
		}
		if out, err := f.Declare(ctx, text, "--wait", "0"); err != nil {
			t.Fatalf("declare: %v\n%s", err, out)
		}
		for _, name := range nodes {
			if _, err := f.AwaitNode(ctx, name, "to be connected, with nothing open", settled); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range packaging.Names() {
			wantVersion(t, h, name, version+"-1")
		}
		if out := must(t, h, "/proc/$(systemctl show -p MainPID --value mesh-control)/exe version"); !strings.Contains(out, version) {
			t.Errorf("the control plane that runs is %q, not version %s", out, version)
		}
	}
	canGoBack(t, f, h)
	bootstrap(newVersion)
	canGoBack(t, f, h)
	bootstrap(fleet.Version)
}
