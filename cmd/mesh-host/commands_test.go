package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/mesh/internal/cli"
)

func TestAWrongCommandLineIsFoundOutBeforeTheHostIsAsked(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "host.sock")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"status -o xml", cli.ExitUsage, "neither text nor json"},
		{"apply /bundle -o xml", cli.ExitUsage, "neither text nor json"},
		{"reconcile -o xml", cli.ExitUsage, "neither text nor json"},
		{"enrol", cli.ExitUsage, "mesh-host enrol TOKEN"},
		{"enrol mesh1-x", cli.ExitRefused, "token"},
		{"status", cli.ExitRefused, "mesh-host is not running on this machine: nothing answers at " + nobody},
	} {
		root := newRootCommand()
		root.SetArgs(append(strings.Fields(c.args), "--socket", nobody))

		err := cli.Execute(t.Context(), root)

		if cli.ExitCode(err) != c.code || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "http://") {
			t.Errorf("%q gives exit code %d and %v; want %d and %q", c.args, cli.ExitCode(err), err, c.code, c.says)
		}
	}
}
