package main

import (
	"os/exec"
	"testing"

	"github.com/meshctl/mesh/packaging"
)

func TestWhatGitDescribesBecomesAVersionOfBothFormats(t *testing.T) {
	for described, want := range map[string]string{
		"v1.2.0":                 "1.2.0",
		"v1.2.0-dirty":           "1.2.0+dirty",
		"v1.2.0-3-gabc123":       "1.2.0+3.gabc123",
		"v1.2.0-3-gabc123-dirty": "1.2.0+3.gabc123.dirty",
		"v1.2.0-rc1":             "1.2.0~rc1",
		"v1.2.0-rc1-3-gabc123":   "1.2.0~rc1+3.gabc123",
		"abc1234":                "0.0.0~dev+gabc1234",
		"abc1234-dirty":          "0.0.0~dev+gabc1234.dirty",
		"0.0.0-dev":              "0.0.0~dev",
	} {
		got := packageVersion(described)
		if got != want {
			t.Errorf("%s becomes %s, want %s", described, got, want)
		}
		if err := packaging.CheckVersion(got); err != nil {
			t.Errorf("%s becomes a version that is refused: %v", described, err)
		}
	}
}

func TestVersionsSortTheSameForDpkgAndRpm(t *testing.T) {
	rising := []string{"0.0.0~dev+gabc1234", "1.2.0~rc1", "1.2.0~rc1+3.gabc123", "1.2.0", "1.2.0+3.gabc123", "1.2.1"}
	for i := range len(rising) - 1 {
		older, newer := rising[i], rising[i+1]
		if out, err := exec.Command("dpkg", "--compare-versions", older+"-1", "lt", newer+"-1").CombinedOutput(); err != nil {
			t.Errorf("dpkg does not sort %s before %s: %v %s", older, newer, err, out)
		}
		out, err := exec.Command("rpm", "--eval", `%{lua:print(rpm.vercmp("`+older+`-1", "`+newer+`-1"))}`).CombinedOutput()
		if err != nil || string(out) != "-1\n" {
			t.Errorf("rpm compares %s with %s as %q, %v; want -1", older, newer, out, err)
		}
	}
}
