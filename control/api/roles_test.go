package api_test

import (
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
)

// calls returns the pattern of every call that the server routes.
func calls(t *testing.T) []string {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, f := range files {
		if strings.HasSuffix(f.Name(), "_test.go") || !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.route\("([A-Z]+ /v1/[^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			patterns = append(patterns, m[1])
		}
	}
	if len(patterns) < 15 {
		t.Fatalf("found %d calls: the test looked in the wrong place", len(patterns))
	}
	return patterns
}

func TestEveryCallIsAnsweredToTheRolesThatItNeedsAndToNoOther(t *testing.T) {
	least := map[string]control.Role{
		"GET /v1/health": "reader", "GET /v1/audit": "reader", "GET /v1/operators": "reader", "GET /v1/packages": "reader",
		"GET /v1/declarations": "reader", "GET /v1/declarations/{name}": "reader", "GET /v1/declarations/{name}/progress": "reader",
		"GET /v1/nodes": "reader", "GET /v1/nodes/{name}": "reader",
		"PUT /v1/declarations/{name}": "publisher", "DELETE /v1/declarations/{name}": "publisher",
		"POST /v1/blobs/missing": "publisher", "PUT /v1/blobs/{sha256}": "publisher", "POST /v1/packages": "publisher",
		"POST /v1/tokens": "admin", "POST /v1/nodes/{name}/revoke": "admin",
		"POST /v1/operators": "admin", "DELETE /v1/operators/{name}": "admin",
	}
	s := api.New(api.Config{Operator: &apitest.Operator{}, Publisher: &apitest.Publisher{}, Log: slog.New(slog.DiscardHandler)})
	for _, call := range calls(t) {
		needed, listed := least[call]
		if !listed {
			t.Errorf("nobody said which role %s needs: add it here and to the table of roles", call)
			continue
		}
		for _, role := range append(control.Roles(), "", "owner") {
			method, path, _ := strings.Cut(call, " ")
			r := httptest.NewRequest(method, strings.NewReplacer("{name}", "web", "{sha256}", "x").Replace(path), strings.NewReader("not what is expected"))
			r = r.WithContext(api.WithCaller(r.Context(), control.Caller{Name: "anna", Door: control.DoorSSH, Role: role}))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			body, err := io.ReadAll(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			denied := w.Code == 403 && strings.Contains(string(body), "needs "+string(needed))
			if denied == role.Includes(needed) {
				t.Errorf("%s for role %q, which needs %s: status %d, %s", call, role, needed, w.Code, body)
			}
		}
	}
}
