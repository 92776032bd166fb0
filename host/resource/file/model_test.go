package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

// thing is what may stand at a path, or be wanted there.
type thing struct {
	kind    string // nothing, file, directory, link
	content string // or the target of a link
	mode    uint32
	owner   int
}

func anyThing(rt *rapid.T, label string) thing {
	return thing{
		kind:    rapid.SampledFrom([]string{"nothing", "file", "file", "directory", "link"}).Draw(rt, label),
		content: rapid.SampledFrom([]string{"A", "B", "AA"}).Draw(rt, label+" holds"),
		mode:    rapid.SampledFrom([]uint32{0o644, 0o600, 0o4755, 0o2710, 0o1777, 0o000}).Draw(rt, label+" mode"),
		owner:   rapid.SampledFrom([]int{0, 1234}).Draw(rt, label+" owner"),
	}
}

func (th thing) put(t *testing.T, path string) {
	t.Helper()
	var err error
	switch th.kind {
	case "nothing":
		return
	case "file":
		err = os.WriteFile(path, []byte(th.content), 0o600)
	case "directory":
		err = os.Mkdir(path, 0o700)
	case "link":
		err = os.Symlink(th.content, path)
	}
	if err == nil {
		err = os.Lchown(path, th.owner, th.owner)
	}
	if err == nil && th.kind != "link" {
		err = syscall.Chmod(path, th.mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// want declares the thing; what is left open is chosen too.
func (th thing) want(rt *rapid.T, path, label string) mesh.Resource {
	r := mesh.Resource{Kind: mesh.KindFile, Name: path, File: &mesh.FileSpec{}}
	switch th.kind {
	case "nothing":
		r.File.Absent = true
		return r
	case "file":
		r.File.Type = mesh.FileRegular
		r.File.SetContent([]byte(th.content))
	case "directory":
		r.File.Type = mesh.FileDirectory
	case "link":
		r.File.Type, r.File.Target = mesh.FileSymlink, th.content
	}
	if rapid.Bool().Draw(rt, label+" owner is declared") {
		r.File.Owner, r.File.Group = fmt.Sprint(th.owner), fmt.Sprint(th.owner)
	}
	if th.kind != "link" && rapid.Bool().Draw(rt, label+" mode is declared") {
		r.File.Mode = fmt.Sprintf("%04o", th.mode)
	}
	return r
}

// everything describes all that stands below the site's directory.
func (s *site) everything() string {
	s.t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(s.dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != s.dir {
			fmt.Fprintln(&all, strings.TrimPrefix(path, s.dir), describe(s.t, path))
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all.String()
}

// TestWhateverStoodThereAndIsDeclaredAllComesBack declares things at random over
// what stands there at random, with processes that begin anew and somebody's
// edits in between, and then declares nothing. It looks for what nobody thought
// of.
//
// Shows: M4, M6
func TestWhateverStoodThereAndIsDeclaredAllComesBack(t *testing.T) {
	names := []string{"a", "d", "d/a", "d/e", "d/e/a"}
	rapid.Check(t, func(rt *rapid.T) {
		s := newSite(t)
		for _, name := range names {
			if info, err := os.Lstat(filepath.Dir(s.path(name))); err == nil && info.IsDir() {
				anyThing(rt, "before "+name).put(t, s.path(name))
			}
		}
		before := s.everything()
		edited := false
		for pass := range rapid.IntRange(1, 5).Draw(rt, "passes") {
			label := func(name string) string { return fmt.Sprintf("%d %s", pass, name) }
			var declared []mesh.Resource
			for _, name := range rapid.Permutation(names).Draw(rt, label("order"))[:rapid.IntRange(0, len(names)).Draw(rt, label("declared"))] {
				declared = append(declared, anyThing(rt, label(name)).want(rt, s.path(name), label(name)))
			}
			s.declare(declared...)
			s.truthful(rt, declared)
			if rapid.IntRange(0, 3).Draw(rt, label("restart")) == 0 {
				s.restart()
			}
			name := rapid.SampledFrom(names).Draw(rt, label("edited"))
			if info, err := os.Lstat(s.path(name)); err == nil && info.Mode().IsRegular() && rapid.IntRange(0, 5).Draw(rt, label("edits")) == 0 {
				s.put(name, "somebody's", 0o640)
				edited = true
				s.declare()
				if data, err := os.ReadFile(s.path(name)); err != nil || string(data) != "somebody's" {
					rt.Fatalf("somebody's edit of %s is lost when nothing is declared: %q, %v", name, data, err)
				}
				break
			}
		}
		s.declare()
		same := s.traces()
		s.drift()
		if now := s.traces(); now != same {
			rt.Fatalf("a second pass wrote:\n%s\nand before\n%s", now, same)
		}
		if after := s.everything(); after != before && !edited {
			rt.Fatalf("before the mesh there was\n%s\nand after it there is\n%s\nand it says %+v", before, after, s.out)
		}
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

// truthful judges that what is called good is as it was declared, and that
// whatever is not has a reason and one sentence.
func (s *site) truthful(rt *rapid.T, declared []mesh.Resource) {
	for _, r := range s.out.Results {
		if !r.Status.Good() && (r.Reason == "" || r.Reason == mesh.ReasonInternal || r.Detail == "") {
			rt.Fatalf("%s is %s (%s) %q", r.Resource, r.Status, r.Reason, r.Detail)
		}
		i := slices.IndexFunc(declared, func(d mesh.Resource) bool { return d.ID() == r.Resource })
		if i < 0 || !r.Status.Good() {
			continue
		}
		f, have := declared[i].File, describe(s.t, declared[i].Name)
		wrong := false
		switch {
		case f.Absent:
			wrong = have != "nothing"
		case f.Type == mesh.FileRegular:
			wrong = !strings.Contains(have, f.SHA256)
		case f.Type == mesh.FileDirectory:
			wrong = have[0] != 'd'
		default:
			wrong = !strings.HasSuffix(have, " -> "+f.Target)
		}
		if f.Owner != "" && !f.Absent {
			wrong = wrong || !strings.Contains(have, fmt.Sprintf(" %s:%s", f.Owner, f.Group))
		}
		if f.Mode != "" {
			st := lstat(s.t, declared[i].Name)
			wrong = wrong || fmt.Sprintf("%04o", st.Mode&0o7777) != f.Mode
		}
		if wrong {
			rt.Fatalf("%s is said to be %s, wanted as %+v, and there is %s", r.Resource, r.Status, *f, have)
		}
	}
}
