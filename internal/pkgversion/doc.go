// Package pkgversion orders versions of packages as the package managers do,
// for the repository, which sorts and retains by it, and for the host, which
// tells an upgrade from a downgrade by it.
//
// It judges no version: what neither dpkg nor rpm would accept still has its
// place, the same one every time.
package pkgversion

import "strings"

func digit(c byte) bool  { return c >= '0' && c <= '9' }
func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// run returns how many bytes at the beginning of s are of a kind.
func run(s string, kind func(byte) bool) int {
	n := 0
	for n < len(s) && kind(s[n]) {
		n++
	}
	return n
}

// numbers compares two runs of digits by their value, however long.
func numbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		if len(a) < len(b) {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}

// splitEpoch cuts [epoch:] off; a missing one is zero.
func splitEpoch(s string) (epoch, rest string) {
	if n := run(s, digit); n < len(s) && s[n] == ':' {
		return s[:n], s[n+1:]
	}
	return "", s
}

// splitLast cuts at the last dash.
func splitLast(s string) (version, release string) {
	if i := strings.LastIndexByte(s, '-'); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}
