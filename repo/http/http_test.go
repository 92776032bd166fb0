package http_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/repo/repotest"
)

type site struct {
	*testing.T
	repo *repo.Repo
	keys *openpgp.Keyring
	h    http.Handler
}

func newSite(t *testing.T) *site {
	t.Helper()
	keys := repotest.Signer(t)
	log := slog.New(slog.DiscardHandler)
	r, err := repo.Open(t.Context(), repo.Config{Dir: t.TempDir()}, keys, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &site{T: t, repo: r, keys: keys, h: repohttp.New(r, repohttp.Options{}, log)}
}

func (s *site) publish(files ...[]byte) repo.Published {
	s.Helper()
	var in []repo.Incoming
	for i, f := range files {
		in = append(in, repo.Incoming{Name: fmt.Sprint(i), Body: bytes.NewReader(f)})
	}
	p, err := s.repo.Publish(s.Context(), "stable", in)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// get asks for a path; header lines are "Name: value".
func (s *site) get(path string, header ...string) *http.Response {
	s.Helper()
	return s.from("192.0.2.1:1000", path, header...)
}

func (s *site) from(remote, path string, header ...string) *http.Response {
	s.Helper()
	req := httptest.NewRequest("GET", "http://mesh.example.org:8080"+path, nil)
	req.RemoteAddr = remote
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, req)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAPackageIsServedInRangesAndMayBeCachedForEver(t *testing.T) {
	s := newSite(t)
	deb := repotest.Deb(repotest.Spec{})
	path := "/" + s.publish(deb).Files[0].Package.File

	whole, part := s.get(path), s.get(path, "Range: bytes=10-19")

	got := fmt.Sprintln(whole.StatusCode, whole.Header.Get("Content-Type"), whole.Header.Get("Cache-Control"), part.StatusCode, body(t, part) == string(deb[10:20]))
	if want := fmt.Sprintln(200, "application/vnd.debian.binary-package", "public, max-age=31536000, immutable", 206, true); got != want {
		t.Errorf("got %swant %s", got, want)
	}
	if again := s.get(path, "If-None-Match: "+whole.Header.Get("ETag")); again.StatusCode != 304 {
		t.Errorf("with the ETag it answers %d, want 304", again.StatusCode)
	}
}

func TestASignedIndexIsAskedForAgainAndChangesItsValidatorsWithEveryPublish(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/dists/stable/InRelease", "/rpm/stable/repodata/repomd.xml"} {
		first := s.get(path)
		unchanged := s.get(path, "If-Modified-Since: "+first.Header.Get("Last-Modified"))
		name := fmt.Sprintf("package%d", len(path))
		s.publish(repotest.Deb(repotest.Spec{Name: name}), repotest.RPM(repotest.Spec{Name: name}))
		changed := s.get(path, "If-Modified-Since: "+first.Header.Get("Last-Modified"))
		tagged := s.get(path, "If-None-Match: "+first.Header.Get("ETag"))

		got := fmt.Sprintln(first.Header.Get("Cache-Control"), unchanged.StatusCode, changed.StatusCode, tagged.StatusCode)
		if want := fmt.Sprintln("no-cache", 304, 200, 200); got != want {
			t.Errorf("%s: got %swant %s", path, got, want)
		}
	}
}

func TestASignatureBelongsToTheDocumentThatTheClientFetchedBefore(t *testing.T) {
	for document, signature := range map[string]string{
		"/rpm/stable/repodata/repomd.xml": "/rpm/stable/repodata/repomd.xml.asc",
		"/dists/stable/Release":           "/dists/stable/Release.gpg",
	} {
		s := newSite(t)
		text := body(t, s.from("192.0.2.1:1000", document))
		s.publish(repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{}))
		other := body(t, s.from("192.0.2.9:1000", document))

		mine := body(t, s.from("192.0.2.1:2000", signature))
		theirs := body(t, s.from("192.0.2.9:2000", signature))
		stranger := body(t, s.from("192.0.2.77:1", signature))

		if err := s.keys.VerifyDetached([]byte(text), []byte(mine)); err != nil {
			t.Errorf("%s: the client in the middle of a publish got a signature over another document: %v", signature, err)
		}
		if err := s.keys.VerifyDetached([]byte(other), []byte(theirs)); err != nil {
			t.Errorf("%s: the client after the publish: %v", signature, err)
		}
		if err := s.keys.VerifyDetached([]byte(other), []byte(stranger)); err != nil {
			t.Errorf("%s: a client that fetched no document: %v", signature, err)
		}
	}
}

