//go:build matrix

package packages_test

import "slices"

// The whole table: every package manager, and every fault point.
func init() {
	usualFlavours = append(slices.Clone(everyRun), "sid-dnf5", "bullseye-apt")
	everyPoint = true
	powerSeeds = 200
}
