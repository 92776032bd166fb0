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
		"GET /v1/tokens": "reader", "DELETE /v1/tokens/{id}": "admin",
		"POST /v1/tokens": "admin", "POST /v1/nodes/{name}/revoke": "admin",
		"POST /v1/operators": "admin", "DELETE /v1/operators/{name}": "admin",
		"GET /v1/suites":                      "reader",
		"GET /v1/packages/{name}":             "reader",
		"POST /v1/packages/remove":            "publisher",
		"POST /v1/packages/promote":           "publisher",
		"GET /v1/repository":                  "reader",
		"GET /v1/repository/key":              "reader",
		"POST /v1/repository/key/rotate":      "admin",
		"POST /v1/repository/key/finish":      "admin",
		"GET /v1/repository/key/private":      "admin",
		"GET /v1/declarations/{name}/history": "reader",
		"GET /v1/declarations/{name}/compare": "reader",
		"POST /v1/declarations/{name}/revert": "publisher",
		"GET /v1/events":                      "reader",
		"POST /v1/nodes/{name}/retire":        "admin",
		"DELETE /v1/nodes/{name}/retire":      "admin",
		"POST /v1/nodes/{name}/labels":        "admin",
		"POST /v1/nodes/{name}/recover":       "admin",
	}
	publisher := &apitest.Publisher{}
	s := api.New(api.Config{Operator: &apitest.Operator{}, Publisher: publisher, Librarian: &apitest.Librarian{Publisher: publisher}, Log: slog.New(slog.DiscardHandler)})
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

func TestAPublisherWithLimitsChangesOnlyThePackagesThatItMayPublish(t *testing.T) {
	publisher := &apitest.Publisher{}
	s := api.New(api.Config{Operator: &apitest.Operator{}, Publisher: publisher, Librarian: &apitest.Librarian{Publisher: publisher}, Log: slog.New(slog.DiscardHandler)})
	caller := control.Caller{Name: "ci", Door: control.DoorSSH, Role: control.RolePublisher, Limits: control.Limits{Packages: []string{"web-*"}}}
	for _, path := range []string{"/v1/packages/remove", "/v1/packages/promote"} {
		body := `{"packages":[{"format":"deb","name":"web-app","version":"1"},{"format":"deb","name":"sshd","version":"1"}]`
		if strings.HasSuffix(path, "promote") {
			body += `,"to":"stable","from":"testing"`
		}
		r := httptest.NewRequest("POST", path, strings.NewReader(body+"}"))
		r = r.WithContext(api.WithCaller(r.Context(), caller))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 403 || !strings.Contains(w.Body.String(), "sshd") {
			t.Errorf("%s with a package that ci may not publish: status %d, %s", path, w.Code, w.Body)
		}
	}
}
