//go:build matrix

package lab_test

import (
	"strings"
	"testing"

	"github.com/meshctl/mesh/test/lab"
)

// cell runs one case of the matrix on one host, as a line of the table. What run
// returns says why the case cannot be run here; empty: it was run.
func cell(t *testing.T, h *lab.Host, name, requirement string, run func(t *testing.T) (notRun string)) {
	t.Helper()
	t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
		systemd, manager := lab.Versions(t, h)
		lab.Case{Case: name, Requirement: requirement, Host: h.Flavour().Name, Systemd: systemd, Manager: manager}.Line(t)
		if why := run(t); why != "" {
			t.Skip(why)
		}
	})
}
