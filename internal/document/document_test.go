package document_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/document"
)

func findings(t *testing.T, text string) string {
	t.Helper()
	_, err := document.Parse("web.yaml", []byte(text), nil)
	var ps mesh.Problems
	if !errors.As(err, &ps) {
		t.Fatalf("parse gave %v, want findings", err)
	}
	return ps.Error()
}

func TestADeclarationIsReadWithEverythingThatItSays(t *testing.T) {
	const text = `declaration: web
select: 'labels.role == "web"'
resources:
  - package: nginx
    version: 1.22.1-9+deb12u1
    when: os.family == "debian"
  - package: nano
    absent: true
  - file: /etc/nginx/conf.d/app.conf
    source: app.conf
    owner: root
    group: root
    mode: "0644"
    sensitive: true
    template: true
    requires: [package:nginx]
    on_change: {reload: [nginx.service]}
  - file: /srv/app
    type: directory
  - file: /srv/link
    type: symlink
    target: app
  - file: /etc/motd
    content: |
      hello
`
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.yaml"), text)
	write(t, filepath.Join(dir, "app.conf"), "listen ${node.name};\n")
	doc, err := document.Load(filepath.Join(dir, "web.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if doc.Declaration != "web" || doc.Select != `labels.role == "web"` || len(doc.Resources) != 6 {
		t.Fatalf("read %+v", doc)
	}
	if r := doc.Resources[0]; r.ID() != "package:nginx" || r.Package.Version != "1.22.1-9+deb12u1" || r.When != `os.family == "debian"` || r.OnChange != nil {
		t.Errorf("package became %+v", r)
	}
	if r := doc.Resources[1]; !r.Absent() {
		t.Errorf("absent package became %+v", r)
	}
	conf := doc.Resources[2]
	if string(conf.File.Content) != "listen ${node.name};\n" || conf.File.Mode != "0644" || !conf.File.Sensitive || !conf.Template {
		t.Errorf("file became %+v", conf.File)
	}
	if !slices.Equal(conf.Requires, []mesh.ResourceID{"package:nginx"}) || conf.OnChange == nil || !slices.Equal(conf.OnChange.Reload, []string{"nginx.service"}) {
		t.Errorf("requires or on_change became %+v", conf)
	}
	if doc.Resources[3].File.Type != mesh.FileDirectory || doc.Resources[4].File.Target != "app" || string(doc.Resources[5].File.Content) != "hello\n" {
		t.Errorf("other files became %+v", doc.Resources[3:])
	}
}

func TestEveryFindingIsListedAtOnceWithLineColumnAndPath(t *testing.T) {
	got := findings(t, `declaration: Web
selekt: "true"
resources:
  - file: etc/motd
    content: hello
    mode: 0644
  - package: nginx
    mode: "0644"
    version: 1.10
  - package: nano
    absent: yes
    absent: true
  - source: x
  - package: nginx*
    requires: nginx
`)
	for _, want := range []string{
		`web.yaml:1:1: declaration: "Web" is not a name for a declaration`,
		`web.yaml:2:1: selekt: a declaration has no key "selekt"; did you mean "select"?`,
		`web.yaml:4:5: resources[0].file: "etc/motd" is not an absolute path`,
		`web.yaml:6:11: resources[0].mode: without quotes 0644 is read as a number; write it in quotes, as in "0644"`,
		`web.yaml:8:5: resources[1].mode: a package has no mode`,
		`web.yaml:9:14: resources[1].version: without quotes 1.10 is read as a number with a fraction; write it in quotes, as in "1.10"`,
		`web.yaml:11:13: resources[2].absent: this must be true or false, and is the text "yes"`,
		`web.yaml:12:5: resources[2].absent: the key stands here a second time; the first is on line 11`,
		`web.yaml:13:5: resources[3]: a resource needs the key "file"`,
		`web.yaml:14:5: resources[4].package: "nginx*" cannot be the name of a package`,
		`web.yaml:15:15: resources[4].requires: this must be a list, and is the text "nginx"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the findings lack\n  %s\nthey are\n%s", want, got)
		}
	}
	if lines := strings.Count(got, "\n") + 1; lines != 11 {
		t.Errorf("%d findings, want 11:\n%s", lines, got)
	}
}

func TestWhatADeclarationDoesNotNeedIsRefused(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "the document is empty"},
		{"a comment", "# nothing\n", "empty"},
		{"no YAML", "declaration: [\n", "not valid YAML"},
		{"two documents", "declaration: a\nresources: []\n---\ndeclaration: b\n", "a second document begins here"},
		{"a list", "- a\n", "and this is a list"},
		{"no name", "resources: []\n", `needs the key "declaration"`},
		{"no resources", "declaration: a\n", `needs the key "resources"`},
		{"an anchor", "declaration: &a a\nresources: []\n", "anchors and aliases"},
		{"an anchor at a key", "&k declaration: a\nresources: []\n", "a key is one word"},
		{"a key that is a list", "[declaration]: a\nresources: []\n", "a key is one word"},
		{"an anchor at a truth", "declaration: a\nresources:\n  - package: a\n    absent: &t true\n", "anchors and aliases"},
		{"a bomb", "declaration: a\nresources:\n  - &a [x, x]\n  - &b [*a, *a]\n  - [*b, *b]\n", "anchors and aliases"},
		{"a merge key", "declaration: a\nresources:\n  - <<: {file: /x}\n", `no key "<<"`},
		{"a tag", "declaration: a\nresources:\n  - file: /x\n    content: !!binary aGVsbG8=\n", "tags (!)"},
		{"no value", "declaration: a\nresources:\n  - file: /x\n    content:\n", "this has no value"},
		{"content and source", "declaration: a\nresources:\n  - file: /x\n    content: a\n    source: b\n", "not both"},
		{"a source where no files are", "declaration: a\nresources:\n  - file: /x\n    source: b\n", "no files can be read here"},
		{"file and package", "declaration: a\nresources:\n  - file: /x\n    package: b\n", "not both"},
		{"a file without content", "declaration: a\nresources:\n  - file: /x\n", "needs content or source"},
		{"binary", "declaration: \xff\n", "not UTF-8"},
		{"too much", "declaration: a\nresources: []\n#" + strings.Repeat("x", document.Limit), "the limit is"},
		{"deep nesting", "declaration: a\nresources: " + strings.Repeat("[", 20000) + "\n", "YAML"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := findings(t, tt.text); !strings.Contains(got, tt.want) {
				t.Errorf("findings are\n%s\nwant one with %q", got, tt.want)
			}
		})
	}
}

func TestWhatIsNoYAMLIsToldAtTheLineThatIsWrong(t *testing.T) {
	const before = "declaration: a\nresources:\n  - package: x\n"
	for _, tt := range []struct {
		name, text string
		line       int
	}{
		{"the first line", "declaration: [\n", 1},
		{"too little indented", before + "  - package: y\n   absent: true\n", 5},
		{"at the depth of the list", before + "  - package: y\n  absent: true\n", 5},
		{"a tab", before + "\t- package: y\n", 4},
		{"two colons", before + "  - package: y: z\n  - package: z\n", 4},
		{"a quote that does not end", before + "  - package: \"y\n  - package: z\n", 4},
		{"a mark that begins nothing", before + "  - package: @y\n  - package: z\n", 4},
		{"a bracket that ends nothing", before + "  - package: ]\n", 4},
		{"a brace that does not end", before + "  - {package: y\n  - package: z\n", 4},
		{"an alias of nothing", before + "  - package: *y\n  - package: z\n", 4},
		{"an unknown escape", before + "  - package: \"\\q\"\n", 4},
		{"a key without a value", "declaration: a\nselect\nresources: []\n", 2},
		{"a brace at the end", before + "}", 4},
		{"in a second document", before + "---\na: b\nc: ]\n", 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := findings(t, tt.text); !strings.HasPrefix(got, fmt.Sprintf("web.yaml:%d: not valid YAML: ", tt.line)) {
				t.Errorf("findings are %s, want one at line %d", got, tt.line)
			}
		})
	}
}

func TestOneFaultIsOneFinding(t *testing.T) {
	for _, text := range []string{
		"- a\n",
		"declaration: a\nselect:\nresources: []\n",
		"declaration: a\nselect: [b]\nresources: []\n",
		"declaration: a\nresources: [b]\n",
		"declaration: a\nresources:\n  - package: a\n    absent: [b]\n",
		"declaration: a\nresources:\n  - package: a\n    on_change: [b]\n",
		"declaration: a\nresources:\n  - package: a\n    on_change: {restart: b}\n",
		"declaration: a\nresources:\n  - file: /x\n    source:\n",
	} {
		if got := findings(t, text); strings.Contains(got, "\n") {
			t.Errorf("%q gives\n%s", text, got)
		}
	}
}

func TestAMisspeltKeyIsToldWhichOneIsMeant(t *testing.T) {
	for _, tt := range []struct{ key, meant string }{
		{"selec", "select"},        // the last letter is missing
		{"elect", "select"},        // the first
		{"seect", "select"},        // one in the middle
		{"selects", "select"},      // one too many at the end
		{"sselect", "select"},      // at the beginning
		{"selelct", "select"},      // in the middle
		{"sylect", "select"},       // another one
		{"selecd", "select"},       // the last
		{"seletc", "select"},       // two swapped, at the end
		{"eslect", "select"},       // at the beginning
		{"slelect", "select"},      // one too many that looks like a swap
		{"RESOURCES", "resources"}, // capitals
		{"sele", ""},               // two are missing
		{"selectxy", ""},           // two too many
		{"salekt", ""},             // two others
		{"slecet", ""},             // two changes
		{"seltce", ""},             // a swap, and one more
		{"s", ""},                  // hardly anything
	} {
		t.Run(tt.key, func(t *testing.T) {
			want := "there are declaration, resources, select"
			if tt.meant != "" {
				want = fmt.Sprintf("did you mean %q?", tt.meant)
			}
			if got := findings(t, tt.key+": x\ndeclaration: a\nresources: []\n"); !strings.Contains(got, fmt.Sprintf("has no key %q; %s", tt.key, want)) {
				t.Errorf("findings are %s, want one with %q", got, want)
			}
		})
	}
	const dashed = "declaration: a\nresources:\n  - package: a\n    On-Change: {}\n"
	if got := findings(t, dashed); !strings.Contains(got, `has no key "On-Change"; did you mean "on_change"?`) {
		t.Errorf("findings are %s", got)
	}
}

func TestASourceThatCannotBeReadIsAFindingAtItsLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d.yaml")
	write(t, path, "declaration: a\nresources:\n  - file: /x\n    source: missing.conf\n")
	_, err := document.Load(path)
	var ps mesh.Problems
	if !errors.As(err, &ps) || len(ps) != 1 || ps[0].Line != 4 || ps[0].Path != "resources[0].source" || ps[0].File != path {
		t.Errorf("got %v, want one finding at line 4", err)
	}
}

func TestALaterFindingIsGivenItsPlace(t *testing.T) {
	f, err := document.Parse("web.yaml", []byte("declaration: web\nresources:\n  - package: nginx\n    when: \"true\"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Locate(mesh.Problems{{Path: "resources[0].when", Message: "m"}, {Path: "resources[0].template", Message: "m"}, {Path: "select", Message: "m"}, {Message: "node web-1: m"}})
	want := mesh.Problems{
		{File: "web.yaml", Line: 4, Column: 5, Path: "resources[0].when", Message: "m"},
		{File: "web.yaml", Line: 3, Column: 5, Path: "resources[0].template", Message: "m"},
		{File: "web.yaml", Line: 1, Column: 1, Path: "select", Message: "m"},
		{Message: "node web-1: m"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("located\n%v\nwant\n%v", got, want)
	}
}

func TestLargeContentIsDetachedAndSmallContentStays(t *testing.T) {
	large := bytes.Repeat([]byte("x"), mesh.InlineLimit+1)
	doc := mesh.Document{Declaration: "d"}
	for path, content := range map[string][]byte{"/large": large, "/small": large[1:]} {
		spec := &mesh.FileSpec{}
		spec.SetContent(content)
		doc.Resources = append(doc.Resources, mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec}})
	}
	got, blobs := document.Detach(doc)
	for i, r := range got.Resources {
		switch {
		case r.Name == "/large" && (r.File.Content != nil || !bytes.Equal(blobs[r.File.SHA256], large) || r.File.Size != int64(len(large))):
			t.Errorf("large content was not detached: %d bytes inline, %d blobs", len(r.File.Content), len(blobs))
		case r.Name == "/small" && len(r.File.Content) != mesh.InlineLimit:
			t.Errorf("small content has %d bytes inline", len(r.File.Content))
		}
		if doc.Resources[i].File.Content == nil {
			t.Errorf("the document that was given lost the content of %s", r.Name)
		}
	}
}

func TestABundleTakesNothingThatOnlyAControlPlaneCanEvaluate(t *testing.T) {
	doc := mesh.Document{Select: "true", Resources: []mesh.DocumentResource{{When: "true"}, {Template: true}, {}}}
	got := document.ForBundle(doc)
	var paths []string
	for _, p := range got {
		paths = append(paths, p.Path)
	}
	if want := []string{"select", "resources[0].when", "resources[1].template"}; !slices.Equal(paths, want) {
		t.Errorf("findings at %v, want %v", paths, want)
	}
}

func FuzzParseNeverPanicsAndPlacesEveryFinding(f *testing.F) {
	f.Add([]byte("declaration: a\nresources:\n  - file: /x\n    content: y\n"))
	f.Add([]byte("declaration: &a a\nresources: [*a, {<<: *a}]\n"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Add([]byte("- !!set {a, b}\n--- >\n x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := document.Parse("f.yaml", data, nil)
		if err != nil {
			var ps mesh.Problems
			if !errors.As(err, &ps) || len(ps) == 0 {
				t.Fatalf("an error without findings: %v", err)
			}
			return
		}
		if ps := file.Document.Validate(); len(ps) > 0 {
			t.Fatalf("taken with faults: %v", ps)
		}
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
