package http

import (
	"fmt"
	"strings"

	"github.com/meshctl/mesh/repo"
)

// Where the configuration that is handed out expects the key on a client. The
// path of a file is what every apt since 1.4 and every dnf reads; a key inside
// the configuration is not.
const (
	AptKeyFile = "/etc/apt/keyrings/mesh.asc"
	DnfKeyFile = "/etc/pki/rpm-gpg/RPM-GPG-KEY-mesh"
)

// AptSources returns the configuration of apt for a suite, in the deb822 form.
// arch limits it to one architecture; empty means those of the machine.
func AptSources(base, suite, arch string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The mesh's own package repository. The key must stand at %s.\n", AptKeyFile)
	fmt.Fprintf(&b, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n", base, suite)
	if arch != "" {
		fmt.Fprintf(&b, "Architectures: %s\n", arch)
	}
	fmt.Fprintf(&b, "Signed-By: %s\n", AptKeyFile)
	return b.String()
}

// DnfRepo returns the configuration of dnf for a suite. The metadata is asked
// for after a minute, because a package is there for the machines as soon as it
// is published; and an unreachable repository is an error, because a client
// that skips it would report "nothing to do".
func DnfRepo(base, suite string) string { return dnfRepo(base, suite, "mesh") }

// dnfRepo is DnfRepo under another name of the section, so that a machine can
// use two suites.
func dnfRepo(base, suite, section string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The mesh's own package repository. The key must stand at %s.\n", DnfKeyFile)
	fmt.Fprintf(&b, "[%s]\nname=mesh %s\nbaseurl=%s/rpm/%s/\nenabled=1\n", section, suite, base, suite)
	fmt.Fprintf(&b, "gpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://%s\n", DnfKeyFile)
	b.WriteString("skip_if_unavailable=0\nmetadata_expire=60\n")
	b.WriteString("# For a repository that only the machines of its mesh may read: /etc/dnf/vars has these.\n")
	b.WriteString("username=$mesh_reader\npassword=$mesh_password\n")
	return b.String()
}

func (h *handler) sources(v vars) string { return AptSources(v.base, v.suite, v.arch) }
func (h *handler) dnf(v vars) string     { return dnfRepo(v.base, v.suite, v.section) }

func (h *handler) index(v vars) string {
	query := ""
	if v.suite != repo.DefaultSuite {
		query = "?suite=" + v.suite
	}
	return fmt.Sprintf(`This is the package repository of a mesh: one apt archive and one rpm repository
for each suite. Its suites are: %[2]s.

Everything in it is signed with the key
  %[3]s
Compare this fingerprint with the one that the mesh's operator gives you:
  gpg --show-keys --with-fingerprint FILE

Debian, Ubuntu and their kin, as root:

  mkdir -p /etc/apt/keyrings && curl -fsSo %[4]s '%[1]s/mesh.asc'
  curl -fsSo /etc/apt/sources.list.d/mesh.sources '%[1]s/mesh.sources%[6]s'
  apt-get update

Fedora, RHEL and their kin, as root:

  mkdir -p /etc/pki/rpm-gpg && curl -fsSo %[5]s '%[1]s/mesh.asc'
  curl -fsSo /etc/yum.repos.d/mesh.repo '%[1]s/mesh.repo%[6]s'
  rpm --import %[5]s

openSUSE, SLES and their kin, as root:

  mkdir -p /etc/pki/rpm-gpg && curl -fsSo %[5]s '%[1]s/mesh.asc'
  curl -fsSo /etc/zypp/repos.d/mesh.repo '%[1]s/mesh.repo%[6]s'
  rpm --import %[5]s

Then install packages by their names: apt-get install NAME, dnf install NAME,
zypper install NAME. Another suite: put ?suite=NAME behind mesh.sources and
mesh.repo, or take mesh-NAME.sources and mesh-NAME.repo to have both.
`, v.base, strings.Join(v.suites, ", "), strings.Join(v.fingerprints, "\n  "), AptKeyFile, DnfKeyFile, query)
}
