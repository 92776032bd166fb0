package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/sqlite"
	"github.com/meshctl/mesh/internal/version"
)

// Bounds on what a caller may send, in bytes unless said otherwise.
const (
	maxRequest  = 64 << 10
	maxDocument = 32 << 20
	maxAudit    = 10_000 // entries, of events too
	maxFiles    = 500    // files of one publication
)

// Config is what a Server is made of. Operator, Publisher, Librarian and Log are needed.
type Config struct {
	Operator  Operator
	Publisher Publisher
	Librarian Librarian
	Admission Admission
	// SpoolDir is where uploads stand until they are published; it exists and
	// is on a disk. Empty: the system's directory for temporary files.
	SpoolDir string
	// MaxPackage bounds one file of a publication. Zero: 2 GiB.
	MaxPackage int64
	// MaxUpload bounds one publication. Zero: 8 GiB, or one package if that is larger.
	MaxUpload int64
	// MaxBlob bounds one blob. Zero: 1 GiB.
	MaxBlob int64
	// Now is the clock. Nil: the machine's.
	Now func() time.Time
	Log *slog.Logger
}

// Server answers the operator API. It is safe for concurrent use.
type Server struct {
	cfg Config
	mux *http.ServeMux
}

// New makes a server. It opens and starts nothing.
func New(cfg Config) *Server {
	if cfg.MaxPackage == 0 {
		cfg.MaxPackage = 2 << 30
	}
	if cfg.MaxUpload == 0 {
		cfg.MaxUpload = max(8<<30, cfg.MaxPackage+1<<20)
	}
	if cfg.MaxBlob == 0 {
		cfg.MaxBlob = 1 << 30
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux()}
	s.route("GET /v1/health", s.health)
	s.route("POST /v1/tokens", s.issueToken)
	s.route("GET /v1/tokens", s.tokens)
	s.route("DELETE /v1/tokens/{id}", s.revokeToken)
	s.route("GET /v1/declarations", s.declarations)
	s.route("GET /v1/declarations/{name}", s.declaration)
	s.route("PUT /v1/declarations/{name}", s.declare)
	s.route("DELETE /v1/declarations/{name}", s.removeDeclaration)
	s.route("GET /v1/declarations/{name}/progress", s.progress)
	s.route("GET /v1/declarations/{name}/history", s.history)
	s.route("GET /v1/declarations/{name}/compare", s.compare)
	s.route("POST /v1/declarations/{name}/revert", s.revert)
	s.route("GET /v1/events", s.events)
	s.route("POST /v1/nodes/{name}/retire", s.retire)
	s.route("DELETE /v1/nodes/{name}/retire", s.keep)
	s.route("POST /v1/nodes/{name}/labels", s.label)
	s.route("POST /v1/nodes/{name}/recover", s.recover)
	s.route("GET /v1/nodes", s.nodes)
	s.route("GET /v1/nodes/{name}", s.node)
	s.route("POST /v1/nodes/{name}/revoke", s.revoke)
	s.route("GET /v1/audit", s.audit)
	s.route("POST /v1/blobs/missing", s.missingBlobs)
	s.route("PUT /v1/blobs/{sha256}", s.putBlob)
	s.route("GET /v1/operators", s.operators)
	s.route("POST /v1/operators", s.addOperator)
	s.route("DELETE /v1/operators/{name}", s.removeOperator)
	s.route("GET /v1/packages", s.packages)
	s.route("POST /v1/packages", s.publish)
	s.routeRepository()
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, mesh.Errorf(mesh.CodeNotFound, "this control plane (%s) has no %s %s; meshctl may be newer than it: compare `meshctl version`", version.Version, r.Method, r.URL.Path))
	})
	return s
}

// ServeHTTP answers one request. Its context says who asks; Serve sees to that.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := callerOf(r.Context()); err != nil {
		s.refuse(w, r, err)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// handler answers with a value that becomes the JSON body; nil: no body.
