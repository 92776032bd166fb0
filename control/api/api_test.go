package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
)

// plane is an API that answers on a real socket.
type plane struct {
	operator  *apitest.Operator
	publisher *apitest.Publisher
	socket    string
	spool     string
	log       *bytes.Buffer
	client    *api.Client
	stop      func() error
}

func start(t *testing.T, adjust func(*api.Config)) *plane {
	t.Helper()
	dir := t.TempDir()
	p := &plane{
		operator:  &apitest.Operator{At: time.Date(2026, 11, 30, 14, 2, 9, 0, time.UTC)},
		publisher: &apitest.Publisher{},
		socket:    filepath.Join(dir, "api.sock"),
		spool:     filepath.Join(dir, "spool"),
		log:       &bytes.Buffer{},
	}
	if err := os.Mkdir(p.spool, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := api.Config{
		Operator: p.operator, Publisher: p.publisher, SpoolDir: p.spool,
		Admission: api.Admission{Self: os.Getuid(), AdminGID: -1},
		Log:       slog.New(slog.NewTextHandler(p.log, nil)),
	}
	if adjust != nil {
		adjust(&cfg)
	}
	l, err := api.Listen(p.socket, -1)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.New(cfg).Serve(ctx, l) }()
	p.stop = func() error { cancel(); return <-ended }
	p.client = api.NewClient(p.socket)
	t.Cleanup(func() {
		p.client.Close()
		cancel()
	})
	return p
}

