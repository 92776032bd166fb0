//go:build matrix

package lab_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/test/lab"
)

// row is one case of the matrix on one host.
type row struct {
	Case        string  `json:"case"`
	Requirement string  `json:"requirement"`
	Host        string  `json:"host"`
	Systemd     string  `json:"systemd"`
	Manager     string  `json:"manager"`
	Result      string  `json:"result"` // pass, fail, not-run
	Seconds     float64 `json:"seconds"`
	// Reason of a case that did not pass.
	Reason string `json:"reason,omitempty"`
}

var matrix struct {
	sync.Mutex
	rows []row
}

const matrixFile = "../../out/matrix.json"

// cell runs one case of the matrix and writes down how it came out. What run
// returns says why the case cannot be run here; empty: it was run.
func cell(t *testing.T, h *lab.Host, name, requirement string, run func(t *testing.T) (notRun string)) {
	t.Helper()
	r := row{Case: name, Requirement: requirement, Host: h.Flavour().Name, Manager: string(h.Flavour().Manager), Result: "pass"}
	r.Systemd = strings.TrimSpace(must(t, h, "systemctl --version | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p'"))
	began := time.Now()
	t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
		defer func() {
			r.Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
			if t.Failed() {
				r.Result, r.Reason = "fail", "see the test's output"
			}
			note(t, r)
		}()
		if why := run(t); why != "" {
			r.Result, r.Reason = "not-run", why
		}
	})
}

// note adds a row and writes the whole matrix, so that a run that is cut off
// leaves what it had.
func note(t *testing.T, r row) {
	t.Helper()
	matrix.Lock()
	defer matrix.Unlock()
	matrix.rows = append(matrix.rows, r)
	data, err := json.MarshalIndent(matrix.rows, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(matrixFile), 0o755)
	}
	if err == nil {
		err = os.WriteFile(matrixFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Errorf("write the matrix: %v", err)
	}
}

// printMatrix prints cases against hosts.
func printMatrix() {
	matrix.Lock()
	defer matrix.Unlock()
	var cases, hosts []string
	at := map[string]row{}
	for _, r := range matrix.rows {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		column := r.Host + " (" + r.Systemd + ")"
		if !slices.Contains(hosts, column) {
			hosts = append(hosts, column)
		}
		at[r.Case+column] = r
	}
	slices.Sort(hosts)
	fmt.Printf("%-52s", "case")
	for _, h := range hosts {
		fmt.Printf(" %-20s", h)
	}
	fmt.Println()
	for _, c := range cases {
		fmt.Printf("%-52s", c)
		for _, h := range hosts {
			r, ran := at[c+h]
			text := "-"
			if ran {
				text = fmt.Sprintf("%s %.0fs", r.Result, r.Seconds)
			}
			fmt.Printf(" %-20s", text)
		}
		fmt.Println()
	}
	for _, r := range matrix.rows {
		if r.Result == "not-run" {
			fmt.Printf("not run: %s on %s: %s\n", r.Case, r.Host, r.Reason)
		}
	}
}
