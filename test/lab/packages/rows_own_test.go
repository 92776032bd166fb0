package packages_test

import (
	"os"
	"path/filepath"
	"strings"
)

// rowsOfOurOwn are faults of the same kinds that nobody reported and somebody
// will meet.
var rowsOfOurOwn = []row{
	{"a damaged index is not believed", "", "one byte of the index is another", func(m *machine) {
		m.offer(fx("1"))
		m.refresh()
		m.offer(fx("1"), fx("2"))
		index := m.repo.paths() + "Packages"
		if m.rpm() {
			found, err := filepath.Glob(filepath.Join(m.repo.dir(), "repodata", "*primary.xml*"))
			if err != nil || len(found) == 0 {
				m.Fatalf("no index is published: %v", err)
			}
			index = strings.TrimPrefix(found[0], m.s.dir)
		}
		m.s.fail(index, faultFlip)
		defer m.s.fail(index, "")
		said := "failed signature-invalid"
		if m.dnf5() {
			said = "failed repository-unreachable" // it does not say why
		}
		m.judge(report{"fx": said}, versions{"fx": ""}, present("fx", "2-1"))
		m.s.fail(index, faultCut)
		a := m.pass(present("fx", ""))
		if a.of("fx").Status != "failed" {
			m.Errorf("with an index that is cut off fx is %q", word(a.of("fx")))
		}
		m.wantVersions(versions{"fx": ""})
		m.s.fail(index, "")
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", ""))
	}},
	{"a page of somebody else's is no index", "", "a captive portal answers everything with 200 and a page", func(m *machine) {
		m.offer(fx("1"))
		file := filepath.Join(m.s.dir, m.index())
		right, err := os.ReadFile(file)
		if err != nil {
			m.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("<html><body>Please log in</body></html>\n"), 0o644); err != nil {
			m.Fatal(err)
		}
		a := m.pass(present("fx", ""))
		if w := word(a.of("fx")); w != "failed repository-unreachable" && w != "failed signature-invalid" {
			m.Errorf("fx is %q: %s", w, a.of("fx").Detail)
		}
		m.wantVersions(versions{"fx": ""})
		if err := os.WriteFile(file, right, 0o644); err != nil {
			m.Fatal(err)
		}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"what is declared absent is not brought along", "", "a dependency is declared absent", func(m *machine) {
		p := fx("1")
		p.depends = []string{"libfx"}
		m.offer(p, pack{name: "libfx", version: "1"})
		m.judge(report{"fx": "failed unmet-dependency", "libfx": "ok"}, versions{"fx": "", "libfx": ""}, present("fx", ""), absent("libfx"))
		m.wantDetail("fx", "libfx")
	}},
	{"what is declared in a version is not changed for another's sake", "", "a dependency is declared in a version that is too low", func(m *machine) {
		p := fx("1")
		p.depends = []string{depends(m, "libfx", ">= 2")}
		m.install(pack{name: "libfx", version: "1"})
		m.offer(p, pack{name: "libfx", version: "1"}, pack{name: "libfx", version: "2"})
		m.judge(report{"fx": "failed unmet-dependency", "libfx": "ok"}, versions{"fx": "", "libfx": "1-1"}, present("fx", ""), present("libfx", "1-1"))
	}},
	{"a script before removal that fails keeps the package", "", "prerm or %preun ends with an error", func(m *machine) {
		p := fx("1")
		p.prerm = "echo no; exit 3"
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		a := m.undeclare([]string{"fx"})
		m.wantReport(a, report{"fx": "failed script-failed"})
		m.wantVersions(versions{"fx": "1-1"})
		if len(a.Owned) != 1 {
			m.Errorf("the ownership is lost: %v", a.Owned)
		}
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": "1-1"}, absent("fx"))
	}},
	{"an upgrade whose script fails is a failure", "apt", "postinst of the new version ends with an error, and a mended version comes", func(m *machine) {
		m.install(fx("1"))
		p := fx("2")
		p.postinst = "exit 3"
		m.offer(p)
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": "2-1 (half-configured)"}, present("fx", "2-1"))
		m.offer(fx("3"))
		m.judge(report{"fx": "changed"}, versions{"fx": "3-1"}, present("fx", "3-1"))
	}},
	{"a package that cannot be configured may be declared absent", "apt", "half-configured and not wanted any more", func(m *machine) {
		p := fx("1")
		p.postinst = "exit 3"
		m.offer(p)
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": "1-1 (half-configured)"}, present("fx", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": ""}, absent("fx"))
	}},
	{"somebody else's broken dependency is named", "apt", "an installed package lacks what it needs", func(m *machine) {
		path := m.carry(pack{name: "fxot", version: "1", depends: []string{"fxnowhere"}})
		m.sh("dpkg --force-depends -i " + path)
		m.offer(fx("1"))
		m.judge(report{"fx": "failed unmet-dependency"}, versions{"fx": "", "fxot": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "fxot", "fxnowhere")
	}},
	{"a held package that is not there does not come", "apt", "a hold on a package that is not installed", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.refresh()
		m.sh("echo 'fx hold' | dpkg --set-selections 2>/dev/null; apt-mark hold fx; apt-mark showhold | grep -x fx || true")
		a := m.pass(present("fx", ""), present("fx2", ""))
		m.wantReport(a, report{"fx2": "changed"})
		if w := word(a.of("fx")); m.sh("apt-mark showhold") != "" && w != "failed held" {
			m.Errorf("fx is %q: %s", w, a.of("fx").Detail)
		}
		m.sh("apt-mark unhold fx || true")
	}},
	{"a group of rivals is exchanged in one step", "", "what is there and what needs it go, and their successors come", func(m *machine) {
		m.install(pack{name: "fx-old", version: "1"}, pack{name: "fx-user", version: "1", depends: []string{"fx-old"}})
		m.offer(pack{name: "fx-new", version: "1", conflicts: []string{"fx-old"}, provides: []string{"fx-old"}})
		m.judge(report{"fx-new": "changed", "fx-old": "changed"}, versions{"fx-new": "1-1", "fx-old": "", "fx-user": "1-1"}, present("fx-new", ""), absent("fx-old"))
	}},
	{"a read-only file system is named", "", "/usr is mounted read-only below the package", func(m *machine) {
		m.sh("mkdir -p /usr/share/rows-big; %s mount /usr/share/rows-big 1m; %s readonly /usr/share/rows-big", driverPath, driverPath)
		defer m.sh("%s unmount /usr/share/rows-big; rm -rf /usr/share/rows-big", driverPath)
		p := fx("1")
		p.files = map[string]string{"/usr/share/rows-big/data": "x"}
		m.offer(p)
		a := m.pass(present("fx", ""))
		if w := word(a.of("fx")); w != "failed read-only" && w != "failed no-space" && w != "failed tool-failed" {
			m.Errorf("fx is %q: %s\n%s", w, a.of("fx").Detail, a.of("fx").Output)
		}
		m.Logf("%s: %s\n%s", word(a.of("fx")), a.of("fx").Detail, a.of("fx").Output)
		m.wantVersions(versions{"fx": ""})
	}},
}
