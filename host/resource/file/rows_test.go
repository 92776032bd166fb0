package file_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/reconcile"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"github.com/meshctl/mesh/host/store"
)

// site is a directory of a real file system with a host's reconciler, a real
// store and the real provider. A process that was started anew is opened with
// restart.
type site struct {
	t     *testing.T
	dir   string
	state string
	cfg   file.Config
	// patience of the provider with a call that gets nowhere. Zero: without end,
	// and every call is made by the thread of the test.
	patience time.Duration
	beats    int
	store    *store.Store
	r        *reconcile.Reconciler
	log      bytes.Buffer
	// generation and resources are of the last declaration.
	generation mesh.Generation
	resources  []mesh.Resource
	released   []mesh.ResourceID
	out        reconcile.Outcome
	events     []mesh.Event
	frames     bytes.Buffer
}

func newSite(t *testing.T) *site {
	t.Helper()
	needRoot(t)
	top := t.TempDir()
	s := &site{t: t, dir: filepath.Join(top, "fx"), state: filepath.Join(top, "state")}
	for _, dir := range []string{s.dir, s.state} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.cfg.PackageOf, s.patience = noPackage, file.Patience
	s.start()
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) start() {
	s.t.Helper()
	st, lost, err := store.Open(s.t.Context(), s.state, false, time.Now)
	if err != nil || lost != nil {
		s.t.Fatalf("open the store: %v, lost %v", err, lost)
	}
	log := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.store, s.cfg.Logger = st, log
	var provider resource.Provider = file.New(s.cfg)
	if s.patience > 0 {
		patient := file.NewPatient(file.New(s.cfg), s.patience, func() { s.beats++ })
		s.t.Cleanup(patient.Close)
		provider = patient
	}
	s.r = reconcile.New(reconcile.Config{Store: st, Providers: []resource.Provider{provider}, Now: time.Now, Log: log})
}

