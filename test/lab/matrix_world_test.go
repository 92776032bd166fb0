//go:build matrix

package lab_test

import (
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

// world holds the releases for what the world may do while a release comes.
type world struct {
	// good are the releases that live, by version.
	good map[string]map[string]string
	// early reads a clock that is a year ahead.
	early map[string]string
	// halfway has a migration of the store that fails in its middle.
	halfway map[string]string
	// crash does not live.
	crash map[string]string
	// small is a program that mounts a small file system; not every host has one.
	small string
}

const smallSource = `package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	var err error
	switch os.Args[1] {
	case "mount":
		err = syscall.Mount("small", os.Args[2], "tmpfs", 0, "mode=755,size="+os.Args[3])
	case "bind":
		err = syscall.Mount(os.Args[2], os.Args[3], "", syscall.MS_BIND, "")
	case "free":
		err = syscall.Unmount(os.Args[2], syscall.MNT_DETACH)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args, err)
		os.Exit(1)
	}
}
`

const (
	earlyVersion   = "0.2.1"
	halfwayVersion = "0.2.2"
	crashVersion   = "0.2.3"
)

// halfMigration does something, and then what cannot be done.
const halfMigration = "CREATE TABLE half (way INTEGER);\nINSERT INTO half VALUES (1);\nDELETE FROM meta;\nINSERT INTO nowhere VALUES (1);\n"

func newWorld(t *testing.T) world {
	t.Helper()
	// Time is an input of everything in the host, and this file gives it.
	daemonFile := projectFile(t, "cmd/mesh-host/daemon.go")
	early := strings.ReplaceAll(daemonFile, "time.Now", "aYearAhead") + "\nfunc aYearAhead() time.Time { return time.Now().AddDate(1, 0, 0) }\n"
	if n := strings.Count(early, "aYearAhead"); n < 6 {
		t.Fatalf("cmd/mesh-host/daemon.go gives the clock %d times; it has moved", n)
	}
	migrations, err := os.ReadDir("../../host/store/migrations")
	if err != nil || len(migrations) > 90 {
		t.Fatalf("%d migrations, %v", len(migrations), err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(smallSource), 0o644); err != nil {
		t.Fatal(err)
	}
	goBuild(t, filepath.Join(dir, "small"), "build", filepath.Join(dir, "main.go"))
	good := map[string]map[string]string{}
	for _, version := range []string{fleet.Version, newVersion} {
		good[version] = build{program: "mesh-host", version: version}.make(t)
	}
	return world{
		good: good, small: filepath.Join(dir, "small"),
		early:   build{program: "mesh-host", version: earlyVersion, overlay: map[string]string{"cmd/mesh-host/daemon.go": early}}.make(t),
		halfway: build{program: "mesh-host", version: halfwayVersion, overlay: map[string]string{nextMigration("host/store", len(migrations)): halfMigration}}.make(t),
		crash:   spoiled(t, crashVersion, "crash", nil, nil),
	}
}

// nextMigration names the file after the last one.
func nextMigration(room string, have int) string {
	return room + "/migrations/00" + string(rune('0'+(have+1)/10)) + string(rune('0'+(have+1)%10)) + "_test.sql"
}

// clockAhead has "date" of the machine, and so every shell script, be a year
// ahead. The service manager goes by a clock that nobody can set.
func clockAhead(t *testing.T, h *lab.Host) (right func()) {
	t.Helper()
	must(t, h, `date=$(command -v date)
mv "$date" "$date.right"
printf '#!/bin/sh\nexec %s.right -d "+1 year" "$@"\n' "$date" >"$date"
chmod 755 "$date"
[ "$(date +%Y)" -gt "$("$date.right" +%Y)" ]`)
	return func() { must(t, h, `date=$(command -v date); mv -f "$date.right" "$date"`) }
}

// tell runs the cases on a host that runs the new release.
func (w world) tell(t *testing.T, h *lab.Host, there func(*testing.T, string, map[string]string), confirmed func(string) func(daemon.Status) bool) {
	t.Helper()
	cell(t, h, "the clock jumps a year ahead, and back: confirmed both times", "M20", func(t *testing.T) string {
		right := clockAhead(t, h)
		there(t, earlyVersion, w.early)
		right()
		there(t, newVersion, w.good[newVersion])
		return ""
	})
	cell(t, h, "the clock is a year ahead, and a release does not live: rolled back", "M17, M18", func(t *testing.T) string {
		there(t, earlyVersion, w.early)
		right := clockAhead(t, h)
		must(t, h, "mesh-host apply "+bundleOf(t, h, crashVersion, w.crash)+" || true")
		s := awaitStatus(t, h, 6*time.Minute, "the version before to be back", func(s daemon.Status) bool {
			return confirmed(earlyVersion)(s) && s.Upgrade.Last.To == crashVersion+"-1"
		})
		right()
		if e := s.Upgrade.Last.Ending; e != mesh.EndingByServiceManager && e != mesh.EndingByGuard && e != mesh.EndingRefused {
			t.Errorf("it ended as %s", e)
		}
		there(t, newVersion, w.good[newVersion])
		return ""
	})
	cell(t, h, "the disk fills during the installation: nothing changes, and it is done when there is room", "M14", func(t *testing.T) string {
		there(t, newVersion, w.good[newVersion])
		if err := h.CopyIn(lab.TestContext(t), w.small, "/root/small"); err != nil {
			t.Fatal(err)
		}
		must(t, h, "chmod 755 /root/small; mkdir -p /mnt/full; /root/small mount /mnt/full $(( $(du -sk /usr/bin | cut -f 1) + 6000 ))k; cp -a /usr/bin/. /mnt/full/; /root/small bind /mnt/full /usr/bin")
		must(t, h, "mesh-host apply "+bundleOf(t, h, fleet.Version, w.good[fleet.Version])+" || true")
		s := awaitStatus(t, h, 2*time.Minute, "the full disk to be reported", func(s daemon.Status) bool {
			return s.Version == newVersion && s.Upgrade.Phase == "settled" && len(s.Results) == 1 && s.Results[0].Status == mesh.StatusFailed
		})
		if got := installed(t, h); s.Results[0].Reason != mesh.ReasonNoSpace || got != newVersion+"-1" {
			t.Errorf("%s is installed, and the resource failed for %s: %s", got, s.Results[0].Reason, s.Results[0].Detail)
		}
		must(t, h, "/root/small free /usr/bin; /root/small free /mnt/full")
		there(t, fleet.Version, w.good[fleet.Version])
		there(t, newVersion, w.good[newVersion])
		return ""
	})
	cell(t, h, "the migration of the store fails half way: put back before the host ends", "M14, M20", func(t *testing.T) string {
		there(t, newVersion, w.good[newVersion])
		must(t, h, "mesh-host apply "+bundleOf(t, h, halfwayVersion, w.halfway)+" || true")
		s := awaitStatus(t, h, 3*time.Minute, "the version that lives to be back", func(s daemon.Status) bool {
			return confirmed(newVersion)(s) && s.Upgrade.Last.To == halfwayVersion+"-1"
		})
		said := must(t, h, "cat /var/lib/mesh-host/upgrade/check.log")
		if last := s.Upgrade.Last; !strings.Contains(string(last.Ending)+" "+last.Why, string(mesh.EndingPutBack)) || !strings.Contains(said, "nowhere") {
			t.Errorf("it ended as %s: %s; at its check it said %s", last.Ending, last.Why, said)
		}
		return ""
	})
	cell(t, h, "the machine starts into a migration that fails half way: rolled back, with the store as it was", "M17, M20", func(t *testing.T) string {
		there(t, newVersion, w.good[newVersion])
		before, err := hostStatus(lab.TestContext(t), h)
		if err != nil {
			t.Fatal(err)
		}
		must(t, h, "systemctl stop mesh-host.service")
		byHand(t, h, w.halfway)
		if err := h.Reboot(lab.TestContext(t)); err != nil {
			t.Fatal(err)
		}
		s := awaitStatus(t, h, 6*time.Minute, "the version that lives to be back", func(s daemon.Status) bool {
			return confirmed(newVersion)(s) && s.Upgrade.Last.To == halfwayVersion+"-1"
		})
		if last := s.Upgrade.Last; last.Ending != mesh.EndingByServiceManager && last.Ending != mesh.EndingByGuard {
			t.Errorf("it ended as %s: %s", last.Ending, last.Why)
		}
		if s.Held != before.Held || s.Applied != before.Applied || len(s.Results) != len(before.Results) {
			t.Errorf("it holds generation %s, applied %s, %d results; before it was %s, %s, %d", s.Held, s.Applied, len(s.Results), before.Held, before.Applied, len(before.Results))
		}
		return ""
	})
}

// Shows: M16
func TestMatrixOfTheControlPlanesOwnMigration(t *testing.T) {
	bundle, err := fleet.BuildBundle(lab.TestContext(t), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	migrations, err := os.ReadDir("../../control/store/migrations")
	if err != nil {
		t.Fatal(err)
	}
	next := nextMigration("control/store", len(migrations))
	good := build{program: "mesh-control", version: "0.2.4", overlay: map[string]string{next: "CREATE TABLE later (x INTEGER);\n"}}.make(t)
	h := host(t, "mc-b", "bookworm-apt")
	cell(t, h, "the control plane migrates its database at an upgrade: a backup is made first", "M16", func(t *testing.T) string {
		f, err := fleet.Raise(lab.TestContext(t), lab.Shared(t), h, bundle, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to be connected, with nothing open", settled); err != nil {
			t.Fatal(err)
		}
		install(t, h, good, "mesh-control-later")
		if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to be connected again", settled); err != nil {
			t.Fatal(err)
		}
		if out := must(t, h, "/proc/$(systemctl show -p MainPID --value mesh-control)/exe version"); !strings.Contains(out, "0.2.4") {
			t.Errorf("the control plane that runs is %q", out)
		}
		// The version before does with the backup what it could not with the database.
		backup := strings.Fields(must(t, h, "ls /var/lib/mesh-control/control.db.before-*"))
		if len(backup) != 1 {
			t.Fatalf("the backups are %v", backup)
		}
		must(t, h, "dpkg -i /root/mesh-bundle/mesh-control_*.deb || true; systemctl stop mesh-control; systemctl reset-failed mesh-control || true")
		must(t, h, "cd /var/lib/mesh-control && rm -f control.db control.db-wal control.db-shm && cp -p "+backup[0]+" control.db && systemctl start mesh-control")
		if _, err := f.AwaitNode(lab.TestContext(t), h.Name(), "to be connected to the version before", settled); err != nil {
			t.Fatal(err)
		}
		return ""
	})
}
