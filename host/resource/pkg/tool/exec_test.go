package tool_test

import (
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/host/resource/pkg/tool"
)

func TestAReadingToolSaysHowItEnded(t *testing.T) {
	r, err := tool.Exec{}.Read(t.Context(), []string{"/bin/sh", "-c", `echo out; echo "err $KEY" >&2; exit 3`}, []string{"KEY=value"})
	if err != nil || r.ExitStatus != 3 || r.Stdout != "out\n" || r.Stderr != "err value\n" {
		t.Errorf("it said %+v, %v", r, err)
	}
}

func TestAReadingToolThatDoesNotEndByItselfIsAnError(t *testing.T) {
	for name, script := range map[string]string{"never ends": "sleep 60 & sleep 60", "is killed": "kill -9 $$"} {
		if r, err := (tool.Exec{Timeout: 300 * time.Millisecond}).Read(t.Context(), []string{"/bin/sh", "-c", script}, []string{"PATH=/usr/bin:/bin"}); err == nil {
			t.Errorf("a tool that %s said %+v", name, r)
		}
	}
}

func TestAReadingToolThatWritesWithoutEndIsAnError(t *testing.T) {
	r, err := tool.Exec{}.Read(t.Context(), []string{"/bin/sh", "-c", "head -c 70000000 /dev/zero"}, []string{"PATH=/usr/bin:/bin"})
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it said %d bytes, %v", len(r.Stdout), err)
	}
}
