//go:build pid1

// These tests speak to a real service manager and change its units. They are
// compiled into a test binary of their own, which a lab host runs as root:
//
//	go test -c -tags pid1 ./host/transient

package transient_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/transient"
	"github.com/meshctl/mesh/systemd"
)

const units = "/run/systemd/system"

// bench is a service manager with units of the test's own.
type bench struct {
	t *testing.T
	u *transient.Units
}

func newBench(t *testing.T) bench {
	t.Helper()
	c, err := systemd.Connect(t.Context())
	if err != nil {
		t.Fatalf("this test needs systemd as PID 1: %v", err)
	}
	t.Cleanup(c.Close)
	return bench{t, transient.NewUnits(c, func() {})}
}

// unit writes a unit that goes with the test, and has the manager read it.
func (b bench) unit(name, text string) {
	b.t.Helper()
	write(b.t, filepath.Join(units, name), text)
	b.t.Cleanup(func() {
		_ = exec.Command("systemctl", "stop", name).Run()
		_ = exec.Command("systemctl", "reset-failed", name).Run()
		_ = os.Remove(filepath.Join(units, name))
		_ = exec.Command("systemctl", "daemon-reload").Run()
	})
	b.systemctl("daemon-reload")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (b bench) systemctl(args ...string) string {
	b.t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("systemctl %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// state returns ActiveState and SubState, as in "active running".
func (b bench) state(unit string) string {
	b.t.Helper()
	return strings.ReplaceAll(b.systemctl("show", "-p", "ActiveState,SubState", "--value", unit), "\n", " ")
}

// act judges a reload or restart: well says that it must succeed, and words what
// the note or the error has to say.
func (b bench) act(verb, unit string, well bool, words string) {
	b.t.Helper()
	note, err := b.u.Act(b.t.Context(), unit, verb)
	said := note
	if err != nil {
		e := resource.AsError(err)
		if said = e.Detail; e.Reason != mesh.ReasonUnit || e.Status != mesh.StatusFailed {
			b.t.Errorf("%s of %s is %s (%s) %s", verb, unit, e.Status, e.Reason, e.Detail)
		}
	}
	if (err == nil) != well || !strings.Contains(said, words) || (words == "" && said != "") {
		b.t.Errorf("%s of %s: well %v, and it is said %q; want well %v and %q", verb, unit, err == nil, said, well, words)
	}
}

// Shows: M4
func TestWhatBecomesOfAUnitIsWhatItIsAMomentLater(t *testing.T) {
	dir := t.TempDir()
	marks := filepath.Join(dir, "marks")
	mark := func(what string) string { return fmt.Sprintf("/bin/sh -c 'echo %s >>%s'", what, marks) }
	for name, c := range map[string]struct {
		unit  string
		act   func(b bench, unit string)
		state string
	}{
		"fx-plain.service": {"[Service]\nExecStart=/bin/sleep 600\nExecReload=" + mark("reload"), func(b bench, u string) {
			b.act("restart", u, true, "did not run, and was started")
			b.act("restart", u, true, "")
			b.act("reload", u, true, "")
			if got, err := os.ReadFile(marks); err != nil || string(got) != "reload\n" {
				b.t.Errorf("it was reloaded %q, %v", got, err)
			}
		}, "active running"},
		"fx-stopped.service": {"[Service]\nExecStart=/bin/sleep 600\nExecReload=/bin/false", func(b bench, u string) {
			b.act("reload", u, true, "does not run")
		}, "inactive dead"},
		"fx-oneshot.service": {"[Service]\nType=oneshot\nExecStart=/bin/touch " + dir + "/ran", func(b bench, u string) {
			b.act("restart", u, true, "")
			if _, err := os.Stat(dir + "/ran"); err != nil {
				b.t.Errorf("it did not run: %v", err)
			}
		}, "inactive dead"},
		"fx-oneshot-condition.service": {"[Unit]\nConditionPathExists=/nowhere\n[Service]\nType=oneshot\nExecStart=/bin/touch " + dir + "/never", func(b bench, u string) {
			b.act("restart", u, false, "a condition of the unit is not met")
			if _, err := os.Stat(dir + "/never"); err == nil {
				b.t.Error("it ran")
			}
		}, "inactive dead"},
		"fx-oneshot-quick.service": {"[Service]\nType=oneshot\nExecStart=/bin/true", func(b bench, u string) {
			for range 5 {
				b.act("restart", u, true, "")
			}
		}, "inactive dead"},
		"fx-oneshot-fails.service": {"[Service]\nType=oneshot\nExecStart=/bin/false", func(b bench, u string) {
			b.act("restart", u, false, "failed")
		}, "failed failed"},
		"fx-oneshot-stays.service": {"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true", func(b bench, u string) {
			b.act("restart", u, true, "")
		}, "active exited"},
		"fx-dies.service": {"[Service]\nExecStart=/bin/sh -c 'sleep 0.7; exit 3'", func(b bench, u string) {
			b.act("restart", u, false, "the unit is")
		}, "failed failed"},
		"fx-ends-well.service": {"[Service]\nExecStart=/bin/sleep 0.3", func(b bench, u string) {
			b.act("restart", u, false, "the unit is")
		}, "inactive dead"},
		"fx-comes-and-goes.service": {"[Service]\nRestart=always\nRestartSec=100ms\nExecStart=/bin/sleep 0.5", func(b bench, u string) {
			b.act("restart", u, false, "the unit is")
		}, ""},
		"fx-dies-of-reload.service": {"[Service]\nExecStart=/bin/sleep 600\nExecReload=/bin/kill -HUP $MAINPID", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("reload", u, false, "inactive")
		}, "inactive dead"},
		"fx-reload-fails.service": {"[Service]\nExecStart=/bin/sleep 600\nExecReload=/bin/false", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("reload", u, false, "reload")
		}, "active running"},
		"fx-no-reload.service": {"[Service]\nExecStart=/bin/sleep 600", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("reload", u, false, "not applicable")
		}, "active running"},
		"fx-condition.service": {"[Unit]\nConditionPathExists=/nowhere\n[Service]\nExecStart=/bin/sleep 600", func(b bench, u string) {
			b.act("restart", u, false, "inactive")
		}, "inactive dead"},
		"fx-forking.service": {"[Service]\nType=forking\nExecStart=/bin/sh -c 'sleep 600 & exit 0'", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("restart", u, true, "")
		}, "active running"},
		"fx-path.path": {"[Path]\nPathExists=/nowhere\nUnit=other-fx-path.path.service", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("restart", u, true, "")
		}, "active waiting"},
		"fx-timer.timer": {"[Timer]\nOnCalendar=2099-01-01\nUnit=other-fx-timer.timer.service", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("restart", u, true, "")
		}, "active waiting"},
		"fx-socket.socket": {"[Socket]\nListenStream=/run/fx-socket\nAccept=no\nService=other-fx-socket.socket.service", func(b bench, u string) {
			b.act("restart", u, true, "did not run")
			b.act("restart", u, true, "")
		}, "active listening"},
		"fx-unreadable.service": {"[Service]\nType=simple\n", func(b bench, u string) {
			b.act("restart", u, false, "unit file of fx-unreadable.service has an error")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.unit("other-"+name+".service", "[Service]\nExecStart=/bin/sleep 600\n")
			b.unit(name, c.unit+"\n")
			c.act(b, name)
			if got := b.state(name); c.state != "" && got != c.state {
				t.Errorf("in the end it is %s, not %s", got, c.state)
			}
		})
	}
}