type handler func(r *http.Request, by control.Caller) (any, error)

func (s *Server) route(pattern string, h handler) {
	needed := roleFor(pattern)
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		by, err := callerOf(r.Context())
		if err == nil {
			err = by.May(needed)
		}
		if err != nil {
			s.cfg.Log.Warn("operator request refused", "operator", by.Name, "door", by.Door, "key", by.Key, "call", pattern)
			s.refuse(w, r, err)
			return
		}
		answer, err := h(r, by)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		s.write(w, http.StatusOK, answer)
	})
}

func (s *Server) write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.cfg.Log.Error("answer cannot be written as JSON", "error", err)
		http.Error(w, `{"code":"internal","message":"the control plane could not write its answer; its log has more"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	// A caller that went away is its own business.
	_, _ = w.Write(append(body, '\n'))
}

// statusOf maps codes to HTTP, for callers that look at nothing else.
func statusOf(code mesh.Code) int {
	switch code {
	case mesh.CodeInvalid:
		return http.StatusBadRequest
	case mesh.CodeDenied:
		return http.StatusForbidden
	case mesh.CodeNotFound:
		return http.StatusNotFound
	case mesh.CodeConflict:
		return http.StatusConflict
	case mesh.CodeUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// refuse answers with the error as a mesh.Error. The text of a fault of ours
// goes to the log and not to the caller.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var (
		known    *mesh.Error
		problems mesh.Problems
		tooLong  *http.MaxBytesError
	)
	switch {
	case errors.As(err, &known):
		if sqlite.CannotWrite(err) {
			s.cfg.Log.Error("nothing can be written", "method", r.Method, "path", r.URL.Path, "error", known.Err)
		}
	case sqlite.CannotWrite(err):
		s.cfg.Log.Error("nothing can be written", "method", r.Method, "path", r.URL.Path, "error", err)
		known = mesh.Errorf(mesh.CodeUnavailable, "the disk of the control plane cannot be written, so nothing was done; see `journalctl -u mesh-control`, then ask again")
		if sqlite.IsFull(err) {
			known = mesh.Errorf(mesh.CodeUnavailable, "the disk of the control plane is full, so nothing was done; make room there, then ask again")
		}
	case errors.As(err, &problems):
		known = &mesh.Error{Code: mesh.CodeInvalid, Message: "refused; nothing was written", Details: problems}
	case errors.As(err, &tooLong):
		known = mesh.Errorf(mesh.CodeInvalid, "the request is longer than the %d bytes that are taken here; nothing was done", tooLong.Limit)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		known = mesh.Errorf(mesh.CodeUnavailable, "the control plane is stopping or the request was given up; ask again")
	default:
		s.cfg.Log.Error("operator request ended in a fault", "method", r.Method, "path", r.URL.Path, "error", err)
		known = mesh.Errorf(mesh.CodeInternal, "the control plane could not do this because of a fault of its own; see `journalctl -u mesh-control`")
	}
	s.write(w, statusOf(known.Code), known)
}

// decode reads exactly one JSON value into v and refuses fields that v lacks.
func decode(r *http.Request, limit int64, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
			return tooLong
		}
		return mesh.Errorf(mesh.CodeInvalid, "the request is not what is expected here: %w; nothing was done", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return mesh.Errorf(mesh.CodeInvalid, "the request goes on after its end; nothing was done")
	}
	return nil
}

// number reads a whole number of at least zero from the query; absent: zero.
func number(r *http.Request, key string) (int64, error) {
	text := r.URL.Query().Get(key)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, mesh.Errorf(mesh.CodeInvalid, "%s=%q is not a whole number", key, text)
	}
	return n, nil
}

// yes reads whether something is asked for in the query; absent: it is not.
func yes(r *http.Request, key string) (bool, error) {
	switch text := r.URL.Query().Get(key); text {
	case "":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, mesh.Errorf(mesh.CodeInvalid, "%s=%q is not 1; nothing was done", key, text)
	}
}
