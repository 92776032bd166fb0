package repo_test

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/repo/repotest"
)

// need skips a test whose real tool is not on the machine.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this test runs the real %s, which is not on this machine; install it", tool)
		}
	}
}

// site is a repository that is served on loopback, and what it was asked for.
type site struct {
	repo *repo.Repo
	keys *openpgp.Keyring
	url  string

	mu       sync.Mutex
	requests []string
}

func (s *site) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

func openRepo(t *testing.T, dir string, edit ...func(*repo.Config)) (*repo.Repo, *openpgp.Keyring) {
	t.Helper()
	keys := repotest.Signer(t)
	cfg := repo.Config{Dir: dir}
	for _, e := range edit {
		e(&cfg)
	}
	r, err := repo.Open(t.Context(), cfg, keys, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatalf("open repository: %v", err)
	}
	t.Cleanup(func() { r.Close() })
	return r, keys
}

func serve(t *testing.T, edit ...func(*repo.Config)) *site {
	t.Helper()
	r, keys := openRepo(t, t.TempDir(), edit...)
	s := serveRepo(t, r)
	s.keys = keys
	return s
}

func serveRepo(t *testing.T, r *repo.Repo) *site {
	t.Helper()
	s := &site{repo: r}
	h := repohttp.New(s.repo, repohttp.Options{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	s.url = listen(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, req.RemoteAddr+" "+req.URL.Path)
		s.mu.Unlock()
		h.ServeHTTP(w, req)
	})})
	return s
}

// listen serves on loopback and returns the address as a URL.
func listen(t *testing.T, srv *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return "http://" + l.Addr().String()
}

func publish(t *testing.T, r *repo.Repo, suite string, files ...[]byte) repo.Published {
	t.Helper()
	p, err := tryPublish(t, r, suite, files...)
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
	return p
}

func tryPublish(t *testing.T, r *repo.Repo, suite string, files ...[]byte) (repo.Published, error) {
	var in []repo.Incoming
	for i, f := range files {
		in = append(in, repo.Incoming{Name: fmt.Sprintf("file-%d", i), Body: bytes.NewReader(f)})
	}
	return r.Publish(t.Context(), suite, in)
}

func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "HOME="+dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
}

// aptClient is the machine's own apt with a configuration, lists and package
// database of its own.
type aptClient struct {
	t    *testing.T
	root string
}

