//go:build pid1

// These tests speak to a real service manager and change its units. They are
// compiled into a test binary of their own, which a lab host runs as root:
//
//	go test -c -tags pid1 ./systemd

package systemd_test

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

	"github.com/meshctl/mesh/systemd"
)

func connect(t *testing.T) (context.Context, *systemd.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	c, err := systemd.Connect(ctx)
	if err != nil {
		t.Fatalf("this test needs systemd as PID 1: %v", err)
	}
	t.Cleanup(c.Close)
	return ctx, c
}

// start starts a shell command under a name of this test and collects it at the end.
func start(t *testing.T, ctx context.Context, c *systemd.Client, name, script string, change func(*systemd.TransientSpec)) systemd.TransientSpec {
	t.Helper()
	spec := systemd.TransientSpec{Unit: "mesh-test-" + name + ".service", Command: []string{"/bin/sh", "-c", script}, Output: filepath.Join("/var/tmp", "mesh-test-"+name)}
	if change != nil {
		change(&spec)
	}
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Collect(bounded, spec.Unit); err != nil {
			t.Errorf("collect %s: %v", spec.Unit, err)
		}
		os.Remove(spec.Output)
	})
	if err := c.StartTransient(ctx, spec); err != nil {
		t.Fatalf("start %s: %v", spec.Unit, err)
	}
	return spec
}

func TestATransientCommandReportsItsExitStatusAndItsOutput(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "status", "echo out; echo err >&2; cat; exit 7", nil)
	r, err := c.Wait(ctx, spec.Unit)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	if r.OK() || r.Kind != systemd.ExitExited || r.Status != 7 || r.Result != "exit-code" {
		t.Errorf("result is %+v, want exit status 7", r)
	}
	out, err := os.ReadFile(spec.Output)
	if err != nil || string(out) != "out\nerr\n" {
		t.Errorf("output is %q (%v), want both streams in order", out, err)
	}
	info, err := os.Stat(spec.Output)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the output file has mode %v (%v), want 0600", info.Mode(), err)
	}
}

func TestATransientCommandThatSucceedsIsKeptUntilItIsCollected(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "kept", "exit 0", nil)
	if r, err := c.Wait(ctx, spec.Unit); err != nil || !r.OK() {
		t.Fatalf("wait: %+v, %v", r, err)
	}
	if a, r, err := c.Adopt(ctx, spec.Unit); err != nil || a != systemd.AdoptFinished || !r.OK() || r.Ended.IsZero() {
		t.Errorf("adopt says %s, %+v, %v; want finished with success and a time", a, r, err)
	}
	if err := c.StartTransient(ctx, spec); !errors.Is(err, systemd.ErrExists) {
		t.Errorf("a second start under the name answers %v, want ErrExists", err)
	}
	if err := c.Collect(ctx, spec.Unit); err != nil {
		t.Fatalf("collect: %v", err)
	}
	if a, _, err := c.Adopt(ctx, spec.Unit); err != nil || a != systemd.AdoptAbsent {
		t.Errorf("after collecting, adopt says %s, %v; want absent", a, err)
	}
	if _, err := c.Wait(ctx, spec.Unit); !errors.Is(err, systemd.ErrUnknown) {
		t.Errorf("waiting for a unit that is gone answers %v, want ErrUnknown", err)
	}
}

func TestACommandThatWasKilledPolitelyIsAFailure(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "killed", "exec sleep 600", nil)
	awaitMain(t, ctx, c, spec.Unit)
	if out, err := exec.Command("systemctl", "kill", "--kill-who=main", "-s", "TERM", spec.Unit).CombinedOutput(); err != nil {
		t.Fatalf("kill: %v %s", err, out)
	}
	r, err := c.Wait(ctx, spec.Unit)
	if err != nil || r.OK() || r.Kind != systemd.ExitKilled || r.Status != 15 {
		t.Errorf("result is %+v, %v; want killed by signal 15", r, err)
	}
}

