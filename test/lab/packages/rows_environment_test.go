package packages_test

import "strings"

var languages = []string{"LANG=de_DE.UTF-8", "LANGUAGE=en_GB:fr", "LC_MESSAGES=ja_JP.UTF-8", "LC_ALL=fr_FR.UTF-8"}

var rowsOfEnvironment = []row{
	{"O-132", "", "no language changes a verdict", func(m *machine) {
		m.install(fx("1"))
		m.write("/etc/default/locale", "LANG=de_DE.UTF-8\n")
		defer m.sh("rm -f /etc/default/locale")
		m.request.env = languages
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
		m.offer(pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "ok", "fx2": "changed"}, versions{"fx2": "1-1"}, present("fx", ""), present("fx2", ""))
	}},
	{"O-133", "", "a name that does not exist does not exist in any language", func(m *machine) {
		m.offer(fx("1"))
		m.request.env = languages
		m.judge(report{"fx-nosuch": "failed not-available"}, versions{"fx-nosuch": ""}, present("fx-nosuch", ""))
	}},
	{"O-134", "apt", "the admin's word on starting services holds, and what was started is said", func(m *machine) {
		p := fx("1")
		p.files = map[string]string{"/lib/systemd/system/fx.service": "[Service]\nExecStart=/bin/sleep 100000\n[Install]\nWantedBy=multi-user.target\n"}
		p.postinst = "systemctl daemon-reload; systemctl --quiet enable fx.service; deb-systemd-invoke start fx.service >/dev/null 2>&1 || true"
		p.prerm = "systemctl --quiet disable fx.service; systemctl stop fx.service || true"
		m.offer(p)
		policy := "#!/bin/sh\n# the admin's own\nexit 101\n"
		m.write("/usr/sbin/policy-rc.d", policy)
		m.sh("chmod 755 /usr/sbin/policy-rc.d")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		if active := m.sh("systemctl is-active fx.service || true"); active == "active" {
			m.Error("the service was started against the admin's policy")
		}
		if got := m.sh("cat /usr/sbin/policy-rc.d"); got+"\n" != policy {
			m.Errorf("the admin's policy is now %q", got)
		}
		m.sh("rm /usr/sbin/policy-rc.d")
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "fx.service")
		m.sh("systemctl stop fx.service")
	}},
	{"O-135", "apt", "a dialog after the installation is not waited for", func(m *machine) {
		needrestart(m, "sleep 36000")
		m.offer(fx("1"))
		m.request.Timeout = 60
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"O-136", "", "no service is restarted behind anybody's back, and which need it is said", func(m *machine) {
		if !m.rpm() {
			needrestart(m, "systemctl restart rows-old.service")
		}
		m.sh(`cp /bin/sleep /usr/local/bin/rows-old; printf '[Service]\nExecStart=/usr/local/bin/rows-old 100000\n' >/run/systemd/system/rows-old.service; systemctl daemon-reload; systemctl start rows-old.service; mkdir -p /usr/lib/rows; true`)
		defer m.sh("systemctl stop rows-old.service; rm -f /usr/local/bin/rows-old /run/systemd/system/rows-old.service; systemctl daemon-reload")
		pid := m.sh("systemctl show -p MainPID --value rows-old.service")
		p := fx("1")
		p.files = map[string]string{"/usr/share/rows-new": "x"}
		p.postinst = "cp /usr/local/bin/rows-old /usr/local/bin/rows-old.new; mv /usr/local/bin/rows-old.new /usr/local/bin/rows-old"
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		if now := m.sh("systemctl show -p MainPID --value rows-old.service"); now != pid {
			m.Errorf("the service had process %s and has %s", pid, now)
		}
		m.wantDetail("fx", "rows-old.service", "restart")
		m.sh("rm -f /usr/share/rows-new")
	}},
	{"O-137", "", "a service that was up before and is not after is named", func(m *machine) {
		m.sh(`printf '[Service]\nExecStart=/bin/sleep 100000\n' >/run/systemd/system/rows-sshd.service; systemctl daemon-reload; systemctl start rows-sshd.service`)
		defer m.sh("rm -f /run/systemd/system/rows-sshd.service; systemctl daemon-reload")
		p := fx("1")
		p.postinst = "systemctl stop rows-sshd.service"
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "rows-sshd.service")
	}},
	{"O-138", "", "a full disk leaves the database whole and the package out", func(m *machine) {
		m.sh("mkdir -p /usr/share/rows-big; %s mount /usr/share/rows-big 1m", driverPath)
		defer m.sh("%s unmount /usr/share/rows-big; rm -rf /usr/share/rows-big", driverPath)
		p := fx("1")
		p.files = map[string]string{"/usr/share/rows-big/data": strings.Repeat("0123456789abcdef", 4<<20/16)}
		m.offer(p, pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "failed no-space", "fx2": "changed"}, versions{"fx": "", "fx2": "1-1"}, present("fx", ""), present("fx2", ""))
		if !m.rpm() {
			m.sh(`test -z "$(dpkg --audit)"`)
		}
		m.sh("%s remount /usr/share/rows-big 64m", driverPath)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
}

// needrestart puts a stand-in for needrestart where apt calls it. It is as quiet
// as the real one when its surroundings suspend it, and otherwise does the worst.
func needrestart(m *machine, worst string) {
	m.Helper()
	m.write("/usr/lib/rows-needrestart", "#!/bin/sh\n[ -n \"$NEEDRESTART_SUSPEND\" ] && exit 0\n"+worst+"\n")
	m.write("/etc/apt/apt.conf.d/99rows-needrestart", "DPkg::Post-Invoke {\"/usr/lib/rows-needrestart\"; };\n")
	m.sh("chmod 755 /usr/lib/rows-needrestart")
	m.Cleanup(func() { m.sh("rm -f /usr/lib/rows-needrestart /etc/apt/apt.conf.d/99rows-needrestart") })
}
