package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/local"
)

// daemon answers with what it is given.
type daemon struct {
	err  error
	got  string
	wait bool // until the caller or the daemon is gone
}

func (d *daemon) Status(ctx context.Context) (host.Status, error) {
	if d.wait {
		<-ctx.Done()
		return host.Status{}, ctx.Err()
	}
	return host.Status{State: mesh.NodeHosted, Held: 3}, d.err
}

func (d *daemon) Enrol(_ context.Context, token string) (mesh.Enrolled, error) {
	d.got = token
	return mesh.Enrolled{Node: "web-1", Eligible: true}, d.err
}

func (d *daemon) Apply(_ context.Context, path string) (host.Status, error) {
	d.got = path
	return host.Status{Held: 4}, d.err
}

func (d *daemon) Look(context.Context) (host.Status, error) { return host.Status{Held: 5}, d.err }

// serve serves d on a socket until the test ends.
func serve(t *testing.T, d *daemon) (socket string, log *bytes.Buffer) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "run", "host.sock")
	log = &bytes.Buffer{}
	l, err := local.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- local.Serve(ctx, l, d, slog.New(slog.NewTextHandler(log, nil))) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("serving ended with %v", err)
		}
	})
	return socket, log
}

func TestOnlyRootCanOpenTheSocket(t *testing.T) {
	socket, _ := serve(t, &daemon{})
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	dir, err := os.Stat(filepath.Dir(socket))
	if err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("its directory is %v, %v", dir.Mode(), err)
	}
}

func TestEveryQuestionReachesTheDaemonAndItsAnswerComesBack(t *testing.T) {
	d := &daemon{}
	socket, _ := serve(t, d)
	c := local.NewClient(socket)
	if s, err := c.Status(t.Context()); err != nil || s.State != mesh.NodeHosted || s.Held != 3 {
		t.Errorf("status: %+v, %v", s, err)
	}
	if s, err := c.Look(t.Context()); err != nil || s.Held != 5 {
		t.Errorf("look: %+v, %v", s, err)
	}
	if e, err := c.Enrol(t.Context(), "the token"); err != nil || e.Node != "web-1" || !e.Eligible || d.got != "the token" {
		t.Errorf("enrol: %+v, %v, and the daemon got %q", e, err, d.got)
	}
	if s, err := c.Apply(t.Context(), "/the/bundle"); err != nil || s.Held != 4 || d.got != "/the/bundle" {
		t.Errorf("apply: %+v, %v, and the daemon got %q", s, err, d.got)
	}
}

func TestAnErrorKeepsItsCodeSentenceAndProblems(t *testing.T) {
	details := mesh.Problems{{File: "declaration.yaml", Line: 3, Path: "resources[0]", Message: "no"}}
	for name, c := range map[string]struct {
		err  error
		code mesh.Code
		says string
	}{
		"for the operator": {fmt.Errorf("wrapped: %w", mesh.Errorf(mesh.CodeConflict, "this machine is node web-1")), mesh.CodeConflict, "this machine is node web-1"},
		"with problems":    {&mesh.Error{Code: mesh.CodeInvalid, Message: "faults", Details: details}, mesh.CodeInvalid, "declaration.yaml:3: resources[0]: no"},
		"only problems":    {details, mesh.CodeInvalid, "declaration.yaml:3: resources[0]: no"},
		"any other":        {errors.New("disk full"), mesh.CodeInternal, "disk full"},
	} {
		t.Run(name, func(t *testing.T) {
			socket, _ := serve(t, &daemon{err: c.err})
			_, err := local.NewClient(socket).Enrol(t.Context(), "a token")
			if mesh.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it comes back as %q: %v", mesh.CodeOf(err), err)
			}
		})
	}
}

func TestATokenIsNotInTheLog(t *testing.T) {
	socket, log := serve(t, &daemon{err: errors.New("no")})
	if _, err := local.NewClient(socket).Enrol(t.Context(), "mesh1-secret"); err == nil {
		t.Fatal("no error")
	}
	if text := log.String(); !strings.Contains(text, "/v1/enrol") || strings.Contains(text, "mesh1-secret") {
		t.Errorf("the log is %q", text)
	}
}

func TestAQuestionThatIsWrittenWrongIsRefused(t *testing.T) {
	d := &daemon{}
	socket, _ := serve(t, d)
	raw := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	for _, body := range []string{"", "{", `{"token":"a","and":"more"}`, `{"token":"` + strings.Repeat("x", 70<<10) + `"}`} {
		resp, err := raw.Post("http://mesh-host/v1/enrol", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode == http.StatusOK || d.got != "" {
			t.Errorf("%.40q is answered with %s, and the daemon got %.40q", body, resp.Status, d.got)
		}
	}
	raw.CloseIdleConnections()
}

func TestTheClientSaysWhatToDoWhenTheDaemonIsNotThere(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.Listen("unix", left)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, socket := range map[string]string{"never started": filepath.Join(dir, "none.sock"), "was killed": left} {
		_, err := local.NewClient(socket).Status(t.Context())
		if mesh.CodeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), "systemctl status mesh-host") || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheClientSaysThatOnlyRootMayAsk(t *testing.T) {
	if socket := os.Getenv("MESH_TEST_SOCKET"); socket != "" {
		_, err := local.NewClient(socket).Status(t.Context())
		fmt.Printf("told: %s: %v\n", mesh.CodeOf(err), err)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	socket, _ := serve(t, &daemon{})
	open := func(dir string) {
		for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(filepath.Dir(socket))
	program := filepath.Join(t.TempDir(), "test")
	data, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	open(filepath.Dir(program))
	child := exec.Command(program, "-test.run=^TestTheClientSaysThatOnlyRootMayAsk$")
	child.Dir = filepath.Dir(program)
	child.Env = append(os.Environ(), "MESH_TEST_SOCKET="+socket)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "told: denied: only root may ask the host") {
		t.Errorf("another user is told %s, %v", out, err)
	}
}

func TestASocketOfAnEarlierLifeIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "host.sock")
	for range 2 {
		l, err := local.Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServingEndsAlsoWhileSomebodyWaits(t *testing.T) {
	d := &daemon{wait: true}
	socket := filepath.Join(t.TempDir(), "host.sock")
	l, err := local.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served, asked := make(chan error, 1), make(chan error, 1)
	go func() { served <- local.Serve(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	go func() {
		_, err := local.NewClient(socket).Status(context.Background())
		asked <- err
	}()
	cancel()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("serving ended with %v", err)
	}
	if err := <-asked; err == nil {
		t.Error("who waited was told that all is well")
	}
	if _, err := os.Stat(socket); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the socket is still there: %v", err)
	}
}
