package assign_test

import (
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/assign"
)

func compiler(t *testing.T) *assign.Compiler {
	t.Helper()
	c, err := assign.New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func prepare(t *testing.T, c *assign.Compiler, doc mesh.Document) *assign.Source {
	t.Helper()
	s, ps := c.Prepare(doc)
	if len(ps) > 0 {
		t.Fatalf("prepare %s: %v", doc.Declaration, ps)
	}
	return s
}

func bookworm(name string, labels map[string]string) *assign.Facts {
	return assign.NewFacts(name, labels, mesh.Profile{OS: mesh.OS{ID: "debian", Version: "12", Family: "debian"}, Arch: "amd64", MemoryBytes: 4 << 30, Systemd: 252}, assign.Own{})
}

func file(path, content string) mesh.DocumentResource {
	spec := &mesh.FileSpec{}
	spec.SetContent([]byte(content))
	return mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: path, File: spec}}
}

func TestASelectionReadsLabelsNameAndProfileAndAMissingLabelIsEmpty(t *testing.T) {
	web := bookworm("web-1", map[string]string{"role": "web", "cores": "4"})
	bare := bookworm("bare-1", nil)
	tests := []struct {
		expression string
		web, bare  bool
	}{
		{``, true, true},
		{`labels.role == "web"`, true, false},
		{`labels["role"] == "web"`, true, false},
		{`labels.role != "web"`, false, true},
		{`has(labels.role)`, true, false},
		{`!has(labels.role)`, false, true},
		{`"role" in labels`, true, false},
		{`size(labels) == 2`, true, false},
		{`labels.exists(l, l == "role")`, true, false},
		{`labels.role == ""`, false, true},
		{`name == "bare-1"`, false, true},
		{`name.startsWith("web-")`, true, false},
		{`os.family == "debian" && os.version == "12"`, true, true},
		{`os.id == "fedora"`, false, false},
		{`arch == "amd64" && profile.memory_bytes >= 4 * 1024 * 1024 * 1024`, true, true},
		{`profile.os.id == "debian" && profile.systemd > 250`, true, true},
		{`labels.role in ["web", "proxy"]`, true, false},
	}
	c := compiler(t)
	for _, tt := range tests {
		s := prepare(t, c, mesh.Document{Declaration: "d", Select: tt.expression})
		for facts, want := range map[*assign.Facts]bool{web: tt.web, bare: tt.bare} {
			part := s.For(facts)
			if len(part.Faults) > 0 || part.Selected != want {
				t.Errorf("%q for %s: selected %v, want %v; faults %v", tt.expression, facts.Name(), part.Selected, want, part.Faults)
			}
		}
	}
}

func TestAWrongExpressionOrTemplateIsRefusedWhenItIsWrittenAllAtOnce(t *testing.T) {
	script := file("/etc/motd", "a\nb ${node.nmae}\n")
	script.Template = true
	open := file("/etc/issue", "${labels.x")
	open.Template = true
	when := file("/etc/x", "x")
	when.When = `os.familly == "debian"`
	_, ps := compiler(t).Prepare(mesh.Document{Declaration: "d", Select: `labels.role`, Resources: []mesh.DocumentResource{script, open, when}})
	got := ps.Error()
	for _, want := range []string{"select:", "it must give true or false", "resources[0].template:", "line 2 of the content", "${node.nmae}", "resources[1].template:", "resources[2].when:", "familly"} {
		if !strings.Contains(got, want) {
			t.Errorf("the findings lack %q:\n%s", want, got)
		}
	}
}

func TestHostileExpressionsAreBounded(t *testing.T) {
	c := compiler(t)
	for name, expression := range map[string]string{
		"very long":   strings.Repeat(`name == "x" || `, 1000) + "true",
		"very nested": strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000),
	} {
		if _, ps := c.Prepare(mesh.Document{Declaration: "d", Select: expression}); len(ps) == 0 {
			t.Errorf("a %s expression was taken", name)
		}
	}
	list := "[" + strings.Repeat("1,", 400) + "1]"
	costly := list + ".all(a, " + list + ".all(b, " + list + ".all(c, a + b + c > 0)))"
	s, ps := c.Prepare(mesh.Document{Declaration: "d", Select: costly})
	if len(ps) > 0 {
		return
	}
	if part := s.For(bookworm("n", nil)); part.Selected || len(part.Faults) == 0 {
		t.Errorf("an expression of 64 million steps was evaluated to the end: %+v", part)
	}
}

