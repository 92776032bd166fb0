package pkgversion_test

import (
	"cmp"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/meshctl/mesh/internal/pkgversion"
)

func need(t *testing.T, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("this test runs the real %s, which is not on this machine; install it", tool)
	}
}

// pairs draws versions, in pairs of which every second one differs in a few
// characters behind the epoch only: whole versions of chance are told apart at
// their beginning.
func pairs(t *testing.T, version, change string) [][2]string {
	t.Helper()
	var out [][2]string
	whole, piece := rapid.StringMatching(version), rapid.StringMatching(change)
	rapid.Check(t, func(rt *rapid.T) {
		// One drawing gives many pairs: the real tool is started once for all.
		for i := range 8 {
			a, b := whole.Draw(rt, "a"), whole.Draw(rt, "b")
			if i%2 == 0 {
				at := rapid.IntRange(strings.IndexByte(a, ':')+1, len(a)).Draw(rt, "at")
				b = a[:at] + piece.Draw(rt, "piece") + a[at:]
			}
			out = append(out, [2]string{a, b})
		}
	})
	return out
}

// answers returns the numbers that a command prints.
func answers(t *testing.T, cmd *exec.Cmd) []int {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd.Path, err)
	}
	var all []int
	for word := range strings.FieldsSeq(string(out)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatalf("%s answered %q", cmd.Path, word)
		}
		all = append(all, n)
	}
	return all
}

// judge compares our answers with those of the real tool, the other way round
// as well, and every version with itself.
func judge(t *testing.T, compare func(a, b string) int, pairs [][2]string, real []int) {
	t.Helper()
	if len(real) != len(pairs) || len(pairs) < 500 {
		t.Fatalf("the real tool answered %d times for %d pairs", len(real), len(pairs))
	}
	found := map[int]int{}
	for i, p := range pairs {
		got, back := cmp.Compare(compare(p[0], p[1]), 0), cmp.Compare(compare(p[1], p[0]), 0)
		if got != real[i] || back != -real[i] || compare(p[0], p[0]) != 0 {
			t.Errorf("%s against %s: %d, and %d the other way round; the real tool says %d", p[0], p[1], got, back, real[i])
		}
		found[real[i]]++
	}
	if found[-1] == 0 || found[0] == 0 || found[1] == 0 {
		t.Errorf("the pairs are too much of one kind: %v", found)
	}
}

// Shows: M11
func TestVersionsAreOrderedAsTheRealRpmOrdersThem(t *testing.T) {
	need(t, "rpm")
	drawn := pairs(t, `([0-9]{1,2}:)?[0-9a-cA.~^+_]{1,8}-[0-9a~^.]{1,4}`, `[0-9a-c.~^+]{0,2}`)
	var script strings.Builder
	for _, p := range drawn {
		fmt.Fprintf(&script, "print(rpm.vercmp('%s','%s')..' ')\n", p[0], p[1])
	}
	judge(t, pkgversion.CompareRPM, drawn, answers(t, exec.CommandContext(t.Context(), "rpm", "--eval", "%{lua: "+script.String()+"}")))
}

// Shows: M11
func TestVersionsAreOrderedAsTheRealDpkgOrdersThem(t *testing.T) {
	need(t, "dpkg")
	drawn := pairs(t, `([0-9]{1,2}:)?[0-9][0-9a-cA.~+]{0,7}(-[0-9a~+.]{1,4})?`, `[0-9a-c.~+]{0,2}`)
	var script strings.Builder
	for _, p := range drawn {
		// dpkg complains of a version that begins with no digit, and orders it all the same.
		fmt.Fprintf(&script, "if dpkg --compare-versions '%[1]s' lt '%[2]s' 2>/dev/null; then echo -1; elif dpkg --compare-versions '%[1]s' gt '%[2]s' 2>/dev/null; then echo 1; else echo 0; fi\n", p[0], p[1])
	}
	cmd := exec.CommandContext(t.Context(), "sh")
	cmd.Stdin = strings.NewReader(script.String())
	judge(t, pkgversion.CompareDeb, drawn, answers(t, cmd))
}

func TestAMissingReleaseIsEveryReleaseToRpmAndZeroToDpkg(t *testing.T) {
	for _, c := range []struct {
		compare func(a, b string) int
		a, b    string
		want    int
	}{
		{pkgversion.CompareRPM, "1.0", "1.0-3", 0},
		{pkgversion.CompareRPM, "1.1", "1.0-3", 1},
		{pkgversion.CompareRPM, "1:1.0", "9.0-3", 1},
		{pkgversion.CompareRPM, "0:1.0-1", "1.0-1", 0},
		{pkgversion.CompareDeb, "1.0", "1.0-0", 0},
		{pkgversion.CompareDeb, "1.0", "1.0-1", -1},
		{pkgversion.CompareDeb, "1.0", "1.0~rc1-1", 1},
		{pkgversion.CompareDeb, "0:1.0", "1.0", 0},
		{pkgversion.CompareDeb, "99999999999999999999.1", "99999999999999999999.2", -1},
	} {
		if got := cmp.Compare(c.compare(c.a, c.b), 0); got != c.want {
			t.Errorf("%s against %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
