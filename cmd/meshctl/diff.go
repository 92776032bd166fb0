package main

import "fmt"

const (
	// contextLines stand around what differs.
	contextLines = 3
	// diffLimit bounds the work of finding the least difference, in pairs of
	// lines. Beyond it everything between what is equal at both ends differs.
	diffLimit = 4_000_000
)

// edit is one line of a comparison. Mark is ' ', '-' or '+'.
type edit struct {
	mark byte
	line string
}

// diff returns what differs between two texts, as unified hunks without a
// header; nothing when they are equal.
func diff(a, b []string) []string {
	edits := compare(a, b)
	var out []string
	oldLine, newLine := 1, 1
	for i := 0; i < len(edits); {
		if edits[i].mark == ' ' {
			i, oldLine, newLine = i+1, oldLine+1, newLine+1
			continue
		}
		first := max(0, i-contextLines)
		for j := i; j > first; j-- {
			oldLine, newLine = oldLine-1, newLine-1
		}
		last := hunkEnd(edits, i)
		var body []string
		olds, news := 0, 0
		for _, e := range edits[first:last] {
			if e.mark != '+' {
				olds++
			}
			if e.mark != '-' {
				news++
			}
			body = append(body, string(e.mark)+e.line)
		}
		out = append(out, fmt.Sprintf("@@ -%d,%d +%d,%d @@", oldLine, olds, newLine, news))
		out = append(out, body...)
		i, oldLine, newLine = last, oldLine+olds, newLine+news
	}
	return out
}

// hunkEnd returns where the hunk that holds the change at i ends: changes that
// are near each other stand in one.
func hunkEnd(edits []edit, i int) int {
	end, equal := i+1, 0
	for j := i; j < len(edits) && equal <= 2*contextLines; j++ {
		if edits[j].mark == ' ' {
			equal++
			continue
		}
		end, equal = j+1, 0
	}
	return min(len(edits), end+contextLines)
}

// compare finds a least set of lines that went and came.
func compare(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var edits []edit
	for _, line := range a[:head] {
		edits = append(edits, edit{' ', line})
	}
	edits = append(edits, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, line := range a[len(a)-tail:] {
		edits = append(edits, edit{' ', line})
	}
	return edits
}

func middle(a, b []string) []edit {
	var edits []edit
	i, j := 0, 0
	if len(a)*len(b) <= diffLimit {
		// common[i][j] is the length of the longest common part of a[i:] and b[j:].
		common := make([][]int32, len(a)+1)
		for i := range common {
			common[i] = make([]int32, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
		for i < len(a) && j < len(b) {
			switch {
			case a[i] == b[j]:
				edits = append(edits, edit{' ', a[i]})
				i, j = i+1, j+1
			case common[i+1][j] >= common[i][j+1]:
				edits = append(edits, edit{'-', a[i]})
				i++
			default:
				edits = append(edits, edit{'+', b[j]})
				j++
			}
		}
	}
	for ; i < len(a); i++ {
		edits = append(edits, edit{'-', a[i]})
	}
	for ; j < len(b); j++ {
		edits = append(edits, edit{'+', b[j]})
	}
	return edits
}
