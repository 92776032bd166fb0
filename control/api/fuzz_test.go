package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
)

// FuzzRequest sends anything to every call, as an admin: whatever comes, the
// answer is JSON, the fault is never the control plane's, and what was refused
// changed nothing.
func FuzzRequest(f *testing.F) {
	for _, seed := range []struct{ method, path, query, contentType, body string }{
		{"GET", "/v1/health", "", "", ""},
		{"POST", "/v1/tokens", "", "application/json", `{"name":"web-1","labels":{"role":"web"},"ttl":3600000000000,"addresses":["a:1"]}`},
		{"PUT", "/v1/declarations/web", "", "application/json", `{"declaration":"web","select":"name == \"a\"","resources":[{"kind":"file","name":"/a","file":{"content":"aGk=","sensitive":true}}]}`},
		{"PUT", "/v1/declarations/web", "", "application/json", `{"declaration":"web","resources":[{"kind":"package","name":"nginx","package":{"version":"1"}}]}`},
		{"GET", "/v1/declarations/web", "revision=1", "", ""},
		{"DELETE", "/v1/declarations/web", "", "", ""},
		{"GET", "/v1/audit", "limit=5", "", ""},
		{"POST", "/v1/blobs/missing", "", "application/json", `{"sha256":["0000000000000000000000000000000000000000000000000000000000000000"]}`},
		{"PUT", "/v1/blobs/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "", "", ""},
		{"POST", "/v1/operators", "", "application/json", `{"name":"anna","key":"ssh-ed25519 AAAA","role":"publisher","declarations":["web"],"packages":["web-*"]}`},
		{"POST", "/v1/packages", "suite=stable", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"package\"; filename=\"a.deb\"\r\n\r\nx\r\n--b--\r\n"},
		{"POST", "/v1/nodes/web-1/revoke", "", "", ""},
	} {
		f.Add(seed.method, seed.path, seed.query, seed.contentType, seed.body)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		u := &url.URL{Path: path, RawQuery: query}
		if !strings.HasPrefix(path, "/") || !slices.Contains([]string{"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"}, method) {
			return // net/http hands on nothing else
		}
		operator := &apitest.Operator{}
		s := api.New(api.Config{Operator: operator, Publisher: &apitest.Publisher{}, SpoolDir: dir, MaxUpload: 1 << 20, MaxBlob: 1 << 20, Log: slog.New(slog.DiscardHandler)})
		r := httptest.NewRequest(method, "/", strings.NewReader(body))
		r.URL, r.RequestURI = u, u.RequestURI()
		r.Header.Set("Content-Type", contentType)
		r = r.WithContext(api.WithCaller(r.Context(), control.Caller{Name: "anna", Door: control.DoorSSH, Key: "SHA256:x", Role: control.RoleAdmin}))
		w := httptest.NewRecorder()

		s.ServeHTTP(w, r)

		written, err := operator.Audit(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case w.Code >= 500:
			t.Errorf("%s %s?%s answers %d: %s", method, path, query, w.Code, w.Body)
		case w.Code >= 400 && len(written) > 0:
			t.Errorf("%s %s was refused with %d and wrote %+v", method, path, w.Code, written)
		case w.Code >= 300 && w.Code < 400 || w.Code == http.StatusNoContent || method == "HEAD":
			return // a path that is not clean is sent to the clean one
		case !json.Valid(w.Body.Bytes()):
			t.Errorf("%s %s answers %d with what is no JSON: %q", method, path, w.Code, w.Body)
		}
		for _, e := range written {
			if e.Who != "anna" || e.Door != control.DoorSSH || e.Key == "" {
				t.Errorf("%s %s is recorded as %+v, without who, door and key", method, path, e)
			}
		}
	})
}
