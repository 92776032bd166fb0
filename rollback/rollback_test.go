package rollback_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shells that the script must run under; the machines' /bin/sh is one of them.
var shells = map[string][]string{
	"dash":         {"dash"},
	"bash --posix": {"bash", "--posix"},
	"busybox sh":   {"busybox", "sh"},
}

// world is a machine made of stubs: a service manager and package managers whose
// whole state is in files, and which can be told to lie.
type world struct {
	t     *testing.T
	root  string
	shell []string
}

const (
	confirmed = "1.0-1"
	bad       = "2.0-1"
)

// The stubs. $W is the world's directory; a file "behave-TOOL" tells a tool to
// lie (exit 0 and do nothing), to fail, or to hang.
var stubs = map[string]string{
	"behave": `case "$(cat "$W/behave-$1" 2>/dev/null)" in
lie) exit 0 ;;
fail) echo "$1: cannot" >&2; exit 1 ;;
hang) echo yes >"$W/hangs"; exec sleep 300 ;;
esac`,
	"dpkg-query": `behave dpkg-query; echo "$(cat "$W/status")|$(cat "$W/installed")"`,
	"dpkg": `case "$*" in
*--verify*) cat "$W/verify" 2>/dev/null; exit 0 ;;
esac
behave dpkg
for last; do :; done
cat "$last" >"$W/installed"; echo "ii " >"$W/status"`,
	"rpm": `case "$*" in
-q*) behave rpm-query; cat "$W/installed"; exit 0 ;;
-V*) cat "$W/verify" 2>/dev/null; exit 0 ;;
esac
behave rpm
for last; do :; done
cat "$last" >"$W/installed"`,
	"systemctl": `behave systemctl
case "$1" in
show) for last; do :; done; echo "$last=$(cat "$W/unit-$last")" ;;
is-system-running) cat "$W/running" ;;
start | restart) if [ "$(cat "$W/installed")" = "$(cat "$W/works")" ]; then echo active >"$W/unit-ActiveState"; else exit 1; fi ;;
esac`,
	"journalctl": `echo "panic: broken release"`,
}

func newWorld(t *testing.T, shell []string, family string) world {
	t.Helper()
	w := world{t: t, root: t.TempDir(), shell: shell}
	for name, body := range stubs {
		text := "#!/bin/sh\nW='" + w.root + "/w'\necho \"" + name + " $*\" >>\"$W/log\"\n"
		text += "behave() {\n" + stubs["behave"] + "\n}\n" + body + "\n"
		if name == "behave" {
			continue
		}
		w.write("bin/"+name, text, 0o755)
	}
	for name, content := range map[string]string{
		"w/log": "", "w/status": "ii ", "w/installed": bad, "w/works": confirmed, "w/running": "running",
		"w/unit-LoadState": "loaded", "w/unit-ActiveState": "failed", "w/unit-Result": "exit-code",
		"usr/bin/mesh-host":                       "binary of 2.0",
		"var/lib/mesh-host/kit/confirmed":         confirmed + "\n",
		"var/lib/mesh-host/kit/package." + family: confirmed,
		"var/lib/mesh-host/kit/rollback":          "script",
		"var/lib/mesh-host/starts":                "begin boot 1 2.0-1\nend exit-code exited 1\n",
	} {
		w.write(name, content, 0o644)
	}
	w.sums(family)
	return w
}

// sums writes the kit's sums as they should be.
func (w world) sums(family string) {
	w.t.Helper()
	cmd := exec.Command("sha256sum", "package."+family, "rollback")
	cmd.Dir = filepath.Join(w.root, "var/lib/mesh-host/kit")
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("var/lib/mesh-host/kit/SHA256SUMS", string(out), 0o644)
}

func (w world) write(name, content string, mode os.FileMode) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		w.t.Fatal(err)
	}
}

