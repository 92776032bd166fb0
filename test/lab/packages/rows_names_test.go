package packages_test

// rowsOfNames are names and versions that are easily taken for something else.
var rowsOfNames = []row{
	{"a name is its letters as they are", "", "a name in capitals is declared", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx-2", version: "1"})
		m.judge(report{"FX": "failed not-available", "Fx": "failed not-available"}, versions{"fx": ""}, present("FX", ""), present("Fx", "1-1"))
	}},
	{"another way to write an installed package is no package that is gone", "", "absent names fx.arch or fx-version, as the tools themselves do", func(m *machine) {
		p := fx("1")
		p.arch = m.arch()
		m.install(p)
		for _, name := range []string{"fx." + m.arch(), "fx-1-1", "fx-1-1." + m.arch()} {
			m.judge(report{name: "failed not-available"}, versions{"fx": "1-1"}, absent(name))
			m.wantDetail(name, "fx:"+m.arch())
		}
		m.judge(report{"fx-2": "ok", "fx-1": "ok"}, versions{"fx": "1-1"}, absent("fx-2"), absent("fx-1"))
	}},
	{"signs in names are letters", "", "g++, libstdc++6 and python3.11 come, change and go", func(m *machine) {
		names := []string{"fx++", "libfx++6", "fx3.11", "fx-1.8.0-tool"}
		come, change, gone := report{}, report{}, versions{}
		for _, name := range names {
			m.offer(pack{name: name, version: "1"}, pack{name: name, version: "2"})
			come[name], change[name], gone[name] = "changed", "changed", ""
		}
		m.judge(come, nil, present(names[0], "1-1"), present(names[1], "1-1"), present(names[2], "1-1"), present(names[3], "1-1"))
		m.judge(change, versions{"fx++": "2-1", "fx3.11": "2-1"}, present(names[0], "2-1"), present(names[1], "2-1"), present(names[2], "2-1"), absent(names[3]))
		m.judge(report{"fx++": "changed", "libfx++6": "changed", "fx3.11": "changed"}, gone, absent(names[0]), absent(names[1]), absent(names[2]))
	}},
	{"a part of a version is not the version, and that is said", "", "a version is declared without its release", func(m *machine) {
		m.install(fx("1.0"))
		m.offer(fx("1.0"))
		m.judge(report{"fx": "failed not-available"}, versions{"fx": "1.0-1"}, present("fx", "1.0"))
		m.wantDetail("fx", "1.0-1", "release")
		m.judge(report{"fx": "failed not-available"}, versions{"fx": "1.0-1"}, present("fx", "1.00-1"))
	}},
	{"a version comes whatever signs it has", "", "tildes, plus signs and carets", func(m *machine) {
		all := []string{"1.0~rc1", "1.0+dfsg1", "1.0+really0.9", "20260101.abc"}
		if m.rpm() {
			all = append(all, "1.0^git1", "1.0~rc1^20260101")
		}
		for _, v := range all {
			m.offer(fx(v))
			m.judge(report{"fx": "changed"}, versions{"fx": v + "-1"}, present("fx", v+"-1"))
		}
	}},
	{"an epoch decides against every number behind it", "", "up and down over epochs", func(m *machine) {
		high, low := fx("1"), fx("9")
		high.epoch, low.epoch = 2, 1
		m.install(low)
		m.offer(low, high)
		m.judge(report{"fx": "changed"}, versions{"fx": "2:1-1"}, present("fx", "2:1-1"))
		m.judge(report{"fx": "ok"}, versions{"fx": "2:1-1"}, present("fx", ""))
		m.judge(report{"fx": "changed"}, versions{"fx": "1:9-1"}, present("fx", "1:9-1"))
	}},
	{"an architecture that the machine does not have is named so", "", "a package for another processor", func(m *machine) {
		foreign := "arm64"
		if m.rpm() {
			foreign = "aarch64"
		}
		if m.arch() == foreign {
			foreign = map[string]string{"arm64": "amd64", "aarch64": "x86_64"}[foreign]
		}
		m.offer(pack{name: "fx", version: "1", arch: foreign}, pack{name: "fx2", version: "1"})
		m.judge(report{"fx:" + foreign: "failed unknown-architecture", "fx2": "changed"}, versions{"fx2": "1-1"}, present("fx:"+foreign, ""), present("fx2", ""))
		only := map[bool]string{true: "failed unknown-architecture", false: "failed not-available"}[m.rpm()]
		m.judge(report{"fx": only, "fx:" + foreign: "ok"}, nil, present("fx", ""), absent("fx:"+foreign))
	}},
	{"a provided name is nothing that can be taken away", "", "absent names what an installed package only provides", func(m *machine) {
		m.install(pack{name: "fx-all", version: "1", provides: []string{"fx9"}}, pack{name: "fxot", version: "1", depends: []string{"fx9"}})
		m.offer(fx("1"))
		m.judge(report{"fx9": "ok"}, versions{"fx-all": "1-1", "fxot": "1-1"}, absent("fx9"))
		m.judge(report{"fx9": "failed not-available", "fx-all": "ok"}, versions{"fx-all": "1-1"}, present("fx9", ""), present("fx-all", ""))
	}},
	{"what nobody knows is absent", "", "absent of a name that is nowhere, without any repository", func(m *machine) {
		m.fails(faultRefuse)
		a := m.pass(absent("fx-never-was"), absent("libfx++.so"))
		m.wantReport(a, report{"fx-never-was": "ok", "libfx++.so": "ok"})
		if len(a.Commands) > 0 {
			m.Errorf("it ran %q", a.Commands)
		}
	}},
	{"a package that is only a way to its successor brings it", "", "a transitional package", func(m *machine) {
		m.offer(pack{name: "fx-old", version: "2", depends: []string{"fx-new"}}, pack{name: "fx-new", version: "2"})
		m.judge(report{"fx-old": "changed"}, versions{"fx-old": "2-1", "fx-new": "2-1"}, present("fx-old", ""))
		m.wantDetail("fx-old", "fx-new")
	}},
	{"a file is what is in it and not what it is called", "", "a package file that was brought along holds another package, or another version", func(m *machine) {
		m.install(pack{name: "fx2", version: "1"})
		m.request.Local = map[string]string{"fx": m.carry(pack{name: "fx-other", version: "1"}), "fx2": m.carry(pack{name: "fx2", version: "3"})}
		m.offer(pack{name: "fx3", version: "1"})
		m.judge(report{"fx": "failed not-available", "fx2": "failed not-available", "fx3": "changed"}, versions{"fx": "", "fx-other": "", "fx2": "1-1", "fx3": "1-1"}, present("fx", ""), present("fx2", "2-1"), present("fx3", ""))
	}},
	{"one version for two architectures goes for both", "apt", "a library that must be the same for every architecture", func(m *machine) {
		foreign := foreignArch(m)
		m.sh("dpkg --add-architecture " + foreign)
		defer func() { m.reset(); m.sh("dpkg --remove-architecture " + foreign) }()
		lib := func(version, arch string) pack {
			return pack{name: "fx", version: version, arch: arch, fields: map[string]string{"Multi-Arch": "same"}}
		}
		m.install(lib("1", m.arch()), lib("1", foreign))
		m.offer(lib("2", m.arch()))
		own, other := "fx:"+m.arch(), "fx:"+foreign
		m.judge(report{"fx": "failed would-remove-others"}, versions{own: "1-1", other: "1-1"}, present("fx", "2-1"))
		m.offer(lib("2", foreign))
		m.judge(report{"fx": "changed"}, versions{own: "2-1", other: "2-1"}, present("fx", "2-1"))
	}},
}
