package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/systemd"
)

// manager is the service manager's end of sd_notify.
type manager struct {
	conn *net.UnixConn
	seen []string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{conn: conn}
}

// await reads messages until one is the wanted one.
func (m *manager) await(t *testing.T, want string) {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			t.Fatalf("the service manager waits for %s in vain (%v); it heard %q", want, err, m.seen)
		}
		m.seen = append(m.seen, string(buf[:n]))
		if string(buf[:n]) == want {
			return
		}
	}
}

func TestTheServiceManagerHearsReadyOnlyWhenEverythingAnswers(t *testing.T) {
	m := newManager(t)
	t.Setenv("WATCHDOG_USEC", "2000000")
	notifier, err := systemd.TakeNotifier()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := defaults()
	c.stateDir, c.socket = filepath.Join(dir, "state"), filepath.Join(dir, "api.sock")
	c.linkListen, c.repositoryListen = "127.0.0.1:0", "127.0.0.1:0"
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, c, notifier, slog.New(slog.NewJSONHandler(&log, nil))) }()

	m.await(t, "READY=1")
	client := api.NewClient(c.socket)
	defer client.Close()
	if _, err := client.Health(ctx); err != nil {
		t.Fatalf("ready, and the operator socket does not answer: %v", err)
	}
	// The repository and the links are where the token says.
	repository, err := client.IssueToken(ctx, control.TokenRequest{})
	if err != nil || repository.Repository == nil {
		t.Fatalf("ready, and no token: %+v, %v", repository, err)
	}
	resp, err := http.Get(repository.Repository.KeyURL)
	if err != nil {
		t.Fatalf("ready, and the repository does not answer: %v", err)
	}
	key, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.HasPrefix(string(key), "-----BEGIN PGP PUBLIC KEY BLOCK-----") {
		t.Fatalf("the repository gives %q (%v) as its key", key, err)
	}
	m.await(t, "WATCHDOG=1")
	cancel()
	m.await(t, "STOPPING=1")
	if err := <-ended; err != nil {
		t.Fatalf("serve ended with %v\n%s", err, log.String())
	}
	for line := range strings.Lines(log.String()) {
		var record struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Level == "ERROR" {
			t.Errorf("an ordinary life logs an error: %s", line)
		}
	}
	if _, err := os.Stat(c.socket); err == nil {
		t.Error("the socket outlives the program")
	}
}

func TestTheWatchdogIsNotTouchedWhenTheOwnSocketDoesNotAnswer(t *testing.T) {
	m := newManager(t)
	t.Setenv("WATCHDOG_USEC", "80000")
	notifier, err := systemd.TakeNotifier()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()

	err = keepWatchdog(ctx, notifier, filepath.Join(t.TempDir(), "none.sock"), slog.New(slog.NewTextHandler(&log, nil)))

	if err != nil {
		t.Fatalf("keepWatchdog: %v", err)
	}
	if err := m.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := m.conn.Read(buf); err == nil {
		t.Fatalf("the service manager heard %q although nothing answered", buf[:n])
	}
	if !strings.Contains(log.String(), "watchdog not told") {
		t.Fatalf("the log %q does not say why", log.String())
	}
}
