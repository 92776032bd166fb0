//go:build !fault

package fault

// Enabled reports whether points are compiled in.
const Enabled = false

// Point does nothing in a build without the tag "fault".
func Point(string) {}
