package packaging_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meshctl/mesh/packaging"
)

// scripts reads the maintainer scripts out of a built package, by the names that
// the format gives them.
func (s stand) scripts(t *testing.T, name, format string) map[string]string {
	t.Helper()
	found := map[string]string{}
	if format == packaging.Deb {
		dir := t.TempDir()
		output(t, "dpkg-deb", "-e", s.file(name, format), dir)
		for _, script := range []string{"preinst", "postinst", "prerm", "postrm", "config"} {
			if b, err := os.ReadFile(filepath.Join(dir, script)); err == nil {
				found[script] = string(b)
			}
		}
		return found
	}
	for tag, script := range map[string]string{
		"PREIN": "pre", "POSTIN": "post", "PREUN": "preun", "POSTUN": "postun", "PRETRANS": "pretrans", "POSTTRANS": "posttrans", "VERIFYSCRIPT": "verify",
	} {
		text := output(t, "rpm", "-qp", "--qf", "%{"+tag+"}", s.file(name, format))
		if text != "(none)" && text != "" {
			found[script] = text
		}
	}
	return found
}

// call is one way in which a package manager calls a maintainer script.
type call struct {
	when, script string
	args         []string
}

var debCalls = []call{
	{"first installation", "postinst", []string{"configure", ""}},
	{"first installation, second argument left out", "postinst", []string{"configure"}},
	{"upgrade, old prerm", "prerm", []string{"upgrade", "2.0-1"}},
	{"upgrade, old postrm", "postrm", []string{"upgrade", "2.0-1"}},
	{"upgrade, new postinst", "postinst", []string{"configure", "1.0-1"}},
	{"upgrade, old prerm failed", "prerm", []string{"failed-upgrade", "1.0-1"}},
	{"upgrade, old postrm failed", "postrm", []string{"failed-upgrade", "1.0-1"}},
	{"upgrade taken back", "postinst", []string{"abort-upgrade", "2.0-1"}},
	{"upgrade taken back, new postrm", "postrm", []string{"abort-upgrade", "1.0-1"}},
	{"installation taken back", "postrm", []string{"abort-install"}},
	{"deconfigured for another package", "prerm", []string{"deconfigure", "in-favour", "other", "1"}},
	{"deconfiguration taken back", "postinst", []string{"abort-deconfigure", "in-favour", "other", "1"}},
	{"triggered", "postinst", []string{"triggered", "something"}},
	{"removal", "prerm", []string{"remove"}},
	{"removal taken back", "postinst", []string{"abort-remove"}},
	{"removal, postrm", "postrm", []string{"remove"}},
	{"purge", "postrm", []string{"purge"}},
	{"disappear", "postrm", []string{"disappear", "other", "1"}},
}

var rpmCalls = []call{
	{"first installation", "post", []string{"1"}},
	{"upgrade, new post", "post", []string{"2"}},
	{"upgrade, old preun", "preun", []string{"1"}},
	{"upgrade, old postun", "postun", []string{"1"}},
	{"third instance after a killed upgrade", "post", []string{"3"}},
	{"removal", "preun", []string{"0"}},
	{"removal, postun", "postun", []string{"0"}},
}

// shown is what a script did: the systemctl calls, and how it ended.
type shown struct {
	calls  []string
	status int
	out    string
}

// sandbox is a script that runs another in mount namespace of its own, where
// systemd seems to run (or not) and every tool that a maintainer script may call
// is a stub that writes down its arguments and then ends with a given status.
const sandbox = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /var/lib/mesh-host /var/lib/mesh-control
[ ! -d /etc/mesh ] || mount -t tmpfs tmpfs /etc/mesh
[ "$BOOTED" = no ] || mkdir -p /run/systemd/system
mkdir -p /run/stub
for tool in systemctl deb-systemd-invoke deb-systemd-helper systemd-sysusers groupadd useradd service invoke-rc.d; do
	printf '#!/bin/sh\necho "%s $*" >>/run/stub/log\nexit %s\n' "$tool" "$STUB_STATUS" >/run/stub/$tool
	chmod 755 /run/stub/$tool
done
: >/run/stub/log
for tool in systemctl deb-systemd-invoke deb-systemd-helper service invoke-rc.d; do
	for dir in /bin /usr/bin /usr/sbin /sbin; do
		if [ -e "$dir/$tool" ]; then mount --bind /run/stub/$tool "$dir/$tool"; fi
	done