func TestAUnitThatIsNotThereOrMaskedOrThisHostIsSaid(t *testing.T) {
	b := newBench(t)
	b.act("restart", "fx-nowhere.service", false, "there is no unit")
	b.act("reload", "fx-nowhere.service", false, "there is no unit")
	b.act("restart", "mesh-host.service", false, "this host")
	if err := os.Symlink("/dev/null", filepath.Join(units, "fx-masked.service")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(units, "fx-masked.service")); b.systemctl("daemon-reload") })
	b.systemctl("daemon-reload")
	b.act("restart", "fx-masked.service", false, "masked")
	b.act("reload", "fx-masked.service", true, "does not run")
}

func TestAUnitThatFailedTooOftenIsStartedWithItsNewConfiguration(t *testing.T) {
	b := newBench(t)
	config := filepath.Join(t.TempDir(), "config")
	b.unit("fx-limited.service", "[Unit]\nStartLimitBurst=2\nStartLimitIntervalSec=1h\n[Service]\nExecStart=/bin/sh -c 'exec sleep $(cat "+config+")'\n")
	for range 3 {
		_ = exec.Command("systemctl", "restart", "fx-limited.service").Run()
	}
	write(t, config, "600")
	for range 4 {
		if _, err := b.u.Act(t.Context(), "fx-limited.service", "restart"); err != nil {
			t.Fatalf("restart: %v", err)
		}
	}
	if got := b.state("fx-limited.service"); got != "active running" {
		t.Errorf("it is %s", got)
	}
}

func TestAUnitWhoseFilesChangedIsReadBeforeItIsStarted(t *testing.T) {
	b := newBench(t)
	b.unit("fx-changed.service", "[Service]\nExecStart=/bin/sleep 600\n")
	b.act("restart", "fx-changed.service", true, "did not run")
	write(t, filepath.Join(units, "fx-changed.service"), "[Service]\nEnvironment=FX=new\nExecStart=/bin/sleep 600\n")
	b.act("restart", "fx-changed.service", true, "")
	if got := b.systemctl("show", "-p", "Environment", "--value", "fx-changed.service"); got != "FX=new" {
		t.Errorf("the changed file was not read: %q", got)
	}
}

func TestAUnitThatTakesLongToStartIsWaitedForAndNotStartedAnew(t *testing.T) {
	b := newBench(t)
	starts := filepath.Join(t.TempDir(), "starts")
	b.unit("fx-slow.service", "[Service]\nExecStartPre=/bin/sh -c 'echo start >>"+starts+"; sleep 4'\nExecStart=/bin/sleep 600\n")
	for range 2 {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.u.Act(short, "fx-slow.service", "restart")
		cancel()
		if e := resource.AsError(err); e == nil || e.Reason != mesh.ReasonTimeout {
			t.Fatalf("a start that takes too long is %v", err)
		}
	}
	b.act("restart", "fx-slow.service", true, "")
	if got, err := os.ReadFile(starts); err != nil || string(got) != "start\n" {
		t.Errorf("it was started %q, %v", got, err)
	}
	b.act("restart", "fx-slow.service", true, "")
	if got, err := os.ReadFile(starts); err != nil || string(got) != "start\nstart\n" {
		t.Errorf("the next restart is none: %q, %v", got, err)
	}
}
