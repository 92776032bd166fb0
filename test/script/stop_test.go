package script

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/host/link"
	"github.com/meshctl/mesh/internal/sqlite"
)

// life is a control plane in a directory of its own, started and stopped as the
// service manager does it.
type life struct {
	t     *testing.T
	dir   string
	log   bytes.Buffer
	cmd   *exec.Cmd
	ended chan error
}

func newLife(t *testing.T, keys bool) *life {
	t.Helper()
	l := &life{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(l.dir, "control.yaml"), fmt.Appendf(nil, configuration, l.dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.path("state", "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if keys {
		if err := copyFiles(l.path("state", "keys"), built.keys); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *life) path(elem ...string) string { return filepath.Join(append([]string{l.dir}, elem...)...) }

// begin starts the program and waits for nothing.
func (l *life) begin() {
	l.t.Helper()
	l.log.Reset()
	l.cmd = exec.Command(filepath.Join(built.bin, "mesh-control"), "serve", "--config", l.path("control.yaml"))
	l.cmd.Stdout, l.cmd.Stderr = &l.log, &l.log
	if err := l.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }(l.cmd, l.ended)
	process := l.cmd.Process
	l.t.Cleanup(func() { _ = process.Kill() })
}

// await waits until what says so; the program must not end before.
func (l *life) await(what string, so func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-l.ended:
			l.t.Fatalf("it ended (%v) before %s\n%s", err, what, l.log.String())
		default:
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("waiting for this in vain: %s", what)
		}
	}
}

// stop tells the program to end, has meanwhile done, and wants it to end well.
func (l *life) stop(meanwhile func()) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		l.t.Fatal(err)
	}
	if meanwhile != nil {
		meanwhile()
	}
	if err := <-l.ended; err != nil {
		l.t.Fatalf("told to stop it ended with %v\n%s", err, l.log.String())
	}
	if strings.Contains(l.log.String(), "panic") {
		l.t.Errorf("its log is\n%s", l.log.String())
	}
}

