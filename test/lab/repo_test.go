package lab_test

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// shelf is a repository of its own, served to the lab, and the page with which
// it greets an admin.
type shelf struct {
	repo *repo.Repo
	keys *openpgp.Keys
	url  string
	page string

	mu sync.Mutex
	// missing are the paths that were asked for in vain. Under mu.
	missing []string
}

// answer remembers how a request was answered.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func newShelf(t *testing.T, options repohttp.Options) *shelf {
	t.Helper()
	l, ctx := lab.Shared(t), lab.TestContext(t)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	// The key is of the kind and size that a control plane makes.
	keys, err := openpgp.OpenKeys(t.TempDir(), openpgp.Options{Now: func() time.Time { return time.Now().Add(-time.Minute) }})
	if err != nil {
		t.Fatal(err)
	}
	r, err := repo.Open(ctx, repo.Config{Dir: t.TempDir()}, keys, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	listener, err := l.Listen(ctx, "tcp", lab.Gateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{repo: r, keys: keys, url: "http://" + listener.Addr().String()}
	handler := repohttp.New(r, options, log)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a := &answer{ResponseWriter: w}
		handler.ServeHTTP(a, req)
		if a.status == http.StatusNotFound {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.missing = append(s.missing, req.UserAgent()+" "+req.URL.Path)
		}
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	client := &http.Client{Transport: &http.Transport{DialContext: l.DialContext}}
	answer, err := client.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	s.page = string(page)
	return s
}

func (s *shelf) publish(t *testing.T, name, version string) {
	t.Helper()
	var in []repo.Incoming
	for _, format := range []string{packaging.Deb, packaging.RPM} {
		b, err := packaging.BuildSimple(simple(name, version), format)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, repo.Incoming{Name: name, Body: strings.NewReader(string(b))})
	}
	if _, err := s.repo.Publish(t.Context(), "stable", in); err != nil {
		t.Fatalf("publish %s %s: %v", name, version, err)
	}
}

// manual is how an admin of one family does each thing.
type manual struct {
	title  string // of the family's commands on the page
	family string // of the same commands in the documentation
	// refresh reads the repository anew; the others change without asking.
	refresh, install, older, upgrade, remove, fetch string
	// pin keeps hello at 1.1-1 while upgrade is run.
	pin string
}

var manuals = map[lab.Manager]manual{
	lab.Apt: {
		title: "Debian, Ubuntu and their kin, as root:", family: "apt (2.2 and newer)", refresh: "apt-get update",
		install: "apt-get install -y hello", older: "apt-get install -y --allow-downgrades hello=1.0-1",
		upgrade: "apt-get upgrade -y", remove: "apt-get remove -y hello", fetch: "mkdir -pm 777 /srv/got && cd /srv/got && apt-get download hello=1.1-1",
		pin: "printf 'Package: hello\\nPin: version 1.1-1\\nPin-Priority: 1001\\n' > /etc/apt/preferences.d/hello",
	},
	lab.Dnf: {
		title: "Fedora, RHEL and their kin, as root:", family: "dnf and dnf5", refresh: "dnf makecache --refresh",
		install: "dnf install -y hello", older: "dnf downgrade -y hello-1.0-1",
		upgrade: "dnf upgrade -y --refresh", remove: "dnf remove -y hello", fetch: "dnf install -y --downloadonly --downloaddir=/srv/got hello-1.1-1",
		pin: "echo 'excludepkgs=hello-1.2*' >> /etc/dnf/dnf.conf",
	},
	lab.Dnf5: {
		title: "Fedora, RHEL and their kin, as root:", family: "dnf and dnf5", refresh: "dnf makecache --refresh",
		install: "dnf install -y hello", older: "dnf downgrade -y hello-1.0-1",
		upgrade: "dnf upgrade -y --refresh", remove: "dnf remove -y hello", fetch: "mkdir -p /srv/got && cd /srv/got && dnf download hello-1.1-1",
		pin: "echo 'excludepkgs=hello-1.2*' >> /etc/dnf/dnf.conf",
	},
	lab.Zypper: {
		title: "openSUSE, SLES and their kin, as root:", family: "zypper", refresh: "zypper --non-interactive refresh",
		install: "zypper --non-interactive install hello",
		older:   "zypper --non-interactive install --oldpackage hello=1.0-1", upgrade: "zypper --non-interactive refresh && zypper --non-interactive update",
		remove: "zypper --non-interactive remove hello", fetch: "zypper --non-interactive download hello=1.1-1 && mkdir -p /srv/got && find /var/cache/zypp/packages -name 'hello-1.1-1*.rpm' -exec cp {} /srv/got/ ';'",
		pin: "zypper --non-interactive addlock hello",
	},
}

// complaint is what a client says when something is not to its liking.
var complaint = regexp.MustCompile(`(?im)^(w|e|n|err):|warning|error|fail|not trusted|unsigned|nokey|ignored`)

// theirOwn is what clients say whatever the repository is like.
var theirOwn = []string{"dpkg: warning: downgrading"}

