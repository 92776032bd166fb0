// Package packages holds tests of packages on real hosts: the table of faults
// that people reported of tools of this kind, kills at every fault point, and
// losses of power.
//
// It raises no control plane: a driver on the host makes passes with the parts
// that a host is made of. What a whole mesh does is tested one room up.
package packages