func TestClientsBehindOneAddressAreToldApartByTheNameThatTheyReadUnder(t *testing.T) {
	s := newSite(t)
	const document = "rpm/stable/repodata/repomd.xml"
	first := body(t, s.from("192.0.2.1:1000", "/for/node-a/"+document))
	s.publish(repotest.RPM(repotest.Spec{}))
	second := body(t, s.from("192.0.2.1:2000", "/for/node-b/"+document))
	// As dnf does it, the signatures come over connections of their own.
	firstSignature := body(t, s.from("192.0.2.1:3000", "/for/node-a/"+document+".asc"))
	secondSignature := body(t, s.from("192.0.2.1:4000", "/for/node-b/"+document+".asc"))
	if err := s.keys.VerifyDetached([]byte(first), []byte(firstSignature)); err != nil || first == second {
		t.Errorf("the client that began before the publish got a signature over another document: %v", err)
	}
	if err := s.keys.VerifyDetached([]byte(second), []byte(secondSignature)); err != nil {
		t.Errorf("the client that began after it: %v", err)
	}
}

func TestNamesWithPlusTildeAndCaretAreFoundRawAndEncoded(t *testing.T) {
	s := newSite(t)
	p := s.publish(repotest.RPM(repotest.Spec{Version: "1.0~rc1^x+y-1"}))
	raw := "/rpm/stable/" + p.Files[0].Package.File
	encoded := strings.NewReplacer("+", "%2b", "~", "%7E", "^", "%5E").Replace(raw)

	for _, path := range []string{raw, encoded} {
		if r := s.get(path); r.StatusCode != 200 {
			t.Errorf("%s answers %d, want 200", path, r.StatusCode)
		}
	}
}

func TestNothingOutsideTheTreeIsServed(t *testing.T) {
	s := newSite(t)
	file := s.publish(repotest.Deb(repotest.Spec{})).Files[0].Package.File
	dir := file[:strings.LastIndexByte(file, '/')]
	for _, path := range []string{
		"/keys/repository.key", "/repository.lock", "/../etc/passwd", "/dists/../../../etc/passwd", "/dists/stable/../../gen",
		"/dists/stable/%2e%2e/packages.json", "/dists/stable", "/dists/stable/", "/dists/stable/main", "/dists/", "/pool/", "/" + dir,
		"/" + dir + "/record.json", "/pool/.incoming/x.deb", "/rpm/stable/pool", "/rpm/stable/repodata/../../packages.json", "/public/current", "/dists/nosuch/InRelease",
		"/dists/stable//InRelease",
	} {
		if r := s.get(path); r.StatusCode != 404 {
			t.Errorf("%s answers %d, want 404", path, r.StatusCode)
		}
	}
}

func TestWritingIsRefused(t *testing.T) {
	s := newSite(t)
	w := httptest.NewRecorder()

	s.h.ServeHTTP(w, httptest.NewRequest("PUT", "/dists/stable/InRelease", strings.NewReader("x")))

	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("PUT answers %d and allows %q, want 405 and GET, HEAD", w.Code, w.Header().Get("Allow"))
	}
}

// Shows: M11
func TestThePagesSayHowToUseTheRepositoryAtTheAddressThatTheClientUsed(t *testing.T) {
	s := newSite(t)

	index, sources, dnf := body(t, s.get("/")), body(t, s.get("/mesh.sources?suite=testing&arch=arm64")), body(t, s.get("/mesh.repo"))

	for _, want := range []string{"http://mesh.example.org:8080/mesh.asc", s.keys.Fingerprints()[0], "apt-get update", "/etc/yum.repos.d/mesh.repo"} {
		if !strings.Contains(index, want) {
			t.Errorf("the page at / does not say %q:\n%s", want, index)
		}
	}
	for _, want := range []string{"URIs: http://mesh.example.org:8080\n", "Suites: testing\n", "Architectures: arm64\n", "Signed-By: /etc/apt/keyrings/mesh.asc\n"} {
		if !strings.Contains(sources, want) {
			t.Errorf("mesh.sources lacks %q:\n%s", want, sources)
		}
	}
	for _, want := range []string{"baseurl=http://mesh.example.org:8080/rpm/stable/\n", "gpgcheck=1\n", "repo_gpgcheck=1\n", "skip_if_unavailable=0\n"} {
		if !strings.Contains(dnf, want) {
			t.Errorf("mesh.repo lacks %q:\n%s", want, dnf)
		}
	}
}

func TestAHostNameOrSuiteThatWouldWriteIntoTheConfigurationIsRefused(t *testing.T) {
	s := newSite(t)
	req := httptest.NewRequest("GET", "/mesh.repo", nil)
	req.Host = "evil\ngpgcheck=0"
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, req)

	bySuite := s.get("/mesh.sources?suite=stable%0aTrusted:%20yes")

	if w.Code != 400 || bySuite.StatusCode != 400 {
		t.Errorf("a host name with a newline answers %d, a suite with one %d; want 400 for both", w.Code, bySuite.StatusCode)
	}
}
