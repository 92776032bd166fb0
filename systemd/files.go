package systemd

import "embed"

// Names of the units that the packages install.
const (
	HostUnit     = "mesh-host.service"
	RollbackUnit = "mesh-host-rollback.service"
	// GuardUnit and GuardTimer belong to no package: the host writes them while
	// a version of its own is not confirmed.
	GuardUnit   = "mesh-host-guard.service"
	GuardTimer  = "mesh-host-guard.timer"
	ControlUnit = "mesh-control.service"
)

// Files holds the unit files and the small files that stand beside them, under
// "units/": the units by their names, mesh-control.sysusers for
// sysusers.d, and mesh-host.needrestart.conf for needrestart's conf.d.
//
//go:embed units
var Files embed.FS
