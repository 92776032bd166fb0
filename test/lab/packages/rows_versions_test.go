package packages_test

import (
	"fmt"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// refused reports the problems that a declaration of these resources has before
// any machine hears of it.
func (m *machine) refused(r mesh.Resource) {
	m.Helper()
	d := mesh.Declaration{Generation: 1, Resources: []mesh.Resource{r}}
	if ps := d.Validate(); ps == nil {
		m.Errorf("%s %q is taken, and is to be refused when it is written", r.ID(), r.Package.Version)
	}
}

var rowsOfHolds = []row{
	{"O-072", "apt", "a held package does not change", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"))
		m.sh("apt-mark hold fx")
		m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.sh("apt-mark showhold | grep -x fx")
	}},
	{"O-073", "apt", "a held package that is right is right", func(m *machine) {
		m.install(fx("1.2"))
		m.offer(fx("1.3"))
		m.sh("apt-mark hold fx")
		m.judge(report{"fx": "ok"}, versions{"fx": "1.2-1"}, present("fx", "1.2-1"))
		m.refused(present("fx", "1.*"))
	}},
	{"O-074", "apt", "pins decide which version comes, and against a pin none does", func(m *machine) {
		m.offer(fx("1"), fx("2"), pack{name: "fx2", version: "1"})
		m.write("/etc/apt/preferences.d/rows", "Package: fx\nPin: version 1-1\nPin-Priority: 1001\n\nPackage: fx2\nPin: version *\nPin-Priority: -1\n")
		m.judge(report{"fx": "failed held"}, versions{"fx": ""}, present("fx", "2-1"))
		m.wantDetail("fx", "pin")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.judge(report{"fx2": "failed held"}, versions{"fx2": ""}, present("fx2", ""))
		m.judge(report{"fx2": "failed held"}, versions{"fx2": ""}, present("fx2", "1-1"))
	}},
	{"O-075", "dnf", "a locked version does not change", locked},
	{"O-076", "dnf", "the list of locked versions counts also without the tool's own plugin", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"))
		m.lockVersion("fx", "1-1")
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"O-077", "dnf", "an excluded package that is there is right, and one that is not is held back", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"), pack{name: "fx2", version: "1"})
		m.sh("cp /etc/dnf/dnf.conf /run/rows-dnf.conf; echo 'exclude=fx*' >>/etc/dnf/dnf.conf")
		defer m.sh("cp /run/rows-dnf.conf /etc/dnf/dnf.conf")
		m.judge(report{"fx": "ok", "fx2": "failed held"}, versions{"fx": "1-1", "fx2": ""}, present("fx", ""), present("fx2", ""))
		m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, present("fx", "2-1"))
	}},
	{"O-078", "apt", "an update that is phased out of this machine changes nothing again and again", func(m *machine) {
		m.install(fx("1"))
		p := fx("2")
		p.fields = map[string]string{"Phased-Update-Percentage": "0"}
		m.offer(p)
		for range 2 {
			m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
		}
	}},
}

// lockVersion writes an entry of the versionlock list, as the plugin does.
func (m *machine) lockVersion(name, evr string) {
	m.Helper()
	if m.dnf5() {
		m.write("/etc/dnf/versionlock.toml", fmt.Sprintf("version = \"1.0\"\n\n[[packages]]\nname = \"%s\"\n[[packages.conditions]]\nkey = \"evr\"\ncomparator = \"=\"\nvalue = \"%s\"\n", name, evr))
		return
	}
	m.write("/etc/dnf/plugins/versionlock.list", fmt.Sprintf("# added by the admin\n%s-0:%s.*\n", name, evr))
}

func locked(m *machine) {
	m.install(fx("1"))
	m.offer(fx("2"))
	m.lockVersion("fx", "1-1")
	list := m.sh("cat /etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml 2>/dev/null || true")
	m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, present("fx", "2-1"))
	m.judge(report{"fx": "failed held"}, versions{"fx": "1-1"}, absent("fx"))
	if now := m.sh("cat /etc/dnf/plugins/versionlock.list /etc/dnf/versionlock.toml 2>/dev/null || true"); now != list {
		m.Errorf("the list of locked versions is now %q", now)
	}
}

