package mesh_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
)

// Shows: M22
func TestANodeMovesOnlyAlongItsLife(t *testing.T) {
	allowed := map[string]bool{
		"unmanaged hosted": true, "hosted unmanaged": true, "hosted enrolled": true,
		"enrolled disconnected": true, "disconnected enrolled": true,
		"enrolled retired": true, "enrolled revoked": true,
		"disconnected retired": true, "disconnected revoked": true,
	}
	states := append(mesh.NodeStates(), "", "asleep")
	for _, from := range states {
		for _, to := range states {
			next, err := from.Step(to)
			if want := allowed[fmt.Sprintf("%s %s", from, to)]; want != (err == nil) {
				t.Errorf("%q to %q: error %v, and the step is allowed: %v", from, to, err, want)
			}
			if err == nil && next != to || err != nil && next != from {
				t.Errorf("%q to %q ended at %q", from, to, next)
			}
		}
	}
}

func TestAResultBeginsAtPendingAndIsDecidedOnce(t *testing.T) {
	statuses := append(mesh.Statuses(), "", "fine")
	for _, from := range statuses {
		for _, to := range statuses {
			known := slices.Contains(mesh.Statuses(), from) && slices.Contains(mesh.Statuses(), to)
			want := known && (from == mesh.StatusPending) != (to == mesh.StatusPending)
			if _, err := from.Step(to); want != (err == nil) {
				t.Errorf("%q to %q: error %v, and the step is allowed: %v", from, to, err, want)
			}
		}
	}
}

// Shows: M9
func TestAGenerationIsOutstandingUntilNothingIsLeftOpenAndFailedOnlyThen(t *testing.T) {
	of := func(statuses ...mesh.Status) []mesh.Result {
		var out []mesh.Result
		for _, s := range statuses {
			out = append(out, mesh.Result{Status: s})
		}
		return out
	}
	for _, c := range []struct {
		results []mesh.Result
		want    mesh.GenerationState
	}{
		{of(), mesh.GenerationApplied},
		{of("ok", "changed", "removed"), mesh.GenerationApplied},
		{of("ok", "failed"), mesh.GenerationFailed},
		{of("ok", "unknown"), mesh.GenerationFailed},
		{of("ok", "conflict"), mesh.GenerationFailed},
		{of("ok", "skipped"), mesh.GenerationFailed},
		{of("failed", "deferred"), mesh.GenerationOutstanding},
		{of("deferred", "failed"), mesh.GenerationOutstanding},
		{of("ok", "pending"), mesh.GenerationOutstanding},
		{of("ok", "no such word"), mesh.GenerationOutstanding},
	} {
		if got := mesh.StateOf(c.results); got != c.want {
			t.Errorf("%v is %s, not %s", c.results, got, c.want)
		}
	}
}

// Shows: M26
func TestTheOutcomeOfABriefingIsTheWorstOfItsLines(t *testing.T) {
	line := func(o mesh.Outcome) mesh.Line { return mesh.Line{Check: "c", Outcome: o} }
	for _, c := range []struct {
		lines []mesh.Line
		want  mesh.Outcome
	}{
		{nil, mesh.OutcomeFail},
		{[]mesh.Line{line("pass")}, mesh.OutcomePass},
		{[]mesh.Line{line("pass"), line("warn")}, mesh.OutcomeWarn},
		{[]mesh.Line{line("fail"), line("pass")}, mesh.OutcomeFail},
		{[]mesh.Line{line("pass"), line("perhaps")}, mesh.OutcomeFail},
	} {
		b := mesh.Briefing{Lines: c.lines}
		if got := b.Outcome(); got != c.want {
			t.Errorf("%v is %s, not %s", c.lines, got, c.want)
		}
		if b.Eligible() != (c.want != mesh.OutcomeFail) {
			t.Errorf("%v: eligible is %v", c.lines, b.Eligible())
		}
	}
}

func TestADeclarationWithFaultsNamesEachAtItsPath(t *testing.T) {
	d := mesh.Declaration{Generation: 0, Resources: []mesh.Resource{
		{Kind: mesh.KindFile, Name: "etc/motd", File: &mesh.FileSpec{Content: []byte("x")}},
		{Kind: mesh.KindFile, Name: "/etc/../motd", File: &mesh.FileSpec{Content: []byte("x"), Mode: "0999"}},
		{Kind: mesh.KindFile, Name: "/proc/sys/x", File: &mesh.FileSpec{}},
		{Kind: mesh.KindFile, Name: "/a", File: &mesh.FileSpec{Type: mesh.FileSymlink, Owner: "root;rm"}},
		{Kind: mesh.KindPackage, Name: "nginx && true", Package: &mesh.PackageSpec{Version: "1.*"}},
		{Kind: mesh.KindPackage, Name: "nginx", Package: &mesh.PackageSpec{Version: "1", Absent: true}},
		{Kind: mesh.KindPackage, Name: "nginx", Package: &mesh.PackageSpec{}},
		{Kind: "service", Name: "nginx"},
		{Kind: mesh.KindPackage, Name: "curl", Package: &mesh.PackageSpec{}, Requires: []mesh.ResourceID{"package:curl", "nonsense"}},
	}}
	text := d.Validate().Error()
	for _, want := range []string{
		"generation:", "resources[0].file:", "resources[1].file:", "resources[1].mode:", "resources[2].file:", "resources[2]: a regular file needs",
		"resources[3].target:", "resources[3].owner:", "resources[4].package:", "resources[4].version:", "resources[5].version:",
		"resources[6]: package:nginx is declared already", "resources[7]:", "resources[8].requires[0]:", "resources[8].requires[1]:",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing at %q in:\n%s", want, text)
		}
	}
}

