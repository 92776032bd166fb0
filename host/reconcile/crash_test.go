//go:build fault

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/internal/fault"
)

// A life is one process of the host: it opens the store, makes one pass over
// the declaration of a stage, and ends; or dies at the point that the
// environment names. The machine and the store are directories, so they outlive
// it.
const (
	envDir   = "MESH_TEST_DIR"
	envStage = "MESH_TEST_STAGE"
	envStep  = "MESH_TEST_STEP" // die before this durable step; counted from 1
)

func TestMain(m *testing.M) {
	dir := os.Getenv(envDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	stage, err := strconv.Atoi(os.Getenv(envStage))
	if err != nil {
		fmt.Fprintln(os.Stderr, "no stage")
		os.Exit(2)
	}
	step, err := strconv.Atoi(os.Getenv(envStep))
	if err != nil {
		step = 0
	}
	if _, err := live(context.Background(), dir, stages[stage].declaration, step); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// before is the machine before the mesh came.
var before = map[mesh.ResourceID]string{
	"file:/replaced": "the admin's", "file:/existed": "same", "package:existed": "version 1", "file:/others": "never declared",
}

// stage is a step in the life of a machine.
type stage struct {
	name        string
	declaration mesh.Declaration
	// edits are made by somebody else before the pass.
	edits map[mesh.ResourceID]string
	// after is the machine when the pass has ended, and units what the service
	// manager must have seen since the last write of its resource.
	after  map[mesh.ResourceID]string
	units  []string
	drifts int
}

var stages = []stage{
	{
		name: "first declaration",
		declaration: mesh.Declaration{Generation: 1, Resources: []mesh.Resource{
			restarting(file("/created", "1"), "web.service"), file("/replaced", "1"), file("/existed", "same"),
			pack("p"), pack("q"), pack("existed"), restarting(file("/etc/systemd/system/x.service", "1"), "x.service"),
		}},
		after: map[mesh.ResourceID]string{
			"file:/created": "1", "file:/replaced": "1", "file:/existed": "same", "file:/etc/systemd/system/x.service": "1", "file:/others": "never declared",
			"package:p": "version 1", "package:q": "version 1", "package:existed": "version 1",
		},
		units: []string{"daemon-reload", "restart web.service", "restart x.service"},
	},
	{
		name:  "change, drift and removal",
		edits: map[mesh.ResourceID]string{"file:/created": "edited"},
		declaration: mesh.Declaration{Generation: 2, Resources: []mesh.Resource{
			restarting(file("/created", "1"), "web.service"), reloading(file("/replaced", "2"), "db.service"), pack("p"), pack("r"),
		}, Released: []mesh.ResourceID{"file:/existed", "package:existed", "package:q", "file:/etc/systemd/system/x.service"}},
		after: map[mesh.ResourceID]string{
			"file:/created": "1", "file:/replaced": "2", "file:/existed": "same", "file:/others": "never declared",
			"package:p": "version 1", "package:r": "version 1", "package:existed": "version 1",
		},
		units:  []string{"restart web.service", "reload db.service"},
		drifts: 1,
	},
	{
		name: "the end",
		declaration: mesh.Declaration{Generation: 3, Final: true, Released: []mesh.ResourceID{
			"file:/created", "file:/replaced", "package:p", "package:r",
		}},
		after: before,
	},
}

// live is one life, in this process. It returns how many durable steps it made.
func live(ctx context.Context, dir string, d mesh.Declaration, dieBefore int) (steps int, err error) {
	step := func() {
		steps++
		if steps == dieBefore {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				os.Exit(3)
			}
			select {}
		}
	}
	m, err := newMachine(filepath.Join(dir, "machine.json"))
	if err != nil {
		return 0, err
	}
	m.step = step
	st, _, err := store.Open(ctx, filepath.Join(dir, "state"), true, time.Now)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	r := reconcile.New(reconcile.Config{
		Store: stepping{st, step},
		Providers: []resource.Provider{
			announcing{newProvider(mesh.KindFile, m)}, &setProvider{provider: newProvider(mesh.KindPackage, m)},
		},
		Units: &serviceManager{file: filepath.Join(dir, "units"), step: step},
		Now:   time.Now, Log: quiet(),
	})
	_, err = r.Run(ctx, d, mesh.TriggerDeclared, never)
	return steps, err
}

// Shows: M5, M6
func TestAHostThatDiesAtAnyStepComesBackAndLosesNothing(t *testing.T) {
	if !fault.Enabled {
		t.Fatal("fault points are not compiled in")
	}
	points := faultPoints(t, ".")
	reached := make(map[string]bool)
	template := t.TempDir()
	begin(t, template)
	for i, stage := range stages {
		edit(t, template, stage.edits)
		total := t.TempDir()
		copyDir(t, template, total)
		steps, err := live(t.Context(), total, stage.declaration, 0)
		if err != nil {
			t.Fatal(err)
		}
		judge(t, total, stage)
		for n := 1; n <= steps; n++ {
			t.Run(fmt.Sprintf("%s/step %d", stage.name, n), func(t *testing.T) {
				if !die(t, template, i, envStep+"="+strconv.Itoa(n)) {
					t.Errorf("step %d of %d was not reached", n, steps)
				}
			})
		}
		for _, point := range points {
			t.Run(stage.name+"/"+point, func(t *testing.T) {
				if die(t, template, i, fault.EnvPoint+"="+point) {
					reached[point] = true
				}
			})
		}
		template = total
	}
	for _, point := range points {
		if !reached[point] {
			t.Errorf("no stage came to %s, so nothing is known of dying there", point)
		}
	}
}

// die has one life end at a point, looks at what it left, has further lives
// come, and judges where they arrive. It says whether the life died.
func die(t *testing.T, template string, number int, where string) bool {
	t.Helper()
	dir := t.TempDir()
	copyDir(t, template, dir)
	child := exec.Command(os.Args[0])
	// A life goes when the test does, however that ends: with the thread that
	// began it, which has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.Env = append(os.Environ(), envDir+"="+dir, envStage+"="+strconv.Itoa(number), where)
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	died := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !died {
		t.Fatalf("the life ended with %v and not by the point:\n%s", err, out)
	}
	honest(t, dir, stages[number])
	if _, err := live(t.Context(), dir, stages[number].declaration, 0); err != nil {
		t.Fatal(err)
	}
	judge(t, dir, stages[number])
	return died
}

// honest judges what a dead host left: nothing that it says is good differs
// from the machine, and whatever was touched can be undone.
func honest(t *testing.T, dir string, stage stage) {
	t.Helper()
	st := open(t, dir)
	defer closeNow(t, st)
	state, err := st.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(filepath.Join(dir, "machine.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range state.Ledger {
		i := slices.IndexFunc(stage.declaration.Resources, func(r mesh.Resource) bool { return r.ID() == e.Resource })
		if i < 0 || !e.Status.Good() || e.Generation != stage.declaration.Generation {
			continue
		}
		value, _ := wanted(stage.declaration.Resources[i])
		if m.things[e.Resource] != value {
			t.Errorf("the ledger says that %s is %s, and the machine holds %q", e.Resource, e.Status, m.things[e.Resource])
		}
	}
	for id, have := range m.things {
		was, there := before[id]
		if there && was == have {
			continue
		}
		o := slices.IndexFunc(state.Owned, func(o mesh.Owned) bool { return o.Resource == id })
		if o < 0 {
			t.Errorf("%s was written and is not owned: it could not be undone", id)
			continue
		}
		if want := fmt.Sprintf(`{"there":%v,"was":%q}`, there, was); whole(t, st, id) != want {
			t.Errorf("%s would be undone to %s, and before the mesh it was %s", id, whole(t, st, id), want)
		}
	}
}

// closeNow lets the next life have the store.
func closeNow(t *testing.T, st *store.Store) {
	t.Helper()
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// whole returns what is needed to undo a resource.
func whole(t *testing.T, st *store.Store, id mesh.ResourceID) string {
	t.Helper()
	owned, err := st.Owned(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return string(owned.Undo)
}

// judge judges where the machine arrived, and that the control plane was told.
func judge(t *testing.T, dir string, stage stage) {
	t.Helper()
	m, err := newMachine(filepath.Join(dir, "machine.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(m.things, stage.after) {
		t.Errorf("the machine holds %v, not %v", m.things, stage.after)
	}
	data, err := os.ReadFile(filepath.Join(dir, "units"))
	if err != nil && len(stage.units) > 0 {
		t.Error(err)
	}
	for _, want := range stage.units {
		if !slices.Contains(strings.Split(string(data), "\n"), want) {
			t.Errorf("the service manager never saw %q, only %q", want, data)
		}
	}
	st := open(t, dir)
	defer closeNow(t, st)
	state, err := st.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Units) != 0 {
		t.Errorf("unit actions are left: %v", state.Units)
	}
	declared := make(map[mesh.ResourceID]bool)
	for _, r := range stage.declaration.Resources {
		declared[r.ID()] = true
	}
	for _, e := range state.Ledger {
		if !declared[e.Resource] || !e.Status.Good() || e.Writing {
			t.Errorf("the ledger ends with %+v", e)
		}
	}
	for _, o := range state.Owned {
		if !declared[o.Resource] {
			t.Errorf("%s is owned and not declared", o.Resource)
		}
	}
	if len(state.Owned) != len(declared) || len(state.Ledger) != len(declared) {
		t.Errorf("%d resources are declared, %d in the ledger, %d owned", len(declared), len(state.Ledger), len(state.Owned))
	}
	told(t, st, stage)
}

func told(t *testing.T, st *store.Store, stage stage) {
	t.Helper()
	frames, err := st.Next(t.Context(), 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	control := newControlPlane()
	for _, f := range frames {
		if err := control.take(f); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := st.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if control.ledger() != sum.LedgerDigest || control.copyDigest() != sum.OwnedDigest {
		t.Errorf("the control plane was told other than what is: %v, %v", control.results, control.owned)
	}
	if r := control.lastReport(); r.Generation != stage.declaration.Generation || r.State != mesh.GenerationApplied {
		t.Errorf("the last report says that %s is %s", r.Generation, r.State)
	}
	if n := drifts(control.events); stage.drifts > 0 && n != stage.drifts {
		t.Errorf("%d drift events were told, not %d: %+v", n, stage.drifts, control.events)
	}
}

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	st, lost, err := store.Open(t.Context(), filepath.Join(dir, "state"), true, time.Now)
	if err != nil || lost != nil {
		t.Fatalf("open the store: %v, lost %+v", err, lost)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// begin makes the machine before the mesh, with a new store.
func begin(t *testing.T, dir string) {
	t.Helper()
	edit(t, dir, before)
	st, _, err := store.Open(t.Context(), filepath.Join(dir, "state"), false, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, dir string, edits map[mesh.ResourceID]string) {
	t.Helper()
	m, err := newMachine(filepath.Join(dir, "machine.json"))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(m.things, edits)
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	// What the service manager saw is judged for each stage by itself.
	if err := os.WriteFile(filepath.Join(to, "units"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

var pointCall = regexp.MustCompile(`fault\.Point\("([^"]+)"\)`)

// faultPoints lists the points in the code of a directory and below.
func faultPoints(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
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