// restart ends the process and starts another one on the same state.
func (s *site) restart() {
	s.t.Helper()
	if err := s.store.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// declare makes a pass over a new generation with these resources. What was
// declared before and is not now is released.
func (s *site) declare(resources ...mesh.Resource) {
	s.t.Helper()
	for _, old := range s.resources {
		s.released = append(s.released, old.ID())
	}
	s.resources = resources
	s.generation++
	s.pass(mesh.TriggerDeclared)
}

// drift makes the pass that the timer makes.
func (s *site) drift() {
	s.t.Helper()
	s.pass(mesh.TriggerDrift)
}

func (s *site) pass(trigger mesh.Trigger) {
	s.t.Helper()
	d := mesh.Declaration{Node: "n", Generation: s.generation, Resources: s.resources, Released: s.released}
	if problems := d.Validate(); len(problems) > 0 {
		s.t.Fatalf("the declaration has faults: %v", problems)
	}
	out, err := s.r.Run(s.t.Context(), d, trigger, func() bool { return false })
	if err != nil {
		s.t.Fatalf("the pass ended with an error of the store: %v", err)
	}
	s.out, s.events = out, nil
	frames, err := s.store.Next(s.t.Context(), 0, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range frames {
		s.frames.Write(f.Body)
		if f.Type == mesh.FrameEvent {
			var e mesh.Event
			if err := json.Unmarshal(f.Body, &e); err != nil {
				s.t.Fatal(err)
			}
			s.events = append(s.events, e)
		}
		if err := s.store.Acked(s.t.Context(), f.Seq); err != nil {
			s.t.Fatal(err)
		}
	}
}

// result returns what the last pass says of the file with this name.
func (s *site) result(name string) mesh.Result {
	s.t.Helper()
	id := mesh.NewResourceID(mesh.KindFile, s.path(name))
	for _, r := range slices.Concat(s.out.Results, s.out.Removed) {
		if r.Resource == id {
			return r
		}
	}
	s.t.Fatalf("the report says nothing of %s: %+v", name, s.out)
	return mesh.Result{}
}

// says judges status and reason.
func (s *site) says(name string, status mesh.Status, reason mesh.Reason) {
	s.t.Helper()
	if r := s.result(name); r.Status != status || r.Reason != reason {
		s.t.Errorf("%s is reported %s (%s) %q, not %s (%s)", name, r.Status, r.Reason, r.Detail, status, reason)
	}
}

// notes judges that what is said of the file holds these words.
func (s *site) notes(name string, words ...string) {
	s.t.Helper()
	for _, w := range words {
		if r := s.result(name); !strings.Contains(r.Detail, w) {
			s.t.Errorf("what is said of %s lacks %q: %q", name, w, r.Detail)
		}
	}
}

// drifted judges that exactly one drift was told, with these words in it.
func (s *site) drifted(words ...string) {
	s.t.Helper()
	if len(s.events) != 1 || s.events[0].Kind != mesh.EventDrift {
		s.t.Fatalf("the events are %+v; want one drift", s.events)
	}
	for _, w := range words {
		if !strings.Contains(s.events[0].Detail, w) {
			s.t.Errorf("the drift lacks %q: %q", w, s.events[0].Detail)
		}
	}
}

// is judges what stands at a name: nothing, or content, or what describe says.
func (s *site) is(name, content string) {
	s.t.Helper()
	data, err := os.ReadFile(s.path(name))
	if err != nil || string(data) != content {
		s.t.Errorf("%s holds %.80q, %v; want %.80q", name, data, err, content)
	}
}

func (s *site) gone(name string) {
	s.t.Helper()
	if got := describe(s.t, s.path(name)); got != "nothing" {
		s.t.Errorf("at %s there is %s; want nothing", name, got)
	}
}

// standsAs judges type, mode and owner, as in "-rw-r--r-- 0:0".
func (s *site) standsAs(name, want string) {
	s.t.Helper()
	if got := describe(s.t, s.path(name)); !strings.HasPrefix(got, want) {
		s.t.Errorf("%s is %s; want %s", name, got, want)
	}
}

// traces changes with every write below the site's directory.
func (s *site) traces() string {
	s.t.Helper()
	return machine{dir: s.dir}.Writes(s.t)
}

// untouched returns a judgement that nothing below the site's directory was
// written since.
func (s *site) untouched() func() {
	s.t.Helper()
	before := s.traces()
	return func() {
		s.t.Helper()
		if after := s.traces(); after != before {
			s.t.Errorf("something was written: before\n%safter\n%s", before, after)
		}
	}
}

// settled judges that one more pass writes nothing and says the same: ok of what
// is right, and of what is not the same status and reason.
func (s *site) settled() {
	s.t.Helper()
	was := s.out
	same := s.untouched()
	s.drift()
	same()
	for _, before := range was.Results {
		i := slices.IndexFunc(s.out.Results, func(r mesh.Result) bool { return r.Resource == before.Resource })
		if i < 0 {
			s.t.Errorf("the second pass says nothing of %s", before.Resource)
			continue
		}
		now := s.out.Results[i]
		if before.Status.Good() && now.Status != mesh.StatusOK {
			s.t.Errorf("%s was %s, and the second pass says %s (%s) %s", now.Resource, before.Status, now.Status, now.Reason, now.Detail)
		}
		if !before.Status.Good() && (now.Status != before.Status || now.Reason != before.Reason) {
			s.t.Errorf("%s was %s (%s), and the second pass says %s (%s)", now.Resource, before.Status, before.Reason, now.Status, now.Reason)
		}
	}
	if len(s.events) > 0 {
		s.t.Errorf("the second pass tells of %+v", s.events)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, ".*.mesh-*"))
	if err != nil || len(left) > 0 {
		s.t.Errorf("temporaries are left: %q, %v", left, err)
	}
}

func (s *site) put(name, content string, mode fs.FileMode) {
	s.t.Helper()
	put(s.t, s.path(name), content, mode)
}

func (s *site) chown(name string, uid, gid int) {
	s.t.Helper()
	mode := fs.FileMode(0)
	info, err := os.Lstat(s.path(name))
	if err == nil {
		mode = info.Mode()
		err = os.Lchown(s.path(name), uid, gid)
	}
	if err == nil && mode&fs.ModeSymlink == 0 {
		// Changing the owner takes set-id bits away.
		err = os.Chmod(s.path(name), mode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) mkdir(name string, mode fs.FileMode) string {
	s.t.Helper()
	if err := os.Mkdir(s.path(name), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chmod(s.path(name), mode); err != nil {
		s.t.Fatal(err)
	}
	return s.path(name)
}

func (s *site) link(name, target string) {
	s.t.Helper()
	if err := os.Symlink(target, s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// open returns a regular file of which nothing but the content is declared.
func (s *site) open(name, content string) mesh.Resource {
	f := regular(s.path(name), content)
	f.File.Mode = ""
	return f
}

// file returns a regular file with owner, group and mode declared.
func (s *site) file(name, content string) mesh.Resource {
	f := regular(s.path(name), content)
	f.File.Owner, f.File.Group = "root", "root"
	return f
}

// row is one case from practice: what it is called is in docs/cases.md.
type row struct {
	number string
	test   func(t *testing.T, s *site)
}

// rows runs each row on a site of its own. The test leaves the site as the last
// pass did, and what all rows have in common is judged then: one more pass
// writes nothing and says the same.
func rows(t *testing.T, table []row) {
	t.Helper()
	for _, r := range table {
		t.Run(r.number, func(t *testing.T) {
			s := newSite(t)
			r.test(t, s)
			if !t.Failed() && s.generation > 0 {
				s.settled()
			}
		})
	}
}

// rowsNotRun lists the cases of files that no test here runs, or whose usual
// expectation is not met, with the reason.
var rowsNotRun = map[string]string{
	"O-047": "what the host must put right without a link it has to hold: the declaration in its store, which only root can read, has the content of a sensitive file; nothing else has",
	"O-152": "a clone is refused by the control plane and gets nothing that is declared for the original; it goes on with what it was copied with, like any node without a link, until it is given an identity of its own",
	"O-027": "needs a kernel with SELinux in force; which class of file the policy is asked for, and that its answer is set, is tested with a policy of the test's own (O-028)",
}

func TestEveryCaseIsRunOrSaysWhyNot(t *testing.T) {
	for number, reason := range rowsNotRun {
		if !strings.HasPrefix(number, "O-") || len(reason) < 20 {
			t.Errorf("%s is not run, and the reason is %q", number, reason)
		}
	}
}

func noPackage(context.Context, string) string { return "" }
