// Package profile looks at the machine: what it can run (profile), what is on
// it (inventory), and whether a host can do its work here (briefing).
//
// It changes nothing, and draws no conclusion from what it sees: the outcome
// of a briefing is computed from its lines, and what a node is given is
// decided by the control plane.
package profile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	mesh "github.com/meshctl/mesh"
)

// The package managers that a host can work with.
const (
	ManagerApt  = "apt"
	ManagerDnf  = "dnf"
	ManagerDnf5 = "dnf5"
)

// commandTimeout bounds each tool that is asked.
const commandTimeout = 20 * time.Second

// Config is what a Collector is made of.
type Config struct {
	// Manager is what DetectManager returned. Empty: none.
	Manager string
	// Packages reads the package database. Nil when Manager is empty.
	Packages func(ctx context.Context) ([]mesh.InstalledPackage, error)
	// Bus returns nil when the service manager answers on D-Bus.
	Bus func(ctx context.Context) error
	// StateDir is the host's state directory.
	StateDir string
	// Root is where the files of the machine lie that a briefing reads of package
	// manager, repository and agents. Empty: where they always do.
	Root string
	// Watchdog is what the service manager expects. Zero: none.
	Watchdog time.Duration
	Now      func() time.Time
}

// Collector looks at the machine each time it is asked.
type Collector struct {
	cfg Config
}

// New makes a Collector.
func New(cfg Config) *Collector { return &Collector{cfg: cfg} }

// DetectManager returns the package manager whose database holds mesh-host;
// where neither does, the one that the distribution is built on; empty when
// there is none.
func DetectManager(ctx context.Context) string {
	dnf := ""
	for _, name := range []string{ManagerDnf5, ManagerDnf} {
		if _, err := exec.LookPath(name); err == nil {
			dnf = name
			break
		}
	}
	_, aptErr := exec.LookPath("apt-get")
	if dnf != "" {
		if _, err := output(ctx, "rpm", "-q", "mesh-host"); err == nil {
			return dnf
		}
	}
	if aptErr == nil {
		if out, err := output(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", "mesh-host"); err == nil && strings.TrimSpace(out) == "installed" {
			return ManagerApt
		}
	}
	release := osRelease()
	if like := release["ID"] + " " + release["ID_LIKE"]; aptErr == nil && (strings.Contains(like, "debian") || strings.Contains(like, "ubuntu")) {
		return ManagerApt
	}
	if dnf != "" {
		return dnf
	}
	if aptErr == nil {
		return ManagerApt
	}
	return ""
}

// Profile implements host.Describer.
func (c *Collector) Profile(ctx context.Context) (mesh.Profile, error) {
	release := osRelease()
	p := mesh.Profile{
		OS:             mesh.OS{ID: release["ID"], Version: release["VERSION_ID"], Name: release["PRETTY_NAME"]},
		Arch:           runtime.GOARCH,
		Kernel:         firstLine("/proc/sys/kernel/osrelease"),
		Init:           firstLine("/proc/1/comm"),
		PackageManager: c.cfg.Manager,
		DBus:           c.cfg.Bus(ctx) == nil,
	}
	if p.OS.Version == "" {
		p.OS.Version = release["VERSION_CODENAME"]
	}
	switch c.cfg.Manager {
	case ManagerApt:
		p.OS.Family = "debian"
		p.PackageManagerVersion = version(ctx, "apt-get", "--version")
	case ManagerDnf, ManagerDnf5:
		p.OS.Family = "rpm"
		p.PackageManagerVersion = version(ctx, c.cfg.Manager, "--version")
	}
	if p.Init == "systemd" {
		n, err := strconv.Atoi(leadingDigits(version(ctx, "systemctl", "--version")))
		if err == nil {
			p.Systemd = n
		}
	}
	// systemd-detect-virt ends with 1 on metal and says "none".
	if out, _ := output(ctx, "systemd-detect-virt"); out != "" {
		p.Virtualization = strings.TrimSpace(out)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return p, fmt.Errorf("read the size of the memory: %w", err)
	}
	p.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	p.Disks = disks()
	id, err := machineIDHash()
	if err != nil {
		return p, err
	}
	p.MachineIDHash = id
	return p, nil
}

// machineIDHash keeps the id itself on the machine, as machine-id(5) asks.
func machineIDHash() (string, error) {
	return hashMachineID(firstLine("/etc/machine-id"))
}

// hashMachineID refuses what many machines have in common: nothing, and the
// word that stands there until the first boot is over.
func hashMachineID(id string) (string, error) {
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return "", errors.New("read the machine id: /etc/machine-id holds none; run systemd-machine-id-setup")
	}
	mac := hmac.New(sha256.New, []byte("mesh-host machine id"))
	mac.Write([]byte(id))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// Inventory implements host.Describer.
func (c *Collector) Inventory(ctx context.Context) (mesh.Inventory, error) {
	var inv mesh.Inventory
	if c.cfg.Packages != nil {
		packages, err := c.cfg.Packages(ctx)
		if err != nil {
			return inv, fmt.Errorf("read the installed packages: %w", err)
		}
		inv.Packages = packages
	}
	inv.Units = enabledUnits("/etc/systemd/system")
	interfaces, err := net.Interfaces()
	if err != nil {
		return inv, fmt.Errorf("read the networks: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		n := mesh.Network{Name: i.Name}
		addrs, err := i.Addrs()
		if err != nil {
			return inv, fmt.Errorf("read the addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, a.String())
		}
		inv.Networks = append(inv.Networks, n)
	}
	return inv, nil
}

// enabledUnits lists what the targets want, by name, each once.
func enabledUnits(dir string) []string {
	var units []string
	for _, pattern := range []string{"*.wants/*", "*.requires/*"} {
		matches, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue
		}
		for _, m := range matches {
			units = append(units, filepath.Base(m))
		}
	}
	slices.Sort(units)
	return slices.Compact(units)
}

func disks() []mesh.Disk {
	var out []mesh.Disk
	seen := make(map[uint64]bool)
	for _, mount := range []string{"/", "/var", "/boot", "/usr"} {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if unix.Stat(mount, &st) != nil || seen[st.Dev] || unix.Statfs(mount, &fs) != nil {
			continue
		}
		seen[st.Dev] = true
		out = append(out, mesh.Disk{Mount: mount, SizeBytes: int64(fs.Blocks) * fs.Bsize, FreeBytes: int64(fs.Bavail) * fs.Bsize})
	}
	return out
}

// osRelease reads os-release(5).
func osRelease() map[string]string {
	out := make(map[string]string)
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			key, value, ok := strings.Cut(lines.Text(), "=")
			if ok && !strings.HasPrefix(key, "#") {
				out[key] = strings.Trim(value, `"'`)
			}
		}
		return out
	}
	return out
}

func firstLine(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

func output(ctx context.Context, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	return string(out), err
}

// version returns the first word with a digit in front that a tool prints.
func version(ctx context.Context, argv ...string) string {
	out, err := output(ctx, argv...)
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(out) {
		if leadingDigits(word) != "" {
			return word
		}
	}
	return ""
}

func leadingDigits(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return s
	}
	return s[:end]
}
