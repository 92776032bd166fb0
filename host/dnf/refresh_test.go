package dnf_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/meshctl/mesh/host/dnf"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// silence is a machine with so many repositories that do not answer: dnf ends at
// the first that it is not told to leave out.
type silence int

func (n silence) Run(_ context.Context, c pkg.Command) (pkg.Outcome, error) {
	for i := range int(n) {
		id := fmt.Sprintf("r%d", i)
		if !slices.Contains(c.Argv, "--disablerepo="+id) {
			return pkg.Outcome{ExitStatus: 1, Output: "Error: Failed to download metadata for repo '" + id + "': Cannot download repomd.xml\n"}, nil
		}
	}
	return pkg.Outcome{}, nil
}

// ended is a pkg.Runner whose commands end in this way.
type ended pkg.Outcome

func (e ended) Run(context.Context, pkg.Command) (pkg.Outcome, error) { return pkg.Outcome(e), nil }

// offering is a pkg.Reader by whose indexes no repository offers anything.
type offering struct{}

func (offering) Read(context.Context, []string, []string) (pkg.Reading, error) {
	return pkg.Reading{}, nil
}

func TestWhatASilentRepositoryOffersIsCertainOnlyWhenDnfNamesEachThatIsSilent(t *testing.T) {
	for _, c := range []struct {
		name   string
		runner pkg.Runner
		want   bool
	}{
		{"two are silent", silence(2), true},
		{"more are silent than dnf is asked about", silence(20), false},
		{"dnf names none", ended{ExitStatus: 1, Output: "Error: something else\n"}, false},
		{"the disk is full", ended{ExitStatus: 1, Output: "Error: No space left on device\n"}, false},
		{"dnf was stopped", ended{ExitStatus: -1, TimedOut: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := dnf.New(dnf.Config{Runner: c.runner, Reader: offering{}, Program: "/usr/bin/dnf", LockFiles: []string{}})
			if err := m.Refresh(t.Context()); err == nil {
				t.Fatal("the refresh says that every repository answered")
			}
			if got := m.Certain(t.Context(), "fx"); got != c.want {
				t.Errorf("certain is %t, want %t", got, c.want)
			}
		})
	}
}
