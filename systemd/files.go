package systemd

import "embed"

// Names of the units that the packages install.
const (
	HostUnit     = "mesh-host.service"
	RollbackUnit = "mesh-host-rollback.service"
	ControlUnit  = "mesh-control.service"
)

// Files holds the unit files and the small files that stand beside them, under
// "units/": the three units by their names, mesh-control.sysusers for
// sysusers.d, and mesh-host.needrestart.conf for needrestart's conf.d.
//
//go:embed units
var Files embed.FS
