package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
	"github.com/meshctl/mesh/internal/cli"
)

var noon = time.Date(2026, 11, 30, 14, 2, 12, 0, time.UTC)

// desk is a meshctl in front of a control plane that lives in memory.
type desk struct {
	operator  *apitest.Operator
	publisher *apitest.Publisher
	socket    string
	// files is what load finds.
	files map[string]mesh.Document
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{operator: &apitest.Operator{At: noon}, publisher: &apitest.Publisher{}, socket: filepath.Join(t.TempDir(), "api.sock"), files: map[string]mesh.Document{}}
	l, err := api.Listen(d.socket, -1)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := api.New(api.Config{Operator: d.operator, Publisher: d.publisher, Librarian: &apitest.Librarian{Publisher: d.publisher, Signing: []api.Key{{Fingerprint: "FIRST", Bits: 4096, Created: noon}}}, SpoolDir: t.TempDir(), Admission: api.Admission{AdminGID: -1}, Log: slog.New(slog.DiscardHandler)})
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return d
}

// getenv is an environment that names the socket and nothing else.
func (d *desk) getenv(name string) string {
	if name == "MESH_SOCKET" {
		return d.socket
	}
	return ""
}

// answer is what a run of meshctl left behind.
type answer struct {
	stdout, stderr string
	err            error
	code           int
}

func (d *desk) run(t *testing.T, args ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return d.runContext(ctx, args...)
}

func (d *desk) runContext(ctx context.Context, args ...string) answer {
	var stdout, stderr bytes.Buffer
	root := newRootCommand(deps{
		stdout: &stdout, stderr: &stderr,
		getenv: d.getenv,
		now:    func() time.Time { return noon },
		load:   d.load,
		poll:   time.Millisecond,
	})
	root.SetArgs(args)
	err := cli.Execute(ctx, root)
	return answer{stdout: stdout.String(), stderr: stderr.String(), err: err, code: cli.ExitCode(err)}
}

func (d *desk) load(path string) (loaded, error) {
	doc, ok := d.files[path]
	if !ok {
		return loaded{}, mesh.Problems{{File: path, Message: "no such file"}}
	}
	locate := func(ps mesh.Problems) mesh.Problems {
		var out mesh.Problems
		for _, p := range ps {
			p.File, p.Line = path, 7
			out = append(out, p)
		}
		return out
	}
	return loaded{File: path, Doc: doc, Locate: locate}, nil
}

