// Package rollback holds the scripts that undo a release of mesh-host which
// cannot run: the one that counts starts on disk and the one that puts the
// confirmed version back. The package of mesh-host installs them under
// /usr/lib/mesh-host, and the kit of a confirmed version holds a copy.
//
// The scripts are POSIX sh and need none of the mesh's programs, no network and
// no repository. This package does not make the kit, does not decide when a
// version is confirmed, and does not remove the record of an attempt: the host
// does.
package rollback

import _ "embed"

// Script puts the confirmed version back; it is started by
// mesh-host-rollback.service.
//
//go:embed rollback.sh
var Script []byte

// Starts counts the starts of the host; it is called by mesh-host.service.
//
//go:embed starts.sh
var Starts []byte
