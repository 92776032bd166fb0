package pkgversion

import (
	"cmp"
	"strings"
)

// CompareRPM orders versions, [epoch:]version[-release], as rpm does: negative
// when a is older than b, zero when neither is. A missing epoch is zero. A
// missing release is equal to every release.
func CompareRPM(a, b string) int {
	ea, a := splitEpoch(a)
	eb, b := splitEpoch(b)
	if c := numbers(ea, eb); c != 0 {
		return c
	}
	va, ra := splitLast(a)
	vb, rb := splitLast(b)
	if c := rpmPart(va, vb); c != 0 || ra == "" || rb == "" {
		return c
	}
	return rpmPart(ra, rb)
}

// rpmPart compares two parts of a version: runs of digits as numbers, runs of
// letters as text, a tilde before everything and also before the end, a caret
// after the end and before everything else.
func rpmPart(a, b string) int {
	for a != "" || b != "" {
		a, b = a[run(a, separator):], b[run(b, separator):]
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
		kind, compare := letter, strings.Compare
		if digit(a[0]) {
			kind, compare = digit, numbers
		}
		na, nb := run(a, kind), run(b, kind)
		if nb == 0 {
			// Numbers are newer than letters.
			if digit(a[0]) {
				return 1
			}
			return -1
		}
		if c := compare(a[:na], b[:nb]); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

func separator(c byte) bool { return !digit(c) && !letter(c) && c != '~' && c != '^' }
