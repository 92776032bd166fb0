package packages_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/test/lab"
)

// The rows of packages, as numbered where the faults were collected.
const (
	firstRow = 54
	lastRow  = 138
)

// row is one fault that people reported of tools of this kind, as a test: what
// is declared, what the machine is like before, and what it must be like and
// what must be said afterwards.
type row struct {
	number string
	// on names the managers that the row is for. Empty: both.
	on   string
	says string
	run  func(m *machine)
}

// rowsNotRun lists the rows, or parts of rows, that no test here runs or whose
// right value is judged otherwise, and why. The rest of each such row is run
// under its number.
var rowsNotRun = map[string]string{
	"O-065": "there is no purge: it runs scripts that delete data which nothing could bring back. That left-over configuration is absent, and is not installed, is run",
	"O-066": "there is no purge, see O-065; absent is run over both states",
	"O-073": "patterns of versions are refused when they are written; the exact version is run",
	"O-076": "there is no \"latest\"; that any version is right under a lock is run",
	"O-080": "of the two steady rules the strict one holds: a missing epoch is zero, so the version is refused before anything is done",
	"O-085": "patterns of versions are refused when they are written; that a part of a version is not the version is run",
	"O-086": "an exact version below the installed one is itself the declaration of a downgrade, and is done; patterns are refused",
	"O-104": "there is no option to remove what an installation brought along: other things may use it by then, as in O-103. That nothing unrelated is swept away is run",
	"O-108": "there is no option about recommended packages; the machine's own setting is run",
	"O-110": "there is no \"latest\"; a newer exact version is run, and is failed and not unknown: what is installed is known",
	"O-111": "as O-110",
	"O-115": "the mesh has no option of its own; what the admin sets in apt's configuration is run",
	"O-131": "run on dnf 4; dnf5 on the lab's hosts is built without modules",
	"O-134": "there is no option against starting services; the admin's own policy and what was started are run",
	"O-135": "run with a stand-in for needrestart that is quiet when its surroundings suspend it, as the real one, and hangs otherwise",
}

var allRows = slices.Concat(rowsOfLocks, rowsOfHolds, rowsOfVersions, rowsOfCompany, rowsOfRepositories, rowsOfRPM, rowsOfEnvironment, rowsOfOurOwn, rowsOfSettings, rowsOfNames, rowsOfScripts, rowsOfSets, rowsOfSources)

// everyRun lists the flavours that are booted in every run, usualFlavours those
// of this one: with -tags matrix there are more.
var (
	everyRun      = []string{"bookworm-apt", "trixie-dnf"}
	usualFlavours = everyRun
)

// flavours are those that the environment names, or the usual ones.
func flavours() []string {
	if only := os.Getenv("MESH_LAB_FLAVOURS"); only != "" {
		return strings.Fields(only)
	}
	return usualFlavours
}

// Shows: M4, M6, M8
func TestPackageRows(t *testing.T) {
	l := lab.Shared(t)
	program := buildDriver(t)
	s := newServer(t, l)
	k := newKey(t, "rows")
	for _, flavour := range flavours() {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			h := rowHost(t, l, flavour, program)
			for _, r := range allRows {
				if r.on != "" && (r.on == "dnf") != h.Flavour().RPM() {
					continue
				}
				t.Run(r.number, func(t *testing.T) {
					defer func() {
						if t.Failed() {
							t.Logf("%s: %s", r.number, r.says)
						}
					}()
					r.run(newMachine(t, h, s, k))
				})
			}
		})
	}
}

// Shows: M4
func TestEveryRowOfPackagesIsRunOrListedWithTheReason(t *testing.T) {
	run := make(map[string]bool)
	for _, r := range allRows {
		run[r.number] = true
	}
	for n := firstRow; n <= lastRow; n++ {
		number := fmt.Sprintf("O-%03d", n)
		if !run[number] && rowsNotRun[number] == "" {
			t.Errorf("%s is neither run nor listed", number)
		}
	}
}

// rowHost boots a host and puts the driver on it.
func rowHost(t *testing.T, l *lab.Lab, flavour, program string) *lab.Host {
	t.Helper()
	ctx := lab.TestContext(t)
	manager, _, _ := strings.Cut(flavour, "-")
	h, err := l.Ensure(ctx, "p-"+manager, flavour)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.CopyIn(ctx, program, driverPath); err != nil {
		t.Fatal(err)
	}
	return h
}

