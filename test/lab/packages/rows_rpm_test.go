package packages_test

var rowsOfRPM = []row{
	{"O-122", "dnf", "a transaction that fails on the disk is a failure, whatever the tool says", func(m *machine) {
		v := func(version string) pack {
			p := fx(version)
			p.files = map[string]string{"/usr/share/rows-fx/data": version}
			return p
		}
		m.install(v("2"))
		m.sh("rm /usr/share/rows-fx/data; mkdir -p /usr/share/rows-fx/data/in; touch /usr/share/rows-fx/data/in/x")
		defer m.sh("rm -rf /usr/share/rows-fx")
		m.offer(v("3"))
		m.judge(report{"fx": "failed tool-failed"}, versions{"fx": "2-1"}, present("fx", "3-1"))
		m.wantDetail("fx", "/usr/share/rows-fx/data")
	}},
	{"O-123", "", "a file that another package owns stops the installation", func(m *machine) {
		file := map[string]string{"/usr/share/rows-file": "x"}
		m.install(pack{name: "fxot", version: "1", files: file})
		p := fx("1")
		p.files = map[string]string{"/usr/share/rows-file": "y"}
		m.offer(p, pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "failed file-conflict", "fx2": "changed"}, versions{"fx": "", "fxot": "1-1", "fx2": "1-1"}, present("fx", ""), present("fx2", ""))
		m.wantDetail("fx", "/usr/share/rows-file", "fxot")
	}},
	{"O-124", "", "an upgrade that lacks a dependency is a failure", func(m *machine) {
		m.install(fx("1"))
		p := fx("2")
		p.depends = []string{"fxnowhere"}
		m.offer(p)
		m.judge(report{"fx": "failed unmet-dependency"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.wantDetail("fx", "fxnowhere")
	}},
	{"O-125", "", "a script that fails is reported by what the database says afterwards", func(m *machine) {
		post := pack{name: "fx-post", version: "1", postinst: "echo oh; exit 3"}
		pre := pack{name: "fx-pre", version: "1", preinst: "echo oh; exit 3"}
		postrm := pack{name: "fx-postrm", version: "1", postrm: "exit 3"}
		m.offer(post, pre, postrm, fx("1"))
		if m.rpm() {
			m.judge(report{"fx-post": "changed", "fx-pre": "failed script-failed", "fx-postrm": "changed", "fx": "changed"},
				versions{"fx-post": "1-1", "fx-pre": "", "fx": "1-1"}, present("fx-post", ""), present("fx-pre", ""), present("fx-postrm", ""), present("fx", ""))
			m.wantDetail("fx-post", "script")
			m.wantDetail("fx-pre", "fx-pre")
			m.wantReport(m.undeclare([]string{"fx-postrm"}, present("fx", "")), report{"fx-postrm": "removed"})
			m.wantVersions(versions{"fx-postrm": ""})
			return
		}
		m.judge(report{"fx-post": "failed script-failed", "fx-pre": "failed script-failed", "fx": "changed"},
			versions{"fx-post": "1-1 (half-configured)", "fx-pre": "", "fx": "1-1"}, present("fx-post", ""), present("fx-pre", ""), present("fx", ""))
		m.wantDetail("fx-post", "fx-post")
	}},
	{"O-126", "dnf", "an exit status is judged by what is there", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.refresh()
		tool := m.sh("readlink -f /usr/bin/dnf")
		defer m.sh("if [ -e %s.honest ]; then mv %s.honest %s; fi", tool, tool, tool)
		wrapper := func(after string) {
			m.sh("[ -e %s.honest ] || mv %s %s.honest", tool, tool, tool)
			m.write(tool, "#!/bin/sh\ncase \" $* \" in *\" install -y \"*|*\" -y \"*) "+after+"; exit 7;; esac\nexec "+tool+".honest \"$@\"\n")
			m.sh("chmod 755 " + tool)
		}
		wrapper(tool + ".honest \"$@\"")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", "1-1"))
		m.wantDetail("fx", "7")
		wrapper(":")
		m.judge(report{"fx2": "failed tool-failed"}, versions{"fx2": ""}, present("fx2", "1-1"))
	}},
	{"O-127", "dnf", "two versions at once are not right, and nothing is removed by guess", func(m *machine) {
		m.install(fx("1"))
		m.sh("rpm -i --force --justdb --nodeps " + m.carry(fx("2")))
		m.judge(report{"fx": "failed interrupted-transaction"}, versions{"fx": "1-1 2-1"}, present("fx", "2-1"))
		m.wantDetail("fx", "1-1", "2-1")
	}},
	{"O-128", "dnf", "a database that cannot be read is not an empty one", func(m *machine) {
		m.offer(fx("1"))
		m.refresh()
		m.sh("rm -rf /run/rows-rpm; cp -a /var/lib/rpm /run/rows-rpm; rm -f /var/lib/rpm/rpmdb.sqlite-wal /var/lib/rpm/rpmdb.sqlite-shm; head -c 65536 /dev/urandom >/var/lib/rpm/rpmdb.sqlite")
		back := func() { m.sh("[ ! -e /run/rows-rpm ] || { rm -rf /var/lib/rpm; mv /run/rows-rpm /var/lib/rpm; }") }
		defer back()
		for range 2 {
			a := m.pass(present("fx", ""), absent("mesh-lab-base"))
			m.wantReport(a, report{"fx": "unknown database-unreadable", "mesh-lab-base": "unknown database-unreadable"})
			if len(a.Commands) > 0 {
				m.Errorf("with an unreadable database it ran %q", a.Commands)
			}
		}
		back()
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"O-129", "dnf", "a package that the list has and the tool cannot find is not claimed to be removed", func(m *machine) {
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		a := m.inconsistent(func() answer { return m.undeclare([]string{"fx"}) })
		if got := a.of("fx"); word(got) != "failed database-inconsistent" {
			m.Errorf("fx is %q: %s\n%s", word(got), got.Detail, got.Output)
		}
		if len(a.Owned) != 1 {
			m.Errorf("the ownership is lost: %v", a.Owned)
		}
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": ""})
	}},
	{"O-130", "apt", "a status file full of junk is not an empty one", func(m *machine) {
		m.offer(fx("1"), pack{name: "fxot", version: "1"})
		m.judge(report{"fxot": "changed"}, versions{"fxot": "1-1"}, present("fxot", ""))
		m.sh("cp /var/lib/dpkg/status /run/rows-status; head -c 1024 /dev/urandom | dd of=/var/lib/dpkg/status conv=notrunc status=none")
		back := func() { m.sh("cp /run/rows-status /var/lib/dpkg/status") }
		defer back()
		m.request.Released = append(m.request.Released, present("fxot", "").ID())
		a := m.pass(present("fx", ""))
		m.request.Released = nil
		m.wantReport(a, report{"fx": "unknown database-unreadable", "fxot": "unknown database-unreadable"})
		if len(a.Commands) > 0 || a.State != "failed" {
			m.Errorf("the pass is %s and ran %q", a.State, a.Commands)
		}
		m.wantDetail("fx", "/var/lib/dpkg/status")
		back()
		m.wantVersions(versions{"fx": "", "fxot": "1-1"})
	}},
	{"O-131", "dnf", "a package in a module stream that is not enabled is hidden, and that is said", func(m *machine) {
		if m.dnf5() {
			return // run on dnf 4; dnf5 has modules only where its builders want them
		}
		m.repo.modules = `---
document: modulemd
version: 2
data:
  name: fxmod
  stream: "one"
  version: 1
  context: abcdef12
  arch: ` + m.arch() + `
  summary: x
  description: x
  license: {module: [x]}
  artifacts:
    rpms: ["fx-0:1-1.noarch"]
`
		m.offer(fx("1"))
		before := m.sh("ls -A /etc/dnf/modules.d 2>/dev/null || true")
		m.judge(report{"fx": "failed module-not-enabled"}, versions{"fx": ""}, present("fx", ""))
		if now := m.sh("ls -A /etc/dnf/modules.d 2>/dev/null || true"); now != before {
			m.Errorf("the streams changed: %q", now)
		}
	}},
}

// inconsistent takes fx out of rpm's index of names, so that listing shows it
// and looking it up does not, and puts the index back after do.
func (m *machine) inconsistent(do func() answer) answer {
	m.Helper()
	m.sh("rm -rf /run/rows-rpm; cp -a /var/lib/rpm /run/rows-rpm; " + driverPath + " sqlite /var/lib/rpm/rpmdb.sqlite \"delete from Name where key = 'fx'\"")
	m.sh("rpm -qa | grep -q '^fx-1-1'; ! rpm -q fx")
	a := do()
	m.sh("rm -rf /var/lib/rpm; mv /run/rows-rpm /var/lib/rpm; rpm -q fx")
	return a
}
