package dnf_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2"
	nfpmrpm "github.com/goreleaser/nfpm/v2/rpm"
	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/dnf"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/pkgtest"
	"golang.org/x/sys/unix"
)

// system is a root of its own for the real dnf and rpm, with a repository in a
// directory.
type system struct {
	dir    string
	runner *pkgtest.Runner
}

type rpm struct {
	name, version, release, epoch string
	depends, replaces, conflicts  []string
	postinstall                   string
}

func newSystem(t *testing.T, offers ...rpm) *system {
	t.Helper()
	_, noDnf := exec.LookPath("dnf")
	_, noDnf5 := exec.LookPath("dnf5")
	_, noRpm := exec.LookPath("rpm")
	_, noCreate := exec.LookPath("createrepo_c")
	if noDnf != nil && noDnf5 != nil || noRpm != nil || noCreate != nil {
		t.Skip("needs the real dnf (or dnf5) and rpm, and createrepo_c to make a repository; Debian: apt-get install dnf rpm createrepo-c")
	}
	if os.Geteuid() != 0 {
		t.Skip("must run as root: dnf installs nothing otherwise")
	}
	s := &system{dir: t.TempDir(), runner: &pkgtest.Runner{}}
	for _, dir := range []string{"root", "repos", "packages", "plugins"} {
		if err := os.Mkdir(s.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, s.path("dnf.conf"), fmt.Sprintf("[main]\ngpgcheck=0\nplugins=0\nreposdir=%s\ncachedir=%s\nlogdir=%s\npersistdir=%s\n", s.path("repos"), s.path("cache"), s.path("log"), s.path("persist")))
	write(t, s.path("repos/fx.repo"), "[fx]\nname=fx\nbaseurl=file://"+s.path("packages")+"\nenabled=1\n")
	base := build(t, s.dir, rpm{name: "base"})
	if out, err := exec.CommandContext(t.Context(), "rpm", "--root="+s.path("root"), "-i", "--nodeps", base).CombinedOutput(); err != nil {
		t.Fatalf("install base: %v: %s", err, out)
	}
	s.offer(t, offers...)
	return s
}

func (s *system) path(name string) string { return filepath.Join(s.dir, name) }

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, dir string, r rpm) string {
	t.Helper()
	if r.version == "" {
		r.version = "1"
	}
	if r.release == "" {
		r.release = "1"
	}
	info := &nfpm.Info{Name: r.name, Arch: "all", Version: r.version, Release: r.release, Epoch: r.epoch, VersionSchema: "none", Maintainer: "x <x@example.com>", Description: "x",
		Overridables: nfpm.Overridables{Depends: r.depends, Replaces: r.replaces, Conflicts: r.conflicts}}
	if r.postinstall != "" {
		info.Scripts.PostInstall = filepath.Join(t.TempDir(), "post")
		write(t, info.Scripts.PostInstall, r.postinstall)
	}
	var out bytes.Buffer
	if err := nfpmrpm.DefaultRPM.Package(nfpm.WithDefaults(info), &out); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%s.noarch.rpm", r.name, r.version, r.release))
	write(t, path, out.String())
	return path
}

// offer publishes packages, beside what is published already.
func (s *system) offer(t *testing.T, offers ...rpm) {
	t.Helper()
	for _, r := range offers {
		build(t, s.path("packages"), r)
	}
	if out, err := exec.CommandContext(t.Context(), "createrepo_c", "--quiet", s.path("packages")).CombinedOutput(); err != nil {
		t.Fatalf("createrepo_c: %v: %s", err, out)
	}
}

func (s *system) dnf() *dnf.Manager {
	options := []string{"--config=" + s.path("dnf.conf"), "--installroot=" + s.path("root"), "--releasever=1"}
	if _, err := exec.LookPath("dnf"); err != nil {
		// dnf5 looks for repositories below the root unless it is told otherwise.
		options = append(options, "--use-host-config")
	}
	return dnf.New(dnf.Config{
		Runner:      s.runner,
		LockWait:    time.Second,
		Options:     options,
		RPMOptions:  []string{"--root=" + s.path("root")},
		LockFiles:   []string{s.path("root/root/.rpmdb/.rpm.lock"), s.path("root/var/lib/rpm/.rpm.lock"), s.path("root/usr/lib/sysimage/rpm/.rpm.lock")},
		VersionLock: []string{s.path("versionlock.list"), s.path("versionlock.toml")},
	})
}

