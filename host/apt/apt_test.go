package apt_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/pkgtest"
	"golang.org/x/sys/unix"
)

// system is a root of its own for the real apt and dpkg, with a repository in
// a directory.
type system struct {
	root   string
	repo   string
	runner *pkgtest.Runner
}

// deb is a package to be built.
type deb struct {
	name, version string
	fields        []string
	// postinst is a shell script. Empty: none.
	postinst string
	// conffile is the content of /etc/NAME.conf. Empty: none.
	conffile string
}

func newSystem(t *testing.T, offers ...deb) *system {
	t.Helper()
	for _, tool := range []string{"/usr/bin/apt-get", "/usr/bin/dpkg-deb"} {
		if _, err := os.Stat(tool); err != nil {
			t.Skipf("needs the real apt and dpkg of a Debian or Ubuntu machine: %v", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("must run as root: dpkg refuses to unpack otherwise")
	}
	s := &system{root: t.TempDir(), repo: t.TempDir(), runner: &pkgtest.Runner{}}
	if err := os.Chmod(s.repo, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d", "etc/dpkg", "tmp"} {
		if err := os.MkdirAll(filepath.Join(s.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	status := "Package: base\nStatus: install ok installed\nPriority: optional\nArchitecture: all\nMaintainer: x <x@example.com>\nVersion: 1-1\nDescription: x\n\n"
	write(t, filepath.Join(s.root, "var/lib/dpkg/status"), status)
	write(t, filepath.Join(s.root, "var/lib/dpkg/info/base.list"), "/.\n")
	write(t, filepath.Join(s.root, "var/lib/dpkg/available"), "")
	write(t, filepath.Join(s.root, "etc/apt/sources.list"), "deb [trusted=yes] file:"+s.repo+" ./\n")
	// Everything lies below the root; nothing of the machine's own apt is read.
	write(t, filepath.Join(s.root, "apt.conf"), fmt.Sprintf(`Dir "%s";
Dir::State::status "%s/var/lib/dpkg/status";
APT::Architecture "%s";
APT::Architectures { "%s"; };
Dpkg::Options { "--root=%s"; "--force-script-chrootless"; "--log=%s/var/log/dpkg.log"; };
APT::Sandbox::User "root";
`, s.root, s.root, runtime.GOARCH, runtime.GOARCH, s.root, s.root))
	s.offer(t, offers...)
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// build makes a package file in dir and returns its path.
func build(t *testing.T, dir string, d deb) string {
	t.Helper()
	tree := t.TempDir()
	if err := os.MkdirAll(filepath.Join(tree, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(tree, "DEBIAN/control"), d.control())
	if d.postinst != "" {
		path := filepath.Join(tree, "DEBIAN/postinst")
		write(t, path, "#!/bin/sh\n"+d.postinst+"\n")
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if d.conffile != "" {
		if err := os.MkdirAll(filepath.Join(tree, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(tree, "etc", d.name+".conf"), d.conffile)
		write(t, filepath.Join(tree, "DEBIAN/conffiles"), "/etc/"+d.name+".conf\n")
	}
	path := filepath.Join(dir, fmt.Sprintf("%s_%s_all.deb", d.name, d.version))
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", "--root-owner-group", "-Zgzip", tree, path).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	return path
}

func (d deb) control() string {
	lines := append([]string{"Package: " + d.name, "Version: " + d.version, "Architecture: all", "Maintainer: x <x@example.com>", "Priority: optional", "Description: x"}, d.fields...)
	return strings.Join(lines, "\n") + "\n"
}

// offer publishes packages, beside what is published already.
func (s *system) offer(t *testing.T, offers ...deb) {
	t.Helper()
	index, err := os.OpenFile(filepath.Join(s.repo, "Packages"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range offers {
		path := build(t, s.repo, d)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(index, "%sFilename: ./%s\nSize: %d\nSHA256: %s\n\n", d.control(), filepath.Base(path), len(data), hex.EncodeToString(sum[:]))
	}
	if err := index.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *system) apt() *apt.Manager {
	return apt.New(apt.Config{
		Runner:      s.runner,
		LockWait:    time.Second,
		DpkgOptions: []string{"--root=" + s.root, "--force-script-chrootless", "--log=" + s.root + "/var/log/dpkg.log"},
		Env:         []string{"APT_CONFIG=" + filepath.Join(s.root, "apt.conf")},
		AdminDir:    filepath.Join(s.root, "var/lib/dpkg"),
		StateDir:    filepath.Join(s.root, "var/lib/apt"),
		CacheDir:    filepath.Join(s.root, "var/cache/apt"),
	})
}

func (s *system) Manager(*testing.T) pkg.Manager { return s.apt() }
func (s *system) One() string                    { return "1-1" }
func (s *system) Two() string                    { return "2-1" }

func (s *system) Publish(t *testing.T) { s.offer(t, deb{name: "late", version: "1-1"}) }

func (s *system) CutOff(t *testing.T) {
	t.Helper()
	write(t, filepath.Join(s.root, "etc/apt/sources.list"), "deb [trusted=yes] file:"+s.repo+" ./\ndeb [trusted=yes] http://127.0.0.1:9/none ./\n")
}

func (s *system) Lock(t *testing.T) { lock(t, filepath.Join(s.root, "var/lib/dpkg/lock-frontend")) }

func (s *system) Ruin(t *testing.T) {
	t.Helper()
	write(t, filepath.Join(s.root, "var/lib/dpkg/status"), strings.Repeat("\x00junk", 200)+"\n")
}

// lock takes a record lock that is not this process's, so that this process
// and its children see it as somebody else's.
func lock(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
}

func offers() []deb {
	return []deb{
		{name: "fx", version: "1-1"},
		{name: "fx", version: "2-1"},
		{name: "needs", version: "1-1", fields: []string{"Depends: fx"}},
		{name: "never", version: "1-1", fields: []string{"Depends: nowhere"}},
		{name: "rival", version: "1-1", fields: []string{"Conflicts: fx"}},
		{name: "fxa", version: "1-1"},
	}
}

// Shows: M4
func TestAptKeepsTheContractOfAManager(t *testing.T) {
	pkgtest.Run(t, func(t *testing.T) pkgtest.System { return newSystem(t, offers()...) })
}

func present(name, version string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: version}}
}

// try applies packages with the real policy and says what became of each.
func (s *system) try(t *testing.T, wants ...mesh.Resource) []string {
	t.Helper()
	p := pkg.New(pkg.Config{Manager: s.apt()})
	var changes []resource.Change
	for _, w := range wants {
		changes = append(changes, resource.Change{Want: w})
	}
	errs := p.ApplySet(t.Context(), changes)
	said := make([]string, len(wants))
	for i, err := range errs {
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
	got := s.try(t, present("nosuch", ""), present("fx", "1-1"), present("never", ""), present("rival", ""), present("needs", "1-1"), present("fx.", ""), present("fx-", ""), present("fx+", ""))
	wantWords(t, got, "failed not-available", "right", "failed unmet-dependency", "failed would-remove-others", "right", "failed not-available", "failed not-available", "failed not-available")
}

func TestAPackageThatConflictsWithAnInstalledOneDoesNotPushItOut(t *testing.T) {
	s := newSystem(t, offers()...)
	wantWords(t, s.try(t, present("fx", "")), "right")
	wantWords(t, s.try(t, present("rival", "")), "failed would-remove-others")
	wantWords(t, s.try(t, present("fx", "2-1")), "right")
}

func TestARepositoryThatSendsAnotherFileIsASignatureFault(t *testing.T) {
	s := newSystem(t, offers()...)
	path := filepath.Join(s.repo, "fx_2-1_all.deb")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	write(t, path, string(data))
	wantWords(t, s.try(t, present("fx", "2-1"), present("fxa", "1-1")), "failed signature-invalid", "right")
}

func TestAFailingScriptIsTheFaultOfItsPackageAlone(t *testing.T) {
	s := newSystem(t, append(offers(), deb{name: "bad", version: "1-1", postinst: "exit 3"})...)
	wantWords(t, s.try(t, present("bad", ""), present("fx", "1-1")), "failed script-failed", "right")
}

// Shows: M5
func TestAnInterruptedDpkgIsFinishedFirst(t *testing.T) {
	s := newSystem(t, append(offers(), deb{name: "later", version: "1-1", postinst: `test -e "$DPKG_ROOT/go"`})...)
	if got := s.try(t, present("later", "")); got[0] == "right" {
		t.Fatal("the package that is to be left half way is whole")
	}
	write(t, filepath.Join(s.root, "go"), "")
	wantWords(t, s.try(t, present("fx", "1-1")), "right")
	wantWords(t, s.try(t, present("later", "")), "right")
	if !slices.ContainsFunc(s.runner.Commands, func(c []string) bool { return slices.Contains(c, "--configure") }) {
		t.Error("dpkg --configure never ran")
	}
}

func TestAnEditedConfigurationFileSurvivesAnUpgrade(t *testing.T) {
	s := newSystem(t, deb{name: "fx", version: "1-1", conffile: "shipped 1\n"}, deb{name: "fx", version: "2-1", conffile: "shipped 2\n"})
	wantWords(t, s.try(t, present("fx", "1-1")), "right")
	conf := filepath.Join(s.root, "etc/fx.conf")
	write(t, conf, "the admin's own\n")
	wantWords(t, s.try(t, present("fx", "2-1")), "right")
	if got, err := os.ReadFile(conf); err != nil || string(got) != "the admin's own\n" {
		t.Errorf("the configuration file now holds %q, %v", got, err)
	}
}

func TestAPackageFileThatWasBroughtAlongNeedsNoRepository(t *testing.T) {
	s := newSystem(t)
	path := build(t, t.TempDir(), deb{name: "carried", version: "3-1"})
	p := pkg.New(pkg.Config{Manager: s.apt(), Local: local{"carried": path}})
	want := present("carried", "")
	if err := p.Apply(t.Context(), want, resource.Diff{}); err != nil {
		t.Fatal(err)
	}
	if d, err := p.Check(t.Context(), want); err != nil || !d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
	if slices.ContainsFunc(s.runner.Commands, func(c []string) bool { return slices.Contains(c, "update") }) {
		t.Error("the repositories were asked for a package that was brought along")
	}
}

type local map[string]string

func (l local) Path(name, _ string) (string, bool) { path, ok := l[name]; return path, ok }

func TestALockIsWaitedForAndTheWaitingShows(t *testing.T) {
	s := newSystem(t, offers()...)
	f, err := os.OpenFile(filepath.Join(s.root, "var/lib/dpkg/lock-frontend"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	waited := 0
	config := apt.Config{Runner: s.runner, LockWait: time.Minute, AdminDir: filepath.Join(s.root, "var/lib/dpkg"), StateDir: filepath.Join(s.root, "var/lib/apt"), CacheDir: filepath.Join(s.root, "var/cache/apt"),
		Env: []string{"APT_CONFIG=" + filepath.Join(s.root, "apt.conf")},
		Waiting: func() {
			if waited++; waited == 3 {
				_ = f.Close()
			}
		}}
	m := apt.New(config)
	if err := m.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Commit(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "fx"}}}); err != nil || waited < 3 {
		t.Errorf("Commit says %v after %d looks at the lock", err, waited)
	}
}

func TestAHeldListsLockDefersTheRefresh(t *testing.T) {
	s := newSystem(t, offers()...)
	lock(t, filepath.Join(s.root, "var/lib/apt/lists/lock"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.apt().Refresh(ctx)
	var e *resource.Error
	if !errors.As(err, &e) || e.Status != mesh.StatusDeferred || !strings.Contains(e.Detail, "lists/lock") {
		t.Errorf("Refresh says %v", err)
	}
}

func TestAMarkIsReadAndSet(t *testing.T) {
	s := newSystem(t, offers()...)
	wantWords(t, s.try(t, present("needs", "")), "right")
	marks := func() map[string]pkg.Mark {
		entries, err := s.apt().Installed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]pkg.Mark)
		for _, e := range entries {
			all[e.Name] = e.Mark
		}
		return all
	}
	if got := marks(); got["fx"] != pkg.MarkAuto || got["needs"] != pkg.MarkManual {
		t.Errorf("after needs pulled in fx the marks are %v", got)
	}
	wantWords(t, s.try(t, present("fx", "")), "right")
	if got := marks(); got["fx"] != pkg.MarkManual {
		t.Errorf("after fx was declared the marks are %v", got)
	}
}
