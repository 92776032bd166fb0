//go:build matrix

package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	daemon "github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// spoil is how a release is bad.
type spoil struct {
	behaviour string
	replace   map[string][]byte
	program   []byte
}

// upgradeCase is one line of what must hold when a release is bad, or the world
// is while it comes. A host without a mesh tries it, from a bundle.
type upgradeCase struct {
	name string
	bad  spoil
	// during is done when the release has been installed or is about to be.
	during  func(t *testing.T, h *lab.Host)
	endings []mesh.Ending
}

var (
	putBack    = []mesh.Ending{mesh.EndingPutBack}
	rolledBack = []mesh.Ending{mesh.EndingByServiceManager, mesh.EndingByGuard}
)

func otherArchitecture(t *testing.T) []byte {
	t.Helper()
	data := wholeProgram(t)
	data[18], data[19] = 0xb7, 0 // e_machine: AArch64
	return data
}

func wholeProgram(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mesh-host")
	goBuild(t, file, "build", "./packaging/testdata/host")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// withoutUnit are scripts that take the unit away.
func withoutUnit() map[string][]byte {
	script := []byte("rm -f /usr/lib/systemd/system/mesh-host.service /lib/systemd/system/mesh-host.service\nsystemctl daemon-reload || :\nexit 0\n")
	return map[string][]byte{"deb/postinst": append([]byte("#!/bin/sh\n"), script...), "rpm/postinst": script}
}

func upgradeCases(t *testing.T) []upgradeCase {
	program := wholeProgram(t)
	return []upgradeCase{
		{"the new unit file is empty", spoil{replace: map[string][]byte{"mesh-host.service": {}}}, nil, putBack},
		{"the new unit file is garbage", spoil{replace: map[string][]byte{"mesh-host.service": []byte("\x00\x01[Serv")}}, nil, putBack},
		{"the new unit file is gone", spoil{replace: withoutUnit()}, nil, putBack},
		{"the new unit names another program", spoil{replace: map[string][]byte{"mesh-host.service": []byte("[Service]\nExecStart=/bin/true\n")}}, nil, putBack},
		{"its rollback script is broken", spoil{behaviour: "crash", replace: map[string][]byte{"rollback": []byte("exit 1\n")}}, nil, rolledBack},
		{"the program is empty", spoil{program: []byte{}}, nil, putBack},
		{"the program is truncated", spoil{program: program[:len(program)/3]}, nil, putBack},
		{"the program is for another architecture", spoil{program: otherArchitecture(t)}, nil, putBack},
		{"the program needs a newer libc", spoil{program: []byte("#!/lib/ld-linux-newer.so.9\n")}, nil, putBack},
		{"its own check fails", spoil{behaviour: "unfit"}, nil, putBack},
		{"it exits 0 at once", spoil{behaviour: "exit"}, nil, rolledBack},
		{"it hangs before READY", spoil{behaviour: "hang"}, nil, rolledBack},
		{"READY, then it hangs", spoil{behaviour: "silent"}, nil, rolledBack},
		{"it crashes after 30 s", spoil{behaviour: "after30"}, nil, rolledBack},
		{"it crashes every 40 s", spoil{behaviour: "after40"}, nil, rolledBack},
		{"it crashes and units are read anew every second", spoil{behaviour: "crash"}, reloadsEverySecond, rolledBack},
		{"it crashes and the machine loses power", spoil{behaviour: "crash"}, losesPower, rolledBack},
		{"it crashes and the package manager is locked", spoil{behaviour: "crash"}, locksForHalfAMinute, rolledBack},
		{"it crashes without a network", spoil{behaviour: "crash"}, cutsOff, rolledBack},
	}
}

func reloadsEverySecond(t *testing.T, h *lab.Host) {
	t.Helper()
	must(t, h, "systemd-run --quiet --unit=reloads sh -c 'n=0; while [ $n -lt 150 ]; do systemctl daemon-reload; sleep 1; n=$((n+1)); done'")
	t.Cleanup(func() {
		if _, err := h.Sh(context.Background(), "systemctl stop reloads 2>/dev/null || true"); err != nil {
			t.Error(err)
		}
	})
}

func losesPower(t *testing.T, h *lab.Host) {
	t.Helper()
	awaitStart(t, h)
	ctx := lab.TestContext(t)
	if err := h.PowerLoss(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.BootAgain(ctx); err != nil {
		t.Fatal(err)
	}
}

func cutsOff(t *testing.T, h *lab.Host) {
	t.Helper()
	if err := h.CutOff(lab.TestContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Reconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// locksForHalfAMinute holds the lock that dpkg and rpm take, from the moment at
// which the new version was first started.
func locksForHalfAMinute(t *testing.T, h *lab.Host) {
	t.Helper()
	awaitStart(t, h)
	holder := filepath.Join(t.TempDir(), "holder")
	source := filepath.Join(t.TempDir(), "main.go")
	text := `package main

import (
	"os"
	"syscall"
	"time"
)

func main() {
	f, err := os.OpenFile(os.Args[1], os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK})
	}
	if err != nil {
		panic(err)
	}
	time.Sleep(45 * time.Second)
}
`
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	goBuild(t, holder, "build", source)
	if err := h.CopyIn(lab.TestContext(t), holder, "/root/holder"); err != nil {
		t.Fatal(err)
	}
	lock := "/var/lib/dpkg/lock"
	if h.Flavour().RPM() {
		lock = "$(rpm --eval %{_dbpath})/.rpm.lock"
	}
	must(t, h, "chmod 755 /root/holder; systemd-run --quiet --collect --unit=holder /root/holder "+lock)
}

// awaitStart waits until the version that was installed was started.
func awaitStart(t *testing.T, h *lab.Host) {
	t.Helper()
	eventually(t, "the new version to be started on "+h.Name(), func(ctx context.Context) (bool, string, error) {
		out, err := h.Sh(ctx, "grep begin /var/lib/mesh-host/starts | tail -n 1")
		return err == nil && !strings.Contains(out.Stdout, " "+fleet.Version+"-1"), out.Stdout, err
	})
}

// bundleOf carries a bundle with a version of the host to a machine.
func bundleOf(t *testing.T, h *lab.Host, version string, packages map[string]string) string {
	t.Helper()
	dir := "/root/bundle-" + version
	ctx := lab.TestContext(t)
	text := fmt.Sprintf("declaration: matrix\nresources:\n  - package: mesh-host\n    version: %q\n", version+"-1")
	if err := h.WriteFile(ctx, dir+"/declaration.yaml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.CopyIn(ctx, packages[format(h)], dir+"/mesh-host."+format(h)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func hostStatus(ctx context.Context, h *lab.Host) (daemon.Status, error) {
	var s daemon.Status
	out, err := h.Run(ctx, "mesh-host", "status", "-o", "json")
	if err != nil {
		return s, err
	}
	return s, json.NewDecoder(strings.NewReader(out.Stdout)).Decode(&s)
}

// awaitStatus waits for a status of the host on the machine itself.
func awaitStatus(t *testing.T, h *lab.Host, limit time.Duration, what string, judge func(daemon.Status) bool) daemon.Status {
	t.Helper()
	var seen daemon.Status
	ctx, cancel := context.WithTimeout(lab.TestContext(t), limit)
	defer cancel()
	err := h.WaitFor(ctx, what, func(ctx context.Context) (bool, string, error) {
		s, err := hostStatus(ctx, h)
		if err != nil {
			return false, err.Error(), nil
		}
		seen = s
		return s.Upgrade != nil && judge(s), fmt.Sprintf("version %s, %+v, last %+v", s.Version, s.Upgrade, s.Upgrade.Last), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func ready(s daemon.Status) bool {
	return s.Version == fleet.Version && s.Upgrade.CanRollBack && s.Upgrade.Phase == "settled"
}

// Shows: M14, M17, M18, M19, M20, M21
func TestMatrixOfUpgrades(t *testing.T) {
	cases := upgradeCases(t)
	releases := make([]map[string]string, len(cases))
	for i, c := range cases {
		behaviour := c.bad.behaviour
		if behaviour == "" {
			behaviour = "good"
		}
		releases[i] = spoiled(t, fmt.Sprintf("0.3.%d", i+1), behaviour, c.bad.replace, c.bad.program)
	}
	v1 := build{program: "mesh-host", version: fleet.Version}.make(t)
	everyFlavour(t, "mx", func(t *testing.T, h *lab.Host) {
		confirmedHost(t, h, v1)
		impatient(t, h)
		for i, c := range cases {
			version := fmt.Sprintf("0.3.%d", i+1)
			cell(t, h, c.name, "M14, M17, M18, M21", func(t *testing.T) string {
				// The host may end while it answers, and then the command fails.
				must(t, h, "mesh-host apply "+bundleOf(t, h, version, releases[i])+" || true")
				if c.during != nil {
					c.during(t, h)
				}
				s := awaitStatus(t, h, 8*time.Minute, "the version that lives to be back after "+version, func(s daemon.Status) bool {
					return ready(s) && s.Upgrade.Last != nil && s.Upgrade.Last.To == version+"-1"
				})
				seen := string(s.Upgrade.Last.Ending) + " " + s.Upgrade.Last.Why
				for _, ending := range c.endings {
					if strings.Contains(seen, string(ending)) {
						return ""
					}
				}
				t.Errorf("it ended as %s, not as %v", seen, c.endings)
				return ""
			})
		}
	})
}

// confirmedHost installs the first version, which confirms itself, on a machine
// that belongs to no mesh.
func confirmedHost(t *testing.T, h *lab.Host, v1 map[string]string) {
	t.Helper()
	if err := h.WriteFile(lab.TestContext(t), "/etc/mesh/host.yaml", []byte("drift_interval: 10s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	install(t, h, v1, "v1")
	must(t, h, "mesh-host apply "+bundleOf(t, h, fleet.Version, v1))
	awaitStatus(t, h, 2*time.Minute, "the host to be able to go back", ready)
}

// Shows: M5, M14, M17, M20
func TestMatrixOfTheWorldWhileAReleaseComes(t *testing.T) {
	w := newWorld(t)
	everyFlavour(t, "mw", func(t *testing.T, h *lab.Host) {
		confirmedHost(t, h, w.good[fleet.Version])
		matrixOfGoodReleases(t, h, w)
	})
}

// matrixOfGoodReleases are the cases in which nothing may be undone.
func matrixOfGoodReleases(t *testing.T, h *lab.Host, w world) {
	t.Helper()
	confirmed := func(version string) func(daemon.Status) bool {
		return func(s daemon.Status) bool {
			return s.Version == version && s.Upgrade.Confirmed == version+"-1" && s.Upgrade.CanRollBack
		}
	}
	there := func(t *testing.T, version string, packages map[string]string) {
		t.Helper()
		must(t, h, "mesh-host apply "+bundleOf(t, h, version, packages)+" || true")
		awaitStatus(t, h, 3*time.Minute, version+" to be confirmed", confirmed(version))
	}
	cell(t, h, "no network at all: confirmed, no rollback", "M20", func(t *testing.T) string {
		cutsOff(t, h)
		there(t, newVersion, w.good[newVersion])
		return ""
	})
	cell(t, h, "an admin installs the older one by hand", "M14", func(t *testing.T) string {
		before, err := hostStatus(lab.TestContext(t), h)
		if err != nil {
			t.Fatal(err)
		}
		byHand(t, h, w.good[fleet.Version])
		// The declaration stands, so it is put right again: by the version that runs,
		// which sees the drift, or after the older one was judged and started.
		awaitStatus(t, h, 4*time.Minute, "the change to be noticed, and the declared version to be there again", func(s daemon.Status) bool {
			return confirmed(newVersion)(s) && installed(t, h) == newVersion+"-1" && (s.Drift > before.Drift || !s.Upgrade.Last.At.Equal(before.Upgrade.Last.At))
		})
		return ""
	})
	cell(t, h, "restarted a dozen times and stopped: no rollback", "M17", func(t *testing.T) string {
		must(t, h, "set -e; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do systemctl restart mesh-host.service; done; systemctl stop mesh-host.service; sleep 3; systemctl start mesh-host.service")
		awaitStatus(t, h, time.Minute, newVersion+" to go on", confirmed(newVersion))
		return ""
	})
	cell(t, h, "stopped while it does not hear SIGTERM: it stays stopped, no rollback", "M17", func(t *testing.T) string {
		must(t, h, `set -e
mkdir -p /etc/systemd/system/mesh-host.service.d
printf '[Service]\nTimeoutStopSec=3s\n' >/etc/systemd/system/mesh-host.service.d/stop.conf
systemctl daemon-reload
kill -STOP "$(systemctl show -p MainPID --value mesh-host.service)"
systemctl stop mesh-host.service || true
sleep 10
case $(systemctl is-active mesh-host.service) in
inactive | failed) ;;
*) systemctl status mesh-host.service mesh-host-rollback.service; exit 1 ;;
esac`)
		notRolledBack(t, h)
		must(t, h, "rm -r /etc/systemd/system/mesh-host.service.d; systemctl daemon-reload; systemctl reset-failed mesh-host.service; systemctl start mesh-host.service")
		awaitStatus(t, h, time.Minute, newVersion+" to go on", confirmed(newVersion))
		return ""
	})
	cell(t, h, "a confirmed version is killed twenty times: the machine is the problem, no rollback", "M17, M19", func(t *testing.T) string {
		must(t, h, killTwentyTimes)
		notRolledBack(t, h)
		if out := must(t, h, "grep ^outcome= /var/lib/mesh-host/rollback/last"); out != "outcome=machine" {
			t.Errorf("the script recorded %s", out)
		}
		// It is left as it is until somebody has looked at the machine.
		must(t, h, "systemctl reset-failed mesh-host.service; systemctl start mesh-host.service")
		awaitStatus(t, h, time.Minute, newVersion+" to go on", confirmed(newVersion))
		return ""
	})
	w.tell(t, h, there, confirmed)
}

// killTwentyTimes kills the host, and starts it when the service manager has
// given up and the rollback script has looked.
const killTwentyTimes = `set -u
n=0
given_up=0
while [ $n -lt 20 ]; do
	tries=0
	until [ "$(systemctl is-active mesh-host.service)" = active ]; do
		if [ "$(systemctl is-active mesh-host.service)" = failed ]; then
			sleep 2
			while [ "$(systemctl is-active mesh-host-rollback.service)" = activating ]; do sleep 1; done
			given_up=$((given_up + 1))
			systemctl reset-failed mesh-host.service
			systemctl start mesh-host.service
		fi
		tries=$((tries + 1))
		[ $tries -lt 120 ] || exit 1
		sleep 0.5
	done
	pid=$(systemctl show -p MainPID --value mesh-host.service)
	[ "$pid" -gt 1 ] || exit 1
	kill -9 "$pid"
	n=$((n + 1))
	while [ "$(systemctl show -p MainPID --value mesh-host.service)" = "$pid" ]; do sleep 0.2; done
done
[ $given_up -gt 0 ] || exit 1
while [ "$(systemctl is-active mesh-host.service)" = activating ]; do sleep 0.5; done
sleep 2
while [ "$(systemctl is-active mesh-host-rollback.service)" = activating ]; do sleep 1; done`

// notRolledBack checks that the newer version stands and that nobody tried to
// put another in its place.
func notRolledBack(t *testing.T, h *lab.Host) {
	t.Helper()
	if v := installed(t, h); v != newVersion+"-1" {
		t.Errorf("version %s is installed", v)
	}
	if out := must(t, h, "cat /var/lib/mesh-host/rollback/attempt 2>/dev/null || true"); out != "" {
		t.Errorf("there was an attempt:\n%s", out)
	}
}