func awaitMain(t *testing.T, ctx context.Context, c *systemd.Client, unit string) systemd.UnitState {
	t.Helper()
	for ctx.Err() == nil {
		if s, err := c.Unit(ctx, unit); err == nil && s.MainPID != 0 {
			return s
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s has no main process", unit)
	return systemd.UnitState{}
}

func TestACommandThatCannotBeExecutedSaysSo(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "missing", "", func(s *systemd.TransientSpec) { s.Command = []string{"/usr/bin/there-is-no-such-program"} })
	r, err := c.Wait(ctx, spec.Unit)
	if err != nil || r.OK() || !strings.Contains(r.String(), "could not be executed") {
		t.Errorf("result is %s, %v; want that it could not be executed", r, err)
	}
}

func TestACommandThatTakesTooLongIsEndedAndSaysSo(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "slow", "exec sleep 600", func(s *systemd.TransientSpec) { s.Timeout = time.Second })
	r, err := c.Wait(ctx, spec.Unit)
	if err != nil || r.OK() || r.Result != "timeout" {
		t.Errorf("result is %+v, %v; want timeout", r, err)
	}
}

func TestNothingInACommandIsExpandedAndTheEnvironmentIsOnlyWhatWasGiven(t *testing.T) {
	ctx, c := connect(t)
	t.Setenv("FROM_THE_CALLER", "leaked")
	spec := start(t, ctx, c, "plain", `printf '%s|%s|%s' "$GIVEN" "$FROM_THE_CALLER" "$1"`, func(s *systemd.TransientSpec) {
		s.Command = append(s.Command, "name", "$HOME ${GIVEN} %n \\x")
		s.Environment = []string{"GIVEN=a $HOME b"}
	})
	if r, err := c.Wait(ctx, spec.Unit); err != nil || !r.OK() {
		t.Fatalf("wait: %s, %v", r, err)
	}
	out, err := os.ReadFile(spec.Output)
	if want := `a $HOME b||$HOME ${GIVEN} %n \x`; err != nil || string(out) != want {
		t.Errorf("the command saw %q (%v), want %q", out, err, want)
	}
}

func TestAReloadBetweenTheStartAndTheRunDoesNotChangeTheCommand(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "reload", `sleep 1; printf '%s' "$1;$2"`, func(s *systemd.TransientSpec) { s.Command = append(s.Command, "name", "a$b;c", `it's "q" \n`) })
	before, err := c.Unit(ctx, spec.Unit)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DaemonReload(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := c.Unit(ctx, spec.Unit)
	if err != nil || fmt.Sprintf("%q", after.ExecStart) != fmt.Sprintf("%q", before.ExecStart) {
		t.Errorf("before the reload %q, after it %q (%v)", before.ExecStart, after.ExecStart, err)
	}
	if r, err := c.Wait(ctx, spec.Unit); err != nil || !r.OK() {
		t.Fatalf("wait: %s, %v", r, err)
	}
	if out, err := os.ReadFile(spec.Output); err != nil || string(out) != `a$b;c;it's "q" \n` {
		t.Errorf("the command printed %q (%v)", out, err)
	}
}

func TestTheCommandDoesNotRunInTheCallersControlGroup(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "group", "cat /proc/self/cgroup", nil)
	if r, err := c.Wait(ctx, spec.Unit); err != nil || !r.OK() {
		t.Fatalf("wait: %s, %v", r, err)
	}
	out, err := os.ReadFile(spec.Output)
	if err != nil || !strings.Contains(string(out), "/"+spec.Unit) {
		t.Errorf("the command ran in %q (%v), want a group of its own", out, err)
	}
}

func TestAnotherClientFindsTheRealStatusOfACommandThatItDidNotStart(t *testing.T) {
	ctx, first := connect(t)
	spec := start(t, ctx, first, "orphan", "sleep 1; exit 9", nil)
	_, second := connect(t)
	if a, _, err := second.Adopt(ctx, spec.Unit); err != nil || a != systemd.AdoptRunning {
		t.Errorf("while it runs adopt says %s, %v", a, err)
	}
	if r, err := second.Wait(ctx, spec.Unit); err != nil || r.Status != 9 {
		t.Errorf("the second client reads %+v, %v; want status 9", r, err)
	}
}

func TestAWaitSurvivesAReexecutedServiceManagerAndARestartedBus(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "reexec", "sleep 4; echo done; exit 5", nil)
	type answer struct {
		r   systemd.Result
		err error
	}
	waited := make(chan answer, 1)
	go func() {
		r, err := c.Wait(ctx, spec.Unit)
		waited <- answer{r, err}
	}()
	for _, argv := range [][]string{{"systemctl", "daemon-reexec"}, {"systemctl", "kill", "-s", "KILL", "dbus.service"}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Logf("%v: %v %s", argv, err, out)
		}
	}
	got := <-waited
	if got.err != nil || got.r.Status != 5 || got.r.Kind != systemd.ExitExited {
		t.Errorf("wait answers %+v, %v; want status 5", got.r, got.err)
	}
	if out, err := os.ReadFile(spec.Output); err != nil || string(out) != "done\n" {
		t.Errorf("the output is %q (%v)", out, err)
	}
}

