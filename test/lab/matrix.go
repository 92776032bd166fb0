package lab

import (
	"encoding/json"
	"testing"
)

// A Case is a line in the table of what holds where, see make test-matrix.
type Case struct {
	// Case is what is looked at, Requirement the numbers that it shows.
	Case        string `json:"case"`
	Requirement string `json:"requirement"`
	Host        string `json:"host"`
	Systemd     string `json:"systemd"`
	Manager     string `json:"manager"`
}

// Line takes a line in the table for t, whose outcome completes it.
func (c Case) Line(t testing.TB) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("matrix: %s", text)
}

// Versions returns what a line says of a host: the version of its systemd, and
// its package manager with version.
func Versions(t *testing.T, h *Host) (systemd, manager string) {
	t.Helper()
	command := map[Manager]string{Apt: "apt-get --version", Dnf: "dnf --version", Dnf5: "dnf5 --version", Zypper: "zypper --version"}[h.Flavour().Manager]
	out, err := h.Sh(TestContext(t), "systemctl --version | head -n 1 | cut -d ' ' -f 2; "+command+" | grep -oE '[0-9]+[.][0-9][0-9.]*' | head -n 1")
	if err != nil {
		t.Fatal(err)
	}
	var lines [2]string
	n := 0
	for _, c := range out.Stdout {
		switch {
		case c == '\n':
			n++
		case n < len(lines):
			lines[n] += string(c)
		}
	}
	return lines[0], string(h.Flavour().Manager) + " " + lines[1]
}
