package pkg_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/pkgtest"
)

// telling is a manager with everything that a manager may have to say.
type telling struct {
	*pkgtest.Fake
	notes   []pkg.Note
	certain []string
	// finished lists what Finish took away.
	finished []string
}

func (m *telling) Notes() []pkg.Note {
	n := m.notes
	m.notes = nil
	return n
}

func (m *telling) Certain(_ context.Context, name string) bool {
	return slices.Contains(m.certain, name)
}

func (m *telling) Finish(_ context.Context, t pkg.Target, others []string) error {
	for _, version := range others {
		m.finished = append(m.finished, t.Name+" "+version)
		m.Entries = slices.DeleteFunc(m.Entries, func(e pkg.Installed) bool { return e.Name == t.Name && e.Version == version })
	}
	return nil
}

type watching struct {
	looks []pkg.Watch
	// blind is how many looks are not possible at first.
	blind int
}

func (w *watching) Watch(context.Context) (pkg.Watch, error) {
	if w.blind > 0 {
		w.blind--
		return pkg.Watch{}, errors.New("no answer")
	}
	now := w.looks[0]
	w.looks = w.looks[1:]
	return now, nil
}

func change(want mesh.Resource) []resource.Change { return []resource.Change{{Want: want}} }

func TestWhatATransactionDidBesidesIsTold(t *testing.T) {
	m := &telling{Fake: pkgtest.NewFake(repository()), notes: []pkg.Note{{Package: "needs", Text: "the file was kept"}, {Text: "about all"}}}
	w := &watching{looks: []pkg.Watch{{Active: []string{"down.service"}}, {Active: []string{"up.service"}, Outdated: []string{"old.service"}}}}
	p := pkg.New(pkg.Config{Manager: m, Services: w})
	p.StartPass(t.Context(), nil)
	if errs := p.ApplySet(t.Context(), change(present("needs", "1"))); errs[0] != nil {
		t.Fatal(errs[0])
	}
	note := strings.Join(p.Notes(context.Background(), present("needs", "1")), "; ")
	for _, word := range []string{"with it came fx 2", "the file was kept", "about all", "now running: up.service", "no longer running: down.service", "restart", "old.service"} {
		if !strings.Contains(note, word) {
			t.Errorf("it is not told that %q: %s", word, note)
		}
	}
	p.StartPass(t.Context(), nil)
	if note := strings.Join(p.Notes(context.Background(), present("needs", "1")), "; "); note != "" {
		t.Errorf("the next pass still tells %q", note)
	}
}

// Shows: M4
func TestOfServicesThatNobodySawBeforeNothingIsTold(t *testing.T) {
	w := &watching{blind: 1, looks: []pkg.Watch{{Active: []string{"ran-all-the-time.service"}}}}
	p := pkg.New(pkg.Config{Manager: pkgtest.NewFake(repository()), Services: w})
	p.StartPass(t.Context(), nil)
	if errs := p.ApplySet(t.Context(), change(present("fx", "1"))); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if note := strings.Join(p.Notes(context.Background(), present("fx", "1")), "; "); note != "" {
		t.Errorf("told is %q", note)
	}
}

func TestThatTheToolReportedAnErrorIsToldBesideAChange(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Lie = pkgtest.LieFailed
	p := pkg.New(pkg.Config{Manager: f})
	if errs := p.ApplySet(t.Context(), change(present("fx", "1"))); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if note := strings.Join(p.Notes(context.Background(), present("fx", "1")), "; "); !strings.Contains(note, "the tool ended with 1") {
		t.Errorf("told is %q", note)
	}
}

func TestARepositoryThatDoesNotAnswerStopsOnlyWhatItCouldDecide(t *testing.T) {
	m := &telling{Fake: pkgtest.NewFake(repository()), certain: []string{"fx", "nosuch"}}
	m.Unreachable = true
	p := pkg.New(pkg.Config{Manager: m})
	p.StartPass(t.Context(), nil)
	errs := p.ApplySet(t.Context(), []resource.Change{{Want: present("fx", "")}, {Want: present("ot", "")}, {Want: present("nosuch", "1")}, {Want: present("other", "1")}})
	if errs[0] != nil {
		t.Errorf("what no silent repository offers is %v", errs[0])
	}
	for i, want := range map[int]string{1: "failed repository-unreachable", 2: "failed not-available", 3: "failed repository-unreachable"} {
		if got := word(errs[i]); got != want {
			t.Errorf("package %d is %q, want %q", i, got, want)
		}
	}
}

func TestOnePackageUnderTwoNamesIsRefusedTheSecondTime(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1")
	for range 2 {
		wantWords(t, try(t, f, present("fx", "1"), present("fx:here", "2"), present("fx:elsewhere", "9")), "ok", "failed declared-twice", "failed not-available")
	}
}

func TestAPlanThatTheNextPassWouldUndoIsRefused(t *testing.T) {
	f := pkgtest.NewFake(repository())
	wantWords(t, try(t, f, present("needs", ""), gone("fx")), "failed unmet-dependency", "ok")
	if f.Entry("fx") != nil || f.Entry("needs") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

// Shows: M5
func TestAnUpgradeThatWasCutIsFinishedWhenItWasOurs(t *testing.T) {
	for _, c := range []struct {
		version string
		resumed bool
		left    []string
		took    []string
	}{
		{"2", true, []string{"2"}, []string{"fx 1"}},
		{"", true, []string{"2"}, []string{"fx 1"}},
		{"2", false, []string{"1", "2"}, nil},
		{"9", true, []string{"1", "2"}, nil},
	} {
		m := &telling{Fake: pkgtest.NewFake(repository())}
		m.Put("fx", "1")
		second := *m.Entry("fx")
		second.Version = "2"
		m.Entries = append(m.Entries, second)
		errs := pkg.New(pkg.Config{Manager: m}).ApplySet(t.Context(), []resource.Change{{Want: present("fx", c.version), Resumed: c.resumed}})
		var left []string
		for _, e := range m.Entries {
			if e.Name == "fx" {
				left = append(left, e.Version)
			}
		}
		if !slices.Equal(left, c.left) || !slices.Equal(m.finished, c.took) || (errs[0] == nil) != (c.took != nil) {
			t.Errorf("version %q, resumed %t: left %q, took away %q, %v", c.version, c.resumed, left, m.finished, errs[0])
		}
	}
}

// Shows: M6
func TestWhatCameAlongInThisPassWasNotThereBefore(t *testing.T) {
	f := pkgtest.NewFake(repository())
	p := pkg.New(pkg.Config{Manager: f})
	p.StartPass(t.Context(), nil)
	if _, err := p.Check(t.Context(), present("needs", "")); err != nil {
		t.Fatal(err)
	}
	if errs := p.ApplySet(t.Context(), change(present("needs", ""))); errs[0] != nil {
		t.Fatal(errs[0])
	}
	owned, err := p.Capture(t.Context(), present("fx", ""))
	if err != nil || owned.Made != mesh.MadeCreated {
		t.Errorf("fx, which came with needs, was captured as %q, %v", owned.Made, err)
	}
}
