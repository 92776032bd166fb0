// Package systemd is how a mesh program speaks to the service manager: it runs
// commands in transient services over D-Bus and reads their real exit status,
// reads and changes the state of units, sends readiness and watchdog messages,
// and carries the unit files of the mesh's own services.
//
// It does not decide what to run, does not judge whether a host is healthy, and
// never installs its unit files itself: packages do. What it cannot find out is
// [ErrUnknown], never success.
package systemd
