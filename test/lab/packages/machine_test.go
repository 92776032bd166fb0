package packages_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m, "packages") }

const (
	driverPath = "/usr/local/bin/rows-driver"
	stateDir   = "/var/lib/rows"
)

var driver struct {
	once sync.Once
	path string
	err  error
}

// buildDriver compiles the program that makes passes on hosts, static and with
// the points at which it can be killed.
func buildDriver(t *testing.T) string {
	t.Helper()
	driver.once.Do(func() {
		driver.path = filepath.Join(os.TempDir(), fmt.Sprintf("rows-driver-%d", os.Getpid()))
		cmd := exec.Command("go", "build", "-tags", "fault netgo osusergo sqlite_omit_load_extension",
			"-ldflags", "-s -w -linkmode external -extldflags -static", "-o", driver.path, "./driver")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			driver.err = fmt.Errorf("build the driver: %w: %s", err, out)
		}
	})
	if driver.err != nil {
		t.Fatal(driver.err)
	}
	return driver.path
}

// request and answer are what the driver takes and gives.
type request struct {
	State     string            `json:"state"`
	Resources []mesh.Resource   `json:"resources"`
	Released  []mesh.ResourceID `json:"released,omitempty"`
	LockWait  int               `json:"lock_wait,omitempty"`
	Timeout   int               `json:"timeout,omitempty"`
	Local     map[string]string `json:"local,omitempty"`
	Keep      []string          `json:"keep,omitempty"`
	Kernel    string            `json:"kernel,omitempty"`
	Manager   string            `json:"manager,omitempty"`
	Compare   [][2]string       `json:"compare,omitempty"`
	env       []string
}

type answer struct {
	State    mesh.GenerationState `json:"state"`
	Results  []mesh.Result        `json:"results"`
	Removed  []mesh.Result        `json:"removed"`
	Owned    []mesh.Owned         `json:"owned"`
	Commands [][]string           `json:"commands"`
	Reads    int                  `json:"reads"`
	Beats    int                  `json:"beats"`
	Order    []int                `json:"order"`
	Took     float64              `json:"took"`
}

// of returns the result of a resource, also of one that was removed.
func (a answer) of(id string) mesh.Result {
	for _, r := range slices.Concat(a.Removed, a.Results) {
		if string(r.Resource) == id || string(r.Resource) == "package:"+id {
			return r
		}
	}
	return mesh.Result{Detail: "(there is no result)"}
}

// word is the status and, where there is one, the reason.
func word(r mesh.Result) string {
	return strings.TrimSpace(string(r.Status) + " " + string(r.Reason))
}

// machine is a host of the lab in the hands of one row.
type machine struct {
	*testing.T
	h       *lab.Host
	s       *server
	key     key
	repo    *repository
	names   map[string]bool
	request request
	last    answer
}

func (m *machine) rpm() bool  { return m.h.Flavour().RPM() }
func (m *machine) dnf5() bool { return m.h.Flavour().Manager == lab.Dnf5 }

// arch is the machine's own architecture, as its database writes it.
func (m *machine) arch() string {
	if m.rpm() {
		return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	}
	return runtime.GOARCH
}

// context outlives the test's own, which has ended when it is cleaned up.
func (m *machine) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.T.Context()), 5*time.Minute)
	m.T.Cleanup(cancel)
	return ctx
}

// sh runs a script that must succeed.
func (m *machine) sh(script string, args ...any) string {
	m.Helper()
	if len(args) > 0 {
		script = fmt.Sprintf(script, args...)
	}
	out, err := m.h.Sh(m.context(), script)
	if err != nil {
		m.Fatalf("%v\n%s", err, out.Stdout)
	}
	return strings.TrimSpace(out.Stdout)
}

func (m *machine) write(path, content string) {
	m.Helper()
	if err := m.h.WriteFile(m.context(), path, []byte(content), 0o644); err != nil {
		m.Fatal(err)
	}
}

// newMachine begins a row: nothing of another row is on the host, and an empty
// repository of the row's own is configured.
func newMachine(t *testing.T, h *lab.Host, s *server, k key) *machine {
	m := &machine{T: t, h: h, s: s, key: k, names: map[string]bool{}, request: request{State: stateDir, Manager: string(h.Flavour().Manager), LockWait: 20, Timeout: 120}}
	name := strings.NewReplacer("/", "-", ",", "").Replace(t.Name())
	m.repo = &repository{s: s, name: name, rpm: m.rpm(), key: k}
	m.use(m.repo, "rows")
	t.Cleanup(m.reset)
	return m
}

