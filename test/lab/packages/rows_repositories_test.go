package packages_test

import (
	"strings"
	"time"
)

// index is the file of the repository that a refresh asks for first.
func (m *machine) index() string {
	if m.rpm() {
		return m.repo.paths() + "repodata/repomd.xml"
	}
	return m.repo.paths() + "InRelease"
}

// fails has the repository answer a refresh with a fault.
func (m *machine) fails(f fault) {
	m.s.fail(m.index(), f)
	m.Cleanup(func() { m.s.fail(m.index(), "") })
	if !m.rpm() {
		// apt would be content with the older form of the same file.
		m.s.fail(m.repo.paths()+"Release", f)
		m.Cleanup(func() { m.s.fail(m.repo.paths()+"Release", "") })
	}
}

func (m *machine) heal() {
	m.s.fail(m.index(), "")
	m.s.fail(m.repo.paths()+"Release", "")
}

var rowsOfRepositories = []row{
	{"O-110", "", "a repository that answers 503 is not a machine that is up to date", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.offer(fx("2"))
		m.fails(faultUnavailable)
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.heal()
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
	}},
	{"O-111", "", "a repository that is not there is not a machine that is up to date", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.offer(fx("2"))
		m.fails(faultRefuse)
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": "1-1"}, present("fx", "2-1"))
	}},
	{"O-112", "", "nothing is installed from an index that could not be renewed, and every source is named", func(m *machine) {
		m.offer(fx("1"))
		other := &repository{s: m.s, name: m.repo.name + "-b", rpm: m.rpm(), key: m.key}
		other.publish(m.T, pack{name: "fx2", version: "1"})
		m.use(other, "rows-b")
		m.refresh()
		m.fails(faultRefuse)
		m.s.fail(other.paths(), faultRefuse)
		defer m.s.fail(other.paths(), "")
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": ""}, present("fx", ""))
		if m.rpm() {
			m.wantDetail("fx", "rows", "rows-b")
		} else {
			m.wantDetail("fx", m.repo.url(), other.url())
		}
		// A repository that cannot have the package does not stand in its way.
		m.heal()
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
		// One that offers it, by its last good index, does.
		m.judge(report{"fx2": "failed repository-unreachable"}, versions{"fx2": ""}, present("fx2", ""))
	}},
	{"O-113", "apt", "a repository that is signed with another key is not believed", func(m *machine) {
		m.offer(fx("1"))
		m.refresh()
		stranger := newKey(m.T, "stranger")
		m.repo.key = stranger
		m.offer(fx("1"), fx("2"))
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", stranger.id(), m.repo.url())
	}},
	{"O-114", "apt", "a repository that says it is another one is not accepted by itself", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.repo.release = map[string]string{"Origin": "somebody-else"}
		m.offer(fx("2"))
		m.judge(report{"fx": "failed repository-changed"}, versions{"fx": "1-1"}, present("fx", "2-1"))
		m.wantDetail("fx", "Origin", "rows", "somebody-else")
	}},
	{"O-115", "apt", "what the admin accepts of a repository's changes is accepted, and no more", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.write("/etc/apt/apt.conf.d/99rows", "Acquire::AllowReleaseInfoChange::Suite \"true\";\n")
		m.repo.release = map[string]string{"Suite": "oldstable"}
		m.offer(fx("2"))
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
		m.repo.release["Origin"] = "somebody-else"
		m.offer(fx("3"))
		m.judge(report{"fx": "failed repository-changed"}, versions{"fx": "2-1"}, present("fx", "3-1"))
	}},
	{"O-116", "apt", "an index from the future stops its repository, and no other one's build comes instead", func(m *machine) {
		other := &repository{s: m.s, name: m.repo.name + "-base", rpm: m.rpm(), key: m.key}
		other.publish(m.T, fx("0.9"))
		m.know(fx("0.9"))
		m.use(other, "rows-base")
		m.repo.release = map[string]string{"Date": time.Now().UTC().Add(48 * time.Hour).Format(time.RFC1123)}
		m.offer(fx("2"))
		m.judge(report{"fx": "failed repository-not-current"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", m.repo.url(), time.Now().UTC().Format("2006-01-02"))
		m.repo.release = map[string]string{"Date": time.Now().UTC().Add(-72 * time.Hour).Format(time.RFC1123), "Valid-Until": time.Now().UTC().Add(-48 * time.Hour).Format(time.RFC1123)}
		m.offer(fx("2"))
		m.judge(report{"fx": "failed repository-not-current"}, versions{"fx": ""}, present("fx", ""))
	}},
	{"O-117", "", "a failure is a failure in every place where one may look", func(m *machine) {
		p := fx("1")
		p.depends = []string{"fxnowhere"}
		m.offer(p)
		m.judge(report{"fx": "failed unmet-dependency"}, versions{"fx": ""}, present("fx", ""))
		if m.last.State != "failed" || m.last.of("fx").Output == "" {
			m.Errorf("the pass is %s and shows %q", m.last.State, m.last.of("fx").Output)
		}
	}},
	{"O-118", "", "a package file that is not the one of the index fails alone", func(m *machine) {
		m.offer(fx("1"), pack{name: "fxot", version: "1"})
		file := strings.TrimPrefix(m.published("fx_*"), m.s.dir)
		for _, c := range []struct {
			f    fault
			want string
		}{{faultFlip, "failed signature-invalid"}, {faultNotFound, "failed repository-unreachable"}, {faultCut, "failed repository-unreachable"}} {
			m.s.fail(file, c.f)
			if c.f == faultFlip {
				m.judge(report{"fx": c.want, "fxot": "changed"}, versions{"fx": "", "fxot": "1-1"}, present("fx", ""), present("fxot", ""))
			} else {
				a := m.pass(present("fx", ""), present("fxot", ""))
				if w := word(a.of("fx")); w != c.want && w != "failed signature-invalid" {
					m.Errorf("with %s fx is %q: %s\n%s", c.f, w, a.of("fx").Detail, a.of("fx").Output)
				}
				m.wantVersions(versions{"fx": "", "fxot": "1-1"})
			}
			if !m.rpm() {
				m.sh(`test -z "$(dpkg --audit)"`)
			}
		}
		m.s.fail(file, "")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"O-119", "dnf", "unsigned packages do not come where signatures are wanted, and no key is taken in", func(m *machine) {
		m.use(m.repo, "rows", "gpgcheck=1")
		m.sh("sed -i '/^gpgcheck=0/d' /etc/yum.repos.d/rows.repo; cp /etc/dnf/dnf.conf /run/rows-dnf.conf; echo 'localpkg_gpgcheck=1' >>/etc/dnf/dnf.conf")
		defer m.sh("cp /run/rows-dnf.conf /etc/dnf/dnf.conf")
		m.offer(fx("1"))
		keys := m.sh("rpm -q gpg-pubkey || true")
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", ""))
		p := fx("2")
		p.sign = newKey(m.T, "stranger").detached
		m.offer(p)
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", "2-1"))
		m.request.Local = map[string]string{"fx": m.carry(fx("3"))}
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", "3-1"))
		if now := m.sh("rpm -q gpg-pubkey || true"); now != keys {
			m.Errorf("the keys were %q and are %q", keys, now)
		}
	}},
	{"O-120", "", "a machine without any index fetches one before it says that there is no such package", func(m *machine) {
		m.offer(fx("1"))
		m.fails(faultRefuse)
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": ""}, present("fx", ""))
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": ""}, present("fx", "1-1"))
		m.heal()
		m.judge(report{"fx": "changed", "fx-nosuch": "failed not-available"}, versions{"fx": "1-1"}, present("fx", "1-1"), present("fx-nosuch", "1-1"))
	}},
	{"O-121", "", "a version that was published after the index was fetched is found", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.offer(fx("2"))
		m.judge(report{"fx": "changed"}, versions{"fx": "2-1"}, present("fx", "2-1"))
	}},
}