func document(name, content string) mesh.Document {
	f := mesh.FileSpec{Type: mesh.FileRegular}
	f.SetContent([]byte(content))
	return mesh.Document{Declaration: name, Resources: []mesh.DocumentResource{{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/motd", File: &f}}}}
}

func wantCode(t *testing.T, err error, code mesh.Code, words ...string) {
	t.Helper()
	var e *mesh.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error is %v (code %q), want a *mesh.Error with code %q", err, mesh.CodeOf(err), code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("error %q does not say %q", err, w)
		}
	}
}

func TestADeclarationComesBackAsItWasWritten(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()

	first, err := p.client.Declare(ctx, document("web", "hello\n"))
	if err != nil || !first.Changed || first.Revision != 1 {
		t.Fatalf("first write: %+v, %v; want revision 1, changed", first, err)
	}
	again, err := p.client.Declare(ctx, document("web", "hello\n"))
	if err != nil || again.Changed {
		t.Fatalf("same write again: %+v, %v; want unchanged", again, err)
	}
	view, err := p.client.Declaration(ctx, "web", 1)
	if err != nil || view.By != "root" || string(view.Document.Resources[0].File.Content) != "hello\n" {
		t.Fatalf("read back: %+v, %v; want content hello, by root", view, err)
	}
	removed, err := p.client.RemoveDeclaration(ctx, "web")
	if err != nil || removed.Revision != 2 || !removed.Changed {
		t.Fatalf("removal: %+v, %v; want revision 2, changed", removed, err)
	}
	entries, err := p.client.Audit(ctx, 10)
	if err != nil || len(entries) != 2 || entries[0].What != "removed" || entries[0].Door != "socket" {
		t.Fatalf("audit: %+v, %v; want the removal and the write, through the socket", entries, err)
	}
}

func TestARefusalReachesTheCallerWithItsCodeAndEveryProblem(t *testing.T) {
	p := start(t, nil)
	p.operator.Refuse = mesh.Problems{{Path: "resources[0].mode", Message: "bad mode"}, {Path: "select", Message: "bad expression"}}

	_, err := p.client.Declare(t.Context(), document("web", "x"))

	wantCode(t, err, mesh.CodeInvalid, "resources[0].mode: bad mode", "select: bad expression")
}

func TestAFaultOfTheControlPlaneIsLoggedAndNotShown(t *testing.T) {
	p := start(t, nil)
	p.operator.Refuse = errors.New("disk /dev/secret is on fire")

	_, err := p.client.Declare(t.Context(), document("web", "x"))
	if stopErr := p.stop(); stopErr != nil {
		t.Fatalf("stop: %v", stopErr)
	}

	wantCode(t, err, mesh.CodeInternal, "journalctl -u mesh-control")
	if strings.Contains(err.Error(), "secret") || !strings.Contains(p.log.String(), "disk /dev/secret is on fire") {
		t.Fatalf("caller got %q and the log has %q; the cause belongs into the log alone", err, p.log)
	}
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	for code, status := range map[mesh.Code]int{
		mesh.CodeInvalid: 400, mesh.CodeDenied: 403, mesh.CodeNotFound: 404,
		mesh.CodeConflict: 409, mesh.CodeUnavailable: 503, mesh.CodeInternal: 500,
	} {
		operator := &apitest.Operator{Refuse: mesh.Errorf(code, "no")}
		if got, body := ask(t, operator, "DELETE", "/v1/declarations/web", ""); got != status || !strings.Contains(body, `"code":"`+string(code)+`"`) {
			t.Errorf("code %s: status %d and body %s, want status %d and the code", code, got, body, status)
		}
	}
}

// ask sends one request as root, past the socket.
func ask(t *testing.T, operator *apitest.Operator, method, path, body string) (int, string) {
	t.Helper()
	s := api.New(api.Config{Operator: operator, Publisher: &apitest.Publisher{}, Log: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r = r.WithContext(api.WithCaller(r.Context(), control.Caller{Name: "root", Door: control.DoorSocket, Role: control.RoleAdmin}))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestRequestsAreDecodedStrictlyAndNothingIsDoneOtherwise(t *testing.T) {
	for name, c := range map[string]struct{ method, path, body, says string }{
		"unknown field":    {"POST", "/v1/tokens", `{"nmae":"web-1"}`, "nmae"},
		"wrong type":       {"POST", "/v1/tokens", `{"name":7}`, "name"},
		"two values":       {"POST", "/v1/tokens", `{}{}`, "goes on after its end"},
		"no value":         {"POST", "/v1/tokens", ``, "EOF"},
		"too long":         {"POST", "/v1/tokens", `{"name":"` + strings.Repeat("x", 70<<10) + `"}`, "longer than"},
		"other name":       {"PUT", "/v1/declarations/web", `{"declaration":"db","resources":[]}`, "db"},
		"bad revision":     {"GET", "/v1/declarations/web?revision=x", ``, "revision"},
		"bad digest":       {"PUT", "/v1/blobs/abc", ``, "SHA-256"},
		"not multipart":    {"POST", "/v1/packages", `{}`, "multipart"},
		"unknown question": {"GET", "/v1/secrets", ``, "meshctl may be newer"},
	} {
		operator := &apitest.Operator{}
		status, body := ask(t, operator, c.method, c.path, c.body)
		entries, err := operator.Audit(t.Context(), 10)
		if status < 400 || status >= 500 || !strings.Contains(body, c.says) || err != nil || len(entries) != 0 {
			t.Errorf("%s: status %d, body %s, %d writes; want a 4xx that says %q and no write", name, status, body, len(entries), c.says)
		}
	}
}

func TestABlobIsKeptOnlyUnderItsOwnDigest(t *testing.T) {
	p := start(t, nil)
	data := bytes.Repeat([]byte("long content "), 20000)
	raw := sha256.Sum256(data)
	sum := hex.EncodeToString(raw[:])

	wantCode(t, p.client.PutBlob(t.Context(), strings.Repeat("0", 64), bytes.NewReader(data)), mesh.CodeInvalid)
	if missing, err := p.client.MissingBlobs(t.Context(), []string{sum}); err != nil || len(missing) != 1 {
		t.Fatalf("missing before the upload: %v, %v; want the blob", missing, err)
	}
	if err := p.client.PutBlob(t.Context(), sum, bytes.NewReader(data)); err != nil {
		t.Fatalf("put: %v", err)
	}
	if missing, err := p.client.MissingBlobs(t.Context(), []string{sum}); err != nil || len(missing) != 0 {
		t.Fatalf("missing after the upload: %v, %v; want none", missing, err)
	}
}

func TestPackagesAreUploadedAndPublishedInOneStepAndTheSpoolIsEmptyAfterwards(t *testing.T) {
	p := start(t, nil)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	send := func() (api.Publication, error) {
		return p.client.Publish(t.Context(), "stable", []api.Upload{
			{Name: "dir/a.deb", Body: bytes.NewReader(big)}, {Name: "b.rpm", Body: strings.NewReader("b")}})
	}

	first, err := send()
	if err != nil || len(first.Files) != 2 || first.Files[0].File != "a.deb" || first.Files[0].Size != 1<<20 || first.Files[1].Outcome != api.PublishAdded {
		t.Fatalf("first publish: %+v, %v; want a.deb of 1 MiB and b.rpm, added", first, err)
	}
	again, err := send()
	if err != nil || again.Files[0].Outcome != api.PublishPresent {
		t.Fatalf("second publish: %+v, %v; want already there", again, err)
	}
	entries, err := p.client.Audit(t.Context(), 10)
	if err != nil || len(entries) != 2 || !strings.Contains(entries[1].Detail, "a.deb 1.0 all (added)") {
		t.Fatalf("audit: %+v, %v; want both publications with their packages", entries, err)
	}
	if left, err := os.ReadDir(p.spool); err != nil || len(left) != 0 {
		t.Fatalf("spool holds %v (%v), want nothing", left, err)
	}
}

func TestAnUploadBeyondTheLimitIsRefusedAndLeavesNothing(t *testing.T) {
	p := start(t, func(c *api.Config) { c.MaxUpload = 1 << 20 })

	_, err := p.client.Publish(t.Context(), "stable", []api.Upload{{Name: "a.deb", Body: io.LimitReader(zeros{}, 64<<20)}})

	if err == nil {
		t.Fatal("64 MiB were taken with a limit of 1 MiB")
	}
	if list, listErr := p.client.Packages(t.Context(), "stable"); listErr != nil || len(list) != 0 {
		t.Fatalf("suite holds %v (%v) after a refused upload, want nothing", list, listErr)
	}
	wantCode(t, err, mesh.CodeInvalid, "longer than")
}

func TestAPackageBeyondTheLimitIsRefusedBeforeTheRestOfTheUploadIsTaken(t *testing.T) {
	p := start(t, func(c *api.Config) { c.MaxPackage = 1 << 20 })
	sent := &counted{r: io.LimitReader(zeros{}, 512<<20)}

	_, err := p.client.Publish(t.Context(), "stable", []api.Upload{{Name: "small.deb", Body: strings.NewReader("a")}, {Name: "large.deb", Body: sent}})

	wantCode(t, err, mesh.CodeInvalid, "large.deb is larger than 1 MiB")
	if sent.n > 256<<20 {
		t.Errorf("%d MiB were taken of a package of which 1 MiB is allowed", sent.n>>20)
	}
	if list, err := p.client.Packages(t.Context(), "stable"); err != nil || len(list) != 0 {
		t.Errorf("suite holds %v (%v) after a refused upload, want nothing", list, err)
	}
	if left, err := os.ReadDir(p.spool); err != nil || len(left) != 0 {
		t.Errorf("spool holds %v (%v), want nothing", left, err)
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnUploadWhoseFileCannotBeReadPublishesNothing(t *testing.T) {
	p := start(t, nil)
	broken := &os.PathError{Op: "read", Path: "b.deb", Err: syscall.EIO}

	_, err := p.client.Publish(t.Context(), "stable", []api.Upload{
		{Name: "a.deb", Body: strings.NewReader("a")}, {Name: "b.deb", Body: failing{broken}}})

	wantCode(t, err, mesh.CodeInvalid, "b.deb")
	if list, listErr := p.client.Packages(t.Context(), "stable"); listErr != nil || len(list) != 0 {
		t.Fatalf("suite holds %v (%v) after half an upload, want nothing", list, listErr)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestATokenIsHandedOverEvenWhenTheRepositoryCannotBeDescribed(t *testing.T) {
	p := start(t, nil)
	p.publisher.Down = errors.New("no key")

	answer, err := p.client.IssueToken(t.Context(), control.TokenRequest{})

	if err != nil || !strings.HasPrefix(answer.Token, "mesh1-") || answer.Repository != nil || answer.RepositoryFault == "" {
		t.Fatalf("answer %+v, %v; want the token and a word on the repository", answer, err)
	}
}

func TestOnlyRootTheServerItselfAndTheAdminGroupComeIn(t *testing.T) {
	a := api.Admission{Self: 990, AdminGID: 70}
	for name, c := range map[string]struct {
		peer  api.Peer
		as    string
		admit bool
	}{
		"root":               {api.Peer{UID: 0, GIDs: []int{0}}, "root", true},
		"the server's user":  {api.Peer{UID: 990, GIDs: []int{990}}, "uid 990", true},
		"primary group":      {api.Peer{UID: 1000, GIDs: []int{70}}, "uid 1000", true},
		"supplementary":      {api.Peer{UID: 1000, GIDs: []int{1000, 27, 70}}, "uid 1000", true},
		"somebody":           {api.Peer{UID: 1000, GIDs: []int{1000, 27}}, "", false},
		"nobody, no groups":  {api.Peer{UID: 65534}, "", false},
		"gid -1 is no group": {api.Peer{UID: 1000, GIDs: []int{-1}}, "", false},
	} {
		caller, err := a.Admit(c.peer)
		if c.admit && (err != nil || caller.Name != c.as) {
			t.Errorf("%s: %+v, %v; want admitted as %q", name, caller, err, c.as)
		}
		if !c.admit && (mesh.CodeOf(err) != mesh.CodeDenied || !strings.Contains(err.Error(), api.AdminGroup)) {
			t.Errorf("%s: %+v, %v; want denied with a word on group %s", name, caller, err, api.AdminGroup)
		}
	}
	if _, err := (api.Admission{Self: 1, AdminGID: -1}).Admit(api.Peer{UID: 1000, GIDs: []int{-1}}); err == nil {
		t.Error("without an admin group a peer with group -1 was admitted")
	}
}

func TestWithoutADoorNothingIsAnswered(t *testing.T) {
	s := api.New(api.Config{Operator: &apitest.Operator{}, Publisher: &apitest.Publisher{}, Log: slog.New(slog.DiscardHandler)})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/v1/nodes", nil))
	if w.Code < 400 {
		t.Fatalf("a request that came through no door got status %d: %s", w.Code, w.Body)
	}
}

func TestTheSocketIsForTheAdminGroupAlone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := api.Listen(socket, 4242)
	if os.Getuid() != 0 {
		t.Skip("giving a socket to another group needs root")
	}
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer l.Close()
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o660 || st.Gid != 4242 {
		t.Fatalf("socket has mode %o and group %d, want 660 and 4242", info.Mode().Perm(), st.Gid)
	}
}

func TestAStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	live, err := api.Listen(socket, -1)
	if err != nil {
		t.Fatalf("listen over a stale socket: %v", err)
	}
	defer live.Close()
	_, err = api.Listen(socket, -1)
	wantCode(t, err, mesh.CodeConflict, "another control plane answers")

	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = api.Listen(plain, -1)
	wantCode(t, err, mesh.CodeConflict, "is not a socket")
}

func TestAnUnreachableControlPlaneIsExplainedWithTheNextStep(t *testing.T) {
	dir := t.TempDir()
	_, err := api.NewClient(filepath.Join(dir, "none.sock")).Nodes(t.Context())
	wantCode(t, err, mesh.CodeUnavailable, "no such socket", "systemctl start mesh-control", "--socket")

	dead := filepath.Join(dir, "dead.sock")
	l, listenErr := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if listenErr != nil {
		t.Fatal(listenErr)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	_, err = api.NewClient(dead).Nodes(t.Context())
	wantCode(t, err, mesh.CodeUnavailable, "nothing listens", "systemctl status mesh-control")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = start(t, nil).client.Nodes(ctx)
	wantCode(t, err, mesh.CodeUnavailable, "given up")
}

func TestSomethingElseAtTheSocketIsNotTakenForAControlPlane(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "other.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.NotFoundHandler()}
	go other.Serve(l)
	defer other.Close()

	_, err = api.NewClient(socket).Nodes(t.Context())

	wantCode(t, err, mesh.CodeInternal, "not a control plane")
}

func TestStoppingTheServerEndsItWithoutAnErrorAndRemovesTheSocket(t *testing.T) {
	p := start(t, nil)
	if _, err := p.client.Health(t.Context()); err != nil {
		t.Fatalf("health: %v", err)
	}
	if err := p.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if _, err := os.Stat(p.socket); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("socket after the stop: %v, want gone", err)
	}
}

func TestListsAreNeverNull(t *testing.T) {
	for _, path := range []string{"/v1/nodes", "/v1/declarations", "/v1/audit", "/v1/packages"} {
		_, body := ask(t, &apitest.Operator{}, "GET", path, "")
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(body), &list); err != nil || list == nil {
			t.Errorf("%s answers %s, want an empty list", path, body)
		}
	}
}