// hold has another process hold locks for some seconds, under a name.
func (m *machine) hold(comm string, seconds int, files ...string) {
	m.Helper()
	m.holdAs("lock", comm, seconds, files...)
}

// holdAs does so with one of the kinds of lock that the driver knows.
func (m *machine) holdAs(kind, comm string, seconds int, files ...string) {
	m.Helper()
	m.sh(`mkdir -p /run/rows-bin; rm -f /run/rows-bin/%[2]s; cp %[1]s /run/rows-bin/%[2]s
setsid /run/rows-bin/%[2]s %[5]s %[3]d %[4]s >/run/rows-holder.out 2>&1 </dev/null &
echo $! >/run/rows-holder.pid
for i in $(seq 100); do grep -q locked /run/rows-holder.out && exit 0; sleep 0.1; done
cat /run/rows-holder.out; exit 1`, driverPath, comm, seconds, strings.Join(files, " "), kind)
}

func (m *machine) letGo() { m.sh("kill -9 $(cat /run/rows-holder.pid) 2>/dev/null || true") }

// locks are the files that a package manager at work locks.
func (m *machine) locks() []string {
	if m.rpm() {
		return []string{"/var/lib/rpm/.rpm.lock"}
	}
	return []string{"/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock"}
}

func depends(m *machine, name, relation string) string {
	if relation == "" {
		return name
	}
	if m.rpm() {
		return name + " " + relation
	}
	return name + " (" + relation + ")"
}

