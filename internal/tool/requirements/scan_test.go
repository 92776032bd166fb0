package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func tree(files map[string]string) fstest.MapFS {
	t := fstest.MapFS{}
	for name, text := range files {
		t[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return t
}

const marked = `package host

import "testing"

// A sentence about the test.
// Shows: M4, M5
func TestOne(t *testing.T) {
	text := "// Shows: M99"
	_ = text
}

// Shows: M5
func FuzzTwo(f *testing.F) {}
`

func TestThePageNamesTheTestsOfEachRequirementAndSaysNotYetForTheRest(t *testing.T) {
	tests, found, err := scan(tree(map[string]string{
		"host/a_test.go":                  marked,
		"test/script/testdata/push.txtar": "# A story.\n# Shows: M8\nexec meshctl\n-- file --\n# Shows: M99\n",
		"host/testdata/x_test.go":         "not Go, Shows:",
	}))
	if err != nil || len(found) != 0 {
		t.Fatalf("scanning: %v, findings %q", err, found)
	}

	page, covered := render(tests)

	for _, want := range []string{
		"| `host`: TestOne |\n",
		"| `host`: FuzzTwo<br>`host`: TestOne |\n",
		"| `test/script/testdata/push.txtar` |\n",
		"| not yet |\n",
		"\n3 of 34 requirements",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if covered != 3 {
		t.Errorf("%d requirements covered, want 3", covered)
	}
}

func TestAMarkerThatIsWrongIsNamedWithFileAndLine(t *testing.T) {
	cases := map[string]struct{ name, text, want string }{
		"an unknown number": {
			"a_test.go", "package a\n\n// Shows: M35\nfunc TestOne(t *testing.T) {}\n",
			"a_test.go:3: there is no requirement M35 (M1 to M34)",
		},
		"no number at all": {
			"a_test.go", "package a\n\n// Shows: everything\nfunc TestOne(t *testing.T) {}\n",
			`a_test.go:3: "everything" is not a requirement's number (write // Shows: M1, M2)`,
		},
		"above a helper": {
			"a_test.go", "package a\n\n// Shows: M1\nfunc helper() {}\n",
			"a_test.go:3: a Shows marker that is not directly above a test function",
		},
		"above a blank line": {
			"a_test.go", "package a\n\n// Shows: M1\n\nfunc TestOne(t *testing.T) {}\n",
			"a_test.go:3: a Shows marker that is not directly above a test function",
		},
		"in a file that holds no tests": {
			"a.go", "package a\n\n// Shows: M1\nfunc TestOne(t *testing.T) {}\n",
			"a.go:3: a Shows marker that is not directly above a test function",
		},
		"inside a test": {
			"a_test.go", "package a\n\nfunc TestOne(t *testing.T) {\n\t// Shows: M1\n}\n",
			"a_test.go:4: a Shows marker that is not directly above a test function",
		},
		"in a script": {
			"a.txtar", "# Shows: M1, M0\n",
			`a.txtar:1: "M0" is not a requirement's number (write // Shows: M1, M2)`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, found, err := scan(tree(map[string]string{c.name: c.text}))
			if err != nil {
				t.Fatalf("scanning: %v", err)
			}
			if len(found) != 1 || found[0] != c.want {
				t.Errorf("findings %q, want exactly %q", found, c.want)
			}
		})
	}
}

func TestTheListHoldsEachNumberOnceInOrder(t *testing.T) {
	for i, r := range list {
		if r.number != i+1 || r.title == "" {
			t.Errorf("place %d of the list holds M%d %q", i+1, r.number, r.title)
		}
	}
}
