package packages_test

import (
	"strings"

	mesh "github.com/meshctl/mesh"
)

// undeclare makes a pass that declares the rest and releases what the host owns
// of these, and returns what was said.
func (m *machine) undeclare(names []string, rest ...mesh.Resource) answer {
	m.Helper()
	for _, name := range names {
		m.request.Released = append(m.request.Released, mesh.NewResourceID(mesh.KindPackage, name))
	}
	defer func() { m.request.Released = nil }()
	return m.pass(rest...)
}

var rowsOfCompany = []row{
	{"O-101", "", "an installation that would push another package out does not happen", func(m *machine) {
		m.install(pack{name: "fxot", version: "1"})
		m.offer(pack{name: "fx-new", version: "1", conflicts: []string{"fxot"}}, pack{name: "fx2", version: "1"})
		m.judge(report{"fx-new": "failed would-remove-others", "fx2": "changed"}, versions{"fxot": "1-1", "fx-new": "", "fx2": "1-1"}, present("fx-new", ""), present("fx2", ""))
		// Declared absent in the same breath, it goes in the same transaction.
		m.judge(report{"fx-new": "changed", "fxot": "changed"}, versions{"fxot": "", "fx-new": "1-1"}, present("fx-new", ""), absent("fxot"))
	}},
	{"O-102", "", "what others need stays", func(m *machine) {
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.install(pack{name: "fxot", version: "1", depends: []string{"fx"}})
		for range 2 {
			a := m.undeclare([]string{"fx"})
			m.wantReport(a, report{"fx": "conflict needed-by-others"})
			m.wantDetail("fx", "fxot")
			m.wantVersions(versions{"fx": "1-1", "fxot": "1-1"})
		}
		m.judge(report{"fx": "failed would-remove-others"}, versions{"fx": "1-1", "fxot": "1-1"}, absent("fx"))
	}},
	{"O-103", "", "removing one package removes one package", func(m *machine) {
		p := fx("1")
		p.depends = []string{"libfx"}
		m.offer(p, pack{name: "libfx", version: "1"})
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "libfx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "libfx")
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": "", "libfx": "1-1"})
	}},
	{"O-104", "", "nothing unrelated is swept away by a removal", func(m *machine) {
		p := fx("1")
		p.depends = []string{"libfx"}
		z := pack{name: "fxz", version: "1"}
		m.offer(p, pack{name: "libfx", version: "1"}, z)
		m.refresh()
		if m.rpm() {
			m.sh("dnf -q -y install fxz >/dev/null 2>&1; " + map[bool]string{true: "dnf -y mark dependency fxz", false: "dnf mark remove fxz"}[m.dnf5()])
		} else {
			m.sh("apt-get -q -y install fxz; apt-mark auto fxz")
		}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "libfx": "1-1"}, present("fx", ""))
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": "", "libfx": "1-1", "fxz": "1-1"})
	}},
	{"O-105", "apt", "a package that is there for another's sake is marked as wanted, and gets its mark back", func(m *machine) {
		m.install(pack{name: "jq", version: "1"})
		m.sh("apt-mark auto jq")
		m.judge(report{"jq": "changed"}, versions{"jq": "1-1"}, present("jq", ""))
		m.wantDetail("jq", "mark")
		m.sh("apt-mark showmanual | grep -x jq")
		m.wantReport(m.undeclare([]string{"jq"}), report{"jq": "removed"})
		m.sh("apt-mark showauto | grep -x jq")
		m.wantVersions(versions{"jq": "1-1"})
	}},
	{"O-106", "", "a dependency that is declared itself stays when its parent goes", func(m *machine) {
		parent := pack{name: "fx-parent", version: "1", depends: []string{"fx-child"}}
		m.offer(parent, pack{name: "fx-child", version: "1"})
		m.judge(report{"fx-parent": "changed"}, versions{"fx-parent": "1-1", "fx-child": "1-1"}, present("fx-parent", ""))
		m.judge(report{"fx-parent": "ok", "fx-child": "changed"}, nil, present("fx-parent", ""), present("fx-child", ""))
		if reason := m.reason("fx-child"); reason != "user" {
			m.Errorf("the declared package is marked as %q", reason)
		}
		m.wantReport(m.undeclare([]string{"fx-parent"}, present("fx-child", "")), report{"fx-parent": "removed", "fx-child": "ok"})
		m.wantVersions(versions{"fx-parent": "", "fx-child": "1-1"})
		if m.rpm() {
			m.sh("dnf -y autoremove")
		} else {
			m.sh("apt-get -y autoremove")
		}
		m.wantVersions(versions{"fx-child": "1-1"})
		m.wantReport(m.undeclare([]string{"fx-child"}), report{"fx-child": "removed"})
		if reason := m.reason("fx-child"); reason != "dependency" {
			m.Errorf("the mark was not put back: %q", reason)
		}
	}},
	{"O-107", "", "what the system cannot do without is not removed, and nothing is forced", func(m *machine) {
		var kernel pack
		if m.rpm() {
			kernel = pack{name: "kernel-core", version: "6.1", arch: m.arch(), provides: []string{"installonlypkg(kernel)"}}
			m.request.Kernel = "6.1-1." + m.arch()
			m.write("/etc/dnf/protected.d/rows.conf", "fx-essential\n")
			defer m.sh("rm -f /etc/dnf/protected.d/rows.conf")
		} else {
			kernel = pack{name: "linux-image-6.1-rows", version: "1"}
			m.request.Kernel = "6.1-rows"
		}
		essential := pack{name: "fx-essential", version: "1", fields: map[string]string{"Essential": "yes"}}
		required := pack{name: "fx-required", version: "1", fields: map[string]string{"Protected": "yes"}}
		m.install(kernel, essential, required, pack{name: "mesh-host", version: "1"})
		m.request.Keep = []string{"mesh-host"}
		want := report{kernel.name: "failed protected", "fx-essential": "failed protected", "mesh-host": "failed protected"}
		rs := []mesh.Resource{absent(kernel.name), absent("fx-essential"), absent("mesh-host")}
		if !m.rpm() {
			want["fx-required"], want["bash"] = "failed protected", "failed protected"
			rs = append(rs, absent("fx-required"), absent("bash"))
		}
		m.judge(want, versions{kernel.name: kernel.evr(), "fx-essential": "1-1", "fx-required": "1-1", "mesh-host": "1-1"}, rs...)
		for _, argv := range m.last.Commands {
			if line := strings.Join(argv, " "); strings.Contains(line, "remove-essential") || strings.Contains(line, "force-yes") || strings.Contains(line, "force-remove") {
				m.Errorf("forced: %s", line)
			}
		}
	}},
	{"O-108", "", "the machine's own word on recommendations holds, and what came along is said", func(m *machine) {
		p := fx("1")
		p.recommends, p.depends = []string{"fx-nice"}, []string{"fx-needed"}
		m.offer(p, pack{name: "fx-nice", version: "1"}, pack{name: "fx-needed", version: "1"})
		if m.rpm() {
			m.sh("cp /etc/dnf/dnf.conf /run/rows-dnf.conf; echo 'install_weak_deps=False' >>/etc/dnf/dnf.conf")
			defer m.sh("cp /run/rows-dnf.conf /etc/dnf/dnf.conf")
		} else {
			m.write("/etc/apt/apt.conf.d/99rows", "APT::Install-Recommends \"false\";\n")
		}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "fx-needed": "1-1", "fx-nice": ""}, present("fx", ""))
		m.wantDetail("fx", "fx-needed")
	}},
	{"O-109", "", "one that does not exist fails alone and is not swallowed", func(m *machine) {
		m.offer(pack{name: "fx-real", version: "1"})
		m.judge(report{"fx-real": "changed", "fx-nosuch": "failed not-available"}, versions{"fx-real": "1-1", "fx-nosuch": ""}, present("fx-real", ""), present("fx-nosuch", ""))
		if m.last.State != "failed" {
			m.Errorf("the pass as a whole is %s", m.last.State)
		}
	}},
}

// reason is why the tool thinks that a package is installed: user or dependency.
func (m *machine) reason(name string) string {
	m.Helper()
	switch {
	case m.dnf5():
		return strings.ToLower(strings.Fields(m.sh("dnf repoquery --installed --qf '%%{reason}\n' %s", name) + " none")[0])
	case m.rpm():
		return strings.ToLower(m.sh("dnf -q -C repoquery --installed --qf '%%{reason}' %s", name))
	}
	return m.sh("apt-mark showmanual | grep -qx %s && echo user || echo dependency", name)
}
