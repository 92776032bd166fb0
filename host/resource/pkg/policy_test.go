package pkg_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
	"github.com/meshctl/mesh/host/resource/pkg/pkgtest"
	"github.com/meshctl/mesh/host/resource/resourcetest"
)

func present(name, version string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: version}}
}

func gone(name string) mesh.Resource {
	return mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Absent: true}}
}

func repository() map[string][]pkgtest.Offer {
	return map[string][]pkgtest.Offer{
		"fx":      {{Version: "1"}, {Version: "2"}},
		"ot":      {{Version: "1"}},
		"needs":   {{Version: "1", Depends: []string{"fx"}}},
		"rival":   {{Version: "1", Conflicts: []string{"ot"}}},
		"never":   {{Version: "1", Depends: []string{"nowhere"}}},
		"breaks":  {{Version: "1", Breaks: true}},
		"removed": {{Version: "1"}},
	}
}

type machine struct{ fake *pkgtest.Fake }

func (m machine) Provider(*testing.T) resource.Provider { return pkg.New(pkg.Config{Manager: m.fake}) }

func (m machine) Missing(*testing.T) mesh.Resource { return present("fx", "2") }

func (m machine) Present(*testing.T) mesh.Resource {
	if m.fake.Entry("ot") == nil {
		m.fake.Put("ot", "1")
	}
	return present("ot", "1")
}

func (m machine) Other(*testing.T) mesh.Resource {
	if m.fake.Entry("removed") == nil {
		m.fake.Put("removed", "1")
	}
	return gone("removed")
}

func (m machine) Look(_ *testing.T, want mesh.Resource) string {
	if e := m.fake.Entry(want.Name); e != nil {
		return fmt.Sprintf("%+v", *e)
	}
	return "nothing"
}

func (m machine) Writes(*testing.T) string { return strings.Join(m.fake.Calls, "\n") }

// Shows: M4, M6
func TestPackagesKeepTheContractOfAResource(t *testing.T) {
	resourcetest.Run(t, func(*testing.T) resourcetest.Machine { return machine{pkgtest.NewFake(repository())} })
}

// try applies resources together and reads each back as the reconciler does:
// the status word of each, with the reason where there is one.
func try(t *testing.T, f *pkgtest.Fake, wants ...mesh.Resource) []string {
	t.Helper()
	p := pkg.New(pkg.Config{Manager: f, Keep: []string{"mesh-host"}})
	p.StartPass(t.Context(), wants)
	said := make([]string, len(wants))
	var changes []resource.Change
	var which []int
	for i, w := range wants {
		d, err := p.Check(t.Context(), w)
		switch {
		case err != nil:
			said[i] = word(err)
		case d.Zero():
			said[i] = "ok"
		default:
			changes = append(changes, resource.Change{Want: w, Diff: d})
			which = append(which, i)
		}
	}
	if len(changes) == 0 {
		return said
	}
	errs := p.ApplySet(t.Context(), changes)
	for n, i := range which {
		if errs[n] != nil {
			said[i] = word(errs[n])
			continue
		}
		d, err := p.Check(t.Context(), wants[i])
		switch {
		case err != nil:
			said[i] = word(err)
		case d.Zero():
			said[i] = "changed"
		default:
			said[i] = "failed read-back-differs"
		}
	}
	return said
}

func word(err error) string {
	var e *resource.Error
	if !errors.As(err, &e) {
		return "internal: " + err.Error()
	}
	return string(e.Status) + " " + string(e.Reason)
}

func wantWords(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("reported %q; want %q", got, want)
	}
}

func commits(f *pkgtest.Fake) []string {
	return slices.DeleteFunc(slices.Clone(f.Calls), func(c string) bool { return !strings.HasPrefix(c, "commit") })
}

func TestAllMissingPackagesGoIntoOneTransaction(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("removed", "1")
	wantWords(t, try(t, f, present("fx", "1"), present("ot", ""), gone("removed")), "changed", "changed", "changed")
	if got := commits(f); !slices.Equal(got, []string{"commit +fx=1 +ot -removed"}) {
		t.Errorf("the transactions were %q", got)
	}
}

func TestWhatIsRightStartsNoTool(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").Held = true
	wantWords(t, try(t, f, present("fx", "1"), present("base", ""), gone("ot")), "ok", "ok", "ok")
	if len(f.Calls) > 0 {
		t.Errorf("tools ran: %q", f.Calls)
	}
}

