package lab_test

import (
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
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
}

func newShelf(t *testing.T) *shelf {
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
	server := &http.Server{Handler: repohttp.New(r, repohttp.Options{}, log), ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	s := &shelf{repo: r, keys: keys, url: "http://" + listener.Addr().String()}
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
	title string // of the family's commands on the page
	// refresh reads the repository anew; install, to take %s for NAME or the
	// family's NAME and VERSION, changes without asking.
	refresh, install, exact, older, upgrade, remove, fetch string
	// pin keeps hello at 1.1-1 while upgrade is run.
	pin string
}

var manuals = map[lab.Manager]manual{
	lab.Apt: {
		title: "Debian, Ubuntu and their kin, as root:", refresh: "apt-get update",
		install: "apt-get install -y hello", exact: "apt-get install -y hello=1.1-1", older: "apt-get install -y --allow-downgrades hello=1.0-1",
		upgrade: "apt-get upgrade -y", remove: "apt-get remove -y hello", fetch: "mkdir -pm 777 /srv/got && cd /srv/got && apt-get download hello=1.1-1",
		pin: "printf 'Package: hello\\nPin: version 1.1-1\\nPin-Priority: 1001\\n' > /etc/apt/preferences.d/hello",
	},
	lab.Dnf: {
		title: "Fedora, RHEL and their kin, as root:", refresh: "dnf makecache --refresh",
		install: "dnf install -y hello", exact: "dnf install -y hello-1.1-1", older: "dnf downgrade -y hello-1.0-1",
		upgrade: "dnf upgrade -y --refresh", remove: "dnf remove -y hello", fetch: "dnf install -y --downloadonly --downloaddir=/srv/got hello-1.1-1",
		pin: "echo 'excludepkgs=hello-1.2*' >> /etc/dnf/dnf.conf",
	},
	lab.Dnf5: {
		title: "Fedora, RHEL and their kin, as root:", refresh: "dnf makecache --refresh",
		install: "dnf install -y hello", exact: "dnf install -y hello-1.1-1", older: "dnf downgrade -y hello-1.0-1",
		upgrade: "dnf upgrade -y --refresh", remove: "dnf remove -y hello", fetch: "mkdir -p /srv/got && cd /srv/got && dnf download hello-1.1-1",
		pin: "echo 'excludepkgs=hello-1.2*' >> /etc/dnf/dnf.conf",
	},
	lab.Zypper: {
		title: "openSUSE, SLES and their kin, as root:", refresh: "zypper --non-interactive refresh",
		install: "zypper --non-interactive install hello", exact: "zypper --non-interactive install hello=1.1-1",
		older: "zypper --non-interactive install --oldpackage hello=1.0-1", upgrade: "zypper --non-interactive refresh && zypper --non-interactive update",
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

// repoStory is the life of a package on a machine that no mesh manages, whose
// admin follows the page and leaves everything at its default.
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
	commands := s.commands(t, how.title)
	if len(commands) != 3 {
		t.Errorf("the page asks for %d commands, want three:\n%s", len(commands), strings.Join(commands, "\n"))
	}
	do("add the repository", append([]string{"set -e"}, commands...)...)
	version := func(what, want string) {
		t.Helper()
		got, err := fleet.Installed(ctx, h, "hello")
		if err != nil || got != want {
			t.Fatalf("after %s version %q is installed (error %v), want %q", what, got, err, want)
		}
	}
	do("install a version", how.exact)
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
	s := newShelf(t)
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