func motd(name string) mesh.Document {
	f := mesh.FileSpec{Type: mesh.FileRegular, Mode: "0644"}
	f.SetContent([]byte("hello\nworld\n"))
	return mesh.Document{Declaration: name, Select: `labels.role == "web"`, Resources: []mesh.DocumentResource{
		{Resource: mesh.Resource{Kind: mesh.KindPackage, Name: "nginx", Package: &mesh.PackageSpec{Version: "1.22.1-9"}}, When: `os.family == "debian"`},
		{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/motd", File: &f, Requires: []mesh.ResourceID{"package:nginx"}, OnChange: &mesh.OnChange{Reload: []string{"nginx.service"}}}},
	}}
}

func want(t *testing.T, got answer, code int, stdout string) {
	t.Helper()
	if got.code != code || got.stdout != stdout {
		t.Fatalf("exit code %d (%v), want %d\nstandard error:\n%s\nstandard output:\n%s\nwant:\n%s", got.code, got.err, code, got.stderr, got.stdout, stdout)
	}
}

// Shows: M9, M10
func TestNodesShowsEachFactInItsOwnColumn(t *testing.T) {
	d := newDesk(t)
	at := func(s string) time.Time {
		v, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	fails := []control.FailedView{{Resource: "package:nginx", Status: mesh.StatusFailed, Reason: mesh.ReasonNotAvailable}, {Resource: "file:/x", Status: mesh.StatusUnknown, Reason: mesh.ReasonDatabase}}
	d.operator.NodeViews = []control.NodeView{
		{Node: "db-1", State: mesh.NodeEnrolled, Declared: 14, Held: 14, Applied: 14, Failed: fails, LastContact: at("2026-11-30 14:02:09"), Eligible: true},
		{Node: "web-1", State: mesh.NodeEnrolled, Declared: 14, Held: 14, Applied: 14, LastContact: at("2026-11-30 14:02:11"), Eligible: true},
		{Node: "web-2", State: mesh.NodeDisconnected, Declared: 14, Held: 13, Applied: 13, Outstanding: control.OutstandingView{Undelivered: 1}, LastContact: at("2026-11-09 08:17:40"), Eligible: true},
	}
	want(t, d.run(t, "nodes"), 0, `NODE    STATE         APPLIED  OUTSTANDING    FAILED  LAST CONTACT
db-1    enrolled      g14      -              2       2026-11-30 14:02:09Z  (3s ago)
web-1   enrolled      g14      -              -       2026-11-30 14:02:11Z  (1s ago)
web-2   disconnected  g13      1 undelivered  -       2026-11-09 08:17:40Z  (21d ago)
3 nodes: 1 applied, 1 outstanding, 1 failed
`)

	var list []map[string]any
	got := d.run(t, "nodes", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list) != 3 {
		t.Fatalf("json: %v in %s", err, got.stdout)
	}
	first, third := list[0], list[2]
	failed := first["failed"].([]any)[0].(map[string]any)
	if first["node"] != "db-1" || first["state"] != "enrolled" || first["declared"] != 14.0 || failed["resource"] != "package:nginx" || failed["status"] != "failed" || failed["reason"] != "not-available" ||
		third["outstanding"].(map[string]any)["undelivered"] != 1.0 || third["applied"] != 13.0 || third["last_contact"] != "2026-11-09T08:17:40Z" {
		t.Fatalf("the stable names do not hold the facts of the table: %s", got.stdout)
	}
}

func TestNodesKeepsApartWhatIsNotYetApplied(t *testing.T) {
	d := newDesk(t)
	d.operator.NodeViews = []control.NodeView{
		{Node: "fresh", State: mesh.NodeEnrolled, Eligible: false},
		{Node: "late", State: mesh.NodeEnrolled, Declared: 3, Applied: 1, Outstanding: control.OutstandingView{Undelivered: 1, Delivered: 1}, Failed: []control.FailedView{{}}, LastContact: noon.Add(-3 * time.Hour), Eligible: true},
		{Node: "lost", State: mesh.NodeRevoked, Declared: 3, Applied: 3, LastContact: noon.Add(-90 * time.Second), Eligible: true},
	}
	got := d.run(t, "nodes")
	want(t, got, 0, `NODE    STATE     APPLIED  OUTSTANDING                 FAILED  LAST CONTACT
fresh   enrolled  -        -                           -       never
late    enrolled  g1       1 undelivered, 1 delivered  1       2026-11-30 11:02:12Z  (3h ago)
lost    revoked   g3       -                           -       2026-11-30 14:00:42Z  (1m ago)
2 nodes: 0 applied, 1 outstanding, 1 failed, 1 without a declaration; 1 left the mesh
`)
	if !strings.Contains(got.stderr, "meshctl node show fresh") {
		t.Fatalf("standard error %q does not say why fresh gets nothing", got.stderr)
	}
	if json := d.run(t, "nodes", "-o", "json").stdout; !strings.Contains(json, `"last_contact": null`) || !strings.Contains(json, `"failed": []`) {
		t.Fatalf("no contact is not null, or no failure not an empty list: %s", json)
	}
}

func TestNodesWithoutAnyNodeSaysHowToGetOne(t *testing.T) {
	got := newDesk(t).run(t, "nodes")
	want(t, got, 0, "0 nodes\n")
	if !strings.Contains(got.stderr, "meshctl token issue") {
		t.Fatalf("standard error %q does not name the next step", got.stderr)
	}
}

// Shows: M8, M9
func TestDeclareEndsWithTheWriteAndSaysHowFarTheNodesAre(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	for range 41 {
		d.operator.NodeViews = append(d.operator.NodeViews, control.NodeView{})
	}
	// Two nodes are switched off: the answer comes all the same.
	d.operator.Steps = []control.Progress{{Nodes: 41, Applied: 38, Outstanding: 2, Undelivered: 1, Failed: 1, Failures: []control.FailedView{
		{Node: "web-9", Resource: "package:nginx", Status: mesh.StatusFailed, Reason: mesh.ReasonNotAvailable, Detail: "1.22.1-9+deb12u1 is not in any repository of this node"}}}}

	got := d.run(t, "declare", "--wait", "0s", "web.yaml")
	want(t, got, 0, "web revision 1 written, 41 nodes to change\n")
	d.files["web.yaml"].Resources[0].Package.Version = "1.22.1-9+deb12u1"
	got = d.runTicking(t, "declare", "--wait", "10ms", "web.yaml")
	want(t, got, 0, `web revision 2 written, 41 nodes to change
applied 38 · outstanding 2 (1 undelivered) · failed 1
failed   web-9   package:nginx: 1.22.1-9+deb12u1 is not in any repository of this node
`)
}

// runTicking runs with a clock that goes on by a millisecond whenever it is read.
// The waits of a run grow with what its looks seem to take.
func (d *desk) runTicking(t *testing.T, args ...string) answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	clock := noon
	root := newRootCommand(deps{stdout: &stdout, stderr: &stderr, getenv: d.getenv,
		now: func() time.Time { clock = clock.Add(time.Millisecond); return clock }, load: d.load, poll: time.Millisecond})
	root.SetArgs(args)
	err := cli.Execute(t.Context(), root)
	return answer{stdout.String(), stderr.String(), err, cli.ExitCode(err)}
}

func TestDeclareFollowsUntilNothingIsOutstanding(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	d.operator.Steps = []control.Progress{
		{Nodes: 2, Outstanding: 2, Undelivered: 2}, {Nodes: 2, Outstanding: 2, Undelivered: 2}, {Nodes: 2, Applied: 1, Outstanding: 1}, {Nodes: 2, Applied: 2}}
	want(t, d.run(t, "declare", "--follow", "web.yaml"), 0, `web revision 1 written, 0 nodes to change
applied 0 · outstanding 2 (2 undelivered) · failed 0
applied 1 · outstanding 1 · failed 0
applied 2 · outstanding 0 · failed 0
`)
}

func TestWhatFailedChangesTheExitCodeOnlyWhenAsked(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	d.operator.Steps = []control.Progress{{Nodes: 1, Failed: 1}}
	if got := d.run(t, "declare", "web.yaml"); got.code != 0 {
		t.Fatalf("exit code %d (%v) without --fail-on-failed, want 0", got.code, got.err)
	}
	if got := d.run(t, "declare", "--fail-on-failed", "web.yaml"); got.code != 1 || !strings.Contains(got.err.Error(), "written and stays") {
		t.Fatalf("exit code %d (%v) with --fail-on-failed, want 1 and that the declaration stays", got.code, got.err)
	}
	d.operator.Steps = []control.Progress{{Nodes: 1, Outstanding: 1, Undelivered: 1}}
	if got := d.runTicking(t, "declare", "--wait", "10ms", "--fail-on-failed", "web.yaml"); got.code != 0 {
		t.Fatalf("exit code %d (%v) with a node outstanding, want 0: outstanding is not failed", got.code, got.err)
	}
	d.operator.Steps = nil
	if got := d.run(t, "declare", "--fail-on-failed", "web.yaml"); got.code != 1 || !strings.Contains(got.err.Error(), "not known") {
		t.Fatalf("exit code %d (%v) when nothing could be seen, want 1: not known is not good", got.code, got.err)
	}
	if got := d.run(t, "declare", "web.yaml"); got.code != 0 || !strings.Contains(got.stderr, "is written, but") {
		t.Fatalf("exit code %d (%q) when nothing could be seen, want 0 and a word about it", got.code, got.stderr)
	}
}

func TestAnInterruptedWatchLeavesTheDeclarationWritten(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	d.operator.Steps = []control.Progress{{Nodes: 1, Outstanding: 1, Undelivered: 1}}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	d.operator.Watched = interrupt

	got := d.runContext(ctx, "declare", "--follow", "web.yaml")

	if got.code != 0 || !strings.Contains(got.stderr, "the declaration is written") {
		t.Fatalf("exit code %d (%v), standard error %q; want 0 and that it is written", got.code, got.err, got.stderr)
	}
}

func TestAnInterruptedLookAtALeavingNodeSaysThatItGoesOn(t *testing.T) {
	d := newDesk(t)
	var stdout, stderr bytes.Buffer
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()

	err := deps{stdout: &stdout, stderr: &stderr, now: time.Now}.watchRetirement(ctx, api.NewClient(d.socket), "web-9", time.Hour)

	if err != nil || !strings.Contains(stderr.String(), "no longer looking") || strings.Contains(stderr.String(), "could not be read") {
		t.Errorf("it ends with %v and says %q", err, stderr.String())
	}
}

func TestARefusedDeclarationListsEveryFindingAndWritesNothing(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	d.files["twin.yaml"] = motd("web")

	got := d.run(t, "declare", "web.yaml", "gone.yaml", "twin.yaml")

	if got.code != 1 || !strings.Contains(got.err.Error(), "gone.yaml: no such file") || !strings.Contains(got.err.Error(), "web is declared in web.yaml already") {
		t.Fatalf("exit code %d, error %v; want 1 and both findings", got.code, got.err)
	}
	if list := d.run(t, "declaration", "list"); list.stdout != "0 declarations\n" {
		t.Fatalf("something was written: %s", list.stdout)
	}
}

func TestWhatTheControlPlaneFindsIsPlacedInTheFile(t *testing.T) {
	d := newDesk(t)
	d.files["db.yaml"] = motd("db")
	bad := motd("web")
	bad.Resources[1].File.Mode = "9"
	d.files["web.yaml"] = bad

	got := d.run(t, "declare", "db.yaml", "web.yaml")

	if got.code != 1 || !strings.Contains(got.err.Error(), "web.yaml:7: resources[1].mode:") || !strings.Contains(got.err.Error(), "staying: db") {
		t.Fatalf("exit code %d, error %v; want 1, the place in the file, and that db stays", got.code, got.err)
	}
}

func TestADeclarationIsShownInTheFormInWhichItIsWritten(t *testing.T) {
	d := newDesk(t)
	doc := motd("web")
	doc.Resources = append(doc.Resources, mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/key", File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: strings.Repeat("a", 64), Size: 3, Sensitive: true}}})
	d.files["web.yaml"] = doc
	d.run(t, "declare", "--wait", "0", "web.yaml")

	want(t, d.run(t, "declaration", "show", "web"), 0, `# web revision 1, written 2026-11-30 14:02:12Z by root
declaration: web
select: labels.role == "web"
resources:
  - package: nginx
    version: 1.22.1-9
    when: os.family == "debian"
  - file: /etc/motd
    mode: "0644"
    content: |
      hello
      world
    requires: ['package:nginx']
    on_change: {reload: [nginx.service]}
  - file: /etc/key
    sensitive: true
    content: "" # left out: sensitive
`)
	want(t, d.run(t, "declaration", "list"), 0, `DECLARATION  REVISION  RESOURCES  BY      WRITTEN
web          1         3          root    2026-11-30 14:02:12Z
`)
	want(t, d.run(t, "declaration", "remove", "web"), 0, "web removed by revision 2, 0 nodes to change\n")
	if got := d.run(t, "declaration", "show", "nope"); got.code != 1 || !strings.Contains(got.err.Error(), `"nope"`) {
		t.Fatalf("exit code %d, %v; want 1 and the name", got.code, got.err)
	}
}

func TestTokenIssueGivesCommandsThatPipeNothingIntoAShell(t *testing.T) {
	d := newDesk(t)
	got := d.run(t, "token", "issue", "--name", "web-1", "--label", "role=web", "--ttl", "30m")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "mesh1-") {
		t.Fatalf("exit code %d (%v), output %q; want the token first", got.code, got.err, got.stdout)
	}
	token, _, _ := strings.Cut(got.stdout, "\n")
	if _, err := mesh.ParseToken(token); err != nil {
		t.Fatalf("first line %q: %v", token, err)
	}
	for _, line := range []string{
		"/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file http://192.0.2.1:7080/mesh.asc /etc/apt/keyrings/mesh.asc SHA256:" + strings.Repeat("0", 63) + "7\n",
		"Signed-By: /etc/apt/keyrings/mesh.asc\nEND\n",
		"apt-get install -y mesh-host\nmesh-host enrol " + token + "\n",
		"sha256sum --check || rm -f /etc/pki/rpm-gpg/RPM-GPG-KEY-mesh\n",
		"dnf install -y mesh-host\nmesh-host enrol " + token + "\n",
	} {
		if !strings.Contains(got.stdout, line) {
			t.Errorf("the commands lack %q:\n%s", line, got.stdout)
		}
	}
	for _, line := range strings.Split(got.stdout, "\n") {
		if _, right, piped := strings.Cut(line, "|"); piped && strings.Contains(right, "sh") && !strings.Contains(right, "sha256sum") {
			t.Errorf("a line pipes into a shell: %s", line)
		}
	}
	if !strings.Contains(got.stderr, "2026-11-30 14:32:12Z") {
		t.Errorf("standard error %q does not say when the token ends", got.stderr)
	}
}

// Shows: M24
func TestATokenIsListedAndRevokedWithoutItsSecret(t *testing.T) {
	d := newDesk(t)
	want(t, d.run(t, "token", "list"), 0, "0 tokens\n")
	issued := d.run(t, "token", "issue", "--name", "web-1", "--label", "role=web")
	token, _, _ := strings.Cut(issued.stdout, "\n")
	d.run(t, "token", "issue")

	listed := d.run(t, "token", "list")
	lines := strings.Split(strings.TrimSpace(listed.stdout), "\n")
	if listed.code != 0 || len(lines) != 3 || !strings.Contains(lines[1], "any host name") || !strings.Contains(lines[2], "web-1") || !strings.Contains(lines[2], "role=web") {
		t.Fatalf("exit code %d (%v), list:\n%s", listed.code, listed.err, listed.stdout)
	}
	id, _, _ := strings.Cut(lines[2], " ")
	if !strings.Contains(issued.stderr, "meshctl token revoke "+id+"`") {
		t.Errorf("when it was issued nothing said that its id is %s: %s", id, issued.stderr)
	}
	if strings.Contains(listed.stdout, token) {
		t.Errorf("the list holds the token:\n%s", listed.stdout)
	}
	want(t, d.run(t, "token", "revoke", token), 0, "no machine can join with the token "+id+" any more\n")
	if got := d.run(t, "token", "revoke", id); got.code != 1 || !strings.Contains(got.err.Error(), id) {
		t.Errorf("revoked once more: exit code %d, %v; want 1 and the id", got.code, got.err)
	}
	other, _, _ := strings.Cut(lines[1], " ")
	want(t, d.run(t, "token", "revoke", other), 0, "no machine can join with the token "+other+" any more\n")
	want(t, d.run(t, "token", "list"), 0, "0 tokens\n")
}

// Shows: M9
func TestNodesAreListedByNameLabelAndWhatTheyLack(t *testing.T) {
	d := newDesk(t)
	node := func(name, site string, undelivered, delivered, failed int) control.NodeView {
		return control.NodeView{Node: name, State: mesh.NodeEnrolled, Labels: map[string]string{"site": site}, Declared: 1, Eligible: true,
			Outstanding: control.OutstandingView{Undelivered: undelivered, Delivered: delivered}, Failed: make([]control.FailedView, failed)}
	}
	d.operator.NodeViews = []control.NodeView{
		node("db-1", "ams", 0, 0, 0), node("web-1", "ams", 1, 0, 0), node("web-2", "fra", 0, 1, 2), node("web-3", "fra", 0, 0, 1),
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"db-1", "web-1", "web-2", "web-3"}},
		{[]string{"--failed"}, []string{"web-2", "web-3"}},
		{[]string{"--outstanding"}, []string{"web-1", "web-2"}},
		{[]string{"--outstanding", "--failed"}, []string{"web-1", "web-2", "web-3"}},
		{[]string{"web-*"}, []string{"web-1", "web-2", "web-3"}},
		{[]string{"web-[13]", "db-1"}, []string{"db-1", "web-1", "web-3"}},
		{[]string{"--label", "site=fra"}, []string{"web-2", "web-3"}},
		{[]string{"--label", "site=fra", "--label", "role=web"}, nil},
		{[]string{"--failed", "--label", "site=ams"}, nil},
		{[]string{"--outstanding", "--label", "site=fra", "web-*"}, []string{"web-2"}},
	} {
		got := d.run(t, append([]string{"nodes", "-o", "json"}, c.args...)...)
		var rows []struct{ Node string }
		if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil || got.code != 0 {
			t.Fatalf("%v: exit code %d (%v), %q", c.args, got.code, got.err, got.stdout)
		}
		var names []string
		for _, row := range rows {
			names = append(names, row.Node)
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("%v lists %v, want %v", c.args, names, c.want)
		}
		text := d.run(t, append([]string{"nodes"}, c.args...)...)
		if last := "0 of 4 nodes\n"; len(c.want) == 0 && text.stdout != last {
			t.Errorf("%v prints %q, want %q", c.args, text.stdout, last)
		}
		for _, n := range d.operator.NodeViews {
			if strings.Contains(text.stdout, n.Node) != slices.Contains(c.want, n.Node) {
				t.Errorf("%v prints, where %v are meant:\n%s", c.args, c.want, text.stdout)
			}
		}
	}
	if got := d.run(t, "nodes", "web-1", "web-7", "mail-*"); got.code != 1 || !strings.Contains(got.err.Error(), `"web-7"`) || !strings.Contains(got.err.Error(), `"mail-*"`) || got.stdout != "" {
		t.Errorf("names that no node has: exit code %d, %v, %q; want 1, both names, and no list that could be taken for the answer", got.code, got.err, got.stdout)
	}
	if got := d.run(t, "nodes", "web-["); got.code != 2 {
		t.Errorf("a pattern that is none: exit code %d, %v; want 2", got.code, got.err)
	}
}

