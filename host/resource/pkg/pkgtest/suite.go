package pkgtest

import (
	"errors"
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// System is a package manager in the hands of a test. Its repository offers:
//
//	fx      in versions One and Two
//	needs   in version One, which depends on fx
//	never   in version One, which depends on what nobody offers
//
// and one package named base is installed.
type System interface {
	Manager(t *testing.T) pkg.Manager
	// One and Two are versions as the database writes them.
	One() string
	Two() string
	// Publish adds a package named late to the repository.
	Publish(t *testing.T)
	// CutOff makes the repository unreachable.
	CutOff(t *testing.T)
	// Lock takes the package manager's lock, as somebody else, until the test
	// ends.
	Lock(t *testing.T)
	// Ruin makes the database unreadable.
	Ruin(t *testing.T)
}

// Run runs the contract. Each test gets a new system.
func Run(t *testing.T, system func(t *testing.T) System) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s System, m pkg.Manager)
	}{
		{"the database lists what is installed", listsInstalled},
		{"simulating says what would come and changes nothing", simulatesInstall},
		{"what was installed shows in the database", installs},
		{"another version is exactly the one named, upwards and downwards", changesVersion},
		{"what nobody offers is not available", notAvailable},
		{"what cannot be satisfied is an error and changes nothing", cannotSatisfy},
		{"simulating a removal names what needs the package", simulatesRemoval},
		{"what was removed is gone and what it brought along stays", removes},
		{"what was published a moment ago is there after a refresh", publishedNow},
		{"a repository that does not answer is an error", refreshFails},
		{"a held lock defers and changes nothing", locked},
		{"a ruined database is unknown and not empty", ruined},
		{"repairing what is whole does nothing", repairsNothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := system(t)
			c.test(t, s, s.Manager(t))
		})
	}
}

// version returns the installed version of a package; empty: not installed.
func version(t *testing.T, m pkg.Manager, name string) string {
	t.Helper()
	entries, err := m.Installed(t.Context())
	if err != nil {
		t.Fatalf("Installed: %v", err)
	}
	for _, e := range entries {
		if e.Name == name {
			return e.Version
		}
	}
	return ""
}

func refresh(t *testing.T, m pkg.Manager) {
	t.Helper()
	if err := m.Refresh(t.Context()); err != nil {
		t.Fatalf("Refresh: %v", err)
	}
}

func install(t *testing.T, m pkg.Manager, targets ...pkg.Target) {
	t.Helper()
	if err := m.Commit(t.Context(), pkg.Transaction{Install: targets}); err != nil {
		t.Fatalf("Commit(%v): %v", targets, errorText(err))
	}
}

// errorText shows what the tool wrote too.
func errorText(err error) string {
	var e *resource.Error
	if errors.As(err, &e) {
		return e.Error() + "\n" + e.Output
	}
	return err.Error()
}

func wantError(t *testing.T, what string, err error, status mesh.Status, reasons ...mesh.Reason) {
	t.Helper()
	var e *resource.Error
	if !errors.As(err, &e) || e.Status != status || !slices.Contains(reasons, e.Reason) {
		t.Errorf("%s: the error is %v; want %s %v", what, err, status, reasons)
	}
}

func names(steps []pkg.Step) []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

func listsInstalled(t *testing.T, _ System, m pkg.Manager) {
	entries, err := m.Installed(t.Context())
	if err != nil || len(entries) != 1 || entries[0].Name != "base" || entries[0].Version == "" || entries[0].State != "" {
		t.Errorf("Installed says %+v, %v; want base alone", entries, err)
	}
}

func simulatesInstall(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	plan, err := m.Simulate(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "needs", Version: s.One()}}})
	if err != nil {
		t.Fatalf("Simulate: %v", errorText(err))
	}
	if got := names(plan.Install); !slices.Equal(got, []string{"fx", "needs"}) || len(plan.Remove) != 0 {
		t.Errorf("the plan installs %v and removes %v", got, names(plan.Remove))
	}
	for _, step := range plan.Install {
		if step.Name == "needs" && step.Version != s.One() {
			t.Errorf("the plan has needs in version %q, not %q", step.Version, s.One())
		}
	}
	if v := version(t, m, "needs"); v != "" {
		t.Errorf("simulating installed needs %s", v)
	}
}

func installs(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	install(t, m, pkg.Target{Name: "fx"})
	if v := version(t, m, "fx"); v != s.Two() {
		t.Errorf("fx is installed as %q, want the newest %q", v, s.Two())
	}
}

