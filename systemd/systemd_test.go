package systemd

import (
	"context"
	"errors"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

func TestOnlyAFinishedTransientUnitGivesAResult(t *testing.T) {
	for _, c := range []struct {
		name  string
		state UnitState
		want  Adoption
		ok    bool
	}{
		{"never started", UnitState{LoadState: LoadNotFound, ActiveState: ActiveInactive}, AdoptAbsent, false},
		{"nothing was answered", UnitState{}, AdoptAbsent, false},
		{"queued", UnitState{LoadState: LoadLoaded, ActiveState: ActiveInactive, JobID: 7}, AdoptRunning, false},
		{"running", UnitState{LoadState: LoadLoaded, ActiveState: "activating", SubState: "start", JobID: 7}, AdoptRunning, false},
		{"being stopped", UnitState{LoadState: LoadLoaded, ActiveState: "deactivating", SubState: "stop-sigterm"}, AdoptRunning, false},
		{"ended well", UnitState{LoadState: LoadLoaded, ActiveState: ActiveActive, SubState: SubExited, Result: "success", ExecMainCode: 1}, AdoptFinished, true},
		{"ended badly", UnitState{LoadState: LoadLoaded, ActiveState: ActiveFailed, SubState: "failed", Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 100}, AdoptFinished, false},
		{"failed before it ran", UnitState{LoadState: LoadLoaded, ActiveState: ActiveFailed, SubState: "failed", Result: "resources"}, AdoptFinished, false},
		{"stopped after its end", UnitState{LoadState: LoadLoaded, ActiveState: ActiveInactive, SubState: "dead", Result: "success", ExecMainCode: 1}, AdoptAbsent, false},
	} {
		got, result := adoption(c.state)
		if got != c.want || result.OK() != c.ok {
			t.Errorf("%s: %s with success %v, want %s with success %v", c.name, got, result.OK(), c.want, c.ok)
		}
	}
}

func TestSuccessIsOnlyAnExitWithStatusZero(t *testing.T) {
	for _, r := range []Result{
		{},
		{Result: "success"},
		{Result: "success", Kind: ExitKilled, Status: 15},
		{Result: "success", Kind: ExitKilled},
		{Result: "timeout", Kind: ExitExited},
		{Result: "exit-code", Kind: ExitExited, Status: 1},
	} {
		if r.OK() {
			t.Errorf("%+v counts as success", r)
		}
	}
	if r := (Result{Result: "success", Kind: ExitExited}); !r.OK() {
		t.Errorf("%+v does not count as success", r)
	}
}

func TestASpecThatTheServiceManagerCouldMisreadIsRefused(t *testing.T) {
	good := TransientSpec{Unit: "a.service", Command: []string{"/bin/true"}, Environment: []string{"A=b"}, Output: "/x/y"}
	if err := good.Check(); err != nil {
		t.Fatalf("a good spec is refused: %v", err)
	}
	for what, break_ := range map[string]func(*TransientSpec){
		"no unit name":           func(s *TransientSpec) { s.Unit = "" },
		"another kind of unit":   func(s *TransientSpec) { s.Unit = "a.scope" },
		"a path as a name":       func(s *TransientSpec) { s.Unit = "../a.service" },
		"no command":             func(s *TransientSpec) { s.Command = nil },
		"a relative program":     func(s *TransientSpec) { s.Command = []string{"true"} },
		"a zero byte":            func(s *TransientSpec) { s.Command = []string{"/bin/true", "a\x00b"} },
		"a nameless variable":    func(s *TransientSpec) { s.Environment = []string{"=b"} },
		"a relative output":      func(s *TransientSpec) { s.Output = "y" },
		"an output with dot dot": func(s *TransientSpec) { s.Output = "/x/../y" },
		"a negative timeout":     func(s *TransientSpec) { s.Timeout = -1 },
	} {
		s := good
		break_(&s)
		if s.Check() == nil {
			t.Errorf("%s is accepted: %+v", what, s)
		}
	}
}

func TestACommandIsSentOnlyInCharactersThatSurviveAReload(t *testing.T) {
	for _, argument := range []string{"a; b", "$HOME", "${A}", "it's $x; \"y\" \\z `w`", "plain --option=%n"} {
		spec := TransientSpec{Unit: "a.service", Command: []string{"/usr/bin/printf", "%s|", argument, "-", ""}, Environment: []string{"GIVEN=1"}}
		argv, environment := spec.carried()
		if joined := strings.Join(argv, ""); strings.ContainsAny(joined, ";$") {
			t.Errorf("the command is sent as %q", argv)
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(environment, "PATH=/usr/bin:/bin")
		if out, err := cmd.Output(); err != nil || string(out) != argument+"|-||" {
			t.Errorf("the command with %q printed %q, %v", argument, out, err)
		}
	}
}

func TestACommandWhoseCarrierIsLostDoesNotSucceed(t *testing.T) {
	argv, _ := TransientSpec{Command: []string{"/bin/true", "$x"}}.carried()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if err := cmd.Run(); err == nil {
		t.Errorf("without its environment the command succeeds")
	}
}

func TestPropertiesOfAServiceAreRead(t *testing.T) {
	s := unitState("a.service", map[string]any{
		"LoadState": "loaded", "ActiveState": "active", "NRestarts": uint32(3), "WatchdogUSec": uint64(120_000_000),
		"StartLimitIntervalUSec": ^uint64(0), "Job": []any{uint32(9), dbus.ObjectPath("/job/9")}, "InvocationID": []byte{0xab, 0xcd},
		"ExecStart": [][]any{{"/bin/x", []string{"/bin/x", "daemon"}, false}}, "ExecMainExitTimestamp": uint64(1_000_000),
		"SubState": 17, // another type than promised is as good as missing
	})
	if s.NRestarts != 3 || s.Watchdog != 2*time.Minute || s.JobID != 9 || s.InvocationID != "abcd" ||
		len(s.ExecStart) != 1 || s.ExecStart[0][1] != "daemon" || !s.Ended.Equal(time.Unix(1, 0)) || s.SubState != "" || s.StartLimit <= 0 {
		t.Errorf("read as %+v", s)
	}
}

func TestARestartWithoutANewInvocationIsNotBelieved(t *testing.T) {
	before := UnitState{Name: "a.service", ActiveState: ActiveActive, InvocationID: "1"}
	var job *JobError
	if err := judgeJob("restart", "done", before, before); !errors.As(err, &job) {
		t.Errorf("the same invocation counts as restarted: %v", err)
	}
	after := before
	after.InvocationID = "2"
	if err := judgeJob("restart", "done", before, after); err != nil {
		t.Errorf("a new invocation is refused: %v", err)
	}
}

func TestAJobWhoseEndWasNotHeardIsUnknownUnlessTheUnitProvesIt(t *testing.T) {
	down := UnitState{Name: "a.service", ActiveState: ActiveInactive}
	up := UnitState{Name: "a.service", ActiveState: ActiveActive}
	if err := judgeJob("start", jobLost, down, down); !errors.Is(err, ErrUnknown) {
		t.Errorf("start of a unit that is down: %v, want ErrUnknown", err)
	}
	if err := judgeJob("start", jobLost, down, up); err != nil {
		t.Errorf("start of a unit that is up: %v", err)
	}
	if err := judgeJob("reload", jobLost, up, up); !errors.Is(err, ErrUnknown) {
		t.Errorf("reload: %v, want ErrUnknown", err)
	}
}

func TestEveryJobResultOtherThanDoneIsAnError(t *testing.T) {
	up := UnitState{Name: "a.service", ActiveState: ActiveActive, InvocationID: "2"}
	for _, result := range []string{"failed", "timeout", "canceled", "dependency", "skipped", "invalid", "assert", ""} {
		for _, verb := range []string{"start", "restart", "stop", "reload"} {
			if judgeJob(verb, result, UnitState{}, up) == nil {
				t.Errorf("%s with job result %q counts as done", verb, result)
			}
		}
	}
}

// Shows: M17
func TestTheNotifierSpeaksTheServiceManagersProtocol(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	env := map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "12"}
	n, err := notifierFrom(func(k string) string { return env[k] }, 12)
	if err != nil {
		t.Fatal(err)
	}
	if n.Watchdog() != 4*time.Second {
		t.Errorf("the watchdog interval is %s, want 4s", n.Watchdog())
	}
	var heard []string
	for _, send := range []func() error{n.Ready, n.Ping, n.Stopping, func() error { return n.Status("all\nwell") }, func() error { return n.ExtendTimeout(time.Second) }} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 200)
		size, err := socket.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, string(buffer[:size]))
	}
	if got, want := strings.Join(heard, "; "), "READY=1; WATCHDOG=1; STOPPING=1; STATUS=all well; EXTEND_TIMEOUT_USEC=1000000"; got != want {
		t.Errorf("heard %q, want %q", got, want)
	}
}

