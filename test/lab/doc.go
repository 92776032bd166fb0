// Package lab raises real hosts on one machine: Debian roots with their own
// systemd as PID 1, D-Bus, journal, package manager and address, booted by
// systemd-nspawn on a bridge in a network namespace of the lab's own. Tests
// install the real packages on them, cut them off, take their power away and
// boot them again.
//
// What it does not do, so that no test claims more than it saw:
//
//   - The kernel is the machine's. A power loss is the death of every process
//     of a host at one instant; the page cache survives, so data that was
//     written and not synced is still there afterwards.
//   - Hosts of an rpm flavour are Debian with dnf and rpm. The package
//     manager, its database and its solver are real; systemd and everything
//     below are Debian's, and what an rpm requires from a distribution comes
//     from one small package, mesh-lab-base, that only promises it.
//   - Hosts have no route out and no distribution mirror. What they install
//     comes from a repository that the test serves.
//   - Host clocks are the machine's clock.
//
// The lab raises one limit of the machine's kernel where it is too low for a
// fleet of service managers under one user (fs.inotify.max_user_instances), and
// leaves it raised. Otherwise it touches nothing of the machine but its own
// network namespace, its own control groups, the mounts of its hosts' roots and
// two directories: the cache ($MESH_LAB_CACHE, else /var/cache/mesh-lab) and the
// records of what it started (/run/mesh-lab). It needs root.
package lab