// commands cuts a family's commands out of the page.
func (s *shelf) commands(t *testing.T, title string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(s.page, title+"\n\n")
	if !ok {
		t.Fatalf("the page has no %q:\n%s", title, s.page)
	}
	block, _, _ := strings.Cut(rest, "\n\n")
	var commands []string
	for line := range strings.Lines(block) {
		commands = append(commands, strings.TrimSpace(line))
	}
	return commands
}

// documented cuts a family's commands out of the documentation, for this shelf.
func (s *shelf) documented(t *testing.T, family string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/005-repository.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n"+family+":\n\n```\n")
	if !ok {
		t.Fatalf("the documentation has no commands for %q", family)
	}
	block, _, _ := strings.Cut(rest, "```")
	var commands []string
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(line, "# "); ok {
			commands = append(commands, strings.ReplaceAll(strings.TrimSpace(command), "http://10.77.0.1:7080", s.url))
		}
	}
	return commands
}

// repoStory is the life of a package on a machine that no mesh manages, whose
// admin follows the documentation, which says what the page says, and leaves
// everything at its default.
func repoStory(t *testing.T, s *shelf, h *lab.Host) {
	t.Helper()
	ctx, how := lab.TestContext(t), manuals[h.Flavour().Manager]
	do := func(what string, commands ...string) string {
		t.Helper()
		out, err := h.Sh(ctx, strings.Join(commands, "\n"))
		text := out.Stdout + out.Stderr
		if err != nil {
			t.Fatalf("%s: %v\n%s", what, err, text)
		}
		t.Logf("%s:\n$ %s\n%s", what, strings.Join(commands, "\n$ "), text)
		for _, own := range theirOwn {
			text = strings.ReplaceAll(text, own, "")
		}
		if bad := complaint.FindString(text); bad != "" {
			t.Errorf("%s: it complains (%q):\n%s", what, bad, text)
		}
		return text
	}
	systemd, manager := lab.Versions(t, h)
	lab.Case{Case: "plain client of the repository", Requirement: "M11", Host: h.Flavour().Name, Systemd: systemd, Manager: manager}.Line(t)
	commands, documented := s.commands(t, how.title), s.documented(t, how.family)
	if len(commands) != 3 || len(documented) != 4 || !slices.Equal(commands, documented[:3]) {
		t.Fatalf("the page asks for\n%s\nand the documentation for\n%s\nwant the same three commands, and one more that installs", strings.Join(commands, "\n"), strings.Join(documented, "\n"))
	}
	do("add the repository", append([]string{"set -e"}, documented[:3]...)...)
	version := func(what, want string) {
		t.Helper()
		got, err := fleet.Installed(ctx, h, "hello")
		if err != nil || got != want {
			t.Fatalf("after %s version %q is installed (error %v), want %q", what, got, err, want)
		}
	}
	do("install a version", documented[3])
	version("install a version", "1.1-1")
	do("pin", how.pin)
	do("upgrade what is pinned", how.upgrade)
	version("upgrade what is pinned", "1.1-1")
	do("take the pin away", unpin)
	do("upgrade", how.upgrade)
	version("upgrade", "1.2-1")
	do("downgrade", how.older)
	version("downgrade", "1.0-1")
	do("download", how.fetch)
	if h.Flavour().RPM() {
		if out := do("rpm -K", "rpm -K /srv/got/hello-1.1-1*.rpm"); !strings.Contains(out, "digests signatures OK") {
			t.Errorf("rpm -K says %s", out)
		}
	} else {
		do("dpkg-deb", "dpkg-deb --info /srv/got/hello_1.1-1_all.deb")
	}
	do("remove", how.remove)
	version("remove", "")
	do("install the newest", how.refresh, how.install)
	version("install the newest", "1.2-1")
}

// unpin undoes every manual's pin.
const unpin = `rm -f /etc/apt/preferences.d/hello
if [ -f /etc/dnf/dnf.conf ]; then sed -i /excludepkgs/d /etc/dnf/dnf.conf; fi
if command -v zypper >/dev/null; then zypper --non-interactive removelock hello; fi`

func repoClients(t *testing.T, prefix string, flavours ...string) {
	t.Helper()
	s := newShelf(t, repohttp.Options{})
	t.Cleanup(func() {
		// Release promises the plain Packages, and only the packed one is there.
		for _, m := range s.missing {
			if strings.Contains(m, "/dists/") {
				t.Errorf("a client asked for what is not there: %s", m)
			}
		}
		t.Logf("asked for in vain: %q", s.missing)
	})
	for _, v := range []string{"1.0", "1.1", "1.2"} {
		s.publish(t, "hello", v)
	}
	for i, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			repoStory(t, s, host(t, prefix+string(rune('a'+i)), flavour))
		})
	}
}

// Shows: M11
func TestRepoIsUsedByPlainClientsWithThreeCommandsFromItsPageAndNoWarning(t *testing.T) {
	repoClients(t, "repo-", "bullseye-apt", "bookworm-apt", "trixie-dnf", "sid-dnf5")
}