func changesVersion(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	for _, v := range []string{s.One(), s.Two(), s.One()} {
		lower := version(t, m, "fx") == s.Two()
		tx := pkg.Transaction{Install: []pkg.Target{{Name: "fx", Version: v}}, Lower: lower}
		plan, err := m.Simulate(t.Context(), tx)
		if err != nil || len(plan.Install) != 1 || plan.Install[0].Version != v || len(plan.Remove) != 0 {
			t.Fatalf("the plan for fx %s is %+v, %v", v, plan, err)
		}
		if err := m.Commit(t.Context(), tx); err != nil {
			t.Fatalf("Commit: %v", errorText(err))
		}
		if got := version(t, m, "fx"); got != v {
			t.Errorf("fx is installed as %q, want %q", got, v)
		}
	}
}

func notAvailable(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	for _, x := range []pkg.Target{{Name: "nosuch"}, {Name: "nosuch", Version: s.One()}, {Name: "fx", Version: "99-9"}} {
		_, err := m.Simulate(t.Context(), pkg.Transaction{Install: []pkg.Target{x}})
		wantError(t, "Simulate "+x.Name+" "+x.Version, err, mesh.StatusFailed, mesh.ReasonNotAvailable)
		wantError(t, "Commit "+x.Name+" "+x.Version, m.Commit(t.Context(), pkg.Transaction{Install: []pkg.Target{x}}), mesh.StatusFailed, mesh.ReasonNotAvailable)
	}
}

func cannotSatisfy(t *testing.T, _ System, m pkg.Manager) {
	refresh(t, m)
	_, err := m.Simulate(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "never"}}})
	wantError(t, "Simulate", err, mesh.StatusFailed, mesh.ReasonUnmet)
	wantError(t, "Commit", m.Commit(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "never"}}}), mesh.StatusFailed, mesh.ReasonUnmet)
	if v := version(t, m, "never"); v != "" {
		t.Errorf("never is installed as %s", v)
	}
}

func simulatesRemoval(t *testing.T, _ System, m pkg.Manager) {
	refresh(t, m)
	install(t, m, pkg.Target{Name: "needs"})
	plan, err := m.Simulate(t.Context(), pkg.Transaction{Remove: []string{"fx"}})
	if err != nil {
		t.Fatalf("Simulate: %v", errorText(err))
	}
	if got := names(plan.Remove); !slices.Equal(got, []string{"fx", "needs"}) {
		t.Errorf("the plan removes %v, want fx and what needs it", got)
	}
	if v := version(t, m, "fx"); v == "" {
		t.Error("simulating removed fx")
	}
}

func removes(t *testing.T, _ System, m pkg.Manager) {
	refresh(t, m)
	install(t, m, pkg.Target{Name: "needs"})
	plan, err := m.Simulate(t.Context(), pkg.Transaction{Remove: []string{"needs"}})
	if err != nil || !slices.Equal(names(plan.Remove), []string{"needs"}) {
		t.Fatalf("the plan is %+v, %v", plan, err)
	}
	if err := m.Commit(t.Context(), pkg.Transaction{Remove: []string{"needs"}}); err != nil {
		t.Fatalf("Commit: %v", errorText(err))
	}
	if got, fx := version(t, m, "needs"), version(t, m, "fx"); got != "" || fx == "" {
		t.Errorf("needs is %q and fx %q; want needs gone and fx there", got, fx)
	}
}

func publishedNow(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	s.Publish(t)
	refresh(t, m)
	install(t, m, pkg.Target{Name: "late", Version: s.One()})
	if v := version(t, m, "late"); v != s.One() {
		t.Errorf("late is installed as %q", v)
	}
}

func refreshFails(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	s.CutOff(t)
	wantError(t, "Refresh", m.Refresh(t.Context()), mesh.StatusFailed, mesh.ReasonRepository)
}

func locked(t *testing.T, s System, m pkg.Manager) {
	refresh(t, m)
	s.Lock(t)
	wantError(t, "Commit", m.Commit(t.Context(), pkg.Transaction{Install: []pkg.Target{{Name: "fx"}}}), mesh.StatusDeferred, mesh.ReasonLocked)
	if v := version(t, m, "fx"); v != "" {
		t.Errorf("fx was installed as %s although the lock was held", v)
	}
}

func ruined(t *testing.T, s System, m pkg.Manager) {
	s.Ruin(t)
	entries, err := m.Installed(t.Context())
	wantError(t, "Installed", err, mesh.StatusUnknown, mesh.ReasonDatabase)
	if len(entries) > 0 {
		t.Errorf("Installed still lists %d packages", len(entries))
	}
}

func repairsNothing(t *testing.T, _ System, m pkg.Manager) {
	if err := m.Repair(t.Context()); err != nil {
		t.Errorf("Repair: %v", errorText(err))
	}
}