var rowsOfVersions = []row{
	{"O-079", "", "an epoch counts on both sides", func(m *machine) {
		old, want := fx("2.9.8.0"), fx("2.9.8.2")
		old.epoch, want.epoch = 1, 1
		m.install(old)
		m.offer(want)
		m.judge(report{"fx": "changed"}, versions{"fx": "1:2.9.8.2-1"}, present("fx", "1:2.9.8.2-1"))
	}},
	{"O-080", "", "a version without its epoch is another version, before and after", func(m *machine) {
		p := fx("6.10.3")
		p.epoch = 1
		m.offer(p)
		m.judge(report{"fx": "failed not-available"}, versions{"fx": ""}, present("fx", "6.10.3-1"))
		m.install(p)
		m.judge(report{"fx": "failed not-available"}, versions{"fx": "1:6.10.3-1"}, present("fx", "6.10.3-1"))
		m.wantDetail("fx", "1:6.10.3-1")
		m.judge(report{"fx": "ok"}, versions{"fx": "1:6.10.3-1"}, present("fx", "1:6.10.3-1"))
	}},
	{"O-081", "", "a newer version that is declared replaces the older", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"), fx("2"))
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
	}},
	{"O-082", "dnf", "no other spelling of a version passes for it", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"), fx("2"))
		for _, name := range []string{"fx-2-1.x86_64", "fx-2", "fx-2-1"} {
			m.judge(report{name: "failed not-available"}, versions{"fx": "1-1"}, present(name, ""))
		}
		m.refused(present("fx-0:2-1", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "0:2-1"))
	}},
	{"O-083", "", "versions are ordered as the native tool orders them", ordered},
	{"O-084", "", "the native order decides, and only a declared version goes down", func(m *machine) {
		m.install(fx("4.0.0.rc1"))
		m.offer(fx("4.0.0"))
		m.judge(report{"fx": "ok"}, versions{"fx": "4.0.0.rc1-1"}, present("fx", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": "4.0.0-1"}, present("fx", "4.0.0-1"))
	}},
	{"O-085", "", "patterns are refused and a part of a version is not the version", func(m *machine) {
		m.refused(present("fx", "1.*.2*"))
		m.offer(fx("2.1"), fx("20"))
		m.judge(report{"fx": "failed not-available"}, versions{"fx": ""}, present("fx", "2"))
	}},
	{"O-086", "", "an exact version below the installed one is a declared downgrade", func(m *machine) {
		m.install(fx("7.0"))
		m.offer(fx("5.2"))
		m.refused(present("fx", "5.2.*"))
		m.judge(report{"fx": "ok"}, versions{"fx": "7.0-1"}, present("fx", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": "5.2-1"}, present("fx", "5.2-1"))
	}},
	{"O-087", "", "any version never lowers", func(m *machine) {
		m.offer(fx("2"))
		m.refresh()
		m.install(fx("3"))
		m.judge(report{"fx": "ok"}, versions{"fx": "3-1"}, present("fx", ""))
	}},
	{"O-088", "dnf", "names come from the database and not from splitting text", func(m *machine) {
		m.install(pack{name: "mysql80-community-release", version: "el8"}, pack{name: "lshw", version: "B.02.18"}, pack{name: "gcc-toolset-12-binutils", version: "2.35"}, pack{name: "java-1.8.0-openjdk", version: "1.8.0"}, pack{name: "python3.11", version: "3.11"})
		all := []string{"mysql80-community-release", "lshw", "gcc-toolset-12-binutils", "java-1.8.0-openjdk", "python3.11"}
		want, after := report{}, versions{}
		var rs []mesh.Resource
		for _, name := range all {
			want[name], after[name] = "changed", ""
			rs = append(rs, absent(name))
		}
		m.judge(want, after, rs...)
	}},
	{"O-089", "", "a name with a number in it is updated like any other", func(m *machine) {
		p := pack{name: "fx-12-tool", version: "1"}
		m.install(p)
		p.version = "2"
		m.offer(p)
		m.judge(report{"fx-12-tool": "changed"}, versions{"fx-12-tool": "2-1"}, present("fx-12-tool", "2-1"))
	}},
	{"O-090", "", "no epoch and epoch zero are the same", func(m *machine) {
		m.install(fx("1"))
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", "0:1-1"))
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", "1-1"))
	}},
	{"O-091", "apt", "another architecture is another package", func(m *machine) {
		foreign := foreignArch(m)
		both := []pack{{name: "fx", version: "1", arch: m.arch(), fields: map[string]string{"Multi-Arch": "same"}}, {name: "fx", version: "1", arch: foreign, fields: map[string]string{"Multi-Arch": "same"}}}
		m.offer(both...)
		m.install(both[0])
		m.judge(report{"fx:" + foreign: "failed unknown-architecture"}, versions{"fx:" + m.arch(): "1-1"}, present("fx:"+foreign, ""))
		m.sh("dpkg --add-architecture " + foreign)
		defer func() { m.reset(); m.sh("dpkg --remove-architecture " + foreign) }()
		m.judge(report{"fx": "ok", "fx:" + foreign: "changed"}, versions{"fx:" + m.arch(): "1-1", "fx:" + foreign: "1-1"}, present("fx", ""), present("fx:"+foreign, ""))
	}},
	{"O-092", "", "the machine's own architecture may be named, and is the same package", func(m *machine) {
		own := pack{name: "fx", version: "1", arch: m.arch()}
		m.install(own, pack{name: "fx2", version: "1"})
		m.judge(report{"fx:" + m.arch(): "ok"}, nil, present("fx:"+m.arch(), ""))
		all := map[bool]string{true: "noarch", false: "all"}[m.rpm()]
		m.judge(report{"fx2:" + all: "ok"}, nil, present("fx2:"+all, ""))
		// One package under two names, wanted in two versions, does not flap.
		m.offer(pack{name: "fx", version: "2", arch: m.arch()})
		for range 2 {
			a := m.pass(present("fx", "1-1"), present("fx:"+m.arch(), "2-1"))
			m.wantReport(a, report{"fx": "ok", "fx:" + m.arch(): "failed declared-twice"})
		}
		m.wantVersions(versions{"fx": "1-1"})
	}},
	{"O-093", "apt", "a package of another architecture from a file is seen", func(m *machine) {
		foreign := foreignArch(m)
		m.sh("dpkg --add-architecture " + foreign)
		defer func() { m.reset(); m.sh("dpkg --remove-architecture " + foreign) }()
		m.request.Local = map[string]string{"fx:" + foreign: m.carry(pack{name: "fx", version: "1", arch: foreign})}
		m.judge(report{"fx:" + foreign: "changed"}, versions{"fx:" + foreign: "1-1"}, present("fx:"+foreign, ""))
	}},
	{"O-094", "", "what provides a name is not the package", func(m *machine) {
		m.install(pack{name: "fx-all", version: "1", provides: []string{"fx"}})
		m.offer(fx("1"), pack{name: "fx-all", version: "1", provides: []string{"fx", "fx9"}})
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "fx-all": "1-1"}, present("fx", ""))
		m.judge(report{"fx9": "failed not-available"}, versions{"fx-all": "1-1"}, present("fx9", ""))
		m.wantDetail("fx9", "fx-all")
	}},
	{"O-095", "", "two declared packages that exclude each other do not flap", func(m *machine) {
		m.offer(pack{name: "fx-a", version: "1", provides: []string{"fx-b"}, conflicts: []string{"fx-b"}}, pack{name: "fx-b", version: "1"})
		first := m.pass(present("fx-a", ""), present("fx-b", ""))
		words := word(first.of("fx-a")) + ", " + word(first.of("fx-b"))
		if words != "changed, failed would-remove-others" && words != "failed would-remove-others, changed" {
			m.Errorf("reported %s: %s; %s", words, first.of("fx-a").Detail, first.of("fx-b").Detail)
		}
		there := m.has("fx-a") + "/" + m.has("fx-b")
		for range 2 {
			m.pass(present("fx-a", ""), present("fx-b", ""))
			if now := m.has("fx-a") + "/" + m.has("fx-b"); now != there {
				m.Errorf("it was %s and is %s", there, now)
			}
		}
	}},
	{"O-096", "", "a name that does not exist is neither a pattern nor an instruction", func(m *machine) {
		m.offer(fx("1"), pack{name: "fxa", version: "1"})
		m.refresh()
		for _, name := range []string{"fx.*", "fx/stable", "fx=1", "fx*", "-fx", "fx a", "../fx", "fx,fxa"} {
			m.refused(present(name, ""))
		}
		var rs []mesh.Resource
		want := report{}
		for _, name := range []string{"g++-99", "fx-", "fx+", "fx.", "fx.a", "f.a"} {
			rs = append(rs, present(name, ""))
			want[name] = "failed not-available"
		}
		m.judge(want, versions{"fx": "", "fxa": ""}, rs...)
	}},
	{"O-097", "dnf", "a package that another one obsoletes is named so, every time", func(m *machine) {
		m.offer(pack{name: "fx-old", version: "1"}, pack{name: "fx-new", version: "2", obsoletes: []string{"fx-old < 2"}, provides: []string{"fx-old = 2"}})
		m.judge(report{"fx-old": "failed obsoleted"}, versions{"fx-old": "", "fx-new": ""}, present("fx-old", ""))
		m.wantDetail("fx-old", "fx-new")
		m.install(pack{name: "fx-new", version: "2", obsoletes: []string{"fx-old < 2"}, provides: []string{"fx-old = 2"}})
		m.judge(report{"fx-old": "failed obsoleted"}, versions{"fx-old": "", "fx-new": "2-1"}, present("fx-old", ""))
	}},
	{"O-098", "dnf", "an obsoleted name in a set fails alone", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx-new", version: "2", obsoletes: []string{"fx-old < 2"}, provides: []string{"fx-old = 2"}})
		m.install(fx("1"), pack{name: "fx-new", version: "2", obsoletes: []string{"fx-old < 2"}, provides: []string{"fx-old = 2"}})
		m.judge(report{"fx": "ok", "fx-new": "ok", "fx-old": "failed obsoleted"}, versions{"fx": "1-1", "fx-new": "2-1"}, present("fx", ""), present("fx-new", ""), present("fx-old", ""))
	}},
	{"O-099", "dnf", "kernels stand side by side, and the running one stays", func(m *machine) {
		for _, v := range []string{"5", "6", "7"} {
			m.install(pack{name: "kernel", version: v, arch: m.arch(), provides: []string{"installonlypkg(kernel)"}})
		}
		m.judge(report{"kernel": "ok"}, versions{"kernel": "5-1 6-1 7-1"}, present("kernel", ""))
		m.judge(report{"kernel": "ok"}, versions{"kernel": "5-1 6-1 7-1"}, present("kernel", "6-1"))
		m.request.Kernel = "6-1." + m.arch()
		m.judge(report{"kernel": "failed protected"}, versions{"kernel": "5-1 6-1 7-1"}, absent("kernel"))
	}},
	{"O-100", "dnf", "a version of what may stand side by side comes alongside", func(m *machine) {
		p := func(v string) pack {
			return pack{name: "kernel-devel", version: v, provides: []string{"installonlypkg(kernel)"}}
		}
		m.install(p("2"))
		m.offer(p("1"), p("2"))
		m.judge(report{"kernel-devel": "changed"}, versions{"kernel-devel": "1-1 2-1"}, present("kernel-devel", "1-1"))
		// Not everything that is named after the kernel may.
		m.install(pack{name: "kernel-headers", version: "2"})
		m.offer(pack{name: "kernel-headers", version: "1"})
		m.judge(report{"kernel-headers": "changed"}, versions{"kernel-headers": "1-1"}, present("kernel-headers", "1-1"))
	}},
}

