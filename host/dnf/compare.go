package dnf

import (
	"cmp"
	"strings"
)

// compare orders versions, [epoch:]version[-release], as rpm does. A missing
// epoch is zero. A missing release is equal to every release.
func compare(a, b string) int {
	ea, va, ra := split(a)
	eb, vb, rb := split(b)
	if c := segments(ea, eb); c != 0 {
		return c
	}
	if c := segments(va, vb); c != 0 || ra == "" || rb == "" {
		return c
	}
	return segments(ra, rb)
}

func split(evr string) (epoch, version, release string) {
	epoch, rest, found := strings.Cut(evr, ":")
	if !found {
		epoch, rest = "0", evr
	}
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		return epoch, rest[:i], rest[i+1:]
	}
	return epoch, rest, ""
}

func digit(c byte) bool  { return c >= '0' && c <= '9' }
func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// segments compares two parts of a version: runs of digits as numbers, runs of
// letters as text, a tilde before everything and also before the end, a caret
// after the end and before everything else.
func segments(a, b string) int {
	for a != "" || b != "" {
		a, b = strings.TrimLeftFunc(a, separator), strings.TrimLeftFunc(b, separator)
		if ta, tb := strings.HasPrefix(a, "~"), strings.HasPrefix(b, "~"); ta || tb {
			if !ta {
				return 1
			}
			if !tb {
				return -1
			}
			a, b = a[1:], b[1:]
			continue
		}
		if ca, cb := strings.HasPrefix(a, "^"), strings.HasPrefix(b, "^"); ca || cb {
			switch {
			case a == "":
				return -1
			case b == "":
				return 1
			case !ca:
				return 1
			case !cb:
				return -1
			}
			a, b = a[1:], b[1:]
			continue
		}
		if a == "" || b == "" {
			break
		}
		kind := letter
		if digit(a[0]) {
			kind = digit
		}
		sa, sb := run(a, kind), run(b, kind)
		if sb == "" {
			// Numbers are newer than letters.
			if digit(a[0]) {
				return 1
			}
			return -1
		}
		a, b = a[len(sa):], b[len(sb):]
		if digit(sa[0]) {
			sa, sb = strings.TrimLeft(sa, "0"), strings.TrimLeft(sb, "0")
			if c := cmp.Compare(len(sa), len(sb)); c != 0 {
				return c
			}
		}
		if c := strings.Compare(sa, sb); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func separator(r rune) bool {
	return r > 127 || !digit(byte(r)) && !letter(byte(r)) && r != '~' && r != '^'
}

func run(s string, kind func(byte) bool) string {
	i := 0
	for i < len(s) && kind(s[i]) {
		i++
	}
	return s[:i]
}
