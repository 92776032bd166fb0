package packages_test

import (
	mesh "github.com/meshctl/mesh"
)

// rowsOfSets are packages that need, push out or change each other.
var rowsOfSets = []row{
	{"what is declared absent and what needs it do not take turns", "", "one package is declared, and what it needs is declared absent and is there", func(m *machine) {
		m.install(pack{name: "libfx", version: "1"})
		m.offer(pack{name: "fx", version: "1", depends: []string{"libfx"}}, pack{name: "libfx", version: "1"}, pack{name: "fx2", version: "1"})
		a := m.pass(present("fx", ""), absent("libfx"), present("fx2", ""))
		m.wantReport(a, report{"fx2": "changed"})
		words := word(a.of("fx")) + ", " + word(a.of("libfx"))
		if words != "changed, failed would-remove-others" && words != "changed, failed unmet-dependency" && words != "failed unmet-dependency, changed" {
			m.Errorf("reported %s: %s; %s", words, a.of("fx").Detail, a.of("libfx").Detail)
		}
		there := m.has("fx") + "/" + m.has("libfx")
		before := m.fingerprint()
		for range 2 {
			m.pass(present("fx", ""), absent("libfx"), present("fx2", ""))
			if now := m.has("fx") + "/" + m.has("libfx"); now != there || m.fingerprint() != before {
				m.Errorf("it was %s and is %s", there, now)
			}
		}
	}},
	{"two that exclude each other do not keep the others of the set out", "", "rivals among others", func(m *machine) {
		m.offer(pack{name: "fx-a", version: "1", conflicts: []string{"fx-b"}}, pack{name: "fx-b", version: "1"}, pack{name: "fx1", version: "1"}, pack{name: "fx2", version: "1"}, pack{name: "fx3", version: "1", depends: []string{"fx2"}})
		m.judge(report{"fx1": "changed", "fx-a": "changed", "fx2": "changed", "fx-b": "failed would-remove-others", "fx3": "changed"}, versions{"fx-a": "1-1", "fx-b": "", "fx1": "1-1", "fx2": "1-1", "fx3": "1-1"},
			present("fx1", ""), present("fx-a", ""), present("fx3", ""), present("fx-b", ""), present("fx2", ""))
	}},
	{"what is there needs no repository", "", "the declared version is there, and was withdrawn from a repository that is silent now", func(m *machine) {
		m.install(fx("1"), pack{name: "fx2", version: "3"})
		m.offer(fx("2"))
		m.fails(faultRefuse)
		a := m.pass(present("fx", "1-1"), present("fx2", ""))
		m.wantReport(a, report{"fx": "ok", "fx2": "ok"})
		if len(a.Commands) > 0 {
			m.Errorf("it ran %q", a.Commands)
		}
	}},
	{"what only has to be finished needs no repository", "apt", "unpacked and not configured, and the repository is silent", func(m *machine) {
		m.sh("dpkg --unpack " + m.carry(fx("1")))
		m.fails(faultRefuse)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		for _, argv := range m.last.Commands {
			if argv[len(argv)-1] == "update" {
				m.Errorf("it asked the repositories: %q", argv)
			}
		}
	}},
	{"a successor does not push its forerunner out unasked", "", "the declared package replaces one that somebody installed", func(m *machine) {
		m.install(pack{name: "fx-old", version: "1"})
		m.offer(pack{name: "fx-new", version: "2", obsoletes: []string{"fx-old < 2"}, provides: []string{"fx-old"}, conflicts: []string{"fx-old"}, fields: map[string]string{"Replaces": "fx-old"}}, pack{name: "fx2", version: "1"})
		m.judge(report{"fx-new": "failed would-remove-others", "fx2": "changed"}, versions{"fx-old": "1-1", "fx-new": "", "fx2": "1-1"}, present("fx-new", ""), present("fx2", ""))
		m.judge(report{"fx-new": "changed", "fx-old": "changed"}, versions{"fx-old": "", "fx-new": "2-1"}, present("fx-new", ""), absent("fx-old"))
	}},
	{"a version is not lowered under what needs it", "", "a declared downgrade would break an installed package", func(m *machine) {
		m.install(fx("2"), pack{name: "fxot", version: "1", depends: []string{depends(m, "fx", ">= 2")}})
		m.offer(fx("1"), fx("2"))
		a := m.pass(present("fx", "1-1"))
		if w := word(a.of("fx")); w != "failed would-remove-others" && w != "failed unmet-dependency" {
			m.Errorf("fx is %q: %s", w, a.of("fx").Detail)
		}
		m.wantDetail("fx", "fxot")
		m.wantVersions(versions{"fx": "2-1", "fxot": "1-1"})
	}},
	{"a pair that must match goes down and up together", "", "a package needs its library in one version", func(m *machine) {
		pair := func(v string) []pack {
			return []pack{{name: "fx", version: v, depends: []string{depends(m, "libfx", "= "+v+"-1")}}, {name: "libfx", version: v}}
		}
		m.install(pair("2")...)
		m.offer(append(pair("1"), append(pair("2"), pair("3")...)...)...)
		m.judge(report{"fx": "changed", "libfx": "changed"}, versions{"fx": "1-1", "libfx": "1-1"}, present("fx", "1-1"), present("libfx", "1-1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "3-1", "libfx": "3-1"}, present("fx", "3-1"))
		m.wantDetail("fx", "libfx 3-1")
		// Down, the library would be lowered unasked.
		a := m.pass(present("fx", "1-1"))
		if a.of("fx").Status != "failed" {
			m.Errorf("fx is %q: %s", word(a.of("fx")), a.of("fx").Detail)
		}
		m.wantVersions(versions{"fx": "3-1", "libfx": "3-1"})
	}},
	{"what a bystander needs stays, and the rest of the set is done", "", "absent of a library in use, among others", func(m *machine) {
		m.install(pack{name: "libfx", version: "1"}, pack{name: "fxot", version: "1", depends: []string{"libfx"}}, pack{name: "fx2", version: "1"})
		m.offer(fx("1"))
		m.judge(report{"fx": "changed", "libfx": "failed would-remove-others", "fx2": "changed"}, versions{"fx": "1-1", "libfx": "1-1", "fxot": "1-1", "fx2": ""}, present("fx", ""), absent("libfx"), absent("fx2"))
		m.judge(report{"libfx": "changed", "fxot": "changed"}, versions{"libfx": "", "fxot": ""}, absent("libfx"), absent("fxot"))
	}},
	{"what was made together goes together", "", "two packages, of which one needs the other, are no longer declared", func(m *machine) {
		m.offer(pack{name: "fx", version: "1", depends: []string{"libfx"}}, pack{name: "libfx", version: "1"})
		m.judge(report{"fx": "changed", "libfx": "changed"}, nil, present("libfx", ""), present("fx", ""))
		m.wantReport(m.undeclare([]string{"libfx", "fx"}), report{"fx": "removed", "libfx": "removed"})
		m.wantVersions(versions{"fx": "", "libfx": ""})
	}},
	{"what a declared package needs stays when it is no longer declared", "", "a library is no longer declared, what needs it still is", func(m *machine) {
		m.offer(pack{name: "fx", version: "1", depends: []string{"libfx"}}, pack{name: "libfx", version: "1"})
		m.judge(report{"fx": "changed", "libfx": "changed"}, nil, present("libfx", ""), present("fx", ""))
		for range 2 {
			m.wantReport(m.undeclare([]string{"libfx"}, present("fx", "")), report{"libfx": "conflict needed-by-others", "fx": "ok"})
			m.wantVersions(versions{"fx": "1-1", "libfx": "1-1"})
		}
	}},
	{"what the mesh installed goes in whatever version it is by then", "", "an unattended upgrade came between", func(m *machine) {
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, nil, present("fx", ""))
		m.sh(map[bool]string{true: "rpm -U ", false: "dpkg -i "}[m.rpm()] + m.carry(fx("2")))
		m.judge(report{"fx": "ok"}, versions{"fx": "2-1"}, present("fx", ""))
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": ""})
	}},
	{"what somebody removed comes back, and what the mesh removed by itself stays away", "", "drift in both directions", func(m *machine) {
		m.install(pack{name: "fx2", version: "1"})
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		rs := []mesh.Resource{present("fx", "1-1"), absent("fx2")}
		m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "1-1", "fx2": ""}, rs...)
		m.sh(map[bool]string{true: "rpm -e fx", false: "dpkg --remove fx"}[m.rpm()])
		m.install(pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "1-1", "fx2": ""}, rs...)
	}},
	{"a held dependency is not changed for another's sake", "", "what is needed is there in a version that the admin holds", func(m *machine) {
		m.install(pack{name: "libfx", version: "1"})
		m.offer(pack{name: "fx", version: "1", depends: []string{depends(m, "libfx", ">= 2")}}, pack{name: "libfx", version: "2"}, pack{name: "fx2", version: "1"})
		if m.rpm() {
			m.lockVersion("libfx", "1-1")
		} else {
			m.sh("apt-mark hold libfx")
		}
		a := m.pass(present("fx", ""), present("fx2", ""))
		m.wantReport(a, report{"fx2": "changed"})
		if w := word(a.of("fx")); w != "failed held" && w != "failed unmet-dependency" {
			m.Errorf("fx is %q: %s", w, a.of("fx").Detail)
		}
		m.wantDetail("fx", "libfx")
		m.wantVersions(versions{"fx": "", "libfx": "1-1", "fx2": "1-1"})
	}},
	{"a bystander in two versions is no harm of this transaction's", "dnf", "an interrupted upgrade of somebody else's, before a declared package comes", func(m *machine) {
		m.install(pack{name: "fxot", version: "2"})
		m.sh("rpm -i --force --justdb --nodeps " + m.carry(pack{name: "fxot", version: "1"}))
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "fxot": "1-1 2-1"}, present("fx", ""))
	}},
	{"a selection of the admin's is no state", "apt", "marked for removal by dselect, and there", func(m *machine) {
		m.install(fx("1"), pack{name: "fx2", version: "1"})
		m.sh("printf 'fx deinstall\nfx2 purge\n' | dpkg --set-selections")
		m.judge(report{"fx": "ok", "fx2": "ok"}, versions{"fx": "1-1", "fx2": "1-1"}, present("fx", "1-1"), present("fx2", ""))
	}},
	{"what is too broken to be removed is named, and mended when it is wanted", "apt", "half-installed, and must be installed anew", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.refresh()
		m.sh(`sed -i '/^Package: fx$/,/^$/s/^Status: .*/Status: install reinstreq half-installed/' /var/lib/dpkg/status`)
		a := m.pass(absent("fx"), present("fx2", ""))
		m.wantReport(a, report{"fx2": "changed"})
		if s := a.of("fx").Status; (s == "changed") != (m.has("fx") == "") {
			m.Errorf("fx is %q and the database has %q", word(a.of("fx")), m.has("fx"))
		}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
}