done
set +e
PATH=/run/stub:$PATH sh "$@" >&2
echo "status $?"
cat /run/stub/log
`

// runScript runs one maintainer script in the sandbox.
func runScript(t *testing.T, text string, args []string, environment ...string) shown {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", sandbox, "sandbox", path}, args...)...)
	cmd.Env = append(os.Environ(), append([]string{"STUB_STATUS=0", "BOOTED=yes"}, environment...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the sandbox for scripts needs root and a mount namespace: %v\n%s%s", err, out, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	s := shown{out: errs.String()}
	if _, err := fmt.Sscanf(lines[0], "status %d", &s.status); err != nil {
		t.Fatalf("the sandbox answered %q", out)
	}
	s.calls = lines[1:]
	return s
}

// does says whether one of the calls is about the unit with one of the verbs.
func (s shown) does(unit string, verbs ...string) bool {
	for _, c := range s.calls {
		words := strings.Fields(c)
		verb, about := false, false
		for _, w := range words[1:] {
			for _, v := range verbs {
				verb = verb || w == v
			}
			about = about || w == unit || w == strings.TrimSuffix(unit, ".service")
		}
		if verb && about {
			return true
		}
	}
	return false
}

var disturbing = []string{"stop", "restart", "try-restart", "reload-or-restart", "try-reload-or-restart", "condrestart", "force-reload", "kill", "isolate", "disable", "mask", "reenable", "set-property"}

// calls of both formats, with the scripts of the package.
func eachCall(t *testing.T, name string, visit func(t *testing.T, c call, text string)) {
	s := packages(t)
	for format, list := range map[string][]call{packaging.Deb: debCalls, packaging.RPM: rpmCalls} {
		scripts := s.scripts(t, name, format)
		for _, c := range list {
			text, ok := scripts[c.script]
			if !ok {
				t.Fatalf("the %s of %s has no %s", format, name, c.script)
			}
			t.Run(format+"/"+c.when, func(t *testing.T) { visit(t, c, text) })
		}
	}
}

// Shows: M13
func TestNoMaintainerScriptStopsOrRestartsTheHostExceptWhenItIsRemoved(t *testing.T) {
	eachCall(t, "mesh-host", func(t *testing.T, c call, text string) {
		got := runScript(t, text, c.args)
		removal := (c.script == "prerm" && c.args[0] == "remove") || (c.script == "preun" && c.args[0] == "0")
		if disturbs := got.does("mesh-host.service", disturbing...); disturbs != removal {
			t.Errorf("%s %q: disturbs the host is %v, want %v; it called %q", c.script, c.args, disturbs, removal, got.calls)
		}
	})
}

// Shows: M13
func TestTheHostIsStartedByItsPackageOnlyWhenItIsNewOnTheMachine(t *testing.T) {
	eachCall(t, "mesh-host", func(t *testing.T, c call, text string) {
		got := runScript(t, text, c.args)
		first := strings.HasPrefix(c.when, "first installation") || c.when == "removal taken back"
		if starts := got.does("mesh-host.service", "start"); starts != first {
			t.Errorf("%s %q: starts the host is %v, want %v; it called %q", c.script, c.args, starts, first, got.calls)
		}
		if enables := got.does("mesh-host.service", "enable"); enables != first {
			t.Errorf("%s %q: enables the host is %v, want %v; it called %q", c.script, c.args, enables, first, got.calls)
		}
	})
}

func TestNoMaintainerScriptOfTheHostNamesARestartInItsText(t *testing.T) {
	s := packages(t)
	bad := regexp.MustCompile(`(?m)^[^#\n]*\b(restart|try-restart|reload-or-restart|condrestart|force-reload|Markers|needs-restart|kill|pkill|killall)\b`)
	for _, format := range []string{packaging.Deb, packaging.RPM} {
		for script, text := range s.scripts(t, "mesh-host", format) {
			if found := bad.FindString(text); found != "" {
				t.Errorf("%s of the %s: %q", script, format, found)
			}
		}
	}
}

func TestMaintainerScriptsEndInSuccessWhenEveryToolFails(t *testing.T) {
	for _, name := range []string{"mesh-host", "mesh-control"} {
		eachCall(t, name, func(t *testing.T, c call, text string) {
			if got := runScript(t, text, c.args, "STUB_STATUS=1"); got.status != 0 {
				t.Errorf("%s %q of %s ended with status %d: %s", c.script, c.args, name, got.status, got.out)
			}
		})
	}
}

func TestWithoutARunningServiceManagerNothingIsStartedOrReloadedAndTheScriptsSucceed(t *testing.T) {
	for _, name := range []string{"mesh-host", "mesh-control"} {
		eachCall(t, name, func(t *testing.T, c call, text string) {
			got := runScript(t, text, c.args, "BOOTED=no")
			if got.status != 0 {
				t.Errorf("%s %q of %s ended with status %d: %s", c.script, c.args, name, got.status, got.out)
			}
			for _, line := range got.calls {
				if strings.Contains(line, "start") || strings.Contains(line, "stop") || strings.Contains(line, "daemon-reload") {
					t.Errorf("%s %q of %s called %q in a machine that is not booted", c.script, c.args, name, line)
				}
			}
		})
	}
}

func TestAPackageThatWasRemovedAndNotPurgedStartsTheHostWhenItComesBack(t *testing.T) {
	scripts := packages(t).scripts(t, "mesh-host", packaging.Deb)
	both := "#!/bin/sh\nset -- remove\n(\n" + scripts["postrm"] + ")\nset -- configure 1.2.0-1\n" + scripts["postinst"]
	got := runScript(t, both, nil)
	if !got.does("mesh-host.service", "start") || !got.does("mesh-host.service", "enable") {
		t.Errorf("after remove and install the host is not enabled and started; calls %q", got.calls)
	}
}

func TestOnlyAPurgeDeletesTheStateOfTheHost(t *testing.T) {
	eachCall(t, "mesh-host", func(t *testing.T, c call, text string) {
		wrapped := "echo state >/var/lib/mesh-host/store.db\n(\n" + text + ")\n[ -e /var/lib/mesh-host/store.db ] && systemctl state-is-there\nexit 0\n"
		got := runScript(t, wrapped, c.args)
		kept := strings.Contains(strings.Join(got.calls, "\n"), "state-is-there")
		if purge := c.args[0] == "purge"; kept == purge {
			t.Errorf("%s %q: the state is kept: %v", c.script, c.args, kept)
		}
	})
}

func TestTheControlPlaneIsRestartedByItsOwnPackageOnUpgrade(t *testing.T) {
	eachCall(t, "mesh-control", func(t *testing.T, c call, text string) {
		got := runScript(t, text, c.args)
		upgrade := c.when == "upgrade, new postinst" || c.when == "upgrade, new post" || strings.HasPrefix(c.when, "third instance")
		if restarts := got.does("mesh-control.service", "try-restart"); restarts != upgrade {
			t.Errorf("%s %q: restarts the control plane is %v, want %v; it called %q", c.script, c.args, restarts, upgrade, got.calls)
		}
	})
}