// use configures a repository on the host.
func (m *machine) use(r *repository, id string, options ...string) {
	m.Helper()
	if m.rpm() {
		m.write("/etc/yum.repos.d/"+id+".repo", fmt.Sprintf("[%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=0\nretries=1\ntimeout=5\n%s\n", id, id, r.url(), strings.Join(options, "\n")))
		return
	}
	m.write("/etc/apt/apt.conf.d/99rows-retries", "Acquire::Retries \"0\";\n")
	m.write("/etc/apt/keyrings/rows.asc", string(m.key.public(m.T)))
	m.write("/etc/apt/sources.list.d/"+id+".list", fmt.Sprintf("deb [signed-by=/etc/apt/keyrings/rows.asc] %s ./\n", r.url()))
}

// offer publishes packages in the row's repository. The host does not know of
// them until it refreshes.
func (m *machine) offer(packs ...pack) {
	m.Helper()
	m.know(packs...)
	m.repo.publish(m.T, packs...)
}

func (m *machine) know(packs ...pack) {
	for _, p := range packs {
		m.names[p.name] = true
	}
}

// refresh has the host's own tool fetch the indexes, as an admin would.
func (m *machine) refresh() {
	m.Helper()
	if m.rpm() {
		m.sh("dnf -q makecache --refresh")
		return
	}
	m.sh("apt-get -q update")
}

// carry builds a package file and puts it on the host.
func (m *machine) carry(p pack) string {
	m.Helper()
	m.know(p)
	local := p.build(m.T, m.TempDir(), m.rpm())
	remote := "/root/rows/" + filepath.Base(local)
	if err := m.h.CopyIn(m.context(), local, remote); err != nil {
		m.Fatal(err)
	}
	return remote
}

// install installs packages as an admin would with the low tool.
func (m *machine) install(packs ...pack) {
	m.Helper()
	var paths []string
	for _, p := range packs {
		paths = append(paths, m.carry(p))
	}
	if m.rpm() {
		m.sh("rpm -i --nodeps --oldpackage " + strings.Join(paths, " "))
		return
	}
	m.sh("DEBIAN_FRONTEND=noninteractive dpkg -i " + strings.Join(paths, " "))
}

// reset takes everything of the row off the host. It goes below the package
// managers' policies on purpose: rows leave things broken.
func (m *machine) reset() {
	names := slices.Sorted(maps.Keys(m.names))
	list := strings.Join(names, " ")
	script := `rm -rf ` + stateDir + ` /root/rows /run/rows* /etc/rows*
systemctl reset-failed 2>/dev/null
for p in /run/rows-holder*.pid; do [ -e "$p" ] && kill -9 "$(cat "$p")"; done 2>/dev/null
`
	if m.rpm() {
		script += `rm -f /etc/yum.repos.d/* /etc/dnf/versionlock.toml /etc/dnf/plugins/versionlock.list
for n in ` + list + `; do rpm -q "$n" >/dev/null 2>&1 && rpm -e --nodeps --noscripts --allmatches "$n" >/dev/null 2>&1; done
rm -rf /var/cache/dnf /var/cache/libdnf5 /var/lib/dnf/plugins/local* /var/lib/dnf/history.sqlite* /usr/lib/sysimage/libdnf5
`
	} else {
		script += `rm -f /etc/apt/sources.list.d/* /etc/apt/preferences.d/rows* /etc/apt/apt.conf.d/99rows* /usr/sbin/policy-rc.d
for n in ` + list + `; do rm -f /var/lib/dpkg/info/$n.p* /var/lib/dpkg/info/$n:*.p*
dpkg-query -W -f '${binary:Package}\n' "$n" "$n:*" 2>/dev/null; done | sort -u | xargs -r dpkg --purge --force-all >/dev/null 2>&1
dpkg --configure -a >/dev/null 2>&1
rm -f /var/cache/apt/archives/*.deb
rm -rf /var/lib/apt/lists/*; mkdir -p /var/lib/apt/lists/partial
`
	}
	ctx := m.context()
	if out, err := m.h.Run(ctx, "sh", "-uc", script+"exit 0"); err != nil {
		m.Errorf("put the host back: %v\n%s", err, out.Stderr)
	}
}

// pass makes one pass on the host.
func (m *machine) pass(resources ...mesh.Resource) answer {
	m.Helper()
	a, err := m.tryPass(resources...)
	if err != nil {
		m.Fatal(err)
	}
	return a
}

