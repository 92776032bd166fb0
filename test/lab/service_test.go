package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/lab"
)

// everyFlavour runs a story on a host of its own for each flavour, all at once.
// A host that a story needs for itself is named after the story.
func everyFlavour(t *testing.T, story string, tell func(t *testing.T, h *lab.Host)) {
	t.Helper()
	for flavour, short := range map[string]string{"bookworm-apt": "b", "bullseye-apt": "u", "trixie-dnf": "t", "sid-dnf5": "s"} {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			h := host(t, story+"-"+short, flavour)
			t.Cleanup(func() {
				// A story's host is of no use to another; a failed one is kept to be looked at.
				if t.Failed() {
					return
				}
				if err := h.PowerLoss(context.WithoutCancel(lab.TestContext(t))); err != nil {
					t.Errorf("switch %s off: %v", h.Name(), err)
				}
			})
			tell(t, h)
		})
	}
}

// goBuild compiles a program or a test of this project without C.
func goBuild(t *testing.T, out string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", append(args[:1:1], append([]string{"-trimpath", "-o", out}, args[1:]...)...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

func TestTheClientOfTheServiceManagerHoldsOnEverySystemd(t *testing.T) {
	dir := t.TempDir()
	tests := map[string]string{"systemd.test": "./systemd", "transient.test": "./host/transient"}
	for name, pkg := range tests {
		goBuild(t, filepath.Join(dir, name), "test", "-c", "-tags", "pid1", pkg)
	}
	everyFlavour(t, "sd", func(t *testing.T, h *lab.Host) {
		ctx := lab.TestContext(t)
		for name := range tests {
			if err := h.CopyIn(ctx, filepath.Join(dir, name), "/root/"+name); err != nil {
				t.Fatal(err)
			}
			out, err := h.Sh(ctx, "chmod 755 /root/"+name+" && /root/"+name+" -test.timeout 180s 2>&1")
			if err != nil || !strings.Contains(out.Stdout, "PASS") {
				t.Errorf("%s: %v\n%s", name, err, out.Stdout)
			}
		}
	})
}

// standIn builds the package of a host daemon that behaves in a given way.
func standIn(t *testing.T, version, behaviour string) map[string]string {
	t.Helper()
	return spoiled(t, version, behaviour, nil, nil)
}

// spoiled is standIn with files of the package replaced, by their names in the
// stage, and with another program. Nil: as they should be.
func spoiled(t *testing.T, version, behaviour string, replace map[string][]byte, program []byte) map[string]string {
	t.Helper()
	dir := t.TempDir()
	goBuild(t, filepath.Join(dir, "mesh-host"), "build", "-ldflags",
		"-X main.behaviour="+behaviour+" -X github.com/meshctl/mesh/internal/version.Version="+version, "./packaging/testdata/host")
	bin := dir
	if program != nil {
		bin = t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "mesh-host"), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return packed(t, "mesh-host", version, bin, dir, replace)
}

// packed builds the packages of one program, by format. Native has a program of
// the same name that can be run here.
func packed(t *testing.T, program, version, bin, native string, replace map[string][]byte) map[string]string {
	t.Helper()
	paths, err := packaging.Build(context.Background(), packaging.Options{
		Version: version, Arch: "amd64", BinDir: bin, NativeDir: native, OutDir: filepath.Join(t.TempDir(), "out"), Only: []string{program},
		LicenseFile: "../../LICENSE", Replace: replace,
	})
	if err != nil {
		t.Fatal(err)
	}
	byFormat := map[string]string{}
	for _, p := range paths {
		byFormat[strings.TrimPrefix(filepath.Ext(p), ".")] = p
	}
	return byFormat
}

// format and install are the package manager of the host's flavour.
func format(h *lab.Host) string {
	if h.Flavour().RPM() {
		return packaging.RPM
	}
	return packaging.Deb
}

func install(t *testing.T, h *lab.Host, packages map[string]string, as string) {
	t.Helper()
	path := "/root/" + as + "." + format(h)
	if err := h.CopyIn(lab.TestContext(t), packages[format(h)], path); err != nil {
		t.Fatal(err)
	}
	must(t, h, map[string]string{packaging.Deb: "dpkg -i ", packaging.RPM: "rpm -U "}[format(h)]+path)
}

func installed(t *testing.T, h *lab.Host) string {
	t.Helper()
	return must(t, h, map[string]string{
		packaging.Deb: "dpkg-query -W -f='${Version}' mesh-host", packaging.RPM: "rpm -q --qf '%{VERSION}-%{RELEASE}' mesh-host",
	}[format(h)])
}

func show(t *testing.T, h *lab.Host, property string) string {
	t.Helper()
	return strings.TrimPrefix(must(t, h, "systemctl show mesh-host.service -p "+property), property+"=")
}

// confirm makes the kit of the installed version, as a host does that confirmed it.
func confirm(t *testing.T, h *lab.Host, as string) {
	t.Helper()
	must(t, h, fmt.Sprintf(`set -e
mkdir -p -m 0700 /var/lib/mesh-host/kit
cd /var/lib/mesh-host/kit
cp /root/%[1]s.%[2]s package.%[2]s
cp /usr/lib/mesh-host/rollback rollback
sha256sum package.%[2]s rollback >SHA256SUMS
echo %[3]s >confirmed
rm -f ../rollback/attempt`, as, format(h), installed(t, h)))
}

func recorded(h *lab.Host, file string) func(ctx context.Context) (string, string) {
	return func(ctx context.Context) (string, string) {
		out, err := h.Sh(ctx, "cat /var/lib/mesh-host/rollback/"+file+" 2>/dev/null; systemctl show mesh-host.service -p ActiveState -p NRestarts")
		if err != nil {
			return "", err.Error()
		}
		for _, line := range strings.Split(out.Stdout, "\n") {
			if v, ok := strings.CutPrefix(line, "outcome="); ok {
				return v, out.Stdout
			}
		}
		return "", out.Stdout
	}
}

func awaitOutcome(t *testing.T, h *lab.Host, file, want string) {
	t.Helper()
	err := h.WaitFor(lab.TestContext(t), "the rollback's outcome "+want, func(ctx context.Context) (bool, string, error) {
		outcome, seen := recorded(h, file)(ctx)
		return outcome == want, seen, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Shows: M13, M17, M18, M19
func TestAReleaseThatCannotStartIsPutBackOnceOnEverySystemdAndPackageManager(t *testing.T) {
	good, crash, later := standIn(t, "1.0", "good"), standIn(t, "2.0", "crash"), standIn(t, "3.0", "later")
	everyFlavour(t, "rb", func(t *testing.T, h *lab.Host) {
		install(t, h, good, "good")
		if state, enabled := show(t, h, "ActiveState"), show(t, h, "UnitFileState"); state != "active" || enabled != "enabled" {
			t.Fatalf("after the first installation the host is %s and %s, want active and enabled", state, enabled)
		}
		confirm(t, h, "good")

		running := show(t, h, "MainPID")
		install(t, h, crash, "crash")
		if now := show(t, h, "MainPID"); now != running || installed(t, h) != "2.0-1" {
			t.Fatalf("the upgrade to %s touched the running host: process %s, then %s", installed(t, h), running, now)
		}
		must(t, h, "kill "+running) // it ends itself, as at the end of an apply
		awaitOutcome(t, h, "attempt", "put-back")
		if v, state := installed(t, h), show(t, h, "ActiveState"); v != "1.0-1" || state != "active" {
			t.Fatalf("after the rollback %s is installed and the host is %s, want 1.0-1 and active", v, state)
		}

		// Once: a second bad release is left, and the machine stays as it is.
		install(t, h, later, "later")
		must(t, h, "kill "+show(t, h, "MainPID"))
		awaitOutcome(t, h, "last", "once")
		if v := installed(t, h); v != "3.0-1" {
			t.Errorf("after the second failure %s is installed, want that nothing was touched", v)
		}
	})
}

// Shows: M19
func TestAConfirmedHostThatIsKilledOverAndOverIsNotRolledBack(t *testing.T) {
	good := standIn(t, "1.0", "good")
	everyFlavour(t, "kill", func(t *testing.T, h *lab.Host) {
		install(t, h, good, "good")
		confirm(t, h, "good")
		// Somebody who restarts it more often than it may fail does no harm.
		must(t, h, "set -e; for n in 1 2 3 4 5 6 7 8 9 10 11 12 13; do systemctl restart mesh-host.service; done")
		if state, out := show(t, h, "ActiveState"), must(t, h, "ls /var/lib/mesh-host"); state != "active" || strings.Contains(out, "rollback") {
			t.Fatalf("after thirteen restarts the host is %s, and its state directory holds %s", state, out)
		}
		must(t, h, `n=0; while [ "$(systemctl show mesh-host.service -p ActiveState)" != ActiveState=failed ] && [ $n -lt 400 ]; do
	systemctl kill -s KILL mesh-host.service 2>/dev/null; sleep 0.2; n=$((n+1)); done`)
		awaitOutcome(t, h, "last", "machine")
		if out := must(t, h, "ls /var/lib/mesh-host/rollback"); strings.Contains(out, "attempt") {
			t.Errorf("an attempt was made: %s", out)
		}
	})
}

// Shows: M13
func TestRemovingThePackageStopsTheHostAndInstallingItAgainStartsIt(t *testing.T) {
	good := standIn(t, "1.0", "good")
	remove := map[string]string{packaging.Deb: "dpkg -r mesh-host", packaging.RPM: "rpm -e mesh-host"}
	everyFlavour(t, "rm", func(t *testing.T, h *lab.Host) {
		install(t, h, good, "good")
		must(t, h, remove[format(h)])
		if load, active := show(t, h, "LoadState"), show(t, h, "ActiveState"); load != "not-found" || active != "inactive" {
			t.Fatalf("after the removal the unit is %s and %s, want not-found and inactive", load, active)
		}
		install(t, h, good, "good")
		if state, enabled := show(t, h, "ActiveState"), show(t, h, "UnitFileState"); state != "active" || enabled != "enabled" {
			t.Errorf("after the second installation the host is %s and %s, want active and enabled", state, enabled)
		}
	})
}
