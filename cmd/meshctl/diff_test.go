package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestADiffShowsWhatWentAndCameWithWhatStandsAround(t *testing.T) {
	for name, c := range map[string]struct{ a, b, want string }{
		"equal":           {"a b c", "a b c", ""},
		"from nothing":    {"", "a b", "@@ -1,0 +1,2 @@|+a|+b"},
		"to nothing":      {"a b", "", "@@ -1,2 +1,0 @@|-a|-b"},
		"in the middle":   {"1 2 3 4 5 6 7 8 9", "1 2 3 4 x 6 7 8 9", "@@ -2,7 +2,7 @@| 2| 3| 4|-5|+x| 6| 7| 8"},
		"near each other": {"1 2 3 4 5 6 7", "x 2 3 4 5 6 y", "@@ -1,7 +1,7 @@|-1|+x| 2| 3| 4| 5| 6|-7|+y"},
		"far apart":       {"1 2 3 4 5 6 7 8 9", "x 2 3 4 5 6 7 8 y", "@@ -1,4 +1,4 @@|-1|+x| 2| 3| 4|@@ -6,4 +6,4 @@| 6| 7| 8|-9|+y"},
		"moved":           {"a b c", "b c a", "@@ -1,3 +1,3 @@|-a| b| c|+a"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(diff(strings.Fields(c.a), strings.Fields(c.b)), "|"); got != c.want {
				t.Errorf("it is\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestADiffThatIsTooLongToBeLeastLosesNothing(t *testing.T) {
	var a, b []string
	for i := range 20_000 {
		a = append(a, fmt.Sprint("a", i))
		b = append(b, fmt.Sprint("b", i))
	}
	if got := diff(a, b); len(got) != len(a)+len(b)+1 {
		t.Errorf("%d lines tell of %d that went and %d that came", len(got), len(a), len(b))
	}
}
