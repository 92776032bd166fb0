package cli

import (
	"strings"
	"unicode"
)

// Clean makes text that came from elsewhere harmless on a terminal: one line, no
// control characters.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == ' ' || unicode.IsPrint(r):
			return r
		default:
			return unicode.ReplacementChar
		}
	}, s)
}

// CleanLines is Clean for text of several lines.
func CleanLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range lines {
		lines[i] = Clean(line)
	}
	return strings.Join(lines, "\n")
}