func (w world) read(name string) string {
	b, err := os.ReadFile(filepath.Join(w.root, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// run runs the script as called by who and returns its exit status and output.
func (w world) run(who string, environment ...string) (int, string) {
	w.t.Helper()
	cmd := w.command(who, environment...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("run %v: %v", cmd.Args, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (w world) command(who string, environment ...string) *exec.Cmd {
	argv := append(append([]string{}, w.shell...), "rollback.sh", who)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), append([]string{
		"MESH_ROLLBACK_ROOT=" + w.root, "MESH_ROLLBACK_LOCK_WAIT=3", "MESH_ROLLBACK_RUN_LIMIT=1", "MESH_ROLLBACK_PAUSE=1",
	}, environment...)...)
	return cmd
}

// last is one value of the record of the latest run, attempt of the attempt's.
func (w world) last(key string) string    { return w.value("last", key) }
func (w world) attempt(key string) string { return w.value("attempt", key) }

func (w world) value(file, key string) string {
	for _, line := range strings.Split(w.read("var/lib/mesh-host/rollback/"+file), "\n") {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			return v
		}
	}
	return ""
}

// touched says whether the package manager was told to install anything.
func (w world) touched() bool {
	log := w.read("w/log")
	return strings.Contains(log, "dpkg --force") || strings.Contains(log, "rpm -U")
}

// everywhere runs a story under every shell and with both package managers.
func everywhere(t *testing.T, story func(t *testing.T, w world)) {
	t.Helper()
	for name, shell := range shells {
		for _, family := range []string{"deb", "rpm"} {
			t.Run(name+" "+family, func(t *testing.T) {
				t.Parallel()
				story(t, newWorld(t, shell, family))
			})
		}
	}
}

func (w world) family() string {
	if w.read("var/lib/mesh-host/kit/package.rpm") != "" {
		return "rpm"
	}
	return "deb"
}

func (w world) manager() string { return map[string]string{"deb": "dpkg", "rpm": "rpm"}[w.family()] }

// Shows: M18
func TestAVersionThatCannotStartIsReplacedByTheConfirmedOne(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		status, out := w.run("on-failure")
		if status != 0 || w.read("w/installed") != confirmed || w.read("w/unit-ActiveState") != "active" {
			t.Fatalf("status %d, installed %s, unit %s:\n%s", status, w.read("w/installed"), w.read("w/unit-ActiveState"), out)
		}
		got := fmt.Sprintln(w.attempt("outcome"), w.attempt("from"), w.attempt("to"), w.attempt("result"), w.attempt("step"), len(w.attempt("from-binary")))
		if want := fmt.Sprintln("put-back", bad, confirmed, "exit-code", "finished", 64); got != want {
			t.Errorf("the record says %q, want %q", got, want)
		}
		if w.read("var/lib/mesh-host/rollback/journal") == "" || w.attempt("when") == "" {
			t.Errorf("the record lacks the time or the journal")
		}
	})
}

// Shows: M18
func TestTheServiceIsReloadedForgivenAndStartedAfterThePackageWasReadBack(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		if status, out := w.run("on-failure"); status != 0 {
			t.Fatalf("status %d: %s", status, out)
		}
		log := w.read("w/log")
		at := -1
		for _, step := range []string{"systemctl daemon-reload", "systemctl reset-failed mesh-host.service", "systemctl start mesh-host.service"} {
			next := strings.Index(log, step)
			if next <= at {
				t.Fatalf("%q is missing or too early in:\n%s", step, log)
			}
			at = next
		}
	})
}

// Shows: M19
func TestASecondFailureIsTheMachinesProblem(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.run("on-failure")
		w.write("w/log", "", 0o644)
		w.write("w/installed", bad, 0o644)
		w.write("w/unit-ActiveState", "failed", 0o644)
		for range 3 {
			if status, out := w.run("on-failure"); status != 1 || w.last("outcome") != "once" || w.touched() {
				t.Fatalf("status %d, outcome %s, calls %s:\n%s", status, w.last("outcome"), w.read("w/log"), out)
			}
		}
		if w.attempt("outcome") != "put-back" {
			t.Errorf("the record of the attempt was overwritten with %q", w.attempt("outcome"))
		}
	})
}

// cutOff makes the machine one in which a run of the script was cut off while it
// was at work.
func (w world) cutOff(cuts int) {
	w.t.Helper()
	w.write("proc/sys/kernel/random/boot_id", "first-boot\n", 0o644)
	w.write("w/behave-"+w.manager(), "lie", 0o644)
	w.run("on-failure")
	record := w.read("var/lib/mesh-host/rollback/attempt") + "\n"
	record = strings.Replace(record, "outcome=failed", "outcome=started", 1)
	record = strings.Replace(record, "cuts=0", fmt.Sprintf("cuts=%d", cuts), 1)
	w.write("var/lib/mesh-host/rollback/attempt", record, 0o644)
	w.write("w/behave-"+w.manager(), "", 0o644)
	w.write("w/log", "", 0o644)
}

