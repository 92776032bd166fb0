package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestACaseIsFoundByTheNameOfASubtestByAMarkerOrAsNotRun(t *testing.T) {
	const text = `package x

var rowsNotRun = map[string]string{"O-003": "there is " + "no such kernel", "O-004": "part of it"}

// Cases: O-001, O-005
func TestOne(t *testing.T) {}

func TestTable(t *testing.T) { t.Run("O-002 with words", nil); _ = []row{{"O-004", nil}}; _ = "see O-006"; _ = "O-0071" }
`
	f, err := scan(fstest.MapFS{"a/x_test.go": {Data: []byte(text)}, "a/x.go": {Data: []byte(`package x; var s = "O-010"`)}})
	if err != nil {
		t.Fatal(err)
	}
	page, run, total := render(f)
	for _, line := range []string{
		"| O-001 | a link to a file that happens to hold the declared bytes | nothing is touched; failed (target-is-symlink) | `a`: TestOne |",
		"| O-002 | a link that points nowhere | nothing is touched; failed (target-is-symlink) | `a`: TestTable |",
		"| O-003 | everything is right already, also behind a link: nothing is written | ok; no inode, time or directory changes | *there is no such kernel* |",
		"| O-004 | a link into another tree that others share | nothing is touched; failed (target-is-symlink) | `a`: TestTable<br>*part of it* |",
		"| O-006 | a secret written over a planted link, or over a file that others can read | the link stays, failed; the other becomes a new file of mode 0600, and another user never reads the secret | not yet |",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("the page lacks %q:\n%s", line, page)
		}
	}
	if run != 4 || total != 155 {
		t.Errorf("%d of %d are run", run, total)
	}
}

func TestANumberThatIsNoCaseIsAFinding(t *testing.T) {
	f, err := scan(fstest.MapFS{"a/x_test.go": {Data: []byte("package x\n\nfunc TestX(t *testing.T) { t.Run(\"O-999\", nil) }\n")}})
	if err != nil || len(f.unknown()) != 1 {
		t.Errorf("found %v, %v", f.unknown(), err)
	}
}