func TestAWaitThatIsCutShortIsUnknownAndTheCommandGoesOn(t *testing.T) {
	ctx, c := connect(t)
	spec := start(t, ctx, c, "cut", "sleep 2; exit 0", nil)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if r, err := c.Wait(short, spec.Unit); !errors.Is(err, systemd.ErrUnknown) || r.OK() {
		t.Errorf("the cut wait answers %+v, %v; want ErrUnknown", r, err)
	}
	if r, err := c.Wait(ctx, spec.Unit); err != nil || !r.OK() {
		t.Errorf("the second wait answers %s, %v; want success", r, err)
	}
}

// service writes a unit file that is gone after the test.
func service(t *testing.T, ctx context.Context, c *systemd.Client, name, body string) string {
	t.Helper()
	unit := "mesh-test-" + name + ".service"
	path := filepath.Join("/run/systemd/system", unit)
	if err := os.WriteFile(path, []byte("[Service]\n"+body), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c.Stop(bounded, unit)
		os.Remove(path)
		c.DaemonReload(bounded)
		c.ResetFailed(bounded, unit)
	})
	if err := c.DaemonReload(ctx); err != nil {
		t.Fatalf("daemon-reload: %v", err)
	}
	return unit
}

func TestARestartIsReadBackAsANewInvocation(t *testing.T) {
	ctx, c := connect(t)
	unit := service(t, ctx, c, "restart", "ExecStart=/bin/sleep 600\n")
	first, err := c.Start(ctx, unit)
	if err != nil || first.ActiveState != systemd.ActiveActive || first.MainPID == 0 {
		t.Fatalf("start: %+v, %v", first, err)
	}
	second, err := c.Restart(ctx, unit)
	if err != nil || second.InvocationID == first.InvocationID || second.MainPID == first.MainPID {
		t.Errorf("restart: %v; invocation %s then %s", err, first.InvocationID, second.InvocationID)
	}
	if s, err := c.Stop(ctx, unit); err != nil || s.MainPID != 0 {
		t.Errorf("stop: %+v, %v", s, err)
	}
}

func TestAServiceThatDoesNotBecomeReadyIsAJobError(t *testing.T) {
	ctx, c := connect(t)
	unit := service(t, ctx, c, "unready", "Type=notify\nExecStart=/bin/true\n")
	_, err := c.Start(ctx, unit)
	var job *systemd.JobError
	if !errors.As(err, &job) || job.State.Result != "protocol" {
		t.Errorf("start answers %v, want a job error with result protocol", err)
	}
}

func TestAUnitThatDoesNotExistIsAnAnswerAndNotAnError(t *testing.T) {
	ctx, c := connect(t)
	s, err := c.Unit(ctx, "mesh-test-never.service")
	if err != nil || s.Exists() || s.LoadState != systemd.LoadNotFound {
		t.Errorf("unit answers %+v, %v; want not-found", s, err)
	}
	if _, err := c.Stop(ctx, "mesh-test-never.service"); err != nil {
		t.Errorf("stopping it: %v", err)
	}
	if err := c.Collect(ctx, "mesh-test-never.service"); err != nil {
		t.Errorf("collecting it: %v", err)
	}
}

func TestAChangedUnitFileIsSeenAsNeedingAReload(t *testing.T) {
	ctx, c := connect(t)
	unit := service(t, ctx, c, "changed", "ExecStart=/bin/sleep 600\n")
	if _, err := c.Start(ctx, unit); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("/run/systemd/system", unit)
	if err := os.WriteFile(path, []byte("[Service]\nExecStart=/bin/sleep 601\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(5 * time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Unit(ctx, unit); err != nil || !s.NeedDaemonReload {
		t.Errorf("after the change: %+v, %v; want NeedDaemonReload", s, err)
	}
	if err := c.DaemonReload(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := c.Unit(ctx, unit)
	if err != nil || s.NeedDaemonReload || len(s.ExecStart) != 1 || fmt.Sprint(s.ExecStart[0]) != "[/bin/sleep 601]" {
		t.Errorf("after the reload: %+v, %v", s, err)
	}
}
