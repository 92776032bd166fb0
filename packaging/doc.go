// Package packaging builds the deb and rpm files of mesh-host, mesh-control and
// meshctl from binaries that were compiled before: it gathers units, scripts,
// manual pages and completions into a stage and hands them to the nfpm library.
// The same inputs give the same bytes.
//
// It does not compile (packaging/cmd/packages does), does not sign, and does not
// publish: the repository does.
package packaging