func (s *system) Manager(*testing.T) pkg.Manager { return s.dnf() }
func (s *system) One() string                    { return "1-1" }
func (s *system) Two() string                    { return "2-1" }

func (s *system) Publish(t *testing.T) { s.offer(t, rpm{name: "late"}) }

func (s *system) CutOff(t *testing.T) {
	t.Helper()
	// As Debian's dnf has it by default, so that a silent repository is skipped.
	write(t, s.path("repos/none.repo"), "[none]\nname=none\nbaseurl=http://127.0.0.1:9/none\nenabled=1\nskip_if_unavailable=1\nretries=1\ntimeout=2\n")
}

// database returns the directory of rpm's database.
func (s *system) database(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(s.path("root") + "/*/.rpmdb/rpmdb.sqlite")
	more, err2 := filepath.Glob(s.path("root") + "/*/lib/*/rpmdb.sqlite")
	most, err3 := filepath.Glob(s.path("root") + "/usr/lib/sysimage/rpm/rpmdb.sqlite")
	found = slices.Concat(found, more, most)
	if err := errors.Join(err, err2, err3); err != nil || len(found) != 1 {
		t.Fatalf("rpm's database is not where it was looked for: %q, %v", found, err)
	}
	return filepath.Dir(found[0])
}

func (s *system) Lock(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.database(t), ".rpm.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
}

func (s *system) Ruin(t *testing.T) {
	t.Helper()
	write(t, filepath.Join(s.database(t), "rpmdb.sqlite"), "this is no database")
}

func offers() []rpm {
	return []rpm{
		{name: "fx"},
		{name: "fx", version: "2"},
		{name: "needs", depends: []string{"fx"}},
		{name: "never", depends: []string{"nowhere"}},
		{name: "rival", conflicts: []string{"fx"}},
		{name: "fx-12-tool", version: "1.0~rc1"},
		{name: "a-package-with-a-name-that-is-longer-than-any-line-of-a-table-should-be-and-wraps", epoch: "3"},
	}
}

// Shows: M4
func TestDnfKeepsTheContractOfAManager(t *testing.T) {
	pkgtest.Run(t, func(t *testing.T) pkgtest.System { return newSystem(t, offers()...) })
}

func present(name, version string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: version}}
}

// try applies packages with the real policy and says what became of each.
func (s *system) try(t *testing.T, wants ...mesh.Resource) []string {
	t.Helper()
	p := pkg.New(pkg.Config{Manager: s.dnf()})
	var changes []resource.Change
	for _, w := range wants {
		changes = append(changes, resource.Change{Want: w})
	}
	said := make([]string, len(wants))
	for i, err := range p.ApplySet(t.Context(), changes) {
		if err == nil {
			d, checkErr := p.Check(t.Context(), wants[i])
			said[i] = "right"
			if err = checkErr; err == nil && !d.Zero() {
				said[i] = "wrong: " + d.String()
			}
		}
		var e *resource.Error
		if errors.As(err, &e) {
			said[i] = string(e.Status) + " " + string(e.Reason)
			t.Logf("%s: %s\n%s", wants[i].Name, e.Detail, e.Output)
		} else if err != nil {
			said[i] = err.Error()
		}
	}
	return said
}

func wantWords(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("reported %q; want %q", got, want)
	}
}

// Shows: M4
func TestOneBadPackageAmongOthersIsTheOnlyOneThatFails(t *testing.T) {
	s := newSystem(t, offers()...)
	got := s.try(t, present("nosuch", ""), present("fx", "1-1"), present("never", ""), present("rival", ""), present("needs", "1-1"))
	wantWords(t, got, "failed not-available", "right", "failed unmet-dependency", "failed would-remove-others", "right")
}

