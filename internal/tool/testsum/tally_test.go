package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a Go module with these files and returns its directory.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.test/m\n\ngo 1.26\n"
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// summarise runs the real go test over the module in dir and returns what
// testsum prints and its exit code.
func summarise(t *testing.T, dir string, refuseSkips bool) (string, int) {
	t.Helper()
	var out strings.Builder
	sums := newTally(&out)
	cmd := exec.Command("go", "test", "-json", "-count=1", "./...")
	cmd.Dir = dir
	output, err := cmd.Output()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatalf("running go test: %v", err)
	}
	if err := sums.read(strings.NewReader(string(output))); err != nil {
		t.Fatalf("reading its output: %v", err)
	}
	code := conclude(&out, sums, true, refuseSkips)
	return out.String(), code
}

const mixed = `package m

import "testing"

func TestFine(t *testing.T) {}

func TestParts(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Error("two is not right") })
	t.Run("three/with a slash in its name", func(t *testing.T) {})
}

func TestElsewhere(t *testing.T) { t.Skip("needs a tape drive") }
`

func TestEveryTestIsCountedOnceAndTheFailureIsShown(t *testing.T) {
	got, code := summarise(t, module(t, map[string]string{"m_test.go": mixed}), false)
	for _, want := range []string{
		"two is not right",
		"SKIPPED example.test/m TestElsewhere: needs a tape drive",
		"FAILED  example.test/m TestParts/two",
		"3 passed, 1 failed, 1 skipped\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the summary lacks %q:\n%s", want, got)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d with a failed test, want 1", code)
	}
}

func TestASkippedTestFailsTheRunUnlessSkipsAreOnlyListed(t *testing.T) {
	dir := module(t, map[string]string{"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestFine(t *testing.T) {}\n\nfunc TestNot(t *testing.T) { t.Skip(\"not root\") }\n"})
	if got, code := summarise(t, dir, true); code != 1 || !strings.Contains(got, "SKIPPED example.test/m TestNot: not root") {
		t.Errorf("with skips refused: exit code %d, want 1 and the reason, in:\n%s", code, got)
	}
	if got, code := summarise(t, dir, false); code != 0 || !strings.HasSuffix(got, "1 passed, 0 failed, 1 skipped\n") {
		t.Errorf("with skips listed: exit code %d, want 0, in:\n%s", code, got)
	}
}

func TestAPackageThatDoesNotBuildFailsTheRun(t *testing.T) {
	got, code := summarise(t, module(t, map[string]string{
		"good/g_test.go": "package good\n\nimport \"testing\"\n\nfunc TestFine(t *testing.T) {}\n",
		"bad/b_test.go":  "package bad\n\nvar x int = \"text\"\n",
	}), false)
	if code != 1 || !strings.Contains(got, "BROKEN  example.test/m/bad") || strings.Contains(got, ", 0 failed") {
		t.Errorf("exit code %d, want 1 and the broken package counted as failed, in:\n%s", code, got)
	}
}

func TestATestThatEndsItsProcessFailsTheRun(t *testing.T) {
	got, code := summarise(t, module(t, map[string]string{
		"m_test.go": "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestGone(t *testing.T) { os.Exit(3) }\n",
	}), false)
	if code != 1 || !strings.Contains(got, "FAILED  example.test/m TestGone") {
		t.Errorf("exit code %d, want 1 and the test that was running named, in:\n%s", code, got)
	}
}

func TestARunWithoutTestsIsNoSuccess(t *testing.T) {
	got, code := summarise(t, module(t, map[string]string{"m.go": "package m\n"}), false)
	if code != 1 || !strings.Contains(got, "no test ran") {
		t.Errorf("exit code %d, want 1 and a sentence, in:\n%s", code, got)
	}
}

func TestACommandThatIsNoGoTestIsRefused(t *testing.T) {
	if err := run(newTally(&strings.Builder{}), []string{"go", "build"}); err == nil {
		t.Error("go build was accepted as a test run")
	}
}

func TestCommandsAreCutAtDoubleDashes(t *testing.T) {
	got := split([]string{"go", "test", "./a", "--", "go", "test", "./b", "--"})
	if len(got) != 2 || strings.Join(got[0], " ") != "go test ./a" || strings.Join(got[1], " ") != "go test ./b" {
		t.Errorf("split into %q, want two commands", got)
	}
}

func TestTheSlowestTestsAreListedTheSlowestFirst(t *testing.T) {
	var out strings.Builder
	sums := newTally(&out)
	for _, line := range []string{
		`{"Action":"pass","Package":"m","Test":"TestQuick","Elapsed":0.1}`,
		`{"Action":"pass","Package":"m","Test":"TestLong/a","Elapsed":31}`,
		`{"Action":"fail","Package":"m","Test":"TestLong/b","Elapsed":62}`,
		`{"Action":"fail","Package":"m","Test":"TestLong","Elapsed":93}`,
	} {
		sums.line([]byte(line))
	}

	got := strings.Join(sums.slowest(), "\n")

	if want := "  62 s m TestLong/b\n  31 s m TestLong/a"; got != want {
		t.Errorf("the slowest tests are\n%s\nwant\n%s", got, want)
	}
}
