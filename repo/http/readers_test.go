package http_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/repotest"
)

// oneReader admits one user with one password.
type oneReader struct{ user, password string }

func (r oneReader) Admit(_ context.Context, user, password string) error {
	switch {
	case user == "broken":
		return errors.New("the store is closed")
	case user == r.user && password == r.password:
		return nil
	}
	return fmt.Errorf("%w: not %s", repohttp.ErrRefused, r.user)
}

const basic = "Authorization: Basic "

func TestARepositoryForItsReadersGivesNothingToOthersButTheWayIn(t *testing.T) {
	s := newSite(t)
	pool := "/" + s.publish(repotest.Deb(repotest.Spec{})).Files[0].Package.File
	s.h = repohttp.New(s.repo, repohttp.Options{Readers: oneReader{"web-1", "secret"}}, slog.New(slog.DiscardHandler))
	for _, path := range []string{pool, "/dists/stable/InRelease", "/rpm/stable/repodata/repomd.xml", "/nothing-there"} {
		for what, c := range map[string]struct {
			header string
			status int
		}{
			"nothing":          {"Accept: */*", 401},
			"another user":     {basic + "d2ViLTI6c2VjcmV0", 401},
			"a wrong password": {basic + "d2ViLTE6d3Jvbmc=", 401},
			"nonsense":         {"Authorization: Bearer x", 401},
			"no answer":        {basic + "YnJva2VuOng=", 503},
		} {
			r := s.get(path, c.header)
			text := body(t, r)
			if r.StatusCode != c.status || strings.Contains(r.Header.Get("Cache-Control"), "public") || len(text) > 300 {
				t.Errorf("%s with %s answers %d (%s) and %d bytes, want %d", path, what, r.StatusCode, r.Header.Get("Cache-Control"), len(text), c.status)
			}
			if c.status == 401 && !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Basic ") {
				t.Errorf("%s with %s does not say how to show a credential", path, what)
			}
		}
	}
	right := basic + "d2ViLTE6c2VjcmV0"
	if r := s.get(pool, right); r.StatusCode != 200 || r.Header.Get("Cache-Control") != "private, max-age=31536000, immutable" {
		t.Errorf("a reader gets %d, %q; want the file, and that no cache on the way keeps it for others", r.StatusCode, r.Header.Get("Cache-Control"))
	}
	for _, path := range []string{"/", "/mesh.asc", "/mesh.sources", "/mesh.repo"} {
		if r := s.get(path); r.StatusCode != 200 {
			t.Errorf("%s answers %d to everyone, want 200", path, r.StatusCode)
		}
	}
}
