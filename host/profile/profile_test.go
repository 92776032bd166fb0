package profile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/profile"
)

func collector(t *testing.T, change func(*profile.Config)) *profile.Collector {
	t.Helper()
	cfg := profile.Config{
		Manager: profile.ManagerApt, StateDir: t.TempDir(), Watchdog: 2 * time.Minute, Now: time.Now,
		Packages: func(context.Context) ([]mesh.InstalledPackage, error) {
			return []mesh.InstalledPackage{{Name: "dpkg", Version: "1"}}, nil
		},
		Bus: func(context.Context) error { return nil },
	}
	if change != nil {
		change(&cfg)
	}
	return profile.New(cfg)
}

// line returns a line of the briefing of a collector.
func line(t *testing.T, c *profile.Collector, check string) mesh.Line {
	t.Helper()
	b, err := c.Briefing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(b.Lines, func(l mesh.Line) bool { return l.Check == check })
	if i < 0 {
		t.Fatalf("there is no line %q in %+v", check, b.Lines)
	}
	return b.Lines[i]
}

// Shows: M26
func TestABriefingHasALineForEverythingThatIsChecked(t *testing.T) {
	b, err := collector(t, nil).Briefing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var checks []string
	for _, l := range b.Lines {
		checks = append(checks, l.Check)
		if l.Detail == "" || !slices.Contains([]mesh.Outcome{mesh.OutcomePass, mesh.OutcomeWarn, mesh.OutcomeFail}, l.Outcome) {
			t.Errorf("the line %+v says nothing", l)
		}
	}
	want := []string{"clock", "dbus", "init", "machine-id", "other-agents", "package-manager", "package-transaction", "repository", "root-file-system", "state-directory", "watchdog"}
	if slices.Sort(checks); !slices.Equal(checks, want) {
		t.Errorf("the lines are %q, not %q", checks, want)
	}
}

// Shows: M26
func TestALineFailsOrWarnsWhenWhatItChecksIsNotSo(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*profile.Config)
		check   string
		outcome mesh.Outcome
		says    string
	}{
		"no answer on the bus": {func(c *profile.Config) { c.Bus = func(context.Context) error { return errors.New("no such bus") } }, "dbus", mesh.OutcomeFail, "no such bus"},
		"no package manager":   {func(c *profile.Config) { c.Manager, c.Packages = "", nil }, "package-manager", mesh.OutcomeFail, "neither apt nor dnf"},
		"unreadable database": {func(c *profile.Config) {
			c.Packages = func(context.Context) ([]mesh.InstalledPackage, error) { return nil, errors.New("it is locked") }
		}, "package-manager", mesh.OutcomeFail, "it is locked"},
		"no state directory": {func(c *profile.Config) { c.StateDir += "/none" }, "state-directory", mesh.OutcomeFail, "cannot be written"},
		"no watchdog":        {func(c *profile.Config) { c.Watchdog = 0 }, "watchdog", mesh.OutcomeWarn, "hangs"},
		"all is well":        {nil, "state-directory", mesh.OutcomePass, "MiB free"},
	} {
		t.Run(name, func(t *testing.T) {
			if l := line(t, collector(t, c.change), c.check); l.Outcome != c.outcome || !strings.Contains(l.Detail, c.says) {
				t.Errorf("the line is %+v", l)
			}
		})
	}
}

// Shows: M26
func TestTheInitLineSaysWhatIsPID1(t *testing.T) {
	comm, err := os.ReadFile("/proc/1/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := mesh.OutcomeFail
	if strings.TrimSpace(string(comm)) == "systemd" {
		want = mesh.OutcomePass
	}
	l := line(t, collector(t, nil), "init")
	if l.Outcome != want || !strings.Contains(l.Detail, strings.TrimSpace(string(comm))) {
		t.Errorf("PID 1 is %q, and the line is %+v", comm, l)
	}
}

func TestProbingTheStateDirectoryLeavesNothingInIt(t *testing.T) {
	dir := t.TempDir()
	c := collector(t, func(c *profile.Config) { c.StateDir = dir })
	if _, err := c.Briefing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

func TestAProfileSaysWhatThisMachineIs(t *testing.T) {
	if id, _ := os.ReadFile("/etc/machine-id"); len(strings.TrimSpace(string(id))) != 32 {
		t.Skipf("this machine has no machine id (%q), so it has no profile", id)
	}
	c := collector(t, nil)
	p, err := c.Profile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Arch != runtime.GOARCH || p.Kernel == "" || p.Init == "" || p.OS.ID == "" || p.OS.Family != "debian" || p.PackageManager != "apt" || p.MemoryBytes < 64<<20 || len(p.Disks) == 0 || len(p.MachineIDHash) != 64 || !p.DBus {
		t.Errorf("the profile is %+v", p)
	}
	if id, _ := os.ReadFile("/etc/machine-id"); strings.Contains(p.MachineIDHash, strings.TrimSpace(string(id))) {
		t.Error("the machine id itself leaves the machine")
	}
	again, err := c.Profile(t.Context())
	if err != nil || again.Digest() != p.Digest() {
		t.Errorf("looked at twice, the machine has two digests, %v", err)
	}
}

func TestAnInventoryThatCannotBeReadIsAnErrorAndNotAnEmptyOne(t *testing.T) {
	broken := collector(t, func(c *profile.Config) {
		c.Packages = func(context.Context) ([]mesh.InstalledPackage, error) { return nil, errors.New("it is locked") }
	})
	if inv, err := broken.Inventory(t.Context()); err == nil {
		t.Errorf("it answers %+v", inv)
	}
	inv, err := collector(t, nil).Inventory(t.Context())
	if err != nil || len(inv.Packages) != 1 {
		t.Errorf("the inventory is %+v, %v", inv, err)
	}
	for _, n := range inv.Networks {
		if n.Name == "lo" {
			t.Error("the loopback interface is listed")
		}
	}
}

func TestTheManagerIsTheOneThatTheDistributionIsBuiltOn(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	tool := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := profile.DetectManager(t.Context()); got != "" {
		t.Errorf("on a machine without any it is %q", got)
	}
	tool("dnf", "exit 0")
	tool("rpm", "exit 1")
	if got := profile.DetectManager(t.Context()); got != profile.ManagerDnf {
		t.Errorf("with dnf alone it is %q", got)
	}
	tool("dnf5", "exit 0")
	if got := profile.DetectManager(t.Context()); got != profile.ManagerDnf5 {
		t.Errorf("with both dnf it is %q", got)
	}
	tool("apt-get", "exit 0")
	tool("dpkg-query", "echo installed")
	if got := profile.DetectManager(t.Context()); got != profile.ManagerApt {
		t.Errorf("where dpkg holds mesh-host it is %q", got)
	}
	tool("rpm", "exit 0")
	if got := profile.DetectManager(t.Context()); got != profile.ManagerDnf5 {
		t.Errorf("where rpm holds mesh-host it is %q", got)
	}
}
