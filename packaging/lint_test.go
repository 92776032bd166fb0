package packaging_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/meshctl/mesh/packaging"
)

func TestLintianHasNoFindingThatIsNotExplained(t *testing.T) {
	s := packages(t)
	argv := []string{"--allow-root", "--no-cfg", "--display-info", "--fail-on", "none"}
	for _, name := range packaging.Names() {
		argv = append(argv, s.file(name, packaging.Deb))
	}
	out, err := exec.Command("lintian", argv...).CombinedOutput()
	if err != nil {
		t.Fatalf("lintian did not run (apt-get install lintian): %v\n%s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		// The stand-in programs do not raise every finding that is explained for
		// the real ones, so an explanation that was not needed is no finding here.
		if strings.Contains(line, ": unused-override ") || strings.Contains(line, ": mismatched-override ") {
			continue
		}
		if strings.HasPrefix(line, "E:") || strings.HasPrefix(line, "W:") || strings.HasPrefix(line, "I:") {
			t.Errorf("unexplained finding; fix it or explain it in debian/*.overrides: %s", line)
		}
	}
}

func TestRpmlintHasNoFindingThatIsNotExplained(t *testing.T) {
	s := packages(t)
	argv := []string{"--config", "rpmlint.toml"}
	for _, name := range packaging.Names() {
		argv = append(argv, s.file(name, packaging.RPM))
	}
	out, err := exec.Command("rpmlint", argv...).CombinedOutput()
	if !strings.Contains(string(out), "3 packages and 0 specfiles checked") {
		t.Fatalf("rpmlint did not check the three packages (apt-get install rpmlint): %v\n%s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, ": E: ") || strings.Contains(line, ": W: ") {
			t.Errorf("unexplained finding; fix it or explain it in rpmlint.toml: %s", line)
		}
	}
}

func TestEveryMaintainerScriptIsCleanForShellcheck(t *testing.T) {
	s := packages(t)
	for _, name := range packaging.Names() {
		for _, format := range []string{packaging.Deb, packaging.RPM} {
			for script, text := range s.scripts(t, name, format) {
				cmd := exec.Command("shellcheck", "-s", "sh", "-")
				cmd.Stdin = strings.NewReader(text)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s of the %s of %s: %v\n%s", script, format, name, err, out)
				}
			}
		}
	}
}
