package packages_test

import (
	"testing"

	"github.com/meshctl/mesh/test/lab"
)

// lie puts a program in the place of the package manager which does as it is
// told when it only looks, and this when it is to install.
func (m *machine) lie(script string) {
	m.Helper()
	tool, looks := "/usr/bin/apt-get", `*" -s "*|*update*|*indextargets*`
	if m.rpm() {
		tool, looks = m.sh("readlink -f /usr/bin/dnf"), `*--assumeno*|*makecache*|*repoquery*|*" mark "*`
	}
	m.sh("[ -e %[1]s.honest ] || mv %[1]s %[1]s.honest", tool)
	m.write(tool, "#!/bin/sh\ncase \" $* \" in "+looks+") exec "+tool+".honest \"$@\";; esac\nhonest="+tool+".honest\n"+script+"\n")
	m.sh("chmod 755 " + tool)
	m.Cleanup(func() { m.sh("if [ -e %[1]s.honest ]; then mv %[1]s.honest %[1]s; fi", tool) })
}

// Shows: M4
func TestWhatAPackageManagerClaimsIsNeverWhatIsReported(t *testing.T) {
	l := lab.Shared(t)
	program, s, k := buildDriver(t), newServer(t, l), newKey(t, "rows")
	for _, flavour := range flavours() {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			h := rowHost(t, l, flavour, program)
			begin := func(t *testing.T) *machine {
				m := newMachine(t, h, s, k)
				m.offer(fx("1"), pack{name: "fx2", version: "1"})
				m.install(pack{name: "fxby", version: "1"})
				return m
			}
			low := func(m *machine, install, remove string) string {
				if m.rpm() {
					return "rpm -i " + install + " 2>/dev/null; [ -z '" + remove + "' ] || rpm -e " + remove
				}
				return "dpkg -i " + install + " >/dev/null; [ -z '" + remove + "' ] || dpkg --remove " + remove + " >/dev/null"
			}
			t.Run("says success and does nothing", func(t *testing.T) {
				m := begin(t)
				m.lie("exit 0")
				m.judge(report{"fx": "failed read-back-differs"}, versions{"fx": ""}, present("fx", "1-1"))
				m.judge(report{"fxby": "failed read-back-differs"}, versions{"fxby": "1-1"}, absent("fxby"))
			})
			t.Run("says success and does something else", func(t *testing.T) {
				m := begin(t)
				m.lie(low(m, m.carry(pack{name: "fx3", version: "1"}), "") + "; exit 0")
				m.wantReport(m.pass(present("fx", "1-1")), report{"fx": "failed read-back-differs"})
				m.wantVersions(versions{"fx": "", "fx3": "1-1"})
			})
			t.Run("says failure and does it", func(t *testing.T) {
				m := begin(t)
				m.lie("$honest \"$@\"; exit 1")
				m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "1-1", "fx2": "1-1"}, present("fx", "1-1"), present("fx2", ""))
				m.wantDetail("fx", "error")
			})
			t.Run("removes a bystander", func(t *testing.T) {
				m := begin(t)
				m.lie("$honest \"$@\"; " + low(m, "", "fxby") + "; exit 0")
				m.wantReport(m.pass(present("fx", "1-1")), report{"fx": "failed harmed-others"})
				m.wantDetail("fx", "fxby", "not asked for")
				m.wantVersions(versions{"fx": "1-1", "fxby": ""})
				if m.last.State != "failed" {
					m.Errorf("the pass as a whole is %s", m.last.State)
				}
				m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", "1-1"))
			})
			t.Run("is killed", func(t *testing.T) {
				m := begin(t)
				m.lie("kill -9 $$")
				m.wantReport(m.pass(present("fx", "1-1")), report{"fx": "failed tool-failed"})
				m.wantVersions(versions{"fx": ""})
			})
		})
	}
}