// Shows: M9, M10
func TestMetricsTellOutstandingFromFailedAndTheLastContactAsATime(t *testing.T) {
	d := newDesk(t)
	d.files["web.yaml"] = motd("web")
	d.run(t, "declare", "--wait", "0", "web.yaml")
	d.operator.Steps = []control.Progress{{Nodes: 6, Applied: 2, Outstanding: 3, Undelivered: 1, Failed: 1}}
	d.operator.NodeViews = []control.NodeView{
		{Node: "web-1", State: mesh.NodeEnrolled, Declared: 7, Held: 7, Applied: 6, Eligible: true, Outstanding: control.OutstandingView{Delivered: 1}, Failed: make([]control.FailedView, 2), LastContact: noon.Add(-250 * time.Millisecond)},
		{Node: "web-2", State: mesh.NodeDisconnected, Declared: 7, Held: 3, Applied: 3, Outstanding: control.OutstandingView{Undelivered: 1}},
		{Node: "gone", State: mesh.NodeRevoked, Applied: 3, Failed: make([]control.FailedView, 1)},
	}
	want(t, d.run(t, "metrics"), 0, `# HELP mesh_nodes Machines by where they are in their life.
# TYPE mesh_nodes gauge
mesh_nodes{state="enrolled"} 1
mesh_nodes{state="disconnected"} 1
mesh_nodes{state="retired"} 0
mesh_nodes{state="revoked"} 1
# HELP mesh_node_declared_generation Newest generation that was written for the node; 0: none.
# TYPE mesh_node_declared_generation gauge
mesh_node_declared_generation{node="web-1"} 7
mesh_node_declared_generation{node="web-2"} 7
# HELP mesh_node_applied_generation Newest generation that the node applied whole; 0: none.
# TYPE mesh_node_applied_generation gauge
mesh_node_applied_generation{node="web-1"} 6
mesh_node_applied_generation{node="web-2"} 3
# HELP mesh_node_outstanding Generations that are written for the node and not decided: not yet held by it (undelivered), or held and not finished (delivered).
# TYPE mesh_node_outstanding gauge
mesh_node_outstanding{node="web-1",state="undelivered"} 0
mesh_node_outstanding{node="web-1",state="delivered"} 1
mesh_node_outstanding{node="web-2",state="undelivered"} 1
mesh_node_outstanding{node="web-2",state="delivered"} 0
# HELP mesh_node_failed_resources Resources of the node that are not as declared.
# TYPE mesh_node_failed_resources gauge
mesh_node_failed_resources{node="web-1"} 2
mesh_node_failed_resources{node="web-2"} 0
# HELP mesh_node_eligible 1 when the node may be given declarations, 0 when a line of its briefing failed.
# TYPE mesh_node_eligible gauge
mesh_node_eligible{node="web-1"} 1
mesh_node_eligible{node="web-2"} 0
# HELP mesh_node_last_contact_timestamp_seconds When the node was last heard of, by the control plane's clock; a node that never was has none.
# TYPE mesh_node_last_contact_timestamp_seconds gauge
mesh_node_last_contact_timestamp_seconds{node="web-1"} 1796047331.75
# HELP mesh_declaration_revision Newest revision of the declaration.
# TYPE mesh_declaration_revision gauge
mesh_declaration_revision{declaration="web"} 1
# HELP mesh_declaration_nodes Nodes that the newest revision of the declaration concerns, by how far they have come with it.
# TYPE mesh_declaration_nodes gauge
mesh_declaration_nodes{declaration="web",state="applied"} 2
mesh_declaration_nodes{declaration="web",state="undelivered"} 1
mesh_declaration_nodes{declaration="web",state="delivered"} 2
mesh_declaration_nodes{declaration="web",state="failed"} 1
`)
	d.operator.Steps = nil
	d.run(t, "declaration", "remove", "web")
	if got := d.run(t, "metrics"); got.code != 0 || strings.Contains(got.stdout, "mesh_declaration") {
		t.Errorf("exit code %d (%v); a declaration that was removed is told of:\n%s", got.code, got.err, got.stdout)
	}
	d.files["db.yaml"] = motd("db")
	d.run(t, "declare", "--wait", "0", "db.yaml")
	if got := d.run(t, "metrics"); got.code != 1 || got.stdout != "" {
		t.Errorf("with progress that cannot be read: exit code %d, output %q; want 1 and nothing that looks whole", got.code, got.stdout)
	}
}

