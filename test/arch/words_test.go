package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const resultsPage = "../../docs/004-results.md"

// constants returns the values of every constant of the named type in file.
func constants(t *testing.T, file, typeName string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("reading the words in the code: %v", err)
	}
	var words []string
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == typeName {
			for _, value := range spec.Values {
				if literal, ok := value.(*ast.BasicLit); ok {
					word, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Fatalf("reading the words in the code: %v", err)
					}
					words = append(words, word)
				}
			}
		}
		return true
	})
	return words
}

func TestTheResultsPageExplainsEveryStatusReasonAndEndingAndNoOther(t *testing.T) {
	page, err := os.ReadFile(resultsPage)
	if err != nil {
		t.Fatalf("reading the page: %v", err)
	}
	var explained []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, row[1])
	}
	statuses := constants(t, "../../report.go", "Status")
	reasons := constants(t, "../../reason.go", "Reason")
	endings := constants(t, "../../upgrade.go", "Ending")
	if len(statuses) == 0 || len(reasons) == 0 || len(endings) == 0 {
		t.Fatalf("found %d statuses, %d reasons and %d endings: the test looked in the wrong place", len(statuses), len(reasons), len(endings))
	}
	spoken := slices.Concat(statuses, reasons, endings)
	for _, word := range spoken {
		if !slices.Contains(explained, word) {
			t.Errorf("docs/004-results.md does not explain %q, which a host reports", word)
		}
	}
	for _, word := range explained {
		if !slices.Contains(spoken, word) {
			t.Errorf("docs/004-results.md explains %q, which no host reports", word)
		}
	}
}

func TestEveryModuleThatTheCodeImportsIsNamedInARecord(t *testing.T) {
	tree, err := Read(os.DirFS("../.."))
	if err != nil {
		t.Fatalf("reading this repository: %v", err)
	}
	records, err := filepath.Glob("../../adr/[0-9]*.md")
	if err != nil || len(records) == 0 {
		t.Fatalf("found no records: %v", err)
	}
	var named []string
	for _, record := range records {
		text, err := os.ReadFile(record)
		if err != nil {
			t.Fatalf("reading a record: %v", err)
		}
		for _, word := range regexp.MustCompile("`([a-zA-Z0-9.-]+\\.[a-z]+/[^` ]+)`").FindAllStringSubmatch(string(text), -1) {
			named = append(named, word[1])
		}
	}
	for _, file := range tree.Files {
		for _, imported := range file.Imports {
			first, _, _ := strings.Cut(imported.Path, "/")
			if _, ours := imported.Ours(); ours || !strings.Contains(first, ".") {
				continue
			}
			if !slices.ContainsFunc(named, func(module string) bool {
				return imported.Path == module || strings.HasPrefix(imported.Path, module+"/")
			}) {
				t.Errorf("%s:%d: imports %s, whose module no record names", file.Path, imported.Line, imported.Path)
			}
		}
	}
}
