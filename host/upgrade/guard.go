package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/meshctl/mesh/internal/fault"
	"github.com/meshctl/mesh/systemd"
)

// guard is the second judge beside OnFailure=: it also sees a unit file that is
// empty, gone or unreadable, and a start limit that reloads make forget. It
// belongs to no package, and stands from the intent to the confirmation.
type guard struct {
	dir   string // /etc/systemd/system
	units ServiceManager
}

func (g guard) wants() string {
	return filepath.Join(g.dir, "timers.target.wants", systemd.GuardTimer)
}

// stands reports whether anything of the guard is on disk.
func (g guard) stands() bool {
	for _, path := range []string{g.wants(), filepath.Join(g.dir, systemd.GuardTimer), filepath.Join(g.dir, systemd.GuardUnit)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// put writes the guard, starts it, and reads back that it waits. It may be
// called when it stands already.
func (g guard) put(ctx context.Context) error {
	for _, unit := range []string{systemd.GuardUnit, systemd.GuardTimer} {
		data, err := fs.ReadFile(systemd.Files, "units/"+unit)
		if err != nil {
			return err
		}
		path := filepath.Join(g.dir, unit)
		if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
			continue
		}
		if err := writeWhole(path, data, 0o644); err != nil {
			return fmt.Errorf("write the guard: %w", err)
		}
		fault.Point("upgrade.guard-half-put")
	}
	if err := os.MkdirAll(filepath.Dir(g.wants()), 0o755); err != nil {
		return fmt.Errorf("enable the guard: %w", err)
	}
	if err := os.Symlink(filepath.Join(g.dir, systemd.GuardTimer), g.wants()); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("enable the guard: %w", err)
	}
	if err := syncDir(filepath.Dir(g.wants())); err != nil {
		return fmt.Errorf("enable the guard: %w", err)
	}
	if err := g.units.DaemonReload(ctx); err != nil {
		return fmt.Errorf("have the guard read: %w", err)
	}
	if _, err := g.units.Start(ctx, systemd.GuardTimer); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	return nil
}

// busy reports whether the rollback script is at work, called by anybody.
func (g guard) busy(ctx context.Context) (bool, error) {
	for _, unit := range []string{systemd.GuardUnit, systemd.RollbackUnit} {
		s, err := g.units.Unit(ctx, unit)
		if err != nil {
			return false, fmt.Errorf("look whether the rollback is at work: %w", err)
		}
		if s.JobID != 0 || (s.ActiveState != systemd.ActiveInactive && s.ActiveState != systemd.ActiveFailed && s.ActiveState != "") {
			return true, nil
		}
	}
	return false, nil
}

// remove takes the guard away and reads back that it is gone. It must not be
// called while the guard is busy: its script would be cut off.
func (g guard) remove(ctx context.Context) error {
	if _, err := g.units.Stop(ctx, systemd.GuardTimer); err != nil {
		return fmt.Errorf("stop the guard: %w", err)
	}
	for _, path := range []string{g.wants(), filepath.Join(g.dir, systemd.GuardTimer), filepath.Join(g.dir, systemd.GuardUnit)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the guard: %w", err)
		}
		fault.Point("upgrade.guard-half-removed")
	}
	if err := syncDir(g.dir); err != nil {
		return fmt.Errorf("remove the guard: %w", err)
	}
	if err := g.units.ResetFailed(ctx, systemd.GuardUnit); err != nil {
		return fmt.Errorf("remove the guard: %w", err)
	}
	if err := g.units.DaemonReload(ctx); err != nil {
		return fmt.Errorf("have the removal of the guard read: %w", err)
	}
	s, err := g.units.Unit(ctx, systemd.GuardTimer)
	if err != nil {
		return fmt.Errorf("read back that the guard is gone: %w", err)
	}
	if s.Exists() && s.ActiveState != systemd.ActiveInactive {
		return fmt.Errorf("the guard was removed and is still %s", s.ActiveState)
	}
	return nil
}
