package packages_test

import (
	"strings"
	"unicode/utf8"
)

// rowsOfScripts are what scripts of packages do while the tool runs.
var rowsOfScripts = []row{
	{"a daemon that a script starts by itself neither holds the pass up nor ends with it", "", "postinst starts a process that keeps its output open", func(m *machine) {
		m.sh("cp $(readlink -f /bin/sleep) /usr/local/bin/rows-daemon")
		m.Cleanup(func() { m.sh("pkill -f '^/usr/local/bin/rows-daemo[n]' || true; rm -f /usr/local/bin/rows-daemon") })
		p := fx("1")
		p.postinst = "/usr/local/bin/rows-daemon 100000 &"
		m.offer(p)
		if m.dnf5() {
			// It waits itself for whoever has the script's output open, and is stopped
			// with it.
			m.request.Timeout = 10
			m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
			m.wantDetail("fx", "stopped", "rows-daemon")
			return
		}
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "rows-daemon")
		if m.last.Took > 60 {
			m.Errorf("the pass took %.0f s", m.last.Took)
		}
		m.sh("pgrep -f '^/usr/local/bin/rows-daemo[n]'")
	}},
	{"a script that asks gets no answer and no time", "", "postinst reads from standard input and the terminal", func(m *machine) {
		p := fx("1")
		p.postinst = "read -r answer || answer=none; echo \"$answer\" >/run/rows-answer; (read -r x </dev/tty) 2>/dev/null || true"
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		if got := m.sh("cat /run/rows-answer"); got != "none" {
			m.Errorf("the answer was %q", got)
		}
	}},
	{"a script that kills the tool is judged by the database", "", "postinst kills its parent, as the kernel does when memory is short", func(m *machine) {
		p := fx("1")
		p.postinst = "[ -e /run/rows-once ] || { touch /run/rows-once; kill -9 $PPID; sleep 5; }"
		m.offer(p)
		a := m.pass(present("fx", ""))
		if there := m.has("fx"); (a.of("fx").Status == "changed") != (there == "1-1") {
			m.Errorf("fx is %q and the database has %q", word(a.of("fx")), there)
		}
		m.pass(present("fx", ""))
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"a script after removal that fails is not a removal", "apt", "postrm ends with an error", func(m *machine) {
		p := fx("1")
		p.postrm = "[ \"$1\" != remove ] || [ -e /run/rows-go ] || exit 3"
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		for range 2 {
			a := m.undeclare([]string{"fx"})
			m.wantReport(a, report{"fx": "failed script-failed"})
			if len(a.Owned) != 1 {
				m.Errorf("the ownership is lost: %v", a.Owned)
			}
		}
		m.sh("touch /run/rows-go")
		m.wantReport(m.undeclare([]string{"fx"}), report{"fx": "removed"})
		m.wantVersions(versions{"fx": ""})
	}},
	{"what a script writes is shown bounded and as text", "", "a script writes megabytes of bytes that are no text, and fails", func(m *machine) {
		p := fx("1")
		p.preinst = "head -c 3000000 /dev/urandom; echo; echo the last word >&2; exit 3"
		m.offer(p)
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": ""}, present("fx", ""))
		if out := m.last.of("fx").Output; len(out) > 70000 || !utf8.ValidString(out) {
			m.Errorf("%d bytes are shown, text: %t", len(out), utf8.ValidString(out))
		}
	}},
	{"a script that calls the tool again fails with it", "apt", "postinst installs another package", func(m *machine) {
		p := fx("1")
		p.postinst = "apt-get -y install fx2"
		m.offer(p, pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": "1-1 (half-configured)", "fx2": ""}, present("fx", ""))
	}},
	{"a program that is not there fails the script that needs it", "", "postinst calls what nobody installed", func(m *machine) {
		p := fx("1")
		p.preinst = "set -e; rows-no-such-program --now"
		m.offer(p, pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "failed script-failed", "fx2": "changed"}, versions{"fx": "", "fx2": "1-1"}, present("fx", ""), present("fx2", ""))
	}},
	{"a service that does not start is not a package that is right", "apt", "postinst ends with the status of its service", func(m *machine) {
		p := fx("1")
		p.files = map[string]string{"/lib/systemd/system/rows-fx.service": "[Service]\nExecStart=/bin/false\nType=oneshot\n"}
		p.postinst = "systemctl daemon-reload; systemctl start rows-fx.service"
		m.offer(p)
		m.judge(report{"fx": "failed script-failed"}, versions{"fx": "1-1 (half-configured)"}, present("fx", ""))
		if !strings.Contains(m.last.of("fx").Output, "rows-fx.service") {
			m.Errorf("the output does not name the service:\n%s", m.last.of("fx").Output)
		}
	}},
}
