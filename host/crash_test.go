//go:build fault

package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/internal/fault"
)

// A life is one process of the daemon, over directories that outlive it: a
// machine that is a directory, the store, and the settings. It enrols when it
// has not, takes the declaration that it lacks, applies it, and ends.
const envLife = "MESH_TEST_LIFE"

func TestMain(m *testing.M) {
	dir := os.Getenv(envLife)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := live(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const (
	blob     = "content that travels by itself"
	original = "the admin's own\n"
)

// declarations are what the control plane sends, one after the other.
func declarations(machine string) []mesh.Declaration {
	spec := func(f mesh.FileSpec, content string) *mesh.FileSpec {
		f.Type = mesh.FileRegular
		f.SetContent([]byte(content))
		return &f
	}
	travels := spec(mesh.FileSpec{}, blob)
	travels.Content = nil
	at := func(name string, f *mesh.FileSpec) mesh.Resource {
		return mesh.Resource{Kind: mesh.KindFile, Name: filepath.Join(machine, name), File: f}
	}
	first := mesh.Declaration{Node: "web-1", Generation: 1, Resources: []mesh.Resource{
		at("dir", &mesh.FileSpec{Type: mesh.FileDirectory}), at("dir/made", travels),
		at("replaced", spec(mesh.FileSpec{Mode: "0600"}, "1\n")), at("link", &mesh.FileSpec{Type: mesh.FileSymlink, Target: "replaced"}),
		at("unwanted", &mesh.FileSpec{Absent: true}), at("moded", spec(mesh.FileSpec{Mode: "0600"}, original)),
		at("stays", spec(mesh.FileSpec{}, "1\n")), at("turned", &mesh.FileSpec{Type: mesh.FileDirectory}),
	}}
	second := mesh.Declaration{Node: "web-1", Generation: 2, Resources: []mesh.Resource{at("stays", spec(mesh.FileSpec{}, "2\n")), at("turned", spec(mesh.FileSpec{}, "2\n"))}}
	for _, r := range first.Resources[:6] {
		second.Released = append(second.Released, r.ID())
	}
	return []mesh.Declaration{first, second}
}

// before is the machine before the mesh, after is it at the end.
var (
	before = map[string]string{"replaced": original, "unwanted": original, "others": original, "moded": original}
	after  = map[string]string{"replaced": original, "unwanted": original, "others": original, "moded": original, "stays": "2\n", "turned": "2\n"}
)

func live(ctx context.Context, dir string) (err error) {
	st, _, err := store.Open(ctx, filepath.Join(dir, "state"), false, time.Now)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	quiet := slog.New(slog.DiscardHandler)
	settings := filepath.Join(dir, "host.yaml")
	s, err := host.LoadSettings(settings)
	if err != nil {
		return err
	}
	h := host.New(host.Config{
		Store: st, Describer: machine{}, Enroller: &control{}, Bundles: &bundles{}, Settings: s,
		Reconciler: reconcile.New(reconcile.Config{
			Store: st, Now: time.Now, Log: quiet,
			Providers: []resource.Provider{file.NewPatient(file.New(file.Config{Content: st}), file.Patience, func() {})},
		}),
		Save:   func(s host.Settings) error { return host.SaveSettings(settings, s) },
		Forget: func() error { return os.WriteFile(filepath.Join(dir, "identity"), []byte("new"), 0o600) },
		Dial:   func(host.Settings, *host.Host) host.Link { return &link{} },
		Settle: func(context.Context) error { return nil },
		Notify: &serviceManager{}, Now: time.Now, Log: quiet, Beats: host.NewBeats(time.Now),
	})
	asked, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	err = story(ctx, h, dir, s.Enrolled())
	cancel()
	ran := <-ended
	if asked.Err() != nil {
		// What was under way has no end, and the daemon has to have ended well.
		if errors.Is(ran, context.Canceled) {
			return nil
		}
		return ran
	}
	return errors.Join(err, ran)
}

// downloading is a point of this test: content is on its way.
const downloading = "test.downloading"

// fetch brings content that travels by itself. At its point it brings no more.
func fetch(ctx context.Context, _ string, w io.Writer) error {
	if _, err := io.WriteString(w, blob[:5]); err != nil {
		return err
	}
	fault.Point(downloading)
	if os.Getenv(fault.EnvPoint) == downloading {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := io.WriteString(w, blob[5:])
	return err
}

// story is what a host does in one life.
func story(ctx context.Context, h *host.Host, dir string, enrolled bool) error {
	if _, err := os.Stat(filepath.Join(dir, "left")); err == nil {
		// An earlier life was told that it has left.
		_, err := h.Look(ctx)
		return err
	}
	if !enrolled {
		if _, err := h.Enrol(ctx, token); err != nil {
			return err
		}
	}
	for _, d := range declarations(filepath.Join(dir, "machine")) {
		status, err := h.Status(ctx)
		if err != nil {
			return err
		}
		if status.Held < d.Generation {
			if r, err := h.Declare(ctx, d, fetch); err != nil || r.Refused != "" {
				return fmt.Errorf("declare %s: refused %q: %w", d.Generation, r.Refused, err)
			}
		}
		if status, err = h.Look(ctx); err != nil {
			return err
		}
		if status.Applied < d.Generation {
			return fmt.Errorf("%s was not applied: %+v", d.Generation, status.Results)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "leaves")); err == nil {
		return leave(ctx, h, dir)
	}
	return nil
}

// leave applies a final declaration and waits until the host belongs to no mesh.
func leave(ctx context.Context, h *host.Host, dir string) error {
	last := mesh.Declaration{Node: "web-1", Generation: 3, Final: true}
	for _, name := range []string{"stays", "turned"} {
		last.Released = append(last.Released, mesh.NewResourceID(mesh.KindFile, filepath.Join(dir, "machine", name)))
	}
	if _, err := h.Declare(ctx, last, noContent); err != nil {
		return err
	}
	if _, err := h.Look(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "left"), nil, 0o600); err != nil {
		return err
	}
	h.Retired(ctx, "as the test says")
	for {
		status, err := h.Status(ctx)
		if err != nil || status.State == mesh.NodeHosted {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// leavePoint begins the names of the points that a host comes to only when it
// leaves its mesh.
const leavePoint = "host.leave-"

// Shows: M5, M30
func TestAHostThatDiesWhileItLeavesBelongsToNoMeshInTheEnd(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files are written as root")
	}
	for _, point := range faultPoints(t) {
		if !strings.HasPrefix(point, leavePoint) {
			continue
		}
		t.Run(point, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range map[string]string{"leaves": "", "identity": "old"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(filepath.Join(dir, "machine"), 0o755); err != nil {
				t.Fatal(err)
			}
			if !life(t, dir, fault.EnvPoint+"="+point) {
				t.Fatal("no life came to this point, so nothing is known of dying there")
			}
			if life(t, dir, fault.EnvPoint+"=") {
				t.Fatal("a life without the point died")
			}
			s, err := host.LoadSettings(filepath.Join(dir, "host.yaml"))
			if err != nil || s.Enrolled() || len(s.Addresses) != 0 || s.Fingerprint != "" {
				t.Errorf("the settings are %+v, %v", s, err)
			}
			if identity, err := os.ReadFile(filepath.Join(dir, "identity")); err != nil || string(identity) != "new" {
				t.Errorf("the identity is %q, %v", identity, err)
			}
			st, lost, err := store.Open(t.Context(), filepath.Join(dir, "state"), false, time.Now)
			if err != nil || lost != nil {
				t.Fatalf("open the store: %v, lost %+v", err, lost)
			}
			sum, err := st.Summary(t.Context())
			leaving, leavingErr := st.Leaving(t.Context())
			if err := errors.Join(err, leavingErr, st.Close()); err != nil {
				t.Fatal(err)
			}
			if sum.Held != 0 || sum.Applied != 0 || len(sum.Ledger) != 0 || sum.Pending != 0 || leaving {
				t.Errorf("the store holds %+v, leaving %v", sum, leaving)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "machine")); err != nil || len(left) != 0 {
				t.Errorf("the machine holds %v, %v", left, err)
			}
		})
	}
}

// elsewhere are prefixes of points that no life of this test comes to.
var elsewhere = []string{
	leavePoint, // the lives of a node that retires
	"pkg.",     // test/lab/packages, on real package managers
	// host/upgrade, whose lives replace the program itself
	"upgrade.", "store.trial-", "store.settle-",
}

// Shows: M4, M5, M6
func TestADaemonThatDiesAtAnyPointComesBackAndFinishes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files are written as root")
	}
	for _, point := range daemonPoints(t) {
		t.Run(point, func(t *testing.T) {
			dir := beforeTheMesh(t)
			died := 0
			// Every life dies at the point, until a life no longer gets further
			// than the one before it.
			for range 4 {
				if life(t, dir, fault.EnvPoint+"="+point) {
					died++
				}
			}
			if died == 0 {
				t.Fatal("no life came to this point, so nothing is known of dying there")
			}
			if life(t, dir, fault.EnvPoint+"=") {
				t.Fatal("a life without the point died")
			}
			arrived(t, dir)
		})
	}
}

// daemonPoints are the points that the lives of a daemon come to.
func daemonPoints(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(faultPoints(t), func(p string) bool {
		return slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(p, prefix) })
	})
}

