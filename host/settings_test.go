package host_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
)

func TestSettingsComeBackAsTheyWereSaved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "etc", "host.yaml")
	if s, err := host.LoadSettings(file); err != nil || s.Enrolled() {
		t.Fatalf("without a file there is %+v, %v", s, err)
	}
	want := enrolled
	want.DriftInterval, want.LogLevel = host.Duration(20*time.Minute), "debug"
	for _, s := range []host.Settings{enrolled, want} {
		if err := host.SaveSettings(file, s); err != nil {
			t.Fatal(err)
		}
		if got, err := host.LoadSettings(file); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("it comes back as %+v, %v", got, err)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("beside the file there are %v", left)
	}
}

func TestSettingsThatAreWrongSayWhereAndWhat(t *testing.T) {
	whole := "node: web-1\naddresses: [control:7022]\nfingerprint: " + enrolled.Fingerprint + "\n"
	for text, says := range map[string]string{
		"nodes: web-1\n":                                  "nodes",
		"drift_interval: often\n":                         "line 1: \"often\" is not a duration",
		"drift_interval: 1s\n":                            "the least is 10s",
		"drift_interval: -5m\n":                           "the least is 10s",
		"node: web-1\n":                                   "fingerprint",
		whole + "node: web-2\n":                           "node",
		strings.Replace(whole, "web-1", "Web 1", 1):       "node name",
		strings.Replace(whole, "[control:7022]", "[]", 1): "addresses",
		strings.Replace(whole, "SHA256:", "MD5:", 1):      "enrol again",
		"drift_interval: [1m]\n":                          "not a duration",
		"\tnode: web-1\n":                                 "host.yaml",
	} {
		file := filepath.Join(t.TempDir(), "host.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := host.LoadSettings(file)
		if mesh.CodeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q is answered with %+v, %v; it should name the file and say %q", text, s, err, says)
		}
	}
}

func TestEverythingThatIsWrongWithSettingsIsSaidAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "host.yaml")
	text := "node: Web 1\naddress: [control:7022]\ndrift_interval: often\nfingerprint: none\nlog_level: loud\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := host.LoadSettings(file)

	if err == nil {
		t.Fatal("it is taken")
	}
	for _, says := range []string{"line 2: field address not found", `line 3: "often"`, "fingerprint: ", "addresses: ", "node: ", "log_level: "} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("the findings lack %q:\n%s", says, err)
		}
	}
}

func TestSettingsThatCannotBeWrittenLeaveTheOldOnes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "host.yaml")
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := host.SaveSettings(file, enrolled); err == nil {
		t.Error("it says that it saved them")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("it left %v", left)
	}
}