func TestNamesAndVersionsComeFromTheDatabaseAndNotFromSplittingText(t *testing.T) {
	s := newSystem(t, offers()...)
	got := s.try(t,
		present("a-package-with-a-name-that-is-longer-than-any-line-of-a-table-should-be-and-wraps", "3:1-1"),
		present("fx-12-tool", "1.0~rc1-1"),
		present("fx-12", ""),
		present("fx", "1"))
	wantWords(t, got, "right", "right", "failed not-available", "failed not-available")
}

func TestAnObsoletingPackageDoesNotPushItsPredecessorOut(t *testing.T) {
	s := newSystem(t, offers()...)
	wantWords(t, s.try(t, present("fx", "1-1")), "right")
	s.offer(t, rpm{name: "newfx", replaces: []string{"fx"}})
	wantWords(t, s.try(t, present("newfx", "")), "failed would-remove-others")
}

func TestAFailingScriptAfterInstallationLeavesThePackageAsRpmSays(t *testing.T) {
	s := newSystem(t, append(offers(), rpm{name: "bad", postinstall: "exit 3\n"})...)
	wantWords(t, s.try(t, present("bad", ""), present("fx", "1-1")), "right", "right")
}

func TestALockedVersionStays(t *testing.T) {
	for file, content := range map[string]string{
		"versionlock.list": "# a comment\nfx-0:1-1.*\n!fxa-0:1-1.*\n",
		"versionlock.toml": "version = \"1.0\"\n[[packages]]\nname = \"fx\"\n",
	} {
		s := newSystem(t, offers()...)
		wantWords(t, s.try(t, present("fx", "1-1")), "right")
		write(t, s.path(file), content)
		wantWords(t, s.try(t, present("fx", "2-1")), "failed held")
		wantWords(t, s.try(t, present("fx", "1-1")), "right")
	}
}

func TestTwoVersionsAtOnceAreNotTakenForRight(t *testing.T) {
	s := newSystem(t, offers()...)
	for _, v := range []string{"1", "2"} {
		path := s.path("packages/fx-" + v + "-1.noarch.rpm")
		if out, err := exec.CommandContext(t.Context(), "rpm", "--root="+s.path("root"), "-i", "--force", "--justdb", "--nodeps", path).CombinedOutput(); err != nil {
			t.Fatalf("rpm: %v: %s", err, out)
		}
	}
	wantWords(t, s.try(t, present("fx", "2-1")), "failed interrupted-transaction")
}

func TestAPackageFileThatWasBroughtAlongNeedsNoRepository(t *testing.T) {
	s := newSystem(t)
	s.CutOff(t)
	if err := os.Remove(s.path("repos/none.repo")); err != nil {
		t.Fatal(err)
	}
	path := build(t, t.TempDir(), rpm{name: "carried", version: "3"})
	p := pkg.New(pkg.Config{Manager: s.dnf(), Local: local{"carried": path}})
	want := present("carried", "")
	if err := p.Apply(t.Context(), want, resource.Diff{}); err != nil {
		t.Fatal(err)
	}
	if d, err := p.Check(t.Context(), want); err != nil || !d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
}

type local map[string]string

func (l local) Path(name, _ string) (string, bool) { path, ok := l[name]; return path, ok }

func TestVersionsAreOrderedAsRpmOrdersThem(t *testing.T) {
	m := dnf.New(dnf.Config{})
	for _, c := range [][2]string{{"1.0~rc1-1", "1.0-1"}, {"1.0-1", "1.0^git1-1"}, {"1.0^git1-1", "1.0.1-1"}, {"1.9-1", "1.10-1"}, {"9-1", "1:0.1-1"}} {
		if m.Compare(c[0], c[1]) >= 0 || m.Compare(c[1], c[0]) <= 0 {
			t.Errorf("%s is not below %s", c[0], c[1])
		}
	}
}
