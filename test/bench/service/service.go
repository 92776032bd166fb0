// Package service says how the service manager runs the control plane, for
// programs that measure it. It starts nothing.
package service

import (
	"os"
	"strings"

	"github.com/meshctl/mesh/systemd"
)

// Environment is this process's, with what the unit of the control plane sets:
// a process that is measured is to be the service. An error means that the unit
// could not be read.
func Environment() ([]string, error) {
	unit, err := systemd.Files.ReadFile("units/" + systemd.ControlUnit)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	for line := range strings.Lines(string(unit)) {
		if set, ok := strings.CutPrefix(line, "Environment="); ok {
			env = append(env, strings.TrimSpace(set))
		}
	}
	return env, nil
}
