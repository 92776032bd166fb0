//go:build !pid1

// These tests read the unit files with the tools of the machine that builds, so
// they are left out of the test binary that a lab host runs.

package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// unitsDir writes the unit files to a directory, with programs that exist in
// place of ours, so that they can be checked by the tools of systemd.
func unitsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{HostUnit, RollbackUnit, ControlUnit} {
		b, err := Files.ReadFile("units/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/mesh-\w+`).ReplaceAllString(string(b), "ExecStart=/bin/true")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTheServiceManagersOwnCheckFindsNothingInTheUnits(t *testing.T) {
	dir := unitsDir(t)
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
		filepath.Join(dir, HostUnit), filepath.Join(dir, RollbackUnit), filepath.Join(dir, ControlUnit))
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	// RestartMode= came with systemd 254; older ones say that they skip it.
	left := regexp.MustCompile(`(?m)^.*Unknown key( name)? 'RestartMode' in section.*\n?`).ReplaceAllString(string(out), "")
	if strings.TrimSpace(left) != "" || (err != nil && left == string(out)) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

func TestTheControlPlanesExposureIsAtMostTwo(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--threshold=20", "units/"+ControlUnit).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// value reads one setting of a unit file.
func value(t *testing.T, unit, section, key string) string {
	t.Helper()
	b, err := Files.ReadFile("units/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	current, found := "", ""
	for _, line := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(line, "[") {
			current = strings.Trim(line, "[]")
		}
		if v, ok := strings.CutPrefix(line, key+"="); ok && current == section {
			found = v
		}
	}
	return found
}

// Shows: M17
func TestTheStartLimitIsReachedByTheSlowestFailure(t *testing.T) {
	duration := func(section, key string) time.Duration {
		d, err := time.ParseDuration(strings.Replace(value(t, HostUnit, section, key), "min", "m", 1))
		if err != nil || d <= 0 {
			t.Fatalf("%s: %v", key, err)
		}
		return d
	}
	slowest := duration("Service", "TimeoutStartSec") + duration("Service", "WatchdogSec") + 2*duration("Service", "TimeoutStopSec") + duration("Service", "RestartSec")
	const burst = 10
	if got := value(t, HostUnit, "Unit", "StartLimitBurst"); got != "10" {
		t.Fatalf("StartLimitBurst is %s, want %d", got, burst)
	}
	if interval := duration("Unit", "StartLimitIntervalSec"); interval <= burst*slowest {
		t.Errorf("the interval %s is not longer than %d failures of %s each, so a slow failure never reaches the limit", interval, burst, slowest)
	}
}

// Shows: M17, M18
func TestTheHostsUnitIsWatchedRestartedAndUndone(t *testing.T) {
	for _, want := range []struct{ section, key, value string }{
		{"Service", "Type", "notify"},
		{"Service", "NotifyAccess", "main"},
		{"Service", "Restart", "always"},
		{"Service", "RestartMode", "direct"},
		{"Service", "OOMPolicy", "continue"},
		{"Service", "KillMode", ""},
		{"Service", "ExecStart", "/usr/bin/mesh-host daemon"},
		{"Service", "StateDirectoryMode", "0700"},
		{"Service", "RuntimeDirectoryMode", "0700"},
		{"Unit", "OnFailure", RollbackUnit},
		{"Unit", "Requires", ""},
		{"Unit", "BindsTo", ""},
		{"Unit", "Requisite", ""},
		{"Unit", "JobTimeoutSec", ""},
	} {
		if got := value(t, HostUnit, want.section, want.key); got != want.value {
			t.Errorf("%s= is %q, want %q", want.key, got, want.value)
		}
	}
	if value(t, RollbackUnit, "Service", "RemainAfterExit") != "" {
		t.Errorf("the rollback's unit remains after its exit, so a second failure would not start it")
	}
}
