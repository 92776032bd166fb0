//go:build matrix

package packages_test

// The whole table: every package manager, and every fault point.
func init() {
	usualFlavours = []string{"bookworm-apt", "trixie-dnf", "sid-dnf5", "bullseye-apt"}
	everyPoint = true
	powerSeeds = 200
}
