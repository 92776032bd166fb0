package control_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func TestARoleIncludesWhatIsBelowItAndNothingElse(t *testing.T) {
	const none, other control.Role = "", "owner"
	all := append(control.Roles(), none, other)
	includes := map[control.Role][]control.Role{
		control.RoleReader:    {control.RoleReader},
		control.RolePublisher: {control.RoleReader, control.RolePublisher},
		control.RoleAdmin:     {control.RoleReader, control.RolePublisher, control.RoleAdmin},
	}
	for _, has := range all {
		for _, needed := range all {
			want := false
			for _, r := range includes[has] {
				want = want || r == needed
			}
			err := control.Caller{Name: "anna", Role: has}.May(needed)
			if has.Includes(needed) != want || (err == nil) != want {
				t.Errorf("role %q and a call that needs %q: included %v (%v), want %v", has, needed, has.Includes(needed), err, want)
			}
			if err != nil && mesh.CodeOf(err) != mesh.CodeDenied {
				t.Errorf("the refusal %v has code %q, want %q", err, mesh.CodeOf(err), mesh.CodeDenied)
			}
		}
	}
}

func TestALimitedPublisherWritesOnlyWhatIsNamed(t *testing.T) {
	publisher := func(l control.Limits) control.Caller {
		return control.Caller{Name: "ci", Role: control.RolePublisher, Limits: l}
	}
	for name, c := range map[string]struct {
		caller                 control.Caller
		web, db, webApp, other bool
	}{
		"no limits":          {publisher(control.Limits{}), true, true, true, true},
		"declarations alone": {publisher(control.Limits{Declarations: []string{"web"}}), true, false, false, false},
		"packages alone":     {publisher(control.Limits{Packages: []string{"web-*"}}), false, false, true, false},
		"both":               {publisher(control.Limits{Declarations: []string{"web"}, Packages: []string{"nginx", "web-?pp"}}), true, false, true, false},
		"a reader":           {control.Caller{Role: control.RoleReader}, false, false, false, false},
		"an admin":           {control.Caller{Role: control.RoleAdmin}, true, true, true, true},
		"nobody":             {control.Caller{}, false, false, false, false},
	} {
		for what, got := range map[string][2]bool{
			"the declaration web":     {c.caller.MayDeclare("web") == nil, c.web},
			"the declaration db":      {c.caller.MayDeclare("db") == nil, c.db},
			"the package web-app":     {c.caller.MayPublish("web-app") == nil, c.webApp},
			"the package my-web-app":  {c.caller.MayPublish("my-web-app") == nil, c.other},
			"the declaration web-app": {c.caller.MayDeclare("web-app") == nil, c.db},
			"content":                 {c.caller.MayUpload() == nil, c.web},
		} {
			if got[0] != got[1] {
				t.Errorf("%s may write %s: %v, want %v", name, what, got[0], got[1])
			}
		}
	}
}

// A write whose entry is put together by hand lacks the key of whoever asked.
func TestEveryAuditEntryOfACallerIsMadeByTheCaller(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files were looked at: %v", err)
	}
	made := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		made += strings.Count(string(text), "caller.entry(")
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), "Who: caller.Name") {
			t.Errorf("%s makes an audit entry of its own; caller.entry(at, what, detail) adds the key", file)
		}
	}
	if made == 0 {
		t.Error("no entry is made with caller.entry: the test looked in the wrong place")
	}
}
