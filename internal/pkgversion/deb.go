package pkgversion

// CompareDeb orders versions, [epoch:]upstream[-revision], as dpkg does:
// negative when a is older than b, zero when neither is. A missing epoch is
// zero, and so is a missing revision.
func CompareDeb(a, b string) int {
	ea, a := splitEpoch(a)
	eb, b := splitEpoch(b)
	if c := numbers(ea, eb); c != 0 {
		return c
	}
	va, ra := splitLast(a)
	vb, rb := splitLast(b)
	if c := debPart(va, vb); c != 0 {
		return c
	}
	return debPart(ra, rb)
}

// debPart compares text and numbers by turns: text by the weight of its
// characters, where the end weighs as a digit does, which is nothing.
func debPart(a, b string) int {
	notDigit := func(c byte) bool { return !digit(c) }
	for a != "" || b != "" {
		na, nb := run(a, notDigit), run(b, notDigit)
		for i := range max(na, nb) {
			if c := weight(a, i, na) - weight(b, i, nb); c != 0 {
				return c
			}
		}
		a, b = a[na:], b[nb:]
		na, nb = run(a, digit), run(b, digit)
		if c := numbers(a[:na], b[:nb]); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return 0
}

// weight is that of the character at place i of a text of n: a tilde comes
// before the end, letters come before everything else.
func weight(s string, i, n int) int {
	switch {
	case i >= n:
		return 0
	case s[i] == '~':
		return -1
	case letter(s[i]):
		return int(s[i])
	}
	return int(s[i]) + 256
}