// Shows: M5, M18, M19
func TestAnAttemptThatWasCutOffIsGoneOnWith(t *testing.T) {
	for what, c := range map[string]struct{ boot, database string }{
		// What dpkg says in the middle of an installation.
		"by the power":                    {"second-boot", "1.0-1 of which half"},
		"by a signal":                     {"first-boot", bad},
		"when all but the start was done": {"first-boot", confirmed},
	} {
		t.Run(what, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				w.cutOff(2)
				w.write("proc/sys/kernel/random/boot_id", c.boot+"\n", 0o644)
				w.write("w/installed", c.database, 0o644)
				status, out := w.run("guard")
				if status != 0 || w.read("w/installed") != confirmed || w.read("w/unit-ActiveState") != "active" {
					t.Fatalf("status %d, installed %s, unit %s:\n%s", status, w.read("w/installed"), w.read("w/unit-ActiveState"), out)
				}
				got := fmt.Sprintln(w.attempt("outcome"), w.attempt("from"), w.attempt("to"), w.attempt("boot"), w.attempt("cuts"))
				if want := fmt.Sprintln("put-back", bad, confirmed, c.boot, "3"); got != want {
					t.Errorf("the record says %q, want %q", got, want)
				}
				if left, err := filepath.Glob(filepath.Join(w.root, "var/lib/mesh-host/rollback/*.*")); err != nil || len(left) != 2 {
					t.Errorf("beside the two logs there is left %v, %v", left, err)
				}
			})
		})
	}
}

// Shows: M19
func TestAnAttemptIsNotGoneOnWithForEver(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.cutOff(3)
		status, out := w.run("on-failure")
		if status != 1 || w.last("outcome") != "once" || w.touched() {
			t.Fatalf("status %d, outcome %s, calls %s:\n%s", status, w.last("outcome"), w.read("w/log"), out)
		}
	})
}

// Shows: M18, M19
func TestARunThatIsKilledIsGoneOnWithAndOneThatIsAtWorkIsNot(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/behave-"+w.manager(), "hang", 0o644)
		first := w.command("on-failure", "MESH_ROLLBACK_RUN_LIMIT=20")
		first.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		for w.read("w/hangs") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		w.write("w/behave-"+w.manager(), "", 0o644)
		if status, out := w.run("guard"); status != 1 || w.last("outcome") != "once" || w.attempt("cuts") != "0" {
			t.Errorf("beside a run that is at work: status %d, outcome %s:\n%s", status, w.last("outcome"), out)
		}
		if err := syscall.Kill(-first.Process.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait() // it was killed
		status, out := w.run("guard")
		if status != 0 || w.read("w/installed") != confirmed || w.attempt("outcome") != "put-back" || w.attempt("cuts") != "1" || w.attempt("from") != bad {
			t.Errorf("after it was killed: status %d, installed %s, outcome %s, cuts %s:\n%s", status, w.read("w/installed"), w.attempt("outcome"), w.attempt("cuts"), out)
		}
	})
}

// Shows: M19
func TestAConfirmedVersionIsNeverReplaced(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/installed", confirmed, 0o644)
		for range 3 {
			if status, out := w.run("on-failure"); status != 1 || w.last("outcome") != "machine" || w.touched() || w.attempt("outcome") != "" {
				t.Fatalf("status %d, outcome %s, attempt %q:\n%s", status, w.last("outcome"), w.attempt("outcome"), out)
			}
		}
	})
}

func TestWithoutAKitThereIsNoWayBackAndNothingIsTouched(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		if err := os.RemoveAll(filepath.Join(w.root, "var/lib/mesh-host/kit")); err != nil {
			t.Fatal(err)
		}
		status, out := w.run("on-failure")
		if status != 1 || w.last("outcome") != "no-way-back" || w.touched() || w.attempt("outcome") != "" {
			t.Errorf("status %d, outcome %s:\n%s", status, w.last("outcome"), out)
		}
	})
}

