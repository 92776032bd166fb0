package lab

// excluded are path patterns that dpkg leaves out while a root is built.
// Hosts are copied and booted many times, and nobody reads manuals on them.
// The finished root does not exclude anything: what a test installs arrives
// whole, and reading it back finds every file.
var excluded = []string{
	"/usr/share/doc/*", "/usr/share/i18n/*", "/usr/share/info/*",
	"/usr/share/lintian/*", "/usr/share/locale/*", "/usr/share/man/*",
}

// masked are units that would only disturb a lab host: periodic package
// manager runs that take its lock, a console nobody reads, a network manager
// that the lab's own unit replaces, and a mount that containers may not make.
var masked = []string{
	"apt-daily-upgrade.timer", "apt-daily.timer", "console-getty.service",
	"dev-hugepages.mount", "dnf-makecache.timer", "dpkg-db-backup.timer",
	"e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty@.service",
	"systemd-networkd.service", "systemd-networkd.socket", "systemd-pstore.service",
}

// A rootFile is a file that the lab puts into a root.
type rootFile struct {
	path, content string
	mode          uint32
}

// rootFiles are in every root. The address is given by a unit of its own,
// not from outside after the boot, so that a host has it before its services
// start and after each reboot, as any machine has.
var rootFiles = []rootFile{
	{"/etc/apt/sources.list", "# Lab hosts install from the mesh's repository only.\n", 0o644},
	{"/etc/fstab", "", 0o644},
	{"/etc/machine-id", "", 0o444},
	{"/etc/resolv.conf", "", 0o644},
	{"/etc/systemd/journald.conf.d/mesh-lab.conf", "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\nRateLimitBurst=0\nForwardToSyslog=no\n", 0o644},
	{"/etc/systemd/system.conf.d/mesh-lab.conf", "[Manager]\nDefaultTimeoutStopSec=20s\n", 0o644},
	{"/usr/local/lib/mesh-lab/network", `#!/bin/sh
set -e
ip address replace "$(cat /etc/mesh-lab/address)/24" dev host0
ip link set lo up
ip link set host0 up
`, 0o755},
	{"/etc/systemd/system/mesh-lab-network.service", `[Unit]
Description=The lab host's address
DefaultDependencies=no
After=local-fs.target
Wants=network.target
Before=network.target network-online.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/mesh-lab/network

[Install]
WantedBy=multi-user.target network-online.target
`, 0o644},
}

// rpmFiles are added to roots whose manager is dnf.
var rpmFiles = []rootFile{
	{"/etc/rpm/macros.mesh-lab", "%_dbpath /var/lib/rpm\n", 0o644},
	{"/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\nbest=True\nclean_requirements_on_remove=True\n", 0o644},
}

// rpmLinks are added to roots whose manager is dnf, where nothing has the name
// yet. Distributions with dnf5 call it dnf as well; Debian's package does not.
var rpmLinks = []struct{ path, target string }{
	{"/usr/bin/dnf", "dnf5"},
}

// enabled are the units that a root starts, as (target, unit).
var enabled = [][2]string{
	{"multi-user.target", "mesh-lab-network.service"},
	{"network-online.target", "mesh-lab-network.service"},
}

// baseProvides is what mesh-lab-base promises in the name of a distribution.
// The version of systemd is added when the root is built, from the systemd
// that is really in it.
var baseProvides = []string{
	"/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh", "/usr/bin/systemctl",
	"/usr/bin/systemd-run", "/usr/sbin/groupadd", "/usr/sbin/useradd",
	"bash", "ca-certificates", "coreutils", "curl", "dbus", "filesystem", "findutils",
	"gawk", "glibc", "grep", "gzip", "iproute", "libc.so.6()(64bit)", "procps-ng",
	"sed", "shadow-utils", "system-release = 1", "system-release(releasever) = 1",
	"tar", "util-linux",
}
