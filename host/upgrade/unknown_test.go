package upgrade_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/upgrade"
	"github.com/meshctl/mesh/systemd"
)

// confirmedFirst is a machine on which version 1 confirmed itself.
func confirmedFirst(t *testing.T) machine {
	t.Helper()
	m := newMachine(t)
	for range 2 {
		if _, err := m.live(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func result(t *testing.T, l *life) mesh.Result {
	t.Helper()
	sum, err := l.store.Summary(t.Context())
	if err != nil || len(sum.Ledger) != 1 {
		t.Fatalf("the ledger is %+v, %v", sum.Ledger, err)
	}
	return sum.Ledger[0]
}

// Shows: M4, M14
func TestAVersionThatCouldNotBeLookedAtIsNeitherPutBackNorCalledGoodAndIsLookedAtAgain(t *testing.T) {
	for _, question := range []string{"reload", "unit " + systemd.HostUnit, "settings", "start the check", "wait for the check", "collect"} {
		t.Run(question, func(t *testing.T) {
			m := confirmedFirst(t)
			m.declare(t, v2)
			clock := time.Now()
			manager := &units{machine: m}
			l, err := m.begin(t.Context(), manager, func() time.Time { return clock })
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.store.Close(); err != nil {
					t.Error(err)
				}
			}()
			// The guard was put when the service manager still answered.
			if question == "reload" {
				manager.muteAfterGuard = question
			} else {
				manager.mute = question
			}
			if err := l.pass(t.Context()); errors.Is(err, host.ErrHandOver) {
				t.Fatal("it handed over to a version that nobody had looked at")
			}
			r := result(t, l)
			if f := l.upgrader.Facts(t.Context()); f.Phase != string(upgrade.PhaseIntended) || m.version() != v2 || r.Status != mesh.StatusUnknown || r.Reason != mesh.ReasonNotJudged {
				t.Fatalf("the phase is %s, version %s is installed, and the resource is %s (%s): %s", f.Phase, m.version(), r.Status, r.Reason, r.Detail)
			}
			manager.mute, manager.muteAfterGuard = "", ""
			clock = clock.Add(time.Minute)
			if err := l.upgrader.Turn(t.Context()); !errors.Is(err, host.ErrHandOver) {
				t.Errorf("when it could be looked at, the idle host did not hand over: %v", err)
			}
		})
	}
}

// Shows: M14
func TestAVersionThatWasLookedAtLateAndIsUnfitIsPutBack(t *testing.T) {
	m := confirmedFirst(t)
	m.declare(t, unfit)
	clock := time.Now()
	manager := &units{machine: m, mute: "wait for the check"}
	l, err := m.begin(t.Context(), manager, func() time.Time { return clock })
	if err != nil {
		t.Fatal(err)
	}
	err = l.pass(t.Context())
	if got := result(t, l).Status; got != mesh.StatusUnknown {
		t.Fatalf("before it could be looked at it is %s, %v", got, err)
	}
	manager.mute = ""
	// The clock was set back a year meanwhile.
	clock = clock.Add(-365 * 24 * time.Hour)
	if err := l.upgrader.Turn(t.Context()); err != nil || m.version() != v1 {
		t.Errorf("version %s is installed, %v", m.version(), err)
	}
	if err := errors.Join(l.pass(t.Context()), l.store.Close()); err != nil {
		t.Fatal(err)
	}
	if r := m.arrived(t, v1); !slices.Equal(r.endings, []mesh.Ending{mesh.EndingPutBack, mesh.EndingRefused}) || r.status.Reason != mesh.ReasonRefused {
		t.Errorf("it was reported as %v, and the resource is %+v", r.endings, r.status)
	}
}

// Shows: M12, M14, M20
func TestADeclaredVersionIsInstalledJudgedConfirmedAndReportedOnce(t *testing.T) {
	m := confirmedFirst(t)
	m.declare(t, v2)
	for range 4 {
		if _, err := m.live(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := m.arrived(t, v2)
	if len(r.endings) != 1 || r.endings[0] != mesh.EndingUpgraded || !r.status.Status.Good() {
		t.Errorf("it was reported as %v, and the resource is %+v", r.endings, r.status)
	}
}

// Shows: M20
func TestAnUpgradeHoldsWhereverTheClockOfEachVersionStands(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for what, jumps := range map[string][]time.Duration{
		"a year ahead": {0, year}, "a year back": {0, -year}, "ahead and back with each process": {0, year, -year, 2 * year},
	} {
		t.Run(what, func(t *testing.T) {
			m := confirmedFirst(t)
			m.declare(t, v2)
			for i := range 5 {
				jump := jumps[min(i, len(jumps)-1)]
				l, err := m.begin(t.Context(), &units{machine: m}, func() time.Time { return time.Now().Add(jump) })
				if err != nil {
					t.Fatal(err)
				}
				if err := l.pass(t.Context()); err != nil && !errors.Is(err, host.ErrHandOver) {
					t.Fatal(err)
				}
				if err := l.store.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if r := m.arrived(t, v2); len(r.endings) != 1 || r.endings[0] != mesh.EndingUpgraded {
				t.Errorf("it was reported as %v", r.endings)
			}
		})
	}
}

// Shows: M5
func TestAConfirmedVersionWhoseInstallationWasCutOffIsInstalledOnceMore(t *testing.T) {
	for what, database := range map[string]string{"half configured": v1 + " half-configured\n", "beside another": v1 + "\n" + unfit + "\n"} {
		t.Run(what, func(t *testing.T) {
			m := confirmedFirst(t)
			if err := os.WriteFile(m.path("database"), []byte(database), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := m.live(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.arrived(t, v1)
		})
	}
}

// Shows: M5, M21
func TestAnEndingIsReportedOnceAlsoWhenThePowerGoesBeforeThatIsOnRecord(t *testing.T) {
	attempt := "outcome=put-back\ncaller=guard\nfrom=" + v2 + "\nto=" + v1 + "\nfrom-binary=x\nstep=finished\nwhy=it was dead\n"
	for what, c := range map[string]struct {
		file, content string
		ending        mesh.Ending
	}{
		"of the rollback script":      {"rollback/attempt", attempt, mesh.EndingByGuard},
		"of a version that was tried": {"upgrade/state.json", `{"phase": "settled", "untold": [{"ending": "refused", "from": "1", "to": "2", "at": "2026-11-30T12:00:00Z"}]}`, mesh.EndingRefused},
	} {
		t.Run(what, func(t *testing.T) {
			m := confirmedFirst(t)
			file, record := m.path("state", c.file), m.path("state/upgrade/state.json")
			if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o700), os.WriteFile(record, []byte(`{"phase": "settled"}`), 0o600), os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(c.content), 0o600)); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				l, err := m.begin(t.Context(), &units{machine: m}, time.Now)
				if err != nil {
					t.Fatal(err)
				}
				// The power goes: the message is in the store, and the record as it was.
				if err := errors.Join(l.store.Close(), os.WriteFile(record, before, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.live(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r := m.arrived(t, v1); len(r.endings) != 1 || r.endings[0] != c.ending {
				t.Errorf("it was reported as %v", r.endings)
			}
		})
	}
}
