package upgrade

import (
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/systemd"
)

func sound() systemd.UnitState {
	return systemd.UnitState{
		Name: systemd.HostUnit, LoadState: systemd.LoadLoaded, UnitFileState: "enabled", Type: "notify", Restart: "always",
		Watchdog: time.Minute, StartLimitBurst: 10, StartLimit: time.Hour, OnFailure: []string{systemd.RollbackUnit},
		ExecStart: [][]string{{program, "daemon"}},
	}
}

// Shows: M14
func TestAUnitThatWouldLeaveTheHostDownIsFoundBeforeTheHostEnds(t *testing.T) {
	rollback := systemd.UnitState{LoadState: systemd.LoadLoaded}
	if err := soundUnit(sound(), rollback); err != nil {
		t.Fatalf("a sound unit: %v", err)
	}
	for what, spoil := range map[string]func(host, rollback *systemd.UnitState){
		"masked":      func(h, _ *systemd.UnitState) { h.LoadState = "masked" },
		"not-found":   func(h, _ *systemd.UnitState) { h.LoadState = systemd.LoadNotFound },
		"newer":       func(h, _ *systemd.UnitState) { h.NeedDaemonReload = true },
		"simple":      func(h, _ *systemd.UnitState) { h.Type = "simple" },
		"watchdog":    func(h, _ *systemd.UnitState) { h.Watchdog = 0 },
		"on-failure":  func(h, _ *systemd.UnitState) { h.Restart = "on-failure" },
		"start limit": func(h, _ *systemd.UnitState) { h.StartLimitBurst = 0 },
		"calls":       func(h, _ *systemd.UnitState) { h.OnFailure = nil },
		"/opt/other":  func(h, _ *systemd.UnitState) { h.ExecStart = [][]string{{"/opt/other"}} },
		"disabled":    func(h, _ *systemd.UnitState) { h.UnitFileState = "disabled" },
		"bad-setting": func(_, r *systemd.UnitState) { r.LoadState = "bad-setting" },
	} {
		h, r := sound(), rollback
		spoil(&h, &r)
		if err := soundUnit(h, r); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a unit with the fault %q is judged: %v", what, err)
		}
	}
}
