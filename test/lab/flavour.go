package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// A Manager is the package manager that a flavour's hosts are managed by.
type Manager string

// The package managers that flavours have.
const (
	Apt  Manager = "apt"
	Dnf  Manager = "dnf"
	Dnf5 Manager = "dnf5"
	// Zypper is a client of the repository only; no host runs there.
	Zypper Manager = "zypper"
)

// A Flavour is one kind of host that the lab can boot: a Debian suite, which
// decides the version of systemd, and a package manager.
type Flavour struct {
	// Name is what tests call it: the suite and the manager.
	Name string
	// Suite is the Debian suite that the root is built from.
	Suite string
	// Manager is the package manager under test on such a host.
	Manager Manager
	// Usual is set for the four flavours that are built and booted unless
	// others are asked for.
	Usual bool
}

// RPM reports whether packages on such a host are rpms.
func (f Flavour) RPM() bool { return f.Manager != Apt }

var flavours = []Flavour{
	{Name: "bookworm-apt", Suite: "bookworm", Manager: Apt, Usual: true},
	{Name: "trixie-dnf", Suite: "trixie", Manager: Dnf, Usual: true},
	{Name: "sid-dnf5", Suite: "sid", Manager: Dnf5, Usual: true},
	{Name: "bullseye-apt", Suite: "bullseye", Manager: Apt, Usual: true},
	{Name: "trixie-apt", Suite: "trixie", Manager: Apt},
	{Name: "sid-apt", Suite: "sid", Manager: Apt},
	{Name: "bookworm-dnf", Suite: "bookworm", Manager: Dnf},
	{Name: "bookworm-zypper", Suite: "bookworm", Manager: Zypper},
}

// Flavours lists every flavour that the lab knows, the usual ones first.
func Flavours() []Flavour { return slices.Clone(flavours) }

// FlavourNamed returns the flavour of that name, or an error that lists the
// names there are.
func FlavourNamed(name string) (Flavour, error) {
	var names []string
	for _, f := range flavours {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Flavour{}, fmt.Errorf("no flavour is called %q; there are %s", name, strings.Join(names, ", "))
}

// recipe is raised when a root must be built anew although neither its
// package list nor its files changed.
const recipe = "1"

// basePackages are in every root: an init system, a package manager, what an
// operator needs to adopt a host by hand, and a name service that holds accounts
// outside of /etc/passwd. Everything else that a test needs comes in through the
// mesh's repository, as it would on a real host.
var basePackages = []string{
	"apt", "ca-certificates", "curl", "dbus", "gpg", "gpgv", "iproute2",
	"iputils-ping", "libnss-extrausers", "passwd", "procps", "systemd", "systemd-sysv",
}

// packages is the include list of the flavour's root.
func (f Flavour) packages() []string {
	list := slices.Clone(basePackages)
	if f.RPM() {
		list = append(list, string(f.Manager), "rpm")
	}
	if f.Manager == Dnf5 {
		// Its plugin "local" is on by default and ends every transaction with an
		// error where this is missing; the package only recommends it.
		list = append(list, "createrepo-c")
	}
	return list
}

// key names the flavour's root in the cache. It changes with whatever the
// root is made from, so that a changed recipe never meets an old root.
func (f Flavour) key() string {
	h := sha256.New()
	fmt.Fprintln(h, recipe, f.Suite, f.Manager, f.packages(), excluded, masked)
	for _, file := range rootFiles {
		fmt.Fprintln(h, file)
	}
	if f.RPM() {
		fmt.Fprintln(h, baseProvides, rpmFiles, rpmLinks)
	}
	return f.Name + "-" + hex.EncodeToString(h.Sum(nil))[:12]
}