func TestPublishSaysWhatBecameOfEachFileAndMayRunTwice(t *testing.T) {
	d := newDesk(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "a.deb")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, d.run(t, "publish", file), 0, "a.deb 1.0 all (deb): published\n")
	want(t, d.run(t, "publish", file), 0, "a.deb 1.0 all (deb): there already, the same\n")
	if err := os.WriteFile(file, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := d.run(t, "publish", file); got.code != 1 || !strings.Contains(got.err.Error(), "other content") {
		t.Fatalf("other content: exit code %d, %v; want 1 and the reason", got.code, got.err)
	}
	if got := d.run(t, "publish", file, filepath.Join(dir, "none.deb"), dir); got.code != 1 || !strings.Contains(got.err.Error(), "none.deb: no such file") || !strings.Contains(got.err.Error(), "not a regular file") {
		t.Fatalf("unreadable files: exit code %d, %v; want 1 and both files", got.code, got.err)
	}
	want(t, d.run(t, "packages", "list"), 0, "PACKAGE  VERSION  ARCH    FORMAT  SIZE\na.deb    1.0      all     deb     3 B\n")
}

func TestALongUploadSaysHowFarItIs(t *testing.T) {
	d := newDesk(t)
	file := filepath.Join(t.TempDir(), "big.deb")
	if err := os.WriteFile(file, make([]byte, 40<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	got := d.run(t, "publish", file)
	if got.code != 0 || !strings.Contains(got.stderr, "uploaded 40.0 MiB of 40.0 MiB\n") {
		t.Fatalf("exit code %d (%v), standard error %q; want 0 and the progress", got.code, got.err, got.stderr)
	}
}

func TestNodeShowGivesReasonsAndTheToolsLastLines(t *testing.T) {
	d := newDesk(t)
	d.operator.Details = map[string]control.NodeDetail{"web-9": {
		NodeView:    control.NodeView{Node: "web-9", State: mesh.NodeEnrolled, Labels: map[string]string{"role": "web", "dc": "a"}, Declared: 2, Held: 2, Applied: 1, Failed: []control.FailedView{{}}, LastContact: noon, Eligible: false},
		HostVersion: "1.0-1",
		Profile:     mesh.Profile{OS: mesh.OS{Name: "Debian GNU/Linux 12"}, Arch: "amd64", Systemd: 252, PackageManager: "apt"},
		Briefing:    mesh.Briefing{Lines: []mesh.Line{{Check: "clock", Outcome: mesh.OutcomeFail, Detail: "two days behind"}}},
		Results: []mesh.Result{
			{Resource: "file:/etc/motd", Status: mesh.StatusOK, Generation: 2},
			{Resource: "package:nano", Status: mesh.StatusChanged, Detail: "with it came libncursesw6 6.4-4", Generation: 2},
			{Resource: "package:nginx", Status: mesh.StatusFailed, Reason: mesh.ReasonTool, Detail: "apt-get ended with 100", Output: "E: first\nE: \x1b[31msecond", Generation: 2}},
		Owned: []mesh.ResourceID{"file:/etc/motd"},
	}}
	got := d.run(t, "node", "show", "web-9")
	for _, part := range []string{
		"labels        dc=a, role=web\n", "applied       g1\n", "Debian GNU/Linux 12, amd64, systemd 252",
		"briefing: fail, so that the node gets no declarations\n  fail  clock  two days behind\n",
		"  ok        file:/etc/motd  g2\n  changed   package:nano    g2  with it came libncursesw6 6.4-4\n  failed    package:nginx   g2  tool-failed: apt-get ended with 100\n            | E: first\n            | E: \uFFFD[31msecond\n",
		"owned by the mesh\n  file:/etc/motd\n",
	} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("exit code %d (%v); the page lacks %q:\n%s", got.code, got.err, part, got.stdout)
		}
	}
	revoked := d.run(t, "node", "revoke", "web-9")
	want(t, revoked, 0, "web-9 revoked\n")
	if !strings.Contains(revoked.stderr, "may still be running its last declaration") {
		t.Errorf("standard error %q claims more than revoking does", revoked.stderr)
	}
}

