package api

import (
	"net/http"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/version"
)

// health reads from the store before it answers, so that the answer means
// something.
func (s *Server) health(r *http.Request, _ control.Caller) (any, error) {
	if _, err := s.cfg.Operator.Audit(r.Context(), 1); err != nil {
		return nil, err
	}
	return Health{Version: version.Version, Now: s.cfg.Now().UTC()}, nil
}

func (s *Server) issueToken(r *http.Request, by control.Caller) (any, error) {
	var req control.TokenRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	issued, err := s.cfg.Operator.IssueToken(r.Context(), by, req)
	if err != nil {
		return nil, err
	}
	answer := TokenAnswer{TokenIssued: issued}
	repository, err := s.cfg.Publisher.Repository(r.Context(), DefaultSuite)
	if err != nil {
		// The token is made and cannot be shown twice: hand it over regardless.
		s.cfg.Log.Error("repository not described for a token", "error", err)
		answer.RepositoryFault = "the repository could not be described; see `journalctl -u mesh-control`"
		return answer, nil
	}
	answer.Repository = &repository
	return answer, nil
}

func (s *Server) tokens(r *http.Request, _ control.Caller) (any, error) {
	all, err := yes(r, "all")
	if err != nil {
		return nil, err
	}
	views, err := s.cfg.Operator.Tokens(r.Context(), all)
	return list(views), err
}

func (s *Server) revokeToken(r *http.Request, by control.Caller) (any, error) {
	return nil, s.cfg.Operator.RevokeToken(r.Context(), by, r.PathValue("id"))
}

func (s *Server) declarations(r *http.Request, _ control.Caller) (any, error) {
	views, err := s.cfg.Operator.Declarations(r.Context())
	return list(views), err
}

func (s *Server) declaration(r *http.Request, _ control.Caller) (any, error) {
	revision, err := number(r, "revision")
	if err != nil {
		return nil, err
	}
	return s.cfg.Operator.Declaration(r.Context(), r.PathValue("name"), revision)
}

func (s *Server) declare(r *http.Request, by control.Caller) (any, error) {
	var doc mesh.Document
	if err := decode(r, maxDocument, &doc); err != nil {
		return nil, err
	}
	if name := r.PathValue("name"); doc.Declaration != name {
		return nil, mesh.Errorf(mesh.CodeInvalid, "the document is named %q and the request %q; nothing was written", doc.Declaration, name)
	}
	anew, err := yes(r, "anew")
	switch {
	case err != nil:
		return nil, err
	case anew:
		return s.cfg.Operator.DeclareAnew(r.Context(), by, doc)
	}
	return s.cfg.Operator.Declare(r.Context(), by, doc)
}

func (s *Server) removeDeclaration(r *http.Request, by control.Caller) (any, error) {
	return s.cfg.Operator.RemoveDeclaration(r.Context(), by, r.PathValue("name"))
}

func (s *Server) progress(r *http.Request, _ control.Caller) (any, error) {
	revision, err := number(r, "revision")
	if err != nil {
		return nil, err
	}
	return s.cfg.Operator.Progress(r.Context(), r.PathValue("name"), revision)
}

func (s *Server) nodes(r *http.Request, _ control.Caller) (any, error) {
	views, err := s.cfg.Operator.Nodes(r.Context())
	return list(views), err
}

func (s *Server) node(r *http.Request, _ control.Caller) (any, error) {
	return s.cfg.Operator.Node(r.Context(), r.PathValue("name"))
}

func (s *Server) revoke(r *http.Request, by control.Caller) (any, error) {
	return nil, s.cfg.Operator.Revoke(r.Context(), by, r.PathValue("name"))
}

func (s *Server) operators(r *http.Request, _ control.Caller) (any, error) {
	views, err := s.cfg.Operator.Operators(r.Context())
	return list(views), err
}

func (s *Server) addOperator(r *http.Request, by control.Caller) (any, error) {
	var req control.OperatorRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	return s.cfg.Operator.AddOperator(r.Context(), by, req)
}

func (s *Server) removeOperator(r *http.Request, by control.Caller) (any, error) {
	return nil, s.cfg.Operator.RemoveOperator(r.Context(), by, r.PathValue("name"))
}

func (s *Server) audit(r *http.Request, _ control.Caller) (any, error) {
	limit, err := number(r, "limit")
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = 100
	}
	entries, err := s.cfg.Operator.Audit(r.Context(), int(min(limit, maxAudit)))
	return list(entries), err
}

// missing is the request and the answer about blobs.
type missing struct {
	SHA256 []string `json:"sha256"`
}

func (s *Server) missingBlobs(r *http.Request, _ control.Caller) (any, error) {
	var req missing
	if err := decode(r, maxRequest*16, &req); err != nil {
		return nil, err
	}
	for _, sum := range req.SHA256 {
		if !mesh.ValidDigest(sum) {
			return nil, mesh.Errorf(mesh.CodeInvalid, "%q is not a SHA-256 in lower-case hexadecimal", sum)
		}
	}
	sums, err := s.cfg.Operator.MissingBlobs(r.Context(), req.SHA256)
	return missing{SHA256: list(sums)}, err
}

func (s *Server) putBlob(r *http.Request, by control.Caller) (any, error) {
	sum := r.PathValue("sha256")
	if !mesh.ValidDigest(sum) {
		return nil, mesh.Errorf(mesh.CodeInvalid, "%q is not a SHA-256 in lower-case hexadecimal", sum)
	}
	return nil, s.cfg.Operator.PutBlob(r.Context(), by, sum, http.MaxBytesReader(nil, r.Body, s.cfg.MaxBlob))
}

func (s *Server) packages(r *http.Request, _ control.Caller) (any, error) {
	suite := r.URL.Query().Get("suite")
	if suite == "" {
		suite = DefaultSuite
	}
	packages, err := s.cfg.Publisher.Packages(r.Context(), suite)
	return list(packages), err
}

// list keeps an empty list from being sent as null.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