func (m *machine) tryPass(resources ...mesh.Resource) (answer, error) {
	q := m.request
	q.Resources = resources
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	argv := append(append([]string{"env"}, q.env...), driverPath)
	out, err := m.h.RunInput(m.context(), strings.NewReader(string(body)), argv...)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal([]byte(out.Stdout), &a); err != nil {
		return answer{}, fmt.Errorf("read the driver's answer: %w: %s", err, out.Stdout)
	}
	m.last = a
	return a, nil
}

func present(name, version string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: version}}
}

func absent(name string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Absent: true}}
}

func textFile(path, content string) mesh.Resource {
	f := mesh.FileSpec{Type: mesh.FileRegular}
	f.SetContent([]byte(content))
	return mesh.Resource{Kind: mesh.KindFile, Name: path, File: &f}
}

// report is what should be said of each resource, by name of package or id.
type report map[string]string

func (m *machine) wantReport(a answer, want report) {
	m.Helper()
	for id, w := range want {
		if got := a.of(id); word(got) != w {
			m.Errorf("%s is reported %q, want %q; %s\n%s", id, word(got), w, got.Detail, got.Output)
		}
	}
}

// wantDetail looks for words in what is said of a resource.
func (m *machine) wantDetail(id string, words ...string) {
	m.Helper()
	r := m.last.of(id)
	for _, w := range words {
		if !strings.Contains(r.Detail, w) {
			m.Errorf("what is said of %s does not name %q: %s", id, w, r.Detail)
		}
	}
}

// versions is what the database should say: the version of each package, ""
// when it is not there.
type versions map[string]string

// has asks the database with the low tool. On dpkg a package that is not wholly
// installed has its state behind the version.
func (m *machine) has(name string) string {
	m.Helper()
	if m.rpm() {
		name = strings.Replace(name, ":", ".", 1)
		return m.sh(`rpm -q --qf '%%|EPOCH?{%%{EPOCH}:}|%%{VERSION}-%%{RELEASE}\n' '%s' 2>/dev/null | grep -v 'not installed' | sort | tr '\n' ' ' || true`, name)
	}
	return m.sh(`dpkg-query -W -f '${db:Status-Status} ${db:Status-Eflag} ${Version}\n' '%s' 2>/dev/null | sed -n 's/^installed ok //p; /^config-files/d; /^not-installed/d; s/^\([a-z-]*\) \([a-z]*\) \(.*\)$/\3 (\1)/; /(/p' || true`, name)
}

func (m *machine) wantVersions(want versions) {
	m.Helper()
	for name, v := range want {
		if got := m.has(name); got != v {
			m.Errorf("the database has %s as %q, want %q", name, got, v)
		}
	}
}

// fingerprint tells whether the database or the marks changed.
func (m *machine) fingerprint() string {
	m.Helper()
	if m.rpm() {
		return m.sh(`rpm -qa --qf '%%{NAME} %%{EVR} %%{ARCH} %%{INSTALLTIME}\n' 2>&1 | sort | sha256sum`)
	}
	return m.sh(`(dpkg-query -W -f '${binary:Package} ${Version} ${Status}\n'; cat /var/lib/apt/extended_states 2>/dev/null) 2>&1 | sha256sum`)
}

// judge makes a pass, compares report and machine, and makes another: it must
// say ok where the first changed something and the same where it did not, and
// write nothing.
func (m *machine) judge(want report, after versions, resources ...mesh.Resource) {
	m.Helper()
	first := m.pass(resources...)
	m.wantReport(first, want)
	m.wantVersions(after)
	if m.Failed() {
		return
	}
	before := m.fingerprint()
	second := m.pass(resources...)
	again, allRight := report{}, true
	for id, w := range want {
		if w == "changed" {
			w = "ok"
		}
		if w == "removed" {
			continue
		}
		allRight = allRight && w == "ok"
		again[id] = w
	}
	m.wantReport(second, again)
	if allRight && len(second.Commands) > 0 {
		m.Errorf("the second pass ran %q", second.Commands)
	}
	if m.fingerprint() != before {
		m.Error("the second pass changed the database")
	}
	m.last = first
}

// present100 installs a hundred packages and declares each in its version.
func present100(m *machine) []mesh.Resource {
	m.Helper()
	var packs []pack
	var rs []mesh.Resource
	for i := range 100 {
		p := pack{name: fmt.Sprintf("fx-%03d", i), version: "1"}
		packs = append(packs, p)
		rs = append(rs, present(p.name, "1-1"))
	}
	m.install(packs...)
	return rs
}
