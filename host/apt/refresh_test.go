package apt_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// ended is a pkg.Runner whose commands end in this way.
type ended pkg.Outcome

func (e ended) Run(context.Context, pkg.Command) (pkg.Outcome, error) { return pkg.Outcome(e), nil }

// answering is a pkg.Reader that answers a program, by the last part of its path,
// or by its first argument, with a text, and says nothing else.
type answering map[string]string

func (a answering) Read(_ context.Context, argv, _ []string) (pkg.Reading, error) {
	for _, word := range []string{argv[0][strings.LastIndexByte(argv[0], '/')+1:], argv[1]} {
		if text, known := a[word]; known {
			return pkg.Reading{Stdout: text}, nil
		}
	}
	return pkg.Reading{}, nil
}

func TestWhatASilentRepositoryOffersIsCertainOnlyWhenAptNamesEachThatIsSilent(t *testing.T) {
	const silent = "E: Failed to fetch http://a.example/dists/x/InRelease  Could not connect\n"
	// By the index of then the one repository offers no fx.
	indexes := answering{"indextargets": "Packages http://a.example/ /lists/a\n", "apt-helper": "Package: other\nVersion: 1\n"}
	for _, c := range []struct {
		name string
		out  pkg.Outcome
		want bool
	}{
		{"one repository is silent and named", pkg.Outcome{ExitStatus: 100, Output: silent}, true},
		{"apt sums up at the end", pkg.Outcome{Output: silent + "W: Some index files failed to download. They have been ignored, or old ones used instead.\n"}, true},
		{"the disk is full besides", pkg.Outcome{ExitStatus: 100, Output: silent + "E: Write error - write (28: No space left on device)\n"}, false},
		{"no repository is named", pkg.Outcome{ExitStatus: 100, Output: "E: The list of sources could not be read.\n"}, false},
		{"apt ends with an error and says nothing", pkg.Outcome{ExitStatus: 100}, false},
		{"apt was stopped", pkg.Outcome{ExitStatus: -1, TimedOut: true, Output: silent}, false},
		{"more is complained of than is kept", pkg.Outcome{ExitStatus: 100, Output: many(30)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := apt.New(apt.Config{Runner: ended(c.out), Reader: indexes, StateDir: t.TempDir()})
			if err := m.Refresh(t.Context()); err == nil {
				t.Fatal("the refresh says that every repository answered")
			}
			if got := m.Certain(t.Context(), "fx"); got != c.want {
				t.Errorf("certain is %t, want %t", got, c.want)
			}
		})
	}
}

// many are complaints about n files of the one repository.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("E: Failed to fetch http://a.example/dists/x/" + strings.Repeat("i", i+1) + "  404\n")
	}
	return b.String()
}

// unasked is a pkg.Reader for which apt-cache ends in this way.
type unasked struct {
	reading pkg.Reading
	err     error
}

func (u unasked) Read(_ context.Context, argv, _ []string) (pkg.Reading, error) {
	if strings.HasSuffix(argv[0], "apt-cache") {
		return u.reading, u.err
	}
	return pkg.Reading{Stdout: "Inst fx [1] (2 x:1 [amd64])\n"}, nil
}

func TestAVersionIsNotPlannedWhereThePinsCannotBeRead(t *testing.T) {
	for _, c := range []struct {
		how    unasked
		status mesh.Status
		output string
	}{
		{unasked{reading: pkg.Reading{ExitStatus: 100, Stderr: "E: Malformed entry 1 in list file junk.list\n"}}, mesh.StatusFailed, "junk.list"},
		{unasked{err: errors.New("no process could be started")}, mesh.StatusUnknown, ""},
	} {
		m := apt.New(apt.Config{Reader: c.how})

		_, err := m.Simulate(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "fx", Version: "2"}}})

		var e *resource.Error
		if !errors.As(err, &e) || e.Status != c.status || !strings.Contains(e.Output, c.output) {
			t.Errorf("with %+v the plan is made, or refused with %+v; want %s and %q", c.how, err, c.status, c.output)
		}
	}
}

func TestThePinThatKeepsAPackageOffIsNamedWithItsNewestVersion(t *testing.T) {
	for range 20 {
		m := apt.New(apt.Config{Reader: answering{"apt-cache": "fx:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n     10-1 -1\n     9-1 -1\n     8-1 -1\n"}})

		err := m.Explain(t.Context(), pkg.Target{Name: "fx"})

		if err == nil || !strings.Contains(err.Error(), "keeps fx 10-1 off it") {
			t.Fatalf("the explanation is %v", err)
		}
	}
}
