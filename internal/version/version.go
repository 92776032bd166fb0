// Package version names the build: which release this binary is.
//
// The value is set when the binary is linked. This package does not know what
// is installed on the machine or running elsewhere; those are facts to be read
// from the package database and from reports.
package version

// Version is the version of this build as its package carries it, for example
// "1.4.0" or "1.5.0~rc1". The linker sets it with
// -X github.com/meshctl/mesh/internal/version.Version=...; a build without that
// flag is "0.0.0-dev".
var Version = "0.0.0-dev"

// Release is the package release of everything that is built here, which both
// formats of packages show after the version.
const Release = "1"

// Package is the version of this build as a package database writes it.
func Package() string { return Version + "-" + Release }
