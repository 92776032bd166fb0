package main

import (
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
)

func TestStatusShowsWhatTheToolSaidOfWhatFailedAndNothingThatATerminalObeys(t *testing.T) {
	var out strings.Builder
	err := showText(&out, host.Status{Results: []mesh.Result{
		{Resource: "file:/etc/motd", Status: mesh.StatusOK, Output: "of no interest"},
		{Resource: "package:nginx", Status: mesh.StatusFailed, Reason: mesh.ReasonTool, Detail: "apt-get ended with 100\tand \x1b[31mmore", Output: "E: first\nE: \x1b[31msecond\n"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"failed  package:nginx   tool-failed  apt-get ended with 100 and \uFFFD[31mmore\n",
		"\nthe last output of the tool for package:nginx:\n  | E: first\n  | E: \uFFFD[31msecond\n",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the status lacks %q:\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "of no interest") {
		t.Errorf("the status shows what a tool said of what is right:\n%s", out.String())
	}
}
