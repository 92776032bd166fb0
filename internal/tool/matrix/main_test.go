package main

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestALineHasTheOutcomeOfTheTestThatTookIt(t *testing.T) {
	lines, err := read(strings.NewReader(`{"Action":"output","Package":"p","Test":"T/a","Output":"    x_test.go:1: matrix: {\"case\":\"c\",\"host\":\"a\",\"requirement\":\"M11\"}\n"}
{"Action":"pass","Package":"p","Test":"T/a","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"T/b","Output":"    x_test.go:1: matrix: {\"case\":\"c\",\"host\":\"b\"}\n"}
{"Action":"output","Package":"p","Test":"T/b","Output":"    x_test.go:9: it broke\n"}
{"Action":"fail","Package":"p","Test":"T/b","Elapsed":2}
{"Action":"fail","Package":"p","Test":"T","Elapsed":4}
`), io.Discard)
	want := []line{{Case: "c", Host: "a", Requirement: "M11", Result: "pass", Seconds: 1.5}, {Case: "c", Host: "b", Result: "fail", Seconds: 2, Reason: "it broke"}}
	if err != nil || len(lines) != 2 || lines[0] != want[0] || lines[1] != want[1] {
		t.Errorf("got %+v (error %v), want %+v", lines, err, want)
	}
}

func TestAPartOfTheMatrixTakesThePlaceOfItsOwnLinesAndOfNoOthers(t *testing.T) {
	before := []line{{Case: "b", Host: "x", Result: "fail", Reason: "then"}, {Case: "a", Host: "x", Result: "pass"}, {Case: "b", Host: "y", Result: "pass"}}
	got := merged(before, []line{{Case: "b", Host: "x", Result: "pass", Seen: "now"}})
	want := []line{{Case: "a", Host: "x", Result: "pass"}, {Case: "b", Host: "x", Result: "pass", Seen: "now"}, {Case: "b", Host: "y", Result: "pass"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestThePageSaysWhatWasSeenWhereAndWhyTheRestWasNot(t *testing.T) {
	text := render([]line{
		{Case: "c", Requirement: "M1", Host: "x", Systemd: "247", Manager: "apt 2", Result: "pass", Seconds: 3.4, Seen: "monday"},
		{Case: "c", Requirement: "M1", Host: "y", Systemd: "252", Manager: "dnf 4", Result: "not-run", Reason: "no disk | here", Seen: "tuesday"},
	})
	for _, want := range []string{
		"| case | requirements | x: systemd 247, apt 2 | y: systemd 252, dnf 4 | seen |",
		"| c | M1 | pass 3 s | not-run 0 s | monday, tuesday |", "- c, on y: not-run: no disk \\| here",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

func TestThePageInDocsIsThatOfTheLinesBesideIt(t *testing.T) {
	data, err := os.ReadFile("../../../" + kept)
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	if err := json.Unmarshal(data, &lines); err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile("../../../" + page); err != nil || string(have) != render(lines) {
		t.Errorf("%s is not made from %s (%v); run go run ./internal/tool/matrix -page", page, kept, err)
	}
}