func TestAWrongCommandLineIsToldFromARefusal(t *testing.T) {
	d := newDesk(t)
	for _, args := range [][]string{
		{}, {"token"}, {"frobnicate"}, {"token", "isue"}, {"nodes", "--wat"}, {"nodes", "web-["}, {"version", "extra"}, {"declare"},
		{"nodes", "-o", "xml"}, {"token", "issue", "--label", "x"}, {"token", "issue", "--ttl", "-1h"},
		{"declare", "--wait", "0", "--fail-on-failed", "x"}, {"declare", "--wait", "soon", "x"}, {"help", "nonsense"}, {"audit", "--limit", "0"},
	} {
		got := d.run(t, args...)
		var usage *cli.UsageError
		if got.code != 2 || !errors.As(got.err, &usage) || !strings.Contains(got.err.Error(), "--help") || got.stdout != "" {
			t.Errorf("%q: exit code %d, %v, output %q; want 2, a word on --help, and no output", args, got.code, got.err, got.stdout)
		}
	}
	for _, args := range [][]string{{"--help"}, {"token", "--help"}, {"help", "token", "issue"}, {"help"}, {"nodes", "-h"}} {
		if got := d.run(t, args...); got.code != 0 || !strings.Contains(got.stdout, "Usage:") {
			t.Errorf("%q: exit code %d, %v, output %q; want 0 and the help", args, got.code, got.err, got.stdout)
		}
	}
	if got := d.run(t, "--help"); !strings.Contains(got.stdout, "Exit codes: 0") {
		t.Errorf("the help does not list the exit codes:\n%s", got.stdout)
	}
}

