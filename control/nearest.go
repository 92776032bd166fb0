package control

import (
	"iter"
	"strings"
)

// didYouMean asks about the one of the names there are that is nearest to a
// mistyped one; empty when none is near.
func didYouMean(name string, names iter.Seq[string]) string {
	best, least := "", min(len(name)/3, 3)+1
	for known := range names {
		d := distance(name, known)
		if strings.HasPrefix(known, name+".") || strings.HasPrefix(name, known+".") {
			d = 0 // with its domain, or without
		}
		if d < least || d == least && best != "" && known < best {
			best, least = known, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "? "
}

// nameLongest is the length of the longest name that anything has.
const nameLongest = 63

// distance counts the letters that have to be put in, left out, replaced or
// exchanged with their neighbour to make one name of the other.
func distance(a, b string) int {
	if max(len(a), len(b)) > nameLongest {
		return nameLongest
	}
	var rows [3][nameLongest + 1]int
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row := &rows[(i+1)%3], &rows[(i-1)%3], &rows[i%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
