// Package http serves a repository to package managers: the tree of files with
// ranges, validators and cache headers, the ready-made configuration of apt
// and dnf, the public key, and a page that says how to use them.
//
// It only reads. It does not list directories, does not decide who may read, and
// holds nothing that a plain web server with the tree of files could not serve,
// except that it keeps a signature with the document that it signs while a
// client fetches one after the other.
package http

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/meshctl/mesh/repo"
)

// Links say how a client reaches the repository.
type Links struct {
	// BaseURL is the address of the repository's root as clients write it,
	// without a slash at the end. Empty: the address that the client itself used.
	BaseURL string
}

// Options are what New needs beside the repository. The zero value works.
type Options struct {
	Links Links
	// Readers says who may read. Nil: anyone.
	Readers Readers
	// Now is the clock. Nil means the system's.
	Now func() time.Time
}

type handler struct {
	repo  *repo.Repo
	links Links
	log   *slog.Logger
	pairs *pairs
	// readers is nil when anyone may read.
	readers Readers
}

// New returns the read-only handler of a repository. It may be mounted at any
// prefix that is stripped before it is called.
func New(r *repo.Repo, o Options, log *slog.Logger) http.Handler {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	o.Links.BaseURL = strings.TrimRight(o.Links.BaseURL, "/")
	return &handler{repo: r, links: o.Links, log: log, pairs: newPairs(now), readers: o.Readers}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this is a package repository; it is only read", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch p := strings.TrimPrefix(req.URL.Path, "/"); p {
	case "", "index.html", "index.txt":
		h.text(w, req, h.index)
	case "mesh.sources":
		h.text(w, req, h.sources)
	case "mesh.repo":
		h.text(w, req, h.dnf)
	case "mesh.asc":
		h.key(w, req)
	default:
		if m := suiteFile.FindStringSubmatch(p); m != nil {
			query := req.URL.Query()
			query.Set("suite", m[1])
			req = req.Clone(req.Context())
			req.URL.RawQuery = query.Encode()
			page := h.sources
			if m[2] == "repo" {
				page = func(v vars) string { v.section = "mesh-" + m[1]; return h.dnf(v) }
			}
			h.text(w, req, page)
			return
		}
		if h.admit(w, req) {
			h.file(w, req, p)
		}
	}
}

func (h *handler) file(w http.ResponseWriter, req *http.Request, p string) {
	// Below for/NAME/ stands the same tree, for a client that says who it is:
	// several behind one address are then told apart.
	reader := ""
	if rest, ok := strings.CutPrefix(p, "for/"); ok {
		if name, rest, ok := strings.Cut(rest, "/"); ok && word.MatchString(name) {
			reader, p = name, rest
		}
	}
	snapshot := h.pairs.choose(req.RemoteAddr, reader, p, h.repo.Snapshot())
	f, err := snapshot.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		w.Header().Set("Cache-Control", "no-cache")
		http.Error(w, "there is no such file in this repository; the page at / says how to use it", http.StatusNotFound)
		return
	}
	if err != nil {
		h.log.Error("repository file cannot be read", "path", p, "error", err)
		http.Error(w, "the repository cannot read this file; its log says why", http.StatusInternalServerError)
		return
	}
	defer f.Close()
	head := w.Header()
	head.Set("Content-Type", contentType(p))
	head.Set("ETag", `"`+f.Tag+`"`)
	if f.Immutable {
		scope := "public"
		if h.readers != nil {
			// A cache on the way must not give it to somebody else.
			scope = "private"
		}
		head.Set("Cache-Control", scope+", max-age=31536000, immutable")
	} else {
		head.Set("Cache-Control", "no-cache")
	}
	http.ServeContent(w, req, "", f.Modified, f.File)
}

func contentType(p string) string {
	switch path.Ext(p) {
	case ".deb":
		return "application/vnd.debian.binary-package"
	case ".rpm":
		return "application/x-rpm"
	case ".gz":
		return "application/gzip"
	case ".xml":
		return "application/xml"
	case ".asc", ".gpg", ".key":
		return "application/pgp-signature"
	}
	if strings.Contains(p, "/by-hash/") {
		return "application/octet-stream"
	}
	return "text/plain; charset=utf-8"
}

func (h *handler) key(w http.ResponseWriter, req *http.Request) {
	key, err := h.repo.PublicKey()
	if err != nil {
		h.log.Error("public key cannot be exported", "error", err)
		http.Error(w, "the repository cannot give out its key; its log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/pgp-keys")
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, req, "", time.Time{}, strings.NewReader(string(key)))
}

// text serves a page that is made for the request.
func (h *handler) text(w http.ResponseWriter, req *http.Request, page func(vars) string) {
	v, ok := h.vars(req)
	if !ok {
		http.Error(w, "the suite, the architecture or the host name in this request is not one", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, req, "", time.Time{}, strings.NewReader(page(v)))
}

// vars are what the pages name.
type vars struct {
	base, suite, arch string
	section           string // of the configuration of dnf
	fingerprints      []string
	suites            []string
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9.:\[\]_-]{1,255}$`)
	// suiteFile are the files for one suite beside others.
	suiteFile = regexp.MustCompile(`^mesh-([a-z0-9][a-z0-9.-]{0,63})\.(sources|repo)$`)
	word      = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)
)

func (h *handler) vars(req *http.Request) (vars, bool) {
	v := vars{base: h.links.BaseURL, suite: repo.DefaultSuite, section: "mesh", fingerprints: h.repo.Fingerprints(), suites: h.repo.Suites()}
	if v.base == "" {
		if !hostName.MatchString(req.Host) {
			return v, false
		}
		scheme := "http"
		if req.TLS != nil {
			scheme = "https"
		}
		v.base = scheme + "://" + req.Host
	}
	if s := req.URL.Query().Get("suite"); s != "" {
		if !word.MatchString(s) {
			return v, false
		}
		v.suite = s
	}
	if a := req.URL.Query().Get("arch"); a != "" {
		if !word.MatchString(a) {
			return v, false
		}
		v.arch = a
	}
	return v, true
}