func TestEveryCommandHasAHelpThatExplainsIt(t *testing.T) {
	d := newDesk(t)
	root := newRootCommand(deps{getenv: d.getenv})
	commands := root.Commands()
	for len(commands) > 0 {
		cmd := commands[0]
		commands = append(commands[1:], cmd.Commands()...)
		if cmd.Hidden || !cmd.Runnable() {
			continue
		}
		if cmd.Long == "" || cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: wants a long help, and a short one without a full stop", cmd.CommandPath())
		}
	}
}

func TestVersionWorksWithoutAControlPlane(t *testing.T) {
	d := newDesk(t)
	want(t, d.run(t, "version"), 0, "meshctl 0.0.0-dev\nmesh-control 0.0.0-dev\n")
	got := d.run(t, "version", "--socket", "/nonexistent/api.sock")
	want(t, got, 0, "meshctl 0.0.0-dev\n")
	if !strings.Contains(got.stderr, "no such socket") {
		t.Fatalf("standard error %q does not say that the control plane was not asked", got.stderr)
	}
}

func TestWhoWatchesTakesAFifthOfAControlPlaneThatIsSlowToAnswer(t *testing.T) {
	const poll = 250 * time.Millisecond
	for _, c := range []struct{ took, want time.Duration }{{0, poll}, {time.Millisecond, poll}, {time.Second, 4 * time.Second}} {
		if got := pauseAfter(poll, c.took); got != c.want {
			t.Errorf("after a look of %s the next waits %s, want %s", c.took, got, c.want)
		}
	}
}
