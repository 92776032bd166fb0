package profile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAMachineIDThatManyMachinesHaveIsNone(t *testing.T) {
	for _, id := range []string{"", "uninitialized", "0123", strings.Repeat("z", 32)} {
		if sum, err := hashMachineID(id); err == nil || sum != "" {
			t.Errorf("%q is taken for a machine id: %s", id, sum)
		}
	}
	a, err := hashMachineID(strings.Repeat("a", 32))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := hashMachineID(strings.Repeat("b", 32)); err != nil || a == b || strings.Contains(a, "aaaa") {
		t.Errorf("two machines are %s and %s, %v", a, b, err)
	}
}

func TestTheVersionOfAToolIsTheFirstWordThatBeginsWithADigit(t *testing.T) {
	for output, want := range map[string]string{
		"apt 2.6.1 (amd64)":                     "2.6.1",
		"systemd 252 (252.38-1~deb12u1)\n+PAM":  "252",
		"4.14.0\n  Installed: dnf-0:4.14.0":     "4.14.0",
		"dnf5 version 5.2.8.1\ndnf5 plugin API": "5.2.8.1",
		"no number":                             "",
	} {
		if got := version(t.Context(), "printf", "%s", output); got != want {
			t.Errorf("%q has version %q", output, got)
		}
	}
	if got := version(t.Context(), "false"); got != "" {
		t.Errorf("a tool that fails has version %q", got)
	}
	if got := leadingDigits("252~rc1"); got != "252" {
		t.Errorf("252~rc1 begins with %q", got)
	}
}

func TestEnabledUnitsAreWhatTheTargetsWantEachOnce(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"multi-user.target.wants/puppet.service", "graphical.target.wants/puppet.service", "x.service.requires/y.socket", "alone.service"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := enabledUnits(dir); !slices.Equal(got, []string{"puppet.service", "y.socket"}) {
		t.Errorf("enabled are %q", got)
	}
}

func TestTheRepositoryIsReadFromTheMachinesOwnConfiguration(t *testing.T) {
	source := "Types: deb\nURIs: http://control/deb extra\n Suites:  mesh\n"
	if uri, suite := field(source, "URIs", ":"), field(source, "Suites", ":"); uri != "http://control/deb" || suite != "mesh" {
		t.Errorf("the source is %q in suite %q", uri, suite)
	}
	for _, text := range []string{"[mesh]\nbaseurl=http://control/rpm\n", "[mesh]\nbaseurl = http://control/rpm\n"} {
		if got := field(text, "baseurl", "="); got != "http://control/rpm" {
			t.Errorf("%q names %q", text, got)
		}
	}
	if got := field("# URIs: http://old\n", "URIs", ":"); got != "" {
		t.Errorf("a comment names %q", got)
	}
}
