package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/openpgp"
)

const (
	// upkeepEvery is how often the repository is looked after when nothing is
	// published. Half of the shortest validity that can be configured is longer.
	upkeepEvery = time.Hour
	// keyWarning is how long before its end a key is complained about.
	keyWarning = 90 * 24 * time.Hour
)

// users is what upkeep asks the policy.
type users interface {
	PackageUses(ctx context.Context) ([]control.PackageUse, error)
	RecordRepository(ctx context.Context, by control.Caller, what, detail string) error
}

// upkeep removes what retention lets go, renews signatures that expire and
// complains about a key that will.
type upkeep struct {
	repo  *repo.Repo
	keys  *openpgp.Keys
	users users
	// keep is the number of versions that stay; zero: all.
	keep int
	now  func() time.Time
	log  *slog.Logger
	// published is signalled after a publish.
	published chan struct{}
	// warned holds the keys that were complained about. Nil: none.
	warned map[string]bool
}

// note says that something was published. It never waits.
func (u *upkeep) note() {
	select {
	case u.published <- struct{}{}:
	default:
	}
}

func (u *upkeep) run(ctx context.Context) error {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		u.once(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-u.published:
		}
	}
}

// once does what is due. What cannot be done now is done next time.
func (u *upkeep) once(ctx context.Context) {
	if err := u.repo.Refresh(ctx); err != nil && ctx.Err() == nil {
		u.log.Error("repository not signed again in time, its next try is in an hour", "error", err)
	}
	if err := u.retain(ctx); err != nil && ctx.Err() == nil {
		u.log.Error("old packages not removed, the next try is in an hour", "error", err)
	}
	u.watchKeys(ctx)
}

// by is who does what nobody asked for at that moment, and why.
func by(door string) control.Caller { return control.Caller{Name: "mesh-control", Door: door} }

func (u *upkeep) retain(ctx context.Context) error {
	if u.keep == 0 {
		return nil
	}
	uses, err := u.users.PackageUses(ctx)
	if err != nil {
		return fmt.Errorf("read what is in use: %w", err)
	}
	used := map[string]bool{}
	for _, use := range uses {
		used[use.Name+" "+use.Version] = true
	}
	inUse := func(p repo.Package) bool { return used[p.Name+" "+p.Version] }
	for _, suite := range u.repo.Suites() {
		gone, err := u.repo.Retain(ctx, suite, u.keep, inUse)
		if err != nil {
			return fmt.Errorf("suite %s: %w", suite, err)
		}
		if len(gone) == 0 {
			continue
		}
		lines := make([]string, len(gone))
		for i, p := range gone {
			lines[i] = fmt.Sprintf("%s %s %s %s", p.Format, p.Name, p.Version, p.Arch)
		}
		u.log.Info("old packages removed", "suite", suite, "count", len(gone))
		if err := u.users.RecordRepository(ctx, by("retention"), "packages removed", suite+": "+strings.Join(lines, ", ")); err != nil {
			return fmt.Errorf("record what was removed: %w", err)
		}
	}
	return nil
}

// watchKeys complains in the log and the audit log, of each key once after a
// start, long before it expires.
func (u *upkeep) watchKeys(ctx context.Context) {
	for _, k := range u.keys.Ring().List() {
		if k.Expires.IsZero() || k.Expires.Sub(u.now()) > keyWarning || u.warned[k.Fingerprint] {
			continue
		}
		until := k.Expires.UTC().Format(time.DateOnly)
		u.log.Warn("the repository's key expires, hosts install nothing from then on; rotate it with meshctl repo key rotate", "key", k.Fingerprint, "expires", until)
		if err := u.users.RecordRepository(ctx, by("upkeep"), "repository key expires", k.Fingerprint+" on "+until+"; rotate it with `meshctl repo key rotate`"); err != nil {
			u.log.Error("that the key expires is not in the audit log, the next try is in an hour", "error", err)
			continue
		}
		if u.warned == nil {
			u.warned = map[string]bool{}
		}
		u.warned[k.Fingerprint] = true
	}
}
