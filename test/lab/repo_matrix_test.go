//go:build matrix

package lab_test

import "testing"

// Shows: M11
func TestRepoIsUsedByEveryOtherClientThatTheLabCanRaise(t *testing.T) {
	repoClients(t, "more-", "trixie-apt", "sid-apt", "bookworm-dnf", "bookworm-zypper")
}