// Shows: M8
func TestOnlyAnExactVersionAndTheNameOfOnePackageAreTaken(t *testing.T) {
	valid := func(name, version string) bool {
		d := mesh.Declaration{Generation: 1, Resources: []mesh.Resource{{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{Version: version}}}}
		return d.Validate() == nil
	}
	for _, version := range []string{"", "1", "1.0-1", "1:2.9.8.2-1", "0:1.0", "1.0~rc1-1+deb12u1", "1.0^git20260101-1.el9", "B.02.18-16.el8", "20260101", "2:1.0+really0.9-1", "1.18.0-6ubuntu14.4", "r12-1"} {
		if !valid("fx", version) {
			t.Errorf("version %q is refused", version)
		}
	}
	for _, version := range []string{"latest", "present", "installed", "absent", "held", "newest", "any", "*", "1.*", ">=1.0", "= 1.0", "1.0 ", "1.0,1.1", "a:1.0", "1:", ":1", "-1", "1.0;id", "~1", "$(id)", "1/2", "1.0\n", "ü1"} {
		if valid("fx", version) {
			t.Errorf("version %q is taken", version)
		}
	}
	for _, name := range []string{"fx", "g++", "libstdc++6", "python3.11", "0ad", "ImageMagick", "java-1.8.0-openjdk", "libc6:i386", "fx:x86_64", "fx:all", "fx:noarch", "R", "perl-Net_SSLeay"} {
		if !valid(name, "") {
			t.Errorf("name %q is refused", name)
		}
	}
	for _, name := range []string{"", "fx:any", "fx:native", "fx:", ":amd64", "fx=1", "fx>1", "fx/stable", "fx^", "fx*", "fx?", "[f]x", "@group", "-fx", "--purge", "+fx", "/tmp/fx.deb", "./fx", "http://x/fx.rpm", "fx fy", "fx,fy", "fx\n", "perl(Foo)", "fx:i386:amd64", "fx;id", "~nfx", "?name(fx)", "fx|fy", "%fx", "ﬁx"} {
		if valid(name, "") {
			t.Errorf("name %q is taken", name)
		}
	}
}

func TestDigestsTellWhatIsWantedAndNotHowItTravels(t *testing.T) {
	inline := mesh.FileSpec{Type: mesh.FileRegular, Mode: "0644"}
	inline.SetContent([]byte("hello"))
	blob := inline
	blob.Content = nil
	other := inline
	other.SetContent([]byte("hullo"))
	digest := func(f mesh.FileSpec, from string) string {
		return mesh.Resource{Kind: mesh.KindFile, Name: "/a", From: from, File: &f}.Digest()
	}
	if digest(inline, "web") != digest(blob, "base") {
		t.Error("the same bytes inline and as a blob have different digests")
	}
	if digest(inline, "web") == digest(other, "web") {
		t.Error("other bytes have the same digest")
	}
}

func TestTheLedgerDigestDependsOnWhatIsSaidAndNotOnOrderTimeOrGeneration(t *testing.T) {
	a := mesh.Result{Resource: "file:/a", Status: mesh.StatusOK, Want: "1", Generation: 1, At: time.Unix(1, 0)}
	b := mesh.Result{Resource: "file:/b", Status: mesh.StatusFailed, Reason: mesh.ReasonIO, Want: "2"}
	later := a
	later.Generation, later.At = 9, time.Unix(9, 0)
	if mesh.LedgerDigest([]mesh.Result{a, b}) != mesh.LedgerDigest([]mesh.Result{b, later}) {
		t.Error("order, time or generation changed the digest")
	}
	worse := a
	worse.Status = mesh.StatusFailed
	if mesh.LedgerDigest([]mesh.Result{a, b}) == mesh.LedgerDigest([]mesh.Result{worse, b}) {
		t.Error("another status did not change the digest")
	}
}

func TestAnErrorKeepsItsCodeThroughWrapping(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("outer: %w", mesh.Errorf(mesh.CodeConflict, "no: %w", cause))
	if mesh.CodeOf(err) != mesh.CodeConflict || !errors.Is(err, cause) {
		t.Errorf("code %s, cause kept %v", mesh.CodeOf(err), errors.Is(err, cause))
	}
	var ps mesh.Problems
	ps.Add("a", "b")
	if mesh.CodeOf(ps.Err()) != mesh.CodeInvalid || mesh.CodeOf(cause) != mesh.CodeInternal || mesh.CodeOf(nil) != "" {
		t.Error("problems are invalid, a plain error is internal, nil has no code")
	}
}