// start starts the program and returns a client when it answers.
func (l *life) start() *api.Client {
	l.t.Helper()
	l.begin()
	client := api.NewClient(l.path("api.sock"))
	l.t.Cleanup(client.Close)
	l.await("it answers", func() bool {
		_, err := client.Health(l.t.Context())
		return err == nil
	})
	return client
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestAFirstStartThatIsStoppedWhileItMakesItsKeysEndsWellAndTheNextGoesOn(t *testing.T) {
	l := newLife(t, false)
	l.begin()
	var made []byte
	l.await("it has made its first key", func() bool {
		made, _ = os.ReadFile(l.path("state", "keys", "link_ed25519"))
		return len(made) > 0
	})
	l.stop(nil)
	l.start()
	if kept, err := os.ReadFile(l.path("state", "keys", "link_ed25519")); err != nil || !bytes.Equal(kept, made) {
		t.Errorf("the key that was made before is not the one that is used: %v", err)
	}
	l.stop(nil)
}

func TestAStartThatIsStoppedWhileItMigratesLeavesTheDatabaseAsItWasOrWhole(t *testing.T) {
	l := newLife(t, true)
	const scripts = "../../control/store/migrations"
	all, err := fs.Glob(os.DirFS(scripts), "*.sql")
	if err != nil || len(all) < 2 {
		t.Fatalf("there are %d migrations, %v", len(all), err)
	}
	older := fstest.MapFS{}
	for _, name := range all[:len(all)-1] {
		text, err := os.ReadFile(filepath.Join(scripts, name))
		if err != nil {
			t.Fatal(err)
		}
		older[name] = &fstest.MapFile{Data: text}
	}
	file := l.path("state", "control.db")
	db, err := sqlite.Open(t.Context(), file, older)
	if err != nil {
		t.Fatal(err)
	}
	schema := func() (n int) {
		t.Helper()
		if err := db.QueryRow("PRAGMA user_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// Another program writes, so that the migration cannot begin yet.
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	l.begin()
	l.await("it has made a copy and begins to migrate", func() bool { return exists(fmt.Sprintf("%s.before-%d", file, len(all))) })
	l.stop(func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	})
	if n := schema(); n != len(all)-1 && n != len(all) {
		t.Errorf("the database has schema %d", n)
	}
	l.start()
	if n := schema(); n != len(all) {
		t.Errorf("after the next start the database has schema %d, want %d", n, len(all))
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	l.stop(nil)
}

// stuck is a host that takes a declaration and never comes to the end of its
// content.
type stuck struct {
	name    string
	fetches chan struct{}
	taken   chan mesh.Declaration
}

func (h *stuck) Hello(context.Context) (mesh.Hello, error) {
	return mesh.Hello{ProtocolMin: 1, ProtocolMax: 1, Node: h.name, HostVersion: "1.0-1", StoreID: "s", BootID: "b", MachineIDHash: mesh.SecretHash(h.name)}, nil
}
func (h *stuck) Heartbeat(context.Context) (mesh.Heartbeat, error) { return mesh.Heartbeat{}, nil }
func (h *stuck) Describe(context.Context, string) (any, mesh.FrameType, error) {
	return nil, "", errors.New("nothing is said")
}
func (h *stuck) Want(context.Context, []string) error                    { return nil }
func (h *stuck) Recover(context.Context, mesh.Recover) error             { return nil }
func (h *stuck) Revoked(context.Context, string)                         {}
func (h *stuck) Acked(context.Context, uint64) error                     { return nil }
func (h *stuck) Changed() <-chan struct{}                                { return nil }
func (h *stuck) Next(context.Context, uint64, int) ([]mesh.Frame, error) { return nil, nil }

func (h *stuck) Declare(ctx context.Context, d mesh.Declaration, fetch func(context.Context, string, io.Writer) error) (mesh.Received, error) {
	for _, sum := range d.Blobs() {
		if err := fetch(ctx, sum, h); err != nil {
			return mesh.Received{}, err
		}
	}
	select {
	case h.taken <- d:
	default:
	}
	return mesh.Received{Generation: d.Generation, Held: d.Generation}, nil
}

// Write takes the first bytes of content, and then takes its time.
func (h *stuck) Write(p []byte) (int, error) {
	if h.fetches == nil {
		return len(p), nil
	}
	select {
	case h.fetches <- struct{}{}:
	default:
	}
	time.Sleep(50 * time.Millisecond)
	return len(p), nil
}

// connect keeps the host connected until what it returns is called.
func (h *stuck) connect(t *testing.T, token mesh.Token, key link.Config) (leave func()) {
	t.Helper()
	key.Addresses, key.Fingerprint, key.Host, key.Outbox = token.Addresses, token.Fingerprint, h, h
	key.Log = slog.New(slog.DiscardHandler)
	client, err := link.New(key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- client.Run(ctx) }()
	return func() {
		cancel()
		<-ran
	}
}

func contentOf(size int, fill byte) ([]byte, string) {
	data := bytes.Repeat([]byte{fill}, size)
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])
}

// Shows: M5, M8
func TestAControlPlaneThatIsStoppedInTheMiddleOfEverythingEndsWellAndLosesNothingThatItAnswered(t *testing.T) {
	l := newLife(t, true)
	client := l.start()
	ctx := t.Context()
	issued, err := client.IssueToken(ctx, control.TokenRequest{Name: "web-1", Addresses: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := mesh.ParseToken(issued.Token)
	if err != nil {
		t.Fatal(err)
	}
	token.Addresses = []string{l.linkAddress()}
	key, err := link.LoadOrCreateKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := link.Enrol(ctx, token, key, mesh.Enrol{
		ProtocolMin: 1, ProtocolMax: 1, HostVersion: "1.0-1", Hostname: "web-1",
		Profile:  mesh.Profile{OS: mesh.OS{ID: "debian", Version: "12", Family: "debian"}, Arch: "amd64", MachineIDHash: mesh.SecretHash("web-1")},
		Briefing: mesh.Briefing{Lines: []mesh.Line{{Check: "c", Outcome: mesh.OutcomePass}}},
	}); err != nil {
		t.Fatal(err)
	}

	// A push is under way,
	pushed, pushedSum := contentOf(8<<20, 'p')
	if err := client.PutBlob(ctx, pushedSum, bytes.NewReader(pushed)); err != nil {
		t.Fatal(err)
	}
	large := mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/srv/large", File: &mesh.FileSpec{SHA256: pushedSum, Size: int64(len(pushed))}}}
	if _, err := client.Declare(ctx, mesh.Document{Declaration: "large", Resources: []mesh.DocumentResource{large}}); err != nil {
		t.Fatal(err)
	}
	h := &stuck{name: "web-1", fetches: make(chan struct{}, 1)}
	leave := h.connect(t, token, link.Config{Key: key})
	defer func() { leave() }()
	<-h.fetches
	// a handshake,
	shaking, err := net.Dial("tcp", l.linkAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer shaking.Close()
	if _, err := shaking.Write([]byte("SSH-2.0-half\r\n")); err != nil {
		t.Fatal(err)
	}
	// an upload of content and one of a package,
	_, halfSum := contentOf(1<<20, 'h')
	uploads := make(chan error, 2)
	content, sendContent := io.Pipe()
	packages, sendPackage := io.Pipe()
	go func() { uploads <- client.PutBlob(ctx, halfSum, content) }()
	go func() {
		_, err := client.Publish(ctx, "stable", []api.Upload{{Name: "x.deb", Body: packages}})
		uploads <- err
	}()
	for _, w := range []io.Writer{sendContent, sendPackage} {
		if _, err := w.Write(bytes.Repeat([]byte{'h'}, 100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	l.await("half the uploads are there", func() bool {
		spooled, _ := filepath.Glob(l.path("state", "uploads", "upload-*", "*"))
		return exists(l.path("state", "blobs", "incoming", "0")) && len(spooled) == 1
	})
	// and one declaration after the other is written.
	written := make(chan int, 1)
	begun := make(chan struct{})
	go func() {
		answered := 0
		for {
			spec := &mesh.FileSpec{}
			spec.SetContent(fmt.Append(nil, answered+1))
			r := mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/motd", File: spec}}
			if _, err := client.Declare(ctx, mesh.Document{Declaration: "small", Resources: []mesh.DocumentResource{r}}); err != nil {
				written <- answered
				return
			}
			if answered++; answered == 5 {
				close(begun)
			}
		}
	}()
	<-begun

	l.stop(nil)

	answered := <-written
	// The files that were being sent come to no end by themselves.
	for _, half := range []*io.PipeWriter{sendContent, sendPackage} {
		if err := half.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := <-uploads; err == nil {
			t.Error("half an upload is called a success")
		}
	}
	leave()
	leave = func() {}

	client = l.start()
	view, err := client.Declaration(ctx, "small", 0)
	if err != nil {
		t.Fatal(err)
	}
	// The last one may have been written without an answer that arrived.
	if n := int(view.Revision); n != answered && n != answered+1 || string(view.Document.Resources[0].File.Content) != fmt.Sprint(n) {
		t.Errorf("%d writes were answered, and the newest revision is %d with %q", answered, view.Revision, view.Document.Resources[0].File.Content)
	}
	missing, err := client.MissingBlobs(ctx, []string{pushedSum, halfSum})
	if err != nil || len(missing) != 1 || missing[0] != halfSum {
		t.Errorf("missing is %v, %v; want what was half uploaded", missing, err)
	}
	for _, dir := range []string{l.path("state", "uploads"), l.path("state", "blobs", "incoming"), l.path("state", "pool", ".incoming")} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s holds %v, %v", dir, entries, err)
		}
	}
	// The node comes back and gets the newest, whole.
	token.Addresses = []string{l.linkAddress()}
	again := &stuck{name: "web-1", taken: make(chan mesh.Declaration, 1)}
	leave = again.connect(t, token, link.Config{Key: key})
	if d := <-again.taken; len(d.Resources) != 2 {
		t.Errorf("the node gets %d resources, want 2", len(d.Resources))
	}
	l.stop(nil)
}

// linkAddress is where the log says that links arrive.
func (l *life) linkAddress() string {
	l.t.Helper()
	_, after, found := strings.Cut(l.log.String(), "links=")
	if !found {
		l.t.Fatalf("its log does not say where it listens:\n%s", l.log.String())
	}
	address, _, _ := strings.Cut(after, " ")
	return strings.Trim(address, "\"\n")
}