// Shows: M4
func TestWhatCannotBeDoneDoesNotStopTheRest(t *testing.T) {
	f := pkgtest.NewFake(repository())
	got := try(t, f, present("nosuch", ""), present("fx", "9"), present("fx", ""), present("never", ""), present("ot", "1"), present("breaks", ""))
	wantWords(t, got, "failed not-available", "failed not-available", "changed", "failed unmet-dependency", "changed", "failed tool-failed")
	if f.Entry("nosuch") != nil || f.Entry("never") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

func TestAPackageThatNeedsAnotherOfTheSetIsNotLeftOut(t *testing.T) {
	f := pkgtest.NewFake(map[string][]pkgtest.Offer{
		"a": {{Version: "1", Depends: []string{"b"}}},
		// b can only be had from the file that was brought along.
	})
	p := pkg.New(pkg.Config{Manager: f, Local: files{"b": "/bundle/b.deb"}})
	errs := p.ApplySet(t.Context(), []resource.Change{{Want: present("b", "1")}, {Want: present("nosuch", "1")}, {Want: present("a", "1")}})
	if errs[0] != nil || errs[1] == nil || errs[2] != nil || f.Entry("a") == nil || f.Entry("b") == nil {
		t.Errorf("the errors are %v and the database has:\n%s", errs, f)
	}
	if got := commits(f); !slices.Equal(got, []string{"commit +b=1@/bundle/b.deb +a=1"}) {
		t.Errorf("the transactions were %q", got)
	}
}

type files map[string]string

func (f files) Path(name, _ string) (string, bool) { path, ok := f[name]; return path, ok }

func TestATransactionThatWouldRemoveSomethingElseIsRefused(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("ot", "1")
	wantWords(t, try(t, f, present("rival", ""), present("fx", "")), "failed would-remove-others", "changed")
	if f.Entry("ot") == nil || f.Entry("rival") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

func TestRivalsOfOneDeclarationDoNotFlap(t *testing.T) {
	f := pkgtest.NewFake(repository())
	for range 3 {
		got := try(t, f, present("ot", ""), present("rival", ""))
		if got[1] != "failed would-remove-others" || f.Entry("ot") == nil {
			t.Fatalf("reported %q with the database\n%s", got, f)
		}
	}
}

func TestWhatARepairFinishedNeedsNoRepositoryAndDoesNotStandForAnother(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").State = "unpacked"
	f.Unreachable = true
	wantWords(t, try(t, f, present("fx", "")), "changed")
	if slices.ContainsFunc(f.Calls, func(call string) bool { return strings.Contains(call, "refresh") }) {
		t.Errorf("the repositories were asked: %q", f.Calls)
	}
	f.Entry("fx").State = "unpacked"
	wantWords(t, try(t, f, present("fx", ""), present("nosuch", "1"), present("ot", "1")), "changed", "failed repository-unreachable", "changed")
}

func TestAnotherWayToWriteAnInstalledPackageIsNotAbsent(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1:2-3")
	for _, name := range []string{"fx.here", "fx-2-3", "fx-2-3.here"} {
		wantWords(t, try(t, f, gone(name)), "failed not-available")
	}
	for _, name := range []string{"fx2", "fx-3", "f", "fx-", "fx-2", "fx.there"} {
		wantWords(t, try(t, f, gone(name)), "ok")
	}
	f.Put("fx-2", "1")
	wantWords(t, try(t, f, gone("fx-2")), "changed")
	if f.Entry("fx") == nil || f.Entry("fx-2") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

func TestAHeldPackageStaysAndSaysSo(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").Held = true
	wantWords(t, try(t, f, present("fx", "2"), present("ot", "")), "failed held", "changed")
	wantWords(t, try(t, f, gone("fx")), "failed held")
	if e := f.Entry("fx"); e.Version != "1" || !e.Held {
		t.Errorf("fx is now %+v", *e)
	}
}

func TestOnlyADeclaredVersionLowersAPackage(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "3")
	wantWords(t, try(t, f, present("fx", "")), "ok")
	wantWords(t, try(t, f, present("fx", "1")), "changed")
}

func TestTheRepositoriesAreAskedOncePassAndOnlyWhenItMatters(t *testing.T) {
	t.Run("known version", func(t *testing.T) {
		f := pkgtest.NewFake(repository())
		wantWords(t, try(t, f, present("fx", "1")), "changed")
		if slices.Contains(f.Calls, "refresh") {
			t.Errorf("the calls were %q", f.Calls)
		}
	})
	t.Run("just published", func(t *testing.T) {
		f := pkgtest.NewFake(repository())
		f.Known = nil
		wantWords(t, try(t, f, present("fx", "2"), present("ot", "1"), present("nosuch", "1")), "changed", "changed", "failed not-available")
		if n := len(slices.DeleteFunc(slices.Clone(f.Calls), func(c string) bool { return c != "refresh" })); n != 1 {
			t.Errorf("the repositories were asked %d times", n)
		}
	})
	t.Run("any version", func(t *testing.T) {
		f := pkgtest.NewFake(repository())
		f.Known = map[string][]pkgtest.Offer{"fx": {{Version: "1"}}}
		try(t, f, present("fx", ""))
		if e := f.Entry("fx"); e == nil || e.Version != "2" {
			t.Errorf("installed from a stale index: %+v", e)
		}
	})
}

func TestARepositoryThatDoesNotAnswerIsNotAPackageThatDoesNotExist(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Unreachable = true
	f.Known = map[string][]pkgtest.Offer{"fx": {{Version: "1"}}, "ot": {{Version: "1"}}}
	got := try(t, f, present("fx", "2"), present("needs:here", ""), present("ot", "1"))
	wantWords(t, got, "failed repository-unreachable", "failed repository-unreachable", "changed")
}

func TestAHeldLockDefersEverything(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Locked = true
	wantWords(t, try(t, f, present("fx", "1"), present("ot", "1")), "deferred locked", "deferred locked")
}

// Shows: M4
func TestAnUnreadableDatabaseInstallsAndRemovesNothing(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Unreadable = true
	wantWords(t, try(t, f, present("fx", "1"), gone("ot")), "unknown database-unreadable", "unknown database-unreadable")
	p := pkg.New(pkg.Config{Manager: f})
	if got := word(p.Remove(t.Context(), mesh.Owned{Resource: "package:base", Made: mesh.MadeCreated})); got != "unknown database-unreadable" {
		t.Errorf("Remove says %q", got)
	}
	f.Unreadable, f.Entries = false, nil
	wantWords(t, try(t, f, present("fx", "1")), "unknown database-unreadable")
	if len(f.Calls) > 0 {
		t.Errorf("tools ran: %q", f.Calls)
	}
}

// Shows: M4
func TestNoLieOfTheToolIsReportedAsSuccess(t *testing.T) {
	for _, c := range []struct {
		lie  pkgtest.Lie
		want string
	}{
		{pkgtest.LieNone, "changed"},
		{pkgtest.LieNothing, "failed read-back-differs"},
		{pkgtest.LieFailed, "changed"},
		{pkgtest.LieMore, "failed harmed-others"},
		{pkgtest.LieLost, "changed"},
		{pkgtest.LieLostNothing, "unknown tool-result-unknown"},
	} {
		f := pkgtest.NewFake(repository())
		f.Put("bystander", "1")
		f.Lie = c.lie
		if got := try(t, f, present("fx", "1"), present("ot", "")); !slices.Equal(got, []string{c.want, c.want}) {
			t.Errorf("a tool that %s: reported %q, want %q", c.lie, got, c.want)
		}
	}
}

// Shows: M5
func TestACommandFoundAtWorkIsNotTakenForOurs(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Adoptions = 1
	wantWords(t, try(t, f, present("fx", "1")), "changed")
	f = pkgtest.NewFake(repository())
	f.Adoptions = 100
	wantWords(t, try(t, f, present("fx", "1")), "deferred locked")
}

// Shows: M5
func TestAnInterruptedTransactionIsFinishedFirst(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").State = "half-configured"
	wantWords(t, try(t, f, present("fx", "1")), "changed")
	if !slices.Contains(f.Calls, "repair") {
		t.Errorf("the calls were %q", f.Calls)
	}
	f = pkgtest.NewFake(repository())
	f.Put("base", "1").State = "unpacked"
	f.Unrepairable = []string{"base"}
	wantWords(t, try(t, f, present("fx", "1")), "changed")
}

func TestTwoVersionsAtOnceAreNotRight(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1")
	second := *f.Entry("fx")
	second.Version = "2"
	f.Entries = append(f.Entries, second)
	wantWords(t, try(t, f, present("fx", "2")), "failed interrupted-transaction")
	for i := range f.Entries {
		f.Entries[i].Many = true
	}
	wantWords(t, try(t, f, present("fx", "2"), present("fx:here", "1")), "ok", "ok")
}

func TestADeclaredPackageIsMarkedAsAskedForAndGetsItsMarkBack(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").Mark = pkg.MarkAuto
	p := pkg.New(pkg.Config{Manager: f})
	owned, err := p.Capture(t.Context(), present("fx", ""))
	if err != nil {
		t.Fatal(err)
	}
	wantWords(t, try(t, f, present("fx", "")), "changed")
	if f.Entry("fx").Mark != pkg.MarkManual {
		t.Error("fx is still marked automatic")
	}
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if e := f.Entry("fx"); e == nil || e.Mark != pkg.MarkAuto {
		t.Errorf("after removing, fx is %+v", e)
	}
	if got := commits(f); len(got) > 0 {
		t.Errorf("a mark started transactions: %q", got)
	}
}

// manage applies one package and returns what is owned.
func manage(t *testing.T, f *pkgtest.Fake, want mesh.Resource) mesh.Owned {
	t.Helper()
	p := pkg.New(pkg.Config{Manager: f})
	owned, err := p.Capture(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), want, resource.Diff{}); err != nil {
		t.Fatal(err)
	}
	if owned.Wrote, err = p.Wrote(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	return owned
}

// Shows: M6
func TestAPackageThatOthersNeedStays(t *testing.T) {
	f := pkgtest.NewFake(repository())
	fx, ot := manage(t, f, present("fx", "")), manage(t, f, present("ot", ""))
	f.Put("needs", "1")
	errs := pkg.New(pkg.Config{Manager: f}).RemoveSet(t.Context(), []mesh.Owned{fx, ot})
	if word(errs[0]) != "conflict needed-by-others" || errs[1] != nil {
		t.Errorf("RemoveSet says %v", errs)
	}
	if f.Entry("fx") == nil || f.Entry("needs") == nil || f.Entry("ot") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

// Shows: M6
func TestWhatNeedsEachOtherGoesTogether(t *testing.T) {
	f := pkgtest.NewFake(repository())
	fx, needs := manage(t, f, present("fx", "")), manage(t, f, present("needs", ""))
	for _, err := range pkg.New(pkg.Config{Manager: f}).RemoveSet(t.Context(), []mesh.Owned{fx, needs}) {
		if err != nil {
			t.Error(err)
		}
	}
	if f.Entry("fx") != nil || f.Entry("needs") != nil {
		t.Errorf("the database now has:\n%s", f)
	}
}

// Shows: M6
func TestAPackageThatWasThereBeforeStaysInTheVersionItHas(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1")
	owned := manage(t, f, present("fx", "2"))
	if err := pkg.New(pkg.Config{Manager: f}).Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if e := f.Entry("fx"); owned.Made != mesh.MadeExisted || e == nil || e.Version != "2" {
		t.Errorf("made %q, and fx is %+v", owned.Made, e)
	}
}

func TestWhatTheAdminTookAwayIsNotBroughtBackByRemoving(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1")
	owned := manage(t, f, present("fx", ""))
	f.Entries = f.Entries[:1]
	if err := pkg.New(pkg.Config{Manager: f}).Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if f.Entry("fx") != nil {
		t.Error("fx is back")
	}
}

func TestADeclaredAbsentPackageComesBackInAVersionThatCanBeHad(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1.5")
	owned := manage(t, f, gone("fx"))
	if err := pkg.New(pkg.Config{Manager: f}).Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if e := f.Entry("fx"); e == nil || e.Version != "2" {
		t.Errorf("fx is %+v", e)
	}
}

func TestWhatTheSystemCannotDoWithoutIsNotRemoved(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Entry("base").Protected = true
	f.Put("mesh-host", "1")
	wantWords(t, try(t, f, gone("base"), gone("mesh-host")), "failed protected", "failed protected")
	if len(f.Calls) > 0 {
		t.Errorf("tools ran: %q", f.Calls)
	}
}

func TestAMachineWithoutAPackageManagerSaysSo(t *testing.T) {
	p := pkg.New(pkg.Config{})
	_, err := p.Check(t.Context(), present("fx", ""))
	if got := word(err); got != "failed no-package-manager" {
		t.Errorf("Check says %q", got)
	}
	if got := word(p.Apply(t.Context(), present("fx", ""), resource.Diff{})); got != "failed no-package-manager" {
		t.Errorf("Apply says %q", got)
	}
}

func TestAnotherArchitectureIsAnotherPackage(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1").Arch = "elsewhere"
	p := pkg.New(pkg.Config{Manager: f})
	for name, right := range map[string]bool{"fx": false, "fx:elsewhere": true, "fx:here": false, "base:here": true, "base": true} {
		if d, err := p.Check(t.Context(), present(name, "")); err != nil || d.Zero() != right {
			t.Errorf("Check(%s) says %q, %v", name, d, err)
		}
	}
}

func TestAMissingEpochIsZero(t *testing.T) {
	f := pkgtest.NewFake(repository())
	f.Put("fx", "1-1")
	wantWords(t, try(t, f, present("fx", "0:1-1"), present("fx", "1-1")), "ok", "ok")
}