func TestAKitThatDoesNotMatchItsSumsIsNotInstalled(t *testing.T) {
	for what, damage := range map[string]func(w world){
		"package changed": func(w world) { w.write("var/lib/mesh-host/kit/package."+w.family(), "something else", 0o644) },
		"script changed":  func(w world) { w.write("var/lib/mesh-host/kit/rollback", "something else", 0o644) },
		"sums empty":      func(w world) { w.write("var/lib/mesh-host/kit/SHA256SUMS", "", 0o644) },
		"sums garbage":    func(w world) { w.write("var/lib/mesh-host/kit/SHA256SUMS", "garbage\n", 0o644) },
		"package missing from the sums": func(w world) {
			sums := w.read("var/lib/mesh-host/kit/SHA256SUMS")
			w.write("var/lib/mesh-host/kit/SHA256SUMS", sums[strings.Index(sums, "\n")+1:]+"\n", 0o644)
		},
	} {
		t.Run(what, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				damage(w)
				status, out := w.run("on-failure")
				if status != 1 || w.last("outcome") != "no-way-back" || w.touched() || w.attempt("outcome") != "" {
					t.Errorf("status %d, outcome %s, attempt %q:\n%s", status, w.last("outcome"), w.attempt("outcome"), out)
				}
			})
		})
	}
}

func TestAPackageManagerThatLiesFailsOrHangsIsFoundOutByReadingBack(t *testing.T) {
	for _, behaviour := range []string{"lie", "fail", "hang"} {
		t.Run(behaviour, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				w.write("w/behave-"+w.manager(), behaviour, 0o644)
				status, out := w.run("on-failure")
				if status != 1 || w.attempt("outcome") != "failed" || w.attempt("step") != "read-back" || !strings.Contains(w.attempt("why"), bad) {
					t.Errorf("status %d, outcome %s, step %s, why %q:\n%s", status, w.attempt("outcome"), w.attempt("step"), w.attempt("why"), out)
				}
				if strings.Contains(w.read("w/log"), "systemctl start") {
					t.Errorf("the version that cannot run was started again")
				}
			})
		})
	}
}

func TestAProgramThatIsNotThePackagesIsNotBelieved(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/verify", "??5??????   /usr/bin/mesh-host\n", 0o644)
		if status, out := w.run("on-failure"); status != 1 || w.attempt("outcome") != "failed" {
			t.Errorf("status %d, outcome %s:\n%s", status, w.attempt("outcome"), out)
		}
	})
}

func TestAHalfInstalledPackageOfTheConfirmedVersionIsInstalledAgain(t *testing.T) {
	w := newWorld(t, shells["dash"], "deb")
	w.write("w/installed", confirmed, 0o644)
	w.write("w/status", "iF ", 0o644)
	if status, out := w.run("on-failure"); status != 0 || w.attempt("outcome") != "put-back" {
		t.Errorf("status %d, outcome %q:\n%s", status, w.attempt("outcome"), out)
	}
}

func TestTwoVersionsAfterAKilledRpmAreReplacedByOne(t *testing.T) {
	w := newWorld(t, shells["dash"], "rpm")
	w.write("w/installed", confirmed+"\n"+bad+"\n", 0o644)
	if status, out := w.run("on-failure"); status != 0 || w.read("w/installed") != confirmed {
		t.Errorf("status %d, installed %q:\n%s", status, w.read("w/installed"), out)
	}
}

func TestAConfirmedVersionThatDoesNotRunEitherIsReportedAsSuch(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/works", "none", 0o644)
		if status, out := w.run("on-failure"); status != 1 || w.attempt("outcome") != "put-back-not-running" || w.read("w/installed") != confirmed {
			t.Errorf("status %d, outcome %s:\n%s", status, w.attempt("outcome"), out)
		}
	})
}

func TestAServiceManagerThatSaysNothingIsUnknownAndUsesUpNothing(t *testing.T) {
	for _, behaviour := range []string{"lie", "fail"} {
		t.Run(behaviour, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				w.write("w/behave-systemctl", behaviour, 0o644)
				if status, out := w.run("on-failure"); status != 1 || w.last("outcome") != "unknown" || w.touched() || w.attempt("outcome") != "" {
					t.Errorf("status %d, outcome %s:\n%s", status, w.last("outcome"), out)
				}
			})
		})
	}
}

