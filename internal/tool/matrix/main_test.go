package main

import (
	"io"
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
