//go:build fault

package fault

import (
	"os"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether points are compiled in.
const Enabled = true

// Environment variables that arm a point.
const (
	// EnvPoint names the point at which the process dies.
	EnvPoint = "MESH_FAULT_POINT"
	// EnvOnce names a file that is created before dying; the process does not
	// die when it exists already. Empty: it dies every time.
	EnvOnce = "MESH_FAULT_ONCE"
	// EnvHold has what came to the point go no further instead of dying, so that
	// somebody can take the power of the machine. Empty: it dies.
	EnvHold = "MESH_FAULT_HOLD"
	// EnvTerm has the process asked to end with SIGTERM, as the service manager
	// asks, and go on, instead of dying. Empty: it dies.
	EnvTerm = "MESH_FAULT_TERM"
)

// dying and asked: a point was come to that ends the process.
var dying, asked atomic.Bool

// Point kills the process with SIGKILL, or holds it, or asks it to end, when the
// environment names this point.
func Point(name string) {
	if os.Getenv(EnvPoint) != name {
		return
	}
	if once := os.Getenv(EnvOnce); once != "" {
		f, err := os.OpenFile(once, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		if err := f.Close(); err != nil {
			return
		}
	}
	if os.Getenv(EnvHold) != "" {
		select {}
	}
	if os.Getenv(EnvTerm) != "" {
		if asked.CompareAndSwap(false, true) && syscall.Kill(os.Getpid(), syscall.SIGTERM) != nil {
			os.Exit(137)
		}
		return
	}
	if dying.CompareAndSwap(false, true) {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			os.Exit(137)
		}
	}
	select {}
}