func TestAHostThatIsNotDeadOrWasToStopIsLeftAlone(t *testing.T) {
	for what, arrange := range map[string]func(w world){
		"it runs":                   func(w world) { w.write("w/unit-ActiveState", "active", 0o644) },
		"it is being restarted":     func(w world) { w.write("w/unit-ActiveState", "activating", 0o644) },
		"a dependency failed":       func(w world) { w.write("w/unit-ActiveState", "inactive", 0o644) },
		"the machine is going down": func(w world) { w.write("w/running", "stopping", 0o644) },
		"a stop was asked, timed out": func(w world) {
			w.write("var/lib/mesh-host/starts", "begin boot 1 2.0-1\nstop\nend timeout killed KILL\n", 0o644)
		},
	} {
		t.Run(what, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w world) {
				arrange(w)
				if status, out := w.run("on-failure"); status != 0 || w.last("outcome") != "not-failed" || w.touched() {
					t.Errorf("status %d, outcome %s:\n%s", status, w.last("outcome"), out)
				}
			})
		})
	}
}

func TestAStopBeforeTheLatestStartDoesNotExcuseAFailure(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("var/lib/mesh-host/starts", "begin boot 1 2.0-1\nstop\nend success exited 0\nbegin boot 9 2.0-1\nend exit-code exited 1\n", 0o644)
		if status, out := w.run("on-failure"); status != 0 || w.attempt("outcome") != "put-back" {
			t.Errorf("status %d, outcome %s:\n%s", status, w.attempt("outcome"), out)
		}
	})
}

func TestTheGuardAlsoActsWhenTheUnitIsGone(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/unit-LoadState", "not-found", 0o644)
		w.write("w/unit-ActiveState", "inactive", 0o644)
		if status, out := w.run("guard"); status != 0 || w.attempt("outcome") != "put-back" || w.attempt("caller") != "guard" {
			t.Errorf("status %d, outcome %s:\n%s", status, w.attempt("outcome"), out)
		}
	})
}

// holdLock takes the package manager's lock as the package manager does.
func (w world) holdLock() (release func()) {
	w.t.Helper()
	name := map[string]string{"deb": "var/lib/dpkg/lock-frontend", "rpm": "var/lib/rpm/.rpm.lock"}[w.family()]
	w.write(name, "", 0o640)
	f, err := os.OpenFile(filepath.Join(w.root, name), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock); err != nil {
		w.t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestALockedPackageManagerIsWaitedForAndDoesNotUseUpTheAttempt(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		release := w.holdLock()
		status, out := w.run("on-failure", "MESH_ROLLBACK_LOCK_WAIT=1")
		if status != 1 || w.last("outcome") != "locked" || w.touched() || w.attempt("outcome") != "" {
			t.Fatalf("while locked: status %d, outcome %s:\n%s", status, w.last("outcome"), out)
		}
		timer := time.AfterFunc(1500*time.Millisecond, release)
		defer timer.Stop()
		if status, out := w.run("on-failure", "MESH_ROLLBACK_LOCK_WAIT=20"); status != 0 || w.attempt("outcome") != "put-back" {
			t.Errorf("after the release: status %d, outcome %s:\n%s", status, w.attempt("outcome"), out)
		}
	})
}

func TestTwoRunsAtOnceMakeOneAttempt(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("w/works", "none", 0o644) // so that the second run finds the unit dead as well
		done := make(chan int, 2)
		for range 2 {
			go func() {
				status, _ := w.run("on-failure")
				done <- status
			}()
		}
		<-done
		<-done
		installs := strings.Count(w.read("w/log"), "dpkg --force") + strings.Count(w.read("w/log"), "rpm -U")
		if installs != 1 {
			t.Errorf("%d installations, want 1:\n%s", installs, w.read("w/log"))
		}
	})
}

func TestTheScriptsAreCleanForShellcheck(t *testing.T) {
	if out, err := exec.Command("shellcheck", "-s", "sh", "rollback.sh", "starts.sh").CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v\n%s", err, out)
	}
}

func (w world) starts(environment []string, args ...string) {
	w.t.Helper()
	argv := append(append(append([]string{}, w.shell...), "starts.sh"), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), "MESH_ROLLBACK_ROOT="+w.root), environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %v %s", argv, err, out)
	}
}

func TestStartsAreCountedWithTheirEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.write("var/lib/mesh-host/starts", "", 0o600)
		w.write("proc/sys/kernel/random/boot_id", "boot-a\n", 0o644)
		w.write("proc/uptime", "12.34 56.78\n", 0o644)
		w.write("usr/lib/mesh-host/version", "2.0-1\n", 0o644)
		w.starts(nil, "begin")
		w.starts(nil, "stop", "") // it ended by itself
		w.starts([]string{"SERVICE_RESULT=signal", "EXIT_CODE=killed", "EXIT_STATUS=SEGV"}, "end")
		w.starts(nil, "begin")
		w.starts(nil, "stop", "123")
		w.starts([]string{"SERVICE_RESULT=success", "EXIT_CODE=exited", "EXIT_STATUS=0"}, "end")
		want := "begin boot-a 12.34 2.0-1\nend signal killed SEGV\nbegin boot-a 12.34 2.0-1\nstop\nend success exited 0"
		if got := w.read("var/lib/mesh-host/starts"); got != want {
			t.Errorf("counted\n%s\nwant\n%s", got, want)
		}
		if calls := w.read("w/log"); calls != "systemctl reset-failed mesh-host.service" {
			t.Errorf("of two ends of which one was asked for, the service manager was told %q", calls)
		}
	})
}

func TestTheCountOfStartsStaysSmall(t *testing.T) {
	w := newWorld(t, shells["dash"], "deb")
	w.write("var/lib/mesh-host/starts", strings.Repeat("begin boot 1 1.0-1\nend signal killed KILL\n", 300), 0o600)
	w.starts(nil, "begin")
	if lines := strings.Count(w.read("var/lib/mesh-host/starts"), "\n") + 1; lines != 201 {
		t.Errorf("%d lines are left, want 201", lines)
	}
}

// startsOf writes a history of starts of a version, each of which failed, the
// first one so many seconds ago.
func (w world) startsOf(version string, failed, ago int) {
	w.t.Helper()
	var b strings.Builder
	for range failed {
		fmt.Fprintf(&b, "begin boot %d.5 %s\nend watchdog killed ABRT\n", 1000-ago, version)
	}
	fmt.Fprintf(&b, "begin boot 990.1 %s\n", version)
	w.write("var/lib/mesh-host/starts", b.String(), 0o644)
	w.write("proc/uptime", "1000.25 1.0\n", 0o644)
	w.write("proc/sys/kernel/random/boot_id", "boot\n", 0o644)
	w.write("w/unit-ActiveState", "activating", 0o644)
}

// Shows: M17
func TestTheGuardActsOnAVersionThatIsStartedAgainAndAgainAndNeverFails(t *testing.T) {
	for _, c := range []struct {
		name        string
		caller      string
		version     string
		failed, ago int
		acts        bool
	}{
		{"three failures over more than a minute", "guard", bad, 3, 90, true},
		{"two failures", "guard", bad, 2, 90, false},
		{"failures so fast that the service manager counts them", "guard", bad, 3, 20, false},
		{"failures of another version", "guard", confirmed, 3, 90, false},
		{"the service manager's call", "on-failure", bad, 3, 90, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, shells["dash"], "deb")
			w.startsOf(c.version, c.failed, c.ago)
			_, out := w.run(c.caller)
			if w.touched() != c.acts {
				t.Errorf("it installed something: %v, want %v\n%s", w.touched(), c.acts, out)
			}
		})
	}
}

func TestWhatTheGuardFindsToFailAgainAndAgainIsRestartedAndNotOnlyStarted(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		w.startsOf(bad, 4, 200)
		_, out := w.run("guard")
		if w.read("w/installed") != confirmed || !strings.Contains(w.read("w/log"), "systemctl restart mesh-host.service") {
			t.Errorf("installed %s:\n%s\n%s", w.read("w/installed"), out, w.read("w/log"))
		}
		if w.attempt("outcome") != "put-back" || !strings.Contains(w.attempt("why"), "4 starts of version "+bad) {
			t.Errorf("the record says %s: %s", w.attempt("outcome"), w.attempt("why"))
		}
	})
}
