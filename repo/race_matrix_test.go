//go:build matrix

package repo_test

import "testing"

// Shows: M11
func TestMatrixFiveHundredUpdatesWhilePublishersRace(t *testing.T) {
	t.Log(`matrix: {"case":"500 updates while 8 publishers race","requirement":"M11","host":"this machine","systemd":"-","manager":"apt and dnf"}`)
	race(t, 8, 25, 2, 1, 500)
}