// beforeTheMesh makes a machine as it was.
func beforeTheMesh(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	place := filepath.Join(dir, "machine")
	if err := os.Mkdir(place, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range before {
		if err := os.WriteFile(filepath.Join(place, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Shows: M4, M5, M6
func TestADaemonThatIsAskedToEndAtAnyPointEndsWellAndTheNextOneFinishes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files are written as root")
	}
	for _, point := range append(daemonPoints(t), downloading) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := beforeTheMesh(t)
			for range 3 {
				// A life that does not end well fails the test.
				if life(t, dir, fault.EnvPoint+"="+point, fault.EnvTerm+"=yes") {
					t.Fatal("a life that was asked to end died")
				}
				err := filepath.WalkDir(filepath.Join(dir, "machine"), func(path string, _ fs.DirEntry, err error) error {
					if strings.Contains(path, ".mesh-") {
						t.Errorf("%s is left", path)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if life(t, dir, fault.EnvPoint+"=") {
				t.Fatal("a life without the point died")
			}
			arrived(t, dir)
		})
	}
}

// lifeLimit is much longer than any life takes, and shorter than the service
// manager waits for the end of one.
const lifeLimit = 50 * time.Second

func life(t *testing.T, dir string, where ...string) (died bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifeLimit)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	// A life goes when the test does, however that ends: with the thread that
	// began it, which has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.Env = append(append(os.Environ(), envLife+"="+dir), where...)
	out, err := child.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("a life has not ended within %s:\n%s", lifeLimit, out)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("a life ended with %v and not by the point:\n%s", err, out)
	}
	return false
}

// arrived judges the machine, and what is said of it.
func arrived(t *testing.T, dir string) {
	t.Helper()
	there := make(map[string]string)
	entries, err := os.ReadDir(filepath.Join(dir, "machine"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, "machine", e.Name()))
		if err != nil {
			t.Errorf("%s is left: %v", e.Name(), err)
		}
		there[e.Name()] = string(data)
		info, err := e.Info()
		if _, was := before[e.Name()]; was && (err != nil || info.Mode() != 0o640) {
			t.Errorf("%s was put back with mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if !maps.Equal(there, after) {
		t.Errorf("the machine holds %q", there)
	}
	s, err := host.LoadSettings(filepath.Join(dir, "host.yaml"))
	if err != nil || s.Node != "web-1" {
		t.Errorf("the settings are %+v, %v", s, err)
	}
	st, lost, err := store.Open(t.Context(), filepath.Join(dir, "state"), true, time.Now)
	if err != nil || lost != nil {
		t.Fatalf("open the store: %v, lost %+v", err, lost)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	sum, err := st.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owned, err := st.RecoveryCopy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if sum.Held != 2 || sum.Applied != 2 || len(sum.Ledger) != 2 || !sum.Ledger[0].Status.Good() || !sum.Ledger[1].Status.Good() || len(owned) != 2 || owned[0].Made != mesh.MadeCreated || owned[1].Made != mesh.MadeCreated {
		t.Errorf("it holds %s, applied %s, ledger %+v, owns %d", sum.Held, sum.Applied, sum.Ledger, len(owned))
	}
}

var pointCall = regexp.MustCompile(`fault\.Point\("([^"]+)"\)`)

// packageRoom has points that only a pass over packages comes to. They are
// killed at on real hosts, see test/lab/packages.
const packageRoom = "resource/pkg"

// faultPoints lists the points in the code of the host.
func faultPoints(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if strings.HasPrefix(path, packageRoom+"/") {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, match := range pointCall.FindAllSubmatch(source, -1) {
			names = append(names, string(match[1]))
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("found the points %q: %v", names, err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