var rowsOfLocks = []row{
	{"O-054", "", "a held lock is waited for, and defers when it stays", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.hold("holder", 4, m.locks()...)
		m.request.LockWait = 60
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.hold("holder", 300, m.locks()...)
		m.request.LockWait = 1
		m.judge(report{"fx": "ok", "fx2": "deferred locked"}, versions{"fx2": ""}, present("fx", ""), present("fx2", ""))
		m.wantDetail("fx2", "process", "(holder)")
		m.letGo()
	}},
	{"O-055", "", "calls of the tool do not collide with each other", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		second := present("fx2", "")
		second.Requires = append(second.Requires, present("fx", "").ID())
		m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "1-1", "fx2": "1-1"}, present("fx", ""), second)
	}},
	{"O-056", "dnf", "a file that names a dead process is no lock", func(m *machine) {
		m.offer(fx("1"))
		m.sh("mkdir -p /var/cache/dnf; for f in /run/yum.pid /var/cache/dnf/metadata_lock.pid /var/cache/dnf/download_lock.pid; do echo 4194000 >$f; done")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		m.sh("test -e /run/yum.pid; rm /run/yum.pid")
	}},
	{"O-057", "apt", "a holder that hangs is named and left alone, and the rest goes on", func(m *machine) {
		m.offer(fx("1"))
		m.request.LockWait = 1
		m.hold("packagekitd", 300, "/var/lib/apt/lists/lock")
		m.judge(report{"fx": "deferred locked", "file:/run/rows-file": "changed"}, versions{"fx": ""}, present("fx", ""), textFile("/run/rows-file", "x"))
		m.wantDetail("fx", "packagekitd")
		m.sh("kill -0 $(cat /run/rows-holder.pid)")
		m.letGo()
	}},
	{"O-058", "", "a hook or script that never ends is stopped with all it started", func(m *machine) {
		m.request.Timeout = 5
		if m.rpm() {
			p := fx("1")
			p.preinst = "sleep 36000"
			m.offer(p)
		} else {
			m.offer(fx("1"))
			m.write("/etc/apt/apt.conf.d/99rows", `DPkg::Pre-Install-Pkgs {"sleep 36000"};`+"\n")
		}
		m.judge(report{"fx": "failed timed-out"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", "sleep 36000")
		if left := m.sh("pgrep -f '^sleep 3600[0]' || true"); left != "" {
			m.Errorf("what the hook started is still there: %s", left)
		}
		if !m.rpm() {
			m.sh("rm /etc/apt/apt.conf.d/99rows; test -z \"$(dpkg --audit)\"")
			m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		}
	}},
	{"O-059", "", "a failed attempt never removes what works", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"))
		m.request.LockWait = 1
		m.hold("holder", 300, m.locks()...)
		m.judge(report{"fx": "deferred locked"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.letGo()
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
	}},
	{"O-060", "apt", "only a wholly installed package is right", func(m *machine) {
		m.offer(fx("1"))
		path := m.carry(fx("1"))
		m.sh("dpkg --unpack " + path)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		for _, status := range []string{"install ok half-configured", "install reinstreq half-installed", "install ok triggers-pending"} {
			extra := ""
			if strings.Contains(status, "triggers") {
				extra = "\\nTriggers-Pending: rows"
			}
			m.sh(`sed -i '/^Package: fx$/,/^$/s/^Status: .*/Status: %s%s/' /var/lib/dpkg/status`, status, extra)
			m.refresh()
			m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		}
	}},
	{"O-061", "apt", "an interrupted dpkg is finished first, once, and that is said", func(m *machine) {
		ot := pack{name: "fxot", version: "1", postinst: "[ -e /run/rows-go ] || { touch /run/rows-began; sleep 60; exit 1; }"}
		path := m.carry(ot)
		m.offer(fx("1"))
		m.sh("(dpkg -i " + path + " >/dev/null 2>&1 </dev/null &) ; for i in $(seq 100); do [ -e /run/rows-began ] && break; sleep 0.1; done; pkill -9 -x dpkg; pkill -x sleep || true; sleep 0.3; dpkg-query -W -f '${Status}' fxot | grep half; touch /run/rows-go")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "fxot": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "fxot")
		// One that cannot be finished is named, and what can be done is done.
		m.sh(`sed -i 's/.*rows-go.*/exit 1/' /var/lib/dpkg/info/fxot.postinst; sed -i '/^Package: fxot$/,/^$/s/^Status: .*/Status: install ok half-configured/' /var/lib/dpkg/status`)
		m.offer(pack{name: "fx2", version: "1"})
		a := m.pass(present("fx2", ""))
		if w := word(a.of("fx2")); w != "changed" && w != "failed interrupted-transaction" {
			m.Errorf("beside a package that cannot be configured fx2 is %q", w)
		}
		m.wantDetail("fx2", "fxot")
		repairs := 0
		for _, argv := range a.Commands {
			if strings.Contains(strings.Join(argv, " "), "--configure -a") {
				repairs++
			}
		}
		if repairs != 1 {
			m.Errorf("the repair was tried %d times in one pass", repairs)
		}
	}},
	{"O-062", "apt", "the repair asks nothing and keeps the admin's file", func(m *machine) {
		ot := pack{name: "fxot", version: "1", conffiles: map[string]string{"/etc/rows-ot.conf": "one\n"}}
		m.install(ot)
		m.sh("echo mine > /etc/rows-ot.conf")
		ot.version, ot.conffiles = "2", map[string]string{"/etc/rows-ot.conf": "two\n"}
		m.sh("dpkg --unpack " + m.carry(ot))
		m.offer(fx("1"))
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1", "fxot": "2-1"}, present("fx", ""))
		if got := m.sh("cat /etc/rows-ot.conf /etc/rows-ot.conf.dpkg-dist"); got != "mine\ntwo" {
			m.Errorf("the files hold %q", got)
		}
		m.wantDetail("fx", "/etc/rows-ot.conf")
	}},
	{"O-063", "", "a dependency that nobody offers fails the package and what stands on it", func(m *machine) {
		p := fx("1")
		p.depends = []string{depends(m, "fxnowhere", ">= 1")}
		m.offer(p)
		after := textFile("/run/rows-file", "x")
		after.Requires = append(after.Requires, present("fx", "").ID())
		m.judge(report{"fx": "failed unmet-dependency", "file:/run/rows-file": "skipped requires-not-met"}, versions{"fx": ""}, present("fx", ""), after)
		m.wantDetail("fx", "fxnowhere")
		if m.last.State != "failed" {
			m.Errorf("the pass as a whole is %s", m.last.State)
		}
	}},
	{"O-064", "", "what conflicts with an installed package does not come, and that is said", func(m *machine) {
		m.install(pack{name: "fxot", version: "1"})
		p := fx("1")
		p.conflicts = []string{"fxot"}
		m.offer(p)
		m.judge(report{"fx": "failed would-remove-others"}, versions{"fx": "", "fxot": "1-1"}, present("fx", ""))
		m.wantDetail("fx", "fxot")
	}},
	{"O-065", "apt", "left-over configuration is neither installed nor in the way of absent", func(m *machine) {
		p := fx("1")
		p.conffiles = map[string]string{"/etc/rows-fx.conf": "one\n"}
		m.install(p)
		m.sh("dpkg --remove fx; dpkg-query -W -f '${Status}' fx | grep config-files")
		m.judge(report{"fx": "ok"}, versions{"fx": ""}, absent("fx"))
		m.sh("test -e /etc/rows-fx.conf")
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"O-066", "apt", "absent is the same for what is installed and what is left over", func(m *machine) {
		for _, name := range []string{"fx", "fx2"} {
			m.install(pack{name: name, version: "1", conffiles: map[string]string{"/etc/rows-" + name: "one\n"}})
		}
		m.sh("dpkg --remove fx")
		m.judge(report{"fx": "ok", "fx2": "changed"}, versions{"fx": "", "fx2": ""}, absent("fx"), absent("fx2"))
		m.sh("test -e /etc/rows-fx2")
	}},
	{"O-067", "apt", "a held package is installed", func(m *machine) {
		m.install(fx("1"))
		m.sh("apt-mark hold fx")
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
		m.sh("apt-mark showhold | grep -x fx")
	}},
	{"O-068", "apt", "a question is answered with its default and not waited for", questions},
	{"O-069", "apt", "a question is answered although the surroundings say nothing", func(m *machine) {
		m.request.env = []string{"-u", "DEBIAN_FRONTEND", "DEBIAN_PRIORITY=low"}
		questions(m)
	}},
	{"O-070", "", "an edited configuration file survives, and that is said", func(m *machine) {
		p := fx("1")
		p.conffiles = map[string]string{"/etc/rows-fx.conf": "one\n"}
		m.install(p)
		m.sh("echo mine > /etc/rows-fx.conf")
		p.version, p.conffiles = "2", map[string]string{"/etc/rows-fx.conf": "two\n"}
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
		if got := m.sh("cat /etc/rows-fx.conf /etc/rows-fx.conf.%s", map[bool]string{true: "rpmnew", false: "dpkg-dist"}[m.rpm()]); got != "mine\ntwo" {
			m.Errorf("the files hold %q", got)
		}
		m.wantDetail("fx", "/etc/rows-fx.conf")
	}},
	{"O-071", "", "a package from a file keeps the edit too", func(m *machine) {
		p := fx("1")
		p.conffiles = map[string]string{"/etc/rows-fx.conf": "one\n"}
		m.install(p)
		m.sh("echo mine > /etc/rows-fx.conf")
		p.version, p.conffiles = "2", map[string]string{"/etc/rows-fx.conf": "two\n"}
		m.request.Local = map[string]string{"fx": m.carry(p)}
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
		if got := m.sh("cat /etc/rows-fx.conf"); got != "mine" {
			m.Errorf("the file holds %q", got)
		}
	}},
}

// questions installs a package that asks what must be answered.
func questions(m *machine) {
	p := fx("1")
	p.depends = []string{"debconf"}
	p.templates = "Template: fx/password\nType: string\nDefault: generated\nDescription: A password\n"
	p.debconf = ". /usr/share/debconf/confmodule\ndb_input critical fx/password || true\ndb_go || true"
	p.postinst = ". /usr/share/debconf/confmodule\ndb_get fx/password\necho \"$RET\" >/run/rows-answer"
	m.offer(p)
	m.request.Timeout = 60
	m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	if got := m.sh("cat /run/rows-answer"); got != "generated" {
		m.Errorf("the answer was %q", got)
	}
}

// local path of a file that the row's repository holds.
func (m *machine) published(pattern string) string {
	m.Helper()
	found, err := filepath.Glob(filepath.Join(m.repo.dir(), pattern))
	if err != nil || len(found) != 1 {
		m.Fatalf("%s is published as %q, %v", pattern, found, err)
	}
	return found[0]
}