func foreignArch(m *machine) string {
	if m.arch() == "i386" {
		return "amd64"
	}
	return "i386"
}

func ordered(m *machine) {
	pairs := [][2]string{{"1.0~rc1", "1.0"}, {"1.0~~", "1.0~"}, {"1.0~rc1", "1.0~rc2"}, {"1.10", "1.9"}, {"01", "1"}, {"1.0-1", "1.0-1+b1"}, {"1:0.1", "9"}, {"1.0.0.rc1", "1.0.0"}, {"1.0a", "1.0"}, {"1.0", "1.0.1"}, {"1-1", "0:1-1"}, {"2-1", "2-10"}, {"1.0-1", "1.0-1.el9"}}
	if m.rpm() {
		pairs = append(pairs, [2]string{"1.0", "1.0^git1"}, [2]string{"1.0^git1", "1.0.1"}, [2]string{"1.0~rc1^g", "1.0"}, [2]string{"1.0^", "1.0"})
	}
	for _, p := range pairs[:len(pairs):len(pairs)] {
		pairs = append(pairs, [2]string{p[1], p[0]})
	}
	m.request.Compare = pairs
	got := m.pass().Order
	var script strings.Builder
	for _, p := range pairs {
		if m.rpm() {
			fmt.Fprintf(&script, "rpm --eval '%%{lua: print(rpm.vercmp(\"%s\", \"%s\"))}'\n", p[0], p[1])
			continue
		}
		fmt.Fprintf(&script, "if dpkg --compare-versions '%s' lt '%s'; then echo -1; elif dpkg --compare-versions '%s' eq '%s'; then echo 0; else echo 1; fi\n", p[0], p[1], p[0], p[1])
	}
	out, err := m.h.Sh(m.context(), script.String())
	if err != nil {
		m.Fatal(err)
	}
	for i, native := range strings.Fields(out.Stdout) {
		if fmt.Sprint(sign(got[i])) != native {
			m.Errorf("%s against %s: the tool says %s, ours says %d", pairs[i][0], pairs[i][1], native, got[i])
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
