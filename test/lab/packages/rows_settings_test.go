package packages_test

import (
	"strings"
)

// aptConf adds to apt's configuration, as an admin would.
func (m *machine) aptConf(lines ...string) {
	m.Helper()
	m.write("/etc/apt/apt.conf.d/99rows", strings.Join(lines, "\n")+"\n")
}

// dnfConf adds to dnf's configuration for the time of the row.
func (m *machine) dnfConf(lines ...string) {
	m.Helper()
	m.sh("[ -e /run/rows-dnf.conf ] || cp /etc/dnf/dnf.conf /run/rows-dnf.conf")
	m.Cleanup(func() { m.sh("cp /run/rows-dnf.conf /etc/dnf/dnf.conf") })
	m.sh("for o in '%s'; do sed -i \"/^${o%%%%=*}=/d\" /etc/dnf/dnf.conf; echo \"$o\" >>/etc/dnf/dnf.conf; done", strings.Join(lines, "' '"))
}

// config sets what the machine's manager is told by its admin.
func (m *machine) config(apt, dnf string) {
	m.Helper()
	if m.rpm() {
		m.dnfConf(strings.Fields(dnf)...)
		return
	}
	m.aptConf(apt)
}

// rowsOfSettings are what admins write into the configuration of their package
// manager, for the eyes or hands of people, and tools then trip over.
var rowsOfSettings = []row{
	{"a setting against doing anything does not decide", "", "apt.conf has Assume-No, dnf.conf assumeno", func(m *machine) {
		m.config(`APT::Get::Assume-No "true";`, "assumeno=1")
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
	}},
	{"a trial changes nothing where everything is answered with yes", "", "dnf.conf has assumeyes, apt.conf Assume-Yes", func(m *machine) {
		m.config(`APT::Get::Assume-Yes "true"; APT::Get::allow-remove-essential "true";`, "assumeyes=1 defaultyes=1")
		m.install(pack{name: "fxot", version: "1"})
		p := fx("1")
		p.conflicts, p.obsoletes, p.provides = []string{"fxot"}, []string{"fxot"}, []string{"fxot"}
		m.offer(p)
		m.judge(report{"fx": "failed would-remove-others"}, versions{"fx": "", "fxot": "1-1"}, present("fx", ""))
	}},
	{"colours and quiet do not hide the plan", "", "configuration for the eyes of people", func(m *machine) {
		m.config(`APT::Color "true"; quiet "2"; APT::Get::Show-Versions "true"; APT::Get::Show-Upgraded "false"; Dpkg::Progress-Fancy "true";`, "color=always debuglevel=0 errorlevel=0")
		m.install(pack{name: "fxot", version: "1"})
		p := pack{name: "fx2", version: "1", conflicts: []string{"fxot"}, obsoletes: []string{"fxot"}}
		m.offer(fx("1"), p)
		m.judge(report{"fx": "changed", "fx2": "failed would-remove-others"}, versions{"fx": "1-1", "fx2": "", "fxot": "1-1"}, present("fx", ""), present("fx2", ""))
	}},
	{"what may be left out by the machine's word is a failure all the same", "dnf", "dnf.conf is lenient: strict=0, skip_broken, best=0", func(m *machine) {
		m.dnfConf("strict=0", "best=0", "skip_if_unavailable=1")
		if m.dnf5() {
			m.dnfConf("skip_broken=1", "skip_unavailable=1", "best=0")
		}
		p := fx("2")
		p.depends = []string{"fxnowhere"}
		m.install(fx("1"))
		m.offer(p, pack{name: "fx2", version: "1"}, pack{name: "fx3", version: "1", depends: []string{"fxnowhere"}})
		m.judge(report{"fx": "failed unmet-dependency", "fx2": "changed", "fx3": "failed unmet-dependency", "fxnosuch": "failed not-available"}, versions{"fx": "1-1", "fx2": "1-1", "fx3": ""},
			present("fx", "2-1"), present("fx2", ""), present("fx3", ""), present("fxnosuch", ""))
	}},
	{"a tool that is set to try only has done nothing", "", "apt.conf has Simulate, dnf.conf tsflags=test", func(m *machine) {
		m.install(pack{name: "fx2", version: "1"})
		m.config(`APT::Get::Simulate "true";`, "tsflags=test")
		m.offer(fx("1"))
		m.judge(report{"fx": "failed read-back-differs"}, versions{"fx": "", "fx2": "1-1"}, present("fx", ""))
		a := m.pass(absent("fx2"))
		if a.of("fx2").Status != "failed" {
			m.Errorf("fx2 is %q", word(a.of("fx2")))
		}
		m.wantVersions(versions{"fx2": "1-1"})
	}},
	{"a tool that is set to download only has done nothing", "apt", "apt.conf has Download-Only", func(m *machine) {
		m.aptConf(`APT::Get::Download-Only "true";`)
		m.offer(fx("1"))
		m.judge(report{"fx": "failed read-back-differs"}, versions{"fx": ""}, present("fx", ""))
	}},
	{"nothing is purged by the machine's word", "apt", "apt.conf has Purge, so that a removal would delete what the admin edited", func(m *machine) {
		m.aptConf(`APT::Get::Purge "true"; APT::Get::AutomaticRemove "true";`)
		p := fx("1")
		p.conffiles, p.depends = map[string]string{"/etc/rows-fx.conf": "one\n"}, []string{"libfx"}
		m.offer(p, pack{name: "libfx", version: "1"})
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.sh("echo mine >/etc/rows-fx.conf")
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": "", "libfx": "1-1"})
		if got := m.sh("cat /etc/rows-fx.conf"); got != "mine" {
			m.Errorf("the edited file holds %q", got)
		}
	}},
	{"the edit is kept also where the machine's word is to overwrite", "apt", "apt.conf passes --force-confnew to dpkg", func(m *machine) {
		p := fx("1")
		p.conffiles = map[string]string{"/etc/rows-fx.conf": "one\n"}
		m.install(p)
		m.sh("echo mine >/etc/rows-fx.conf")
		m.aptConf(`DPkg::Options {"--force-confnew";};`)
		p.version, p.conffiles = "2", map[string]string{"/etc/rows-fx.conf": "two\n"}
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
		if got := m.sh("cat /etc/rows-fx.conf"); got != "mine" {
			m.Errorf("the edited file holds %q", got)
		}
	}},
	{"no kernel goes because another comes", "dnf", "the limit of kernels side by side is reached", func(m *machine) {
		m.dnfConf("installonly_limit=2")
		kernel := func(v string) pack {
			return pack{name: "kernel", version: v, arch: m.arch(), provides: []string{"installonlypkg(kernel)"}}
		}
		m.install(kernel("5"), kernel("6"))
		m.offer(kernel("7"))
		m.judge(report{"kernel": "changed"}, versions{"kernel": "5-1 6-1 7-1"}, present("kernel", "7-1"))
	}},
	{"a hook before dpkg that fails stops it, one after it does not undo it", "apt", "etckeeper and its like end with an error", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.aptConf(`DPkg::Pre-Invoke {"echo uncommitted changes; exit 1";};`)
		m.judge(report{"fx": "failed tool-failed"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", "hook")
		m.aptConf(`DPkg::Post-Invoke {"exit 1";};`)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "hook")
		m.aptConf(`DPkg::Pre-Install-Pkgs {"exit 1";};`)
		m.judge(report{"fx2": "failed tool-failed"}, versions{"fx2": ""}, present("fx2", ""))
	}},
	{"a hook around the fetching of indexes is no silent repository", "apt", "the desktop's index of applications cannot be written", func(m *machine) {
		m.offer(fx("1"))
		m.aptConf(`APT::Update::Post-Invoke-Success {"exit 1";}; APT::Update::Post-Invoke {"exit 1";};`)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "hook")
		m.offer(fx("2"))
		m.aptConf(`APT::Update::Pre-Invoke {"exit 1";};`)
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
	}},
	{"a hook that takes a bystander away makes the pass fail", "apt", "an admin's hook cleans up after every installation", func(m *machine) {
		m.install(pack{name: "fxby", version: "1"})
		m.offer(fx("1"))
		m.aptConf(`DPkg::Post-Invoke {"! dpkg-query -W -f '${Status}' fxby 2>/dev/null | grep -q ' installed' || dpkg --remove fxby";};`)
		m.wantReport(m.pass(present("fx", "")), report{"fx": "failed harmed-others"})
		m.wantDetail("fx", "fxby")
		m.wantVersions(versions{"fx": "1-1", "fxby": ""})
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"another release than the usual one is had by its version", "apt", "apt.conf prefers a release", func(m *machine) {
		m.aptConf(`APT::Default-Release "rows";`)
		other := &repository{s: m.s, name: m.repo.name + "-backports", key: m.key, release: map[string]string{"Suite": "backports", "Codename": "backports"}}
		m.know(fx("2"))
		other.publish(m.T, fx("2"))
		m.use(other, "rows-b")
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", "1-1"))
	}},
	{"an excluded package is not claimed to be removed", "dnf", "dnf.conf excludes what is declared absent", func(m *machine) {
		m.install(fx("1"))
		m.dnfConf("excludepkgs=fx")
		m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, absent("fx"))
	}},
	{"a package that one repository is told to leave out is held back", "dnf", "the repository's file excludes it", func(m *machine) {
		m.use(m.repo, "rows", "excludepkgs=fx")
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "failed held", "fx2": "changed"}, versions{"fx": "", "fx2": "1-1"}, present("fx", ""), present("fx2", ""))
	}},
	{"scripts run where temporary files may not be executed", "", "/tmp and /var/tmp are mounted noexec", func(m *machine) {
		for _, dir := range []string{"/tmp", "/var/tmp"} {
			m.sh("%s noexec %s", driverPath, dir)
			m.Cleanup(func() { m.sh("%s unmount %s", driverPath, dir) })
		}
		p := fx("1")
		p.preinst, p.postinst = "echo pre >/run/rows-pre", "echo post >/run/rows-post"
		if !m.rpm() {
			p.depends, p.templates = []string{"debconf"}, "Template: fx/word\nType: string\nDefault: one\nDescription: A word\n"
			p.debconf = ". /usr/share/debconf/confmodule\ndb_input critical fx/word || true\ndb_go || true"
			p.postinst = ". /usr/share/debconf/confmodule\necho post >/run/rows-post"
		}
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.sh("test -e /run/rows-pre; test -e /run/rows-post")
	}},
	{"what a script makes does not depend on who started the pass", "", "the umask and the limits of whoever runs the agent", func(m *machine) {
		p := fx("1")
		p.postinst = "echo x >/run/rows-made; locale charmap >/run/rows-charmap 2>&1 || true"
		m.offer(p)
		m.request.env = []string{"PATH=/usr/bin:/bin", "LC_ALL=POSIX", "TMPDIR=/nowhere", "BASH_ENV=/nowhere", "PYTHONPATH=/nowhere", "http_proxy=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "APT_CONFIG=/nowhere", "RPM_CONFIGDIR=/nowhere", "DPKG_ROOT=/nowhere", "DPKG_FORCE=all", "sh", "-c", "umask 077; exec \"$0\" \"$@\""}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		if got := m.sh("stat -c %%a /run/rows-made; cat /run/rows-charmap%s", ""); !strings.HasPrefix(got, "644") || !strings.Contains(got, "UTF-8") {
			m.Errorf("a script made a file of mode and in a language of %q", got)
		}
	}},
}