func newApt(t *testing.T, s *site, suite string) *aptClient {
	t.Helper()
	need(t, "apt-get", "dpkg", "gpgv")
	a := &aptClient{t: t, root: t.TempDir()}
	for _, d := range []string{"etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/trusted.gpg.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"} {
		if err := os.MkdirAll(filepath.Join(a.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	key, err := s.keys.PublicArmored()
	if err != nil {
		t.Fatal(err)
	}
	keyPath := filepath.Join(a.root, "etc/apt/keyrings/mesh.asc")
	write(t, keyPath, string(key))
	write(t, filepath.Join(a.root, "var/lib/dpkg/status"), "")
	sources := strings.ReplaceAll(repohttp.AptSources(s.url, suite, ""), "/etc/apt/keyrings/mesh.asc", keyPath)
	write(t, filepath.Join(a.root, "etc/apt/sources.list.d/mesh.sources"), sources)
	write(t, filepath.Join(a.root, "apt.conf"), fmt.Sprintf(`Dir "%[1]s";
Dir::State "%[1]s/var/lib/apt";
Dir::State::status "%[1]s/var/lib/dpkg/status";
Dir::Cache "%[1]s/var/cache/apt";
Dir::Etc "%[1]s/etc/apt";
Dir::Log "%[1]s/log";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
`, a.root))
	return a
}

func (a *aptClient) args(args ...string) []string {
	return append([]string{"env", "APT_CONFIG=" + filepath.Join(a.root, "apt.conf")}, args...)
}

func (a *aptClient) must(args ...string) string {
	a.t.Helper()
	return mustRun(a.t, a.root, a.args(args...)...)
}

// dnfClient is the machine's own dnf with everything under a directory of its own.
type dnfClient struct {
	t    *testing.T
	root string
}

func newDnf(t *testing.T, s *site, suite string) *dnfClient {
	t.Helper()
	need(t, "dnf", "rpm")
	d := &dnfClient{t: t, root: t.TempDir()}
	key, err := s.keys.PublicArmored()
	if err != nil {
		t.Fatal(err)
	}
	keyPath := filepath.Join(d.root, "RPM-GPG-KEY-mesh")
	write(t, keyPath, string(key))
	conf := strings.ReplaceAll(repohttp.DnfRepo(s.url, suite), "/etc/pki/rpm-gpg/RPM-GPG-KEY-mesh", keyPath)
	write(t, filepath.Join(d.root, "repos/mesh.repo"), conf)
	write(t, filepath.Join(d.root, "dnf.conf"), fmt.Sprintf(`[main]
reposdir=%[1]s/repos
cachedir=%[1]s/cache
persistdir=%[1]s/persist
logdir=%[1]s/log
varsdir=%[1]s/vars
pluginpath=%[1]s/none
gpgcheck=1
`, d.root))
	if err := os.MkdirAll(filepath.Join(d.root, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dnfClient) args(args ...string) []string {
	return append([]string{"dnf", "-y", "-c", filepath.Join(d.root, "dnf.conf"), "--installroot=" + filepath.Join(d.root, "root"),
		"--releasever=9"}, args...)
}

func (d *dnfClient) must(args ...string) string {
	d.t.Helper()
	return mustRun(d.t, d.root, d.args(args...)...)
}

// Shows: M11
func TestPlainAptInstallsAPublishedPackageWithItsSignatureChecked(t *testing.T) {
	s := serve(t)
	publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Name: "hello", Version: "2:1.0~rc1+x-1", Arch: "amd64"}))
	a := newApt(t, s, "stable")

	update := a.must("apt-get", "update")
	a.must("apt-get", "download", "hello")
	plan := a.must("apt-get", "install", "--simulate", "hello")

	if strings.Contains(update, "W:") || strings.Contains(update, "E:") || strings.Contains(update, "N:") {
		t.Errorf("apt-get update is not silent about the repository:\n%s", update)
	}
	if !strings.Contains(plan, "Inst hello (2:1.0~rc1+x-1 mesh:stable [amd64])") {
		t.Errorf("apt does not plan to install hello from the mesh:\n%s", plan)
	}
	if !strings.Contains(strings.Join(s.log(), "\n"), "/by-hash/SHA256/") {
		t.Errorf("apt did not use by-hash; it asked for:\n%s", strings.Join(s.log(), "\n"))
	}
}

// Shows: M11
func TestPlainDnfInstallsAPublishedPackageWithBothSignaturesChecked(t *testing.T) {
	s := serve(t)
	publish(t, s.repo, "stable", repotest.RPM(repotest.Spec{Name: "hello", Version: "2:1.0~rc1^x+y-1"}))
	d := newDnf(t, s, "stable")

	out := d.must("install", "hello")

	if !strings.Contains(out, "Complete!") {
		t.Fatalf("dnf did not complete:\n%s", out)
	}
	got := mustRun(t, d.root, "rpm", "--root", filepath.Join(d.root, "root"), "-q", "--qf", "%{EPOCH}:%{VERSION}-%{RELEASE}", "hello")
	if got != "2:1.0~rc1^x+y-1" {
		t.Errorf("rpm has %q installed, want 2:1.0~rc1^x+y-1", got)
	}
}

// Shows: M11
func TestAClientThatTrustsAnotherKeyInstallsNothing(t *testing.T) {
	s := serve(t)
	publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{}))
	armored, err := openpgp.Generate("somebody else", openpgp.MinBits, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s.keys, err = openpgp.NewKeyring(nil, armored)
	if err != nil {
		t.Fatal(err)
	}
	a, d := newApt(t, s, "stable"), newDnf(t, s, "stable")

	outApt, errApt := run(t, a.root, a.args("apt-get", "update")...)
	outDnf, errDnf := run(t, d.root, d.args("install", "hello")...)

	if errApt == nil || !strings.Contains(outApt, "NO_PUBKEY") {
		t.Errorf("apt-get update with another key: error %v, want one that names the missing key:\n%s", errApt, outApt)
	}
	if errDnf == nil || !strings.Contains(outDnf, "repomd.xml GPG signature verification error") {
		t.Errorf("dnf with another key: error %v, want a signature verification error:\n%s", errDnf, outDnf)
	}
}

// Shows: M11
func TestAptAndDnfInstallOverTLSWithTheCertificateThatTheyWereGiven(t *testing.T) {
	s := serve(t)
	publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Arch: "amd64"}), repotest.RPM(repotest.Spec{}))
	secure := httptest.NewTLSServer(repohttp.New(s.repo, repohttp.Options{}, slog.New(slog.DiscardHandler)))
	t.Cleanup(secure.Close)
	s.url = secure.URL
	a, d := newApt(t, s, "stable"), newDnf(t, s, "stable")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	stranger, errStranger := run(t, a.root, a.args("apt-get", "update", "-o", "APT::Update::Error-Mode=any")...)

	a.must("apt-get", "update", "-o", "Acquire::https::CAInfo="+ca, "-o", "APT::Update::Error-Mode=any")
	plan := a.must("apt-get", "install", "--simulate", "hello")
	d.must("--setopt=sslcacert="+ca, "install", "hello")

	if errStranger == nil {
		t.Errorf("apt reads the repository without knowing its certificate:\n%s", stranger)
	}
	if !strings.Contains(plan, "Inst hello (1.0-1 mesh:stable [amd64])") {
		t.Errorf("apt does not plan to install hello from the mesh:\n%s", plan)
	}
	if got := mustRun(t, d.root, "rpm", "--root", filepath.Join(d.root, "root"), "-q", "hello"); got != "hello-1.0-1.noarch\n" {
		t.Errorf("rpm has %q installed", got)
	}
}

func TestClientsSeeTheNextPublishAtOnceAndUpgradeAndDowngrade(t *testing.T) {
	s := serve(t)
	both := func(version string) {
		publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{Version: version, Content: version}), repotest.RPM(repotest.Spec{Version: version, Content: version}))
	}
	both("1.9-1")
	a, d := newApt(t, s, "stable"), newDnf(t, s, "stable")
	a.must("apt-get", "update")
	d.must("install", "hello")

	both("1.10-1")
	a.must("apt-get", "update")
	newest := a.must("apt-get", "install", "--simulate", "hello")
	older := a.must("apt-get", "install", "--simulate", "hello=1.9-1")
	d.must("upgrade", "--refresh", "hello")
	upgraded := mustRun(t, d.root, "rpm", "--root", filepath.Join(d.root, "root"), "-q", "hello")
	d.must("downgrade", "hello-1.9-1")
	downgraded := mustRun(t, d.root, "rpm", "--root", filepath.Join(d.root, "root"), "-q", "hello")

	if !strings.Contains(newest, "Inst hello (1.10-1 ") || !strings.Contains(older, "Inst hello (1.9-1 ") {
		t.Errorf("apt plans:\n%s\nand for the older version:\n%s", newest, older)
	}
	if upgraded != "hello-1.10-1.noarch\n" || downgraded != "hello-1.9-1.noarch\n" {
		t.Errorf("dnf upgraded to %q and downgraded to %q", upgraded, downgraded)
	}
}
