package packages_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// cache is where the manager keeps what it fetched.
func (m *machine) cache() string {
	switch {
	case m.dnf5():
		return "/var/cache/libdnf5"
	case m.rpm():
		return "/var/cache/dnf"
	}
	return "/var/cache/apt/archives"
}

// small puts a small file system at a place for the time of the row.
func (m *machine) small(dir, size, below string) {
	m.Helper()
	m.sh("mkdir -p %[1]s; %[2]s mount %[1]s %[3]s; mkdir -p %[1]s/%[4]s", dir, driverPath, size, below)
	m.Cleanup(func() { m.sh("%s unmount %s", driverPath, dir) })
}

// noise is text that does not get smaller.
func noise(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

var rowsOfSources = []row{
	{"a repository that the admin trusts unsigned is a repository", "apt", "trusted=yes, without any signature", func(m *machine) {
		m.offer(fx("1"))
		release := filepath.Join(m.repo.dir(), "Release")
		signed := filepath.Join(m.repo.dir(), "InRelease")
		data, err := os.ReadFile(signed)
		if err != nil {
			m.Fatal(err)
		}
		_, text, _ := strings.Cut(string(data), "\n\n")
		text, _, _ = strings.Cut(text, "-----BEGIN")
		if err := errors.Join(os.WriteFile(release, []byte(text), 0o644), os.Remove(signed)); err != nil {
			m.Fatal(err)
		}
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", ""))
		if err := os.Remove(release); err != nil {
			m.Fatal(err)
		}
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": ""}, present("fx", ""))
		m.write("/etc/apt/sources.list.d/rows.list", "deb [trusted=yes] "+m.repo.url()+" ./\n")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"a repository with a signature that nobody can check is not believed", "apt", "the key expired", func(m *machine) {
		past := time.Now().Add(-72 * time.Hour)
		e, err := openpgp.NewEntity("old", "", "old@example.com", &packet.Config{Algorithm: packet.PubKeyAlgoRSA, RSABits: 2048, KeyLifetimeSecs: 24 * 3600, Time: func() time.Time { return past }})
		if err != nil {
			m.Fatal(err)
		}
		m.repo.key, m.repo.signedAt = key{e}, past.Add(time.Hour)
		m.offer(fx("1"))
		m.write("/etc/apt/keyrings/rows.asc", string(m.repo.key.public(m.T)))
		m.judge(report{"fx": "failed signature-invalid"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", "EXPKEYSIG")
	}},
	{"no room for the indexes is no silent repository", "", "the place of the indexes is full", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx-big", version: "1", fields: map[string]string{"Description": noise(40000)}, files: map[string]string{"/usr/share/rows-" + noise(20000): "x"}})
		dir := m.cache()
		if !m.rpm() {
			dir = "/var/lib/apt/lists"
		}
		m.small(dir, "4k", "partial")
		said := "failed no-space"
		if m.dnf5() {
			said = "failed signature-invalid" // it writes nothing and calls that a wrong checksum
		}
		m.judge(report{"fx": said}, versions{"fx": ""}, present("fx", ""))
	}},
	{"no room for the packages is said, and what fits comes", "", "the place of fetched packages is small", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx-big", version: "1", files: map[string]string{"/usr/share/rows-data": noise(8 << 20)}})
		m.small(m.cache(), "2m", "partial")
		m.judge(report{"fx-big": "failed no-space", "fx": "changed"}, versions{"fx-big": "", "fx": "1-1"}, present("fx-big", ""), present("fx", ""))
	}},
	{"a database that cannot be written is not one that somebody locked", "", "the file system of the package database went read-only", func(m *machine) {
		m.install(pack{name: "fx2", version: "1"})
		m.offer(fx("1"))
		m.refresh()
		dir := map[bool]string{true: "/var/lib/rpm", false: "/var/lib/dpkg"}[m.rpm()]
		m.sh("%s freeze %s", driverPath, dir)
		thaw := func() { m.sh("! grep -q ' %[2]s ' /proc/mounts || %[1]s unmount %[2]s", driverPath, dir) }
		defer thaw()
		a := m.pass(present("fx", "1-1"), absent("fx2"))
		for _, name := range []string{"fx", "fx2"} {
			// rpm counts what it may not write as no room, and dnf5 gives no reason for a
			// removal.
			w := word(a.of(name))
			if w != "failed read-only" && w != "unknown database-unreadable" && (!m.rpm() || w != "failed no-space") && (!m.dnf5() || w != "failed tool-failed") {
				m.Errorf("%s is %q: %s\n%s", name, w, a.of(name).Detail, a.of(name).Output)
			}
		}
		thaw()
		m.wantVersions(versions{"fx": "", "fx2": "1-1"})
		m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "1-1", "fx2": ""}, present("fx", "1-1"), absent("fx2"))
	}},
	{"a key that is not to be had is no permission", "dnf", "signatures are wanted, of packages or of the index, and the key is lost", func(m *machine) {
		m.install(pack{name: "fx2", version: "1"})
		for _, option := range []string{"gpgcheck=1\ngpgkey=file:///nowhere.asc", "repo_gpgcheck=1\ngpgkey=file:///nowhere.asc", "repo_gpgcheck=1"} {
			m.use(m.repo, "rows", option)
			if strings.HasPrefix(option, "gpgcheck") {
				m.sh("sed -i '/^gpgcheck=0/d' /etc/yum.repos.d/rows.repo")
			}
			p := fx("1")
			p.sign = newKey(m.T, "lost").detached
			m.offer(p)
			a := m.pass(present("fx", ""), present("fx2", ""))
			if w := word(a.of("fx")); w != "failed signature-invalid" && w != "failed repository-unreachable" {
				m.Errorf("with %q fx is %q: %s\n%s", option, w, a.of("fx").Detail, a.of("fx").Output)
			}
			m.wantReport(a, report{"fx2": "ok"})
			m.wantVersions(versions{"fx": ""})
		}
	}},
	{"a line that cannot be read is no reason to change what is right", "", "somebody left junk among the sources", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"))
		if m.rpm() {
			m.write("/etc/yum.repos.d/junk.repo", "this is no repository\n")
		} else {
			m.write("/etc/apt/sources.list.d/junk.list", "dep http://x y z\n")
		}
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
		a := m.pass(present("fx", "2-1"))
		if there := m.has("fx"); (a.of("fx").Status == "changed") != (there == "2-1") {
			m.Errorf("fx is %q and the database has %q", word(a.of("fx")), there)
		}
		if !m.rpm() {
			m.wantReport(a, report{"fx": "failed tool-failed"})
			if !strings.Contains(a.of("fx").Output, "junk.list") {
				m.Errorf("the output does not name the file:\n%s", a.of("fx").Output)
			}
		}
	}},
	{"a fetched file with the right name and other bytes is fetched anew", "apt", "a leftover in the cache", func(m *machine) {
		m.offer(fx("1"))
		m.sh("echo junk >/var/cache/apt/archives/fx_1-1_all.deb; echo junk >/var/cache/apt/archives/partial/fx_1-1_all.deb")
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"a proxy that is dead is a silent repository", "", "the machine's own configuration names a proxy", func(m *machine) {
		m.offer(fx("1"))
		m.config(`Acquire::http::Proxy "http://127.0.0.1:9";`, "proxy=http://127.0.0.1:9")
		m.judge(report{"fx": "failed repository-unreachable"}, versions{"fx": ""}, present("fx", "1-1"))
	}},
	{"an index that is never to be renewed is renewed when it decides something", "dnf", "the repository's file says that its index does not expire", func(m *machine) {
		m.use(m.repo, "rows", "metadata_expire=never")
		m.install(fx("1"))
		m.offer(fx("1"))
		m.refresh()
		m.offer(fx("2"), pack{name: "fx2", version: "1"})
		m.judge(report{"fx": "changed", "fx2": "changed"}, versions{"fx": "2-1", "fx2": "1-1"}, present("fx", "2-1"), present("fx2", ""))
	}},
	{"a source that never answered stops what it could decide and nothing else", "", "a third party has nothing for this release", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		lost := &repository{s: m.s, name: m.repo.name + "-lost", rpm: m.rpm(), key: m.key}
		m.use(lost, "rows-lost")
		m.judge(report{"fx": "changed", "fx2": "failed repository-unreachable"}, versions{"fx": "1-1", "fx2": ""}, present("fx", "1-1"), present("fx2", ""))
		m.wantDetail("fx2", map[bool]string{true: "rows-lost", false: strings.TrimSuffix(lost.url(), "/")}[m.rpm()])
	}},
	{"a disc that is not in its drive is a silent repository", "apt", "the installer left the disc among the sources", func(m *machine) {
		m.offer(fx("1"), pack{name: "fx2", version: "1"})
		m.write("/etc/apt/sources.list.d/disc.list", "deb cdrom:[Debian GNU/Linux 12 _Bookworm_ - Official amd64 DVD Binary-1]/ bookworm main\n")
		m.judge(report{"fx": "changed", "fx2": "failed repository-unreachable"}, versions{"fx": "1-1", "fx2": ""}, present("fx", "1-1"), present("fx2", ""))
		m.wantDetail("fx2", "cdrom")
	}},
	{"a version that was withdrawn is not available, and what is there stays", "", "the index of before lists what the repository no longer has", func(m *machine) {
		m.install(fx("1"))
		m.offer(fx("2"))
		m.refresh()
		for _, file := range []string{m.published("fx_*")} {
			if err := os.Remove(file); err != nil {
				m.Fatal(err)
			}
		}
		m.repo.index(m.T)
		a := m.pass(present("fx", "2-1"))
		if w := word(a.of("fx")); w != "failed not-available" && w != "failed repository-unreachable" {
			m.Errorf("fx is %q: %s", w, a.of("fx").Detail)
		}
		m.wantVersions(versions{"fx": "1-1"})
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"the same version built anew is the same version", "", "a repository changed a package without changing its version", func(m *machine) {
		p := fx("1")
		p.files = map[string]string{"/usr/share/rows-fx/data": "one"}
		m.offer(p)
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", "1-1"))
		p.files["/usr/share/rows-fx/data"] = "another"
		m.offer(p)
		m.refresh()
		m.judge(report{"fx": "ok"}, versions{"fx": "1-1"}, present("fx", "1-1"))
		if got := m.sh("cat /usr/share/rows-fx/data"); got != "one" {
			m.Errorf("the file holds %q", got)
		}
	}},
	{"another dnf at work is waited for", "dnf", "dnf's own lock names a process that lives", func(m *machine) {
		if m.dnf5() {
			return // it has no such file
		}
		m.offer(fx("1"))
		m.request.LockWait = 3
		m.sh("mkdir -p /var/cache/dnf; cp $(readlink -f /bin/sleep) /run/rows-dnf; setsid /run/rows-dnf 300 >/dev/null 2>&1 </dev/null & echo $! >/run/rows-holder.pid; for f in metadata download; do printf %%s $! >/var/cache/dnf/${f}_lock.pid; done; printf %%s $! >/var/lib/dnf/rpmdb_lock.pid%s", "")
		m.judge(report{"fx": "deferred locked"}, versions{"fx": ""}, present("fx", ""))
		m.letGo()
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"whoever answers questions is waited for", "apt", "debconf's database is locked by a dialog that nobody closed", func(m *machine) {
		p := fx("1")
		p.depends = []string{"debconf"}
		p.templates = "Template: fx/word\nType: string\nDefault: one\nDescription: A word\n"
		p.postinst = ". /usr/share/debconf/confmodule\ndb_get fx/word"
		m.offer(p)
		m.request.LockWait = 1
		m.sh("touch /var/cache/debconf/config.dat")
		m.holdAs("flock", "dialog", 300, "/var/cache/debconf/config.dat")
		m.judge(report{"fx": "deferred locked"}, versions{"fx": ""}, present("fx", ""))
		m.wantDetail("fx", "dialog")
		m.letGo()
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", ""))
	}},
	{"whoever fetches is waited for", "apt", "only the lock of the fetched packages is held", func(m *machine) {
		m.offer(fx("1"))
		m.refresh()
		m.request.LockWait = 1
		m.hold("fetcher", 300, "/var/cache/apt/archives/lock")
		m.judge(report{"fx": "deferred locked"}, versions{"fx": ""}, present("fx", "1-1"))
		m.wantDetail("fx", "fetcher")
		m.letGo()
		m.judge(report{"fx": "changed"}, versions{"fx": "1-1"}, present("fx", "1-1"))
	}},
}