func TestTheWatchdogOfAnotherProcessIsNotOurs(t *testing.T) {
	env := map[string]string{"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "13"}
	n, err := notifierFrom(func(k string) string { return env[k] }, 12)
	if err != nil || n.Watchdog() != 0 {
		t.Errorf("watchdog %s, %v; want none", n.Watchdog(), err)
	}
}

func TestWithoutAServiceManagerTheNotifierIsSilent(t *testing.T) {
	n, err := notifierFrom(func(string) string { return "" }, 1)
	if err != nil || n.Enabled() || n.Ready() != nil || n.Watchdog() != 0 {
		t.Errorf("an empty environment gives %+v, %v", n, err)
	}
}

// Shows: M4
func TestAOneshotWhoseConditionsWereNotMetIsToldFromOneThatRanAndFromOneThatIsForgotten(t *testing.T) {
	base := map[string]any{"LoadState": "loaded", "ActiveState": "inactive", "Type": "oneshot", "Result": "success"}
	started := map[string]any{"InvocationID": []byte{1}, "ConditionTimestamp": uint64(1)}
	for _, c := range []struct {
		name                  string
		props                 map[string]any
		did, unmet, forgotten bool
	}{
		{"it ran", map[string]any{"ConditionResult": true, "ExecMainStartTimestamp": uint64(1)}, true, false, false},
		{"its conditions were not met", map[string]any{"ConditionResult": false}, false, true, false},
		{"nothing is known", map[string]any{"InvocationID": []byte{}, "ConditionTimestamp": uint64(0), "ConditionResult": false}, true, false, true},
	} {
		props := maps.Clone(base)
		maps.Copy(props, started)
		maps.Copy(props, c.props)
		s := unitState("a.service", props)
		if s.DidItsPart() != c.did || s.Unmet != c.unmet || s.Forgotten() != c.forgotten {
			t.Errorf("%s: did its part %v, unmet %v, forgotten %v", c.name, s.DidItsPart(), s.Unmet, s.Forgotten())
		}
		if err := judgeJob("restart", "done", UnitState{}, s); (err == nil) != c.did {
			t.Errorf("%s: the restart is judged as %v", c.name, err)
		}
	}
}

// Shows: M4
func TestAServiceManagerThatDoesNotAnswerIsUnknownAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{dial: func(context.Context) (*sd.Conn, error) { return nil, errors.New("nobody is there") }}
		began := time.Now()
		if _, err := c.Unit(t.Context(), "a.service"); !errors.Is(err, ErrUnknown) || time.Since(began) > answerLimit {
			t.Errorf("after %s the answer is %v", time.Since(began), err)
		}
	})
}
