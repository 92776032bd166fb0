//go:build matrix

package lab_test

import "testing"

// Shows: M11
func TestMatrixRepoIsUsedByEveryOtherClientThatTheLabCanRaise(t *testing.T) {
	repoClients(t, "more-", "bullseye-apt", "bookworm-apt", "trixie-dnf", "sid-dnf5", "trixie-apt", "sid-apt", "bookworm-dnf", "bookworm-zypper")
}
