// Package fault marks the places at which a process may be killed without
// anything being lost. Built with the tag "fault", a process dies at the point
// that its environment names; built without it, a point costs nothing.
//
// It does not decide what must hold afterwards; tests do.
package fault