func TestATemplateIsFilledInForEachNodeAndContentWithoutItStaysAsItIs(t *testing.T) {
	templated := file("/etc/a", "${node.name} ${labels.site} ${os.id}-${os.version} $${HOME} $x {y}")
	templated.Template = true
	plain := file("/etc/b", "${HOME} $${x}")
	set := assign.NewSet(prepare(t, compiler(t), mesh.Document{Declaration: "d", Resources: []mesh.DocumentResource{templated, plain}}))
	got := set.Compile(bookworm("web-1", map[string]string{"site": "ber"}))
	if len(got.Faults) > 0 {
		t.Fatal(got.Faults)
	}
	if a := string(got.Resources[0].File.Content); a != "web-1 ber debian-12 ${HOME} $x {y}" {
		t.Errorf("template gave %q", a)
	}
	if b := string(got.Resources[1].File.Content); b != "${HOME} $${x}" {
		t.Errorf("plain content became %q", b)
	}
}

func TestATemplateThatNeedsALabelWhichTheNodeLacksIsAFault(t *testing.T) {
	templated := file("/etc/a", "${labels.site}")
	templated.Template = true
	set := assign.NewSet(prepare(t, compiler(t), mesh.Document{Declaration: "d", Resources: []mesh.DocumentResource{templated}}))
	got := set.Compile(bookworm("web-1", nil))
	if len(got.Faults) != 1 || got.Faults[0].Resource != "file:/etc/a" || got.Resources != nil {
		t.Errorf("got %+v, want one fault for file:/etc/a and no resources", got)
	}
}

func TestTwoDeclarationsThatClaimOneResourceForANodeAreAFaultThatNamesBoth(t *testing.T) {
	c := compiler(t)
	web := prepare(t, c, mesh.Document{Declaration: "web", Select: `labels.role == "web"`, Resources: []mesh.DocumentResource{file("/etc/motd", "web")}})
	base := prepare(t, c, mesh.Document{Declaration: "base", Resources: []mesh.DocumentResource{file("/etc/motd", "base")}})
	set := assign.NewSet(web, base)
	if got := set.Compile(bookworm("db-1", nil)); len(got.Faults) > 0 {
		t.Errorf("db-1 is selected by one only, and has faults %v", got.Faults)
	}
	got := set.Compile(bookworm("web-1", map[string]string{"role": "web"}))
	if len(got.Faults) != 1 || strings.Join(got.Faults[0].Declarations, " ") != "base web" || got.Faults[0].Resource != "file:/etc/motd" {
		t.Errorf("web-1: faults %+v, want one that names base and web", got.Faults)
	}
}

func TestOneResourceMayStandTwiceInADocumentWhenOnlyOneHolds(t *testing.T) {
	deb, rpm := file("/etc/x", "deb"), file("/etc/x", "rpm")
	deb.When, rpm.When = `os.family == "debian"`, `os.family == "rpm"`
	set := assign.NewSet(prepare(t, compiler(t), mesh.Document{Declaration: "d", Resources: []mesh.DocumentResource{deb, rpm}}))
	got := set.Compile(bookworm("n", nil))
	if len(got.Resources) != 1 || string(got.Resources[0].File.Content) != "deb" {
		t.Errorf("got %+v", got)
	}
	if r := got.Resources[0]; r.From != "d" || r.File.Type != mesh.FileRegular || r.File.Size != 3 {
		t.Errorf("the compiled resource lacks its declaration, type or size: %+v", r)
	}
}

func TestEqualInputsAreCompiledOnce(t *testing.T) {
	set := assign.NewSet(prepare(t, compiler(t), mesh.Document{Declaration: "d", Select: `labels.role == "web"`, Resources: []mesh.DocumentResource{file("/etc/x", "x")}}))
	a := set.Compile(bookworm("web-1", map[string]string{"role": "web"}))
	b := set.Compile(bookworm("web-2", map[string]string{"role": "web"}))
	if a != b {
		t.Error("two nodes with the same labels were compiled separately")
	}
	if named := set.Compile(bookworm("web-3", map[string]string{"role": "db"})); named == a {
		t.Error("a node with other labels shares the result")
	}
}
