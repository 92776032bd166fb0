package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/internal/cli"
)

func run(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, talk bytes.Buffer
	root := newRootCommand(deps{stdout: &out, stderr: &talk, getenv: func(string) string { return "" }})
	root.SetArgs(args)
	err = cli.Execute(t.Context(), root)
	return out.String(), err
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "control.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEverySettingHasADefaultThatWorks(t *testing.T) {
	c, problems := parseConfig(nil)
	if len(problems) > 0 {
		t.Fatalf("no configuration is a fault: %v", problems)
	}
	if c.stateDir != "/var/lib/mesh-control" || c.linkListen != ":7022" || c.repositoryListen != ":7080" || c.socket != "/run/mesh-control/api.sock" || c.origin != "mesh" || c.heartbeat != 30*time.Second {
		t.Fatalf("defaults are %+v", c)
	}
	for name, text := range map[string]string{"comments": "# nothing\n", "null": "---\n", "tilde": "~\n"} {
		if got, problems := parseConfig([]byte(text)); len(problems) > 0 || got.yaml() != c.yaml() {
			t.Errorf("%s: %v and\n%s\nwant the defaults", name, problems, got.yaml())
		}
	}
}

func TestWhatConfigCheckShowsIsAConfigurationThatMeansTheSame(t *testing.T) {
	file := write(t, `state_dir: /srv/mesh
link_listen: "10.0.0.1:22"
addresses: [mesh.example.org:7022, "[2001:db8::5]:7022"]
repository_url: https://pkg.example.org/mesh/
repository_readers: nodes
origin: Example "one"
heartbeat_seconds: 5
log_level: debug
`)
	shown, err := run(t, "config", "check", file)
	if err != nil {
		t.Fatalf("config check: %v", err)
	}
	again, err := run(t, "config", "check", write(t, shown))
	if err != nil || again != shown {
		t.Fatalf("read again (%v):\n%s\nwant:\n%s", err, again, shown)
	}
	for _, line := range []string{`repository_url: "https://pkg.example.org/mesh"`, `addresses: ["mesh.example.org:7022", "[2001:db8::5]:7022"]`, `origin: "Example \"one\""`, "log_level: debug", "heartbeat_seconds: 5"} {
		if !strings.Contains(shown, line+"\n") {
			t.Errorf("lacks %q:\n%s", line, shown)
		}
	}
}

func TestEveryFindingInAConfigurationIsListedWithItsPlace(t *testing.T) {
	file := write(t, `state_dir: var/lib
link_listen: 7022
sockett: /run/x
origin: [a]
heartbeat_seconds: soon
heartbeat_seconds: 3
addresses: mesh.example.org
repository_url: ftp://x
log_level: loud
`)
	_, err := run(t, "config", "check", file)
	if err == nil || cli.ExitCode(err) != cli.ExitRefused {
		t.Fatalf("error %v, want a refusal", err)
	}
	for _, finding := range []string{":1:12: state_dir: ", ":2:14: link_listen: ", ":3:1: sockett: is no setting", ":4:9: origin: needs one value", ":5:20: heartbeat_seconds: ", ":6:1: heartbeat_seconds: is there already, in line 5", ":7:12: addresses: needs a list", ":8:17: repository_url: ", ":9:12: log_level: "} {
		if !strings.Contains(err.Error(), file+finding) {
			t.Errorf("lacks %q:\n%v", finding, err)
		}
	}
}

func TestAHostileConfigurationIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"too long":      "# " + strings.Repeat("x", maxConfig),
		"not a mapping": "- a\n",
		"two documents": "origin: a\n---\norigin: b\n",
		"not YAML":      "a: [\n",
		"too many":      "addresses: [" + strings.Repeat("a:1, ", 9) + "]\n",
		"comma":         "addresses: ['a,b:1']\n",
		"port":          "addresses: ['a:0']\n",
		"null":          "socket:\n",
	} {
		if _, problems := parseConfig([]byte(text)); len(problems) == 0 {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestAConfigurationThatWasNamedMustBeThere(t *testing.T) {
	if _, err := run(t, "config", "check", filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Fatal("a file that is not there was taken for the defaults")
	}
}

func TestTheHelpListsEverySetting(t *testing.T) {
	out, err := run(t, "config", "check", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if !strings.Contains(out, "  "+k.name) || !strings.Contains(out, k.about) {
			t.Errorf("the help does not explain %s", k.name)
		}
	}
}
