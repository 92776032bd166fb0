package upgrade

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Shows: M4
func TestAComparisonThatEndsWithAnErrorAndNamesNoFileIsNoComparison(t *testing.T) {
	for _, c := range []struct {
		what, out string
		status    int
		changed   string
		looked    bool
	}{
		{"all is as it was", "", 0, "", true},
		{"documentation was left out", "missing     /usr/share/doc/mesh-host/changelog.gz\n", 1, "", true},
		{"the program is another one", "??5?????? c /etc/x\n??5??????   /usr/bin/mesh-host\n", 1, "/usr/bin/mesh-host", true},
		{"the database cannot be read", "", 2, "", false},
		{"the package is not there", "package mesh-host is not installed\n", 1, "", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			text := fmt.Sprintf("#!/bin/sh\nprintf '%s'\nexit %d\n", c.out, c.status)
			if err := os.WriteFile(filepath.Join(dir, "dpkg"), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			changed, err := Deb.changedFiles(t.Context())
			if changed != c.changed || (err == nil) != c.looked {
				t.Errorf("changed are %q, and the error is %v", changed, err)
			}
		})
	}
}
