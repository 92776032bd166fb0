package profile_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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
func TestABriefingSaysWhatTheRepositoryAnswersAndHowFarTheClockIsOff(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const apt, dnf = "etc/apt/sources.list.d/mesh.sources", "etc/yum.repos.d/mesh.repo"
	for _, c := range []struct {
		name, file, text  string // URL stands for the repository
		date              time.Time
		repository, clock mesh.Outcome
		says              []string
	}{
		{"apt", apt, "Types: deb\nURIs: URL/apt\nSuites: stable\n", now, mesh.OutcomePass, mesh.OutcomePass,
			[]string{"/apt/dists/stable/InRelease answers", "within 5m0s"}},
		{"dnf", dnf, "[mesh]\nbaseurl=URL/dnf/stable/\n", now, mesh.OutcomePass, mesh.OutcomePass,
			[]string{"/dnf/stable/repodata/repomd.xml answers", "within 5m0s"}},
		{"the clock is just in its bound", dnf, "baseurl = URL/dnf/stable\n", now.Add(5 * time.Minute), mesh.OutcomePass, mesh.OutcomePass,
			[]string{"answers", "within 5m0s"}},
		{"the clock is slow", dnf, "baseurl=URL/dnf/stable\n", now.Add(301 * time.Second), mesh.OutcomePass, mesh.OutcomeWarn,
			[]string{"answers", "off by -5m1s"}},
		{"the clock is fast", dnf, "baseurl=URL/dnf/stable\n", now.Add(-301 * time.Second), mesh.OutcomePass, mesh.OutcomeWarn,
			[]string{"answers", "off by 5m1s"}},
		{"there is no such suite", apt, "URIs: URL/apt\nSuites: gone\n", now, mesh.OutcomeWarn, mesh.OutcomePass,
			[]string{"answers 404 Not Found", "within 5m0s"}},
		{"nobody answers", dnf, "baseurl=http://127.0.0.1:1/dnf\n", now, mesh.OutcomeWarn, mesh.OutcomeWarn,
			[]string{"does not answer", "not compared"}},
		{"no suite is named", apt, "URIs: URL/apt\n", now, mesh.OutcomeWarn, mesh.OutcomeWarn,
			[]string{"is not configured on this machine", "not compared"}},
		{"no address is named", dnf, "[mesh]\nbaseurl=\n", now, mesh.OutcomeWarn, mesh.OutcomeWarn,
			[]string{"is not configured on this machine", "not compared"}},
		{"another repository", "etc/yum.repos.d/other.repo", "baseurl=URL/dnf/stable\n", now, mesh.OutcomeWarn, mesh.OutcomeWarn,
			[]string{"is not configured on this machine", "not compared"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", c.date.Format(http.TimeFormat))
				if !strings.Contains(r.URL.Path, "/stable/") {
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			defer server.Close()
			root := t.TempDir()
			put(t, root, c.file, strings.ReplaceAll(c.text, "URL", server.URL))
			briefed := collector(t, func(cfg *profile.Config) {
				cfg.Root, cfg.Now = root, func() time.Time { return now }
			})
			for i, want := range []mesh.Line{{Check: "repository", Outcome: c.repository}, {Check: "clock", Outcome: c.clock}} {
				if l := line(t, briefed, want.Check); l.Outcome != want.Outcome || !strings.Contains(l.Detail, c.says[i]) {
					t.Errorf("the line is %+v, want %s with %q", l, want.Outcome, c.says[i])
				}
			}
		})
	}
}

// Shows: M26
func TestABriefingWarnsOfOtherAgentsAndOfAnInterruptedTransaction(t *testing.T) {
	root := t.TempDir()
	briefed := collector(t, func(cfg *profile.Config) { cfg.Root = root })
	for _, check := range []string{"other-agents", "package-transaction"} {
		if l := line(t, briefed, check); l.Outcome != mesh.OutcomePass {
			t.Errorf("on a machine with nothing of it the line is %+v", l)
		}
	}
	put(t, root, "etc/systemd/system/multi-user.target.wants/puppet.service", "")
	put(t, root, "etc/systemd/system/multi-user.target.wants/ssh.service", "")
	put(t, root, "var/lib/dpkg/updates/0001", "")
	if l := line(t, briefed, "other-agents"); l.Outcome != mesh.OutcomeWarn || !strings.HasPrefix(l.Detail, "puppet is enabled") {
		t.Errorf("where puppet is enabled the line is %+v", l)
	}
	if l := line(t, briefed, "package-transaction"); l.Outcome != mesh.OutcomeWarn || !strings.Contains(l.Detail, "interrupted") {
		t.Errorf("where dpkg was interrupted the line is %+v", l)
	}
	b, err := collector(t, func(cfg *profile.Config) { cfg.Root, cfg.Manager = root, profile.ManagerDnf }).Briefing(t.Context())
	if err != nil || slices.ContainsFunc(b.Lines, func(l mesh.Line) bool { return l.Check == "package-transaction" }) {
		t.Errorf("where dnf is at work dpkg is spoken of: %+v, %v", b.Lines, err)
	}
}

// put writes a file below root.
func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
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
