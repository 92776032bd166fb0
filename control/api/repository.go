package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Librarian is the mesh's package repository beyond publishing. A change can be
// seen by package managers when its method returns without an error. A refusal
// is a *mesh.Error.
type Librarian interface {
	// Versions returns every package of a name in every suite.
	Versions(ctx context.Context, name string) ([]SuitePackage, error)
	Suites(ctx context.Context) ([]string, error)
	// Remove takes packages out of a suite, all or none.
	Remove(ctx context.Context, suite string, refs []PackageRef) ([]Package, error)
	// Promote makes packages of one suite members of another too, all or none.
	Promote(ctx context.Context, from, to string, refs []PackageRef) ([]Published, error)
	// Keys describes the keys that sign, the main key first.
	Keys(ctx context.Context) (Keys, error)
	// RotateKey adds a second key: the armored private key given, or a new one
	// when it is empty.
	RotateKey(ctx context.Context, armored []byte) (Keys, error)
	// FinishKey makes the second key the only one.
	FinishKey(ctx context.Context) (Keys, error)
	// PrivateKey returns the main private key, armored.
	PrivateKey(ctx context.Context) ([]byte, error)
}

// PackageRef names one package of a suite.
type PackageRef struct {
	// Format is deb or rpm; empty: both.
	Format  string `json:"format,omitempty"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Arch is empty for every architecture that has this version.
	Arch string `json:"arch,omitempty"`
}

func (r PackageRef) String() string {
	return strings.TrimSpace(r.Name + " " + r.Version + " " + r.Arch)
}

// SuitePackage is a package in one of the suites that hold it.
type SuitePackage struct {
	Suite string `json:"suite"`
	Package
	// Published is when the file first entered the repository.
	Published time.Time `json:"published"`
	// Compression of its payload; empty: none.
	Compression string `json:"compression,omitempty"`
	// URL is where the file is served; relative to the repository's.
	Path string `json:"path"`
	// Uses says who needs this version. Filled in by the server.
	Uses []string `json:"uses,omitempty"`
}

// Key is one key that signs the repository.
type Key struct {
	Fingerprint string    `json:"fingerprint"`
	Identity    string    `json:"identity"`
	Bits        int       `json:"bits"`
	Created     time.Time `json:"created"`
	// Expires is zero when the key does not expire.
	Expires time.Time `json:"expires,omitzero"`
}

// Keys are the keys that sign the repository: one, or two during a rotation.
type Keys struct {
	Keys []Key `json:"keys"`
	// Public is the armored block with all of them, as it is served.
	Public string `json:"public"`
	// SHA256 is the digest of Public.
	SHA256 string `json:"sha256"`
	// Lacking names the nodes that have not yet verified a file with Public.
	// Filled in by the server during a rotation.
	Lacking []string `json:"lacking,omitempty"`
	// Declarations names those that held the former public keys and were
	// written anew with these. Filled in by the server after a change.
	Declarations []string `json:"declarations,omitempty"`
}

// RemoveRequest asks for packages to be taken out of a suite.
type RemoveRequest struct {
	Suite    string       `json:"suite"`
	Packages []PackageRef `json:"packages"`
	// Use says what happens to versions that are needed. Empty: refuse.
	Use UsePolicy `json:"use,omitempty"`
}

// UsePolicy says whether a version that somebody needs may go.
type UsePolicy string

// The policies.
const (
	UseRefuse UsePolicy = ""
	UseIgnore UsePolicy = "ignore"
)

// PromoteRequest asks for packages of one suite to be members of another too.
type PromoteRequest struct {
	From     string       `json:"from"`
	To       string       `json:"to"`
	Packages []PackageRef `json:"packages"`
}

// RotateRequest begins a rotation.
type RotateRequest struct {
	// Private is the armored private key to go over to. Empty: a new one.
	Private string `json:"private,omitempty"`
}

// FinishRequest ends a rotation.
type FinishRequest struct {
	// Lacking says what happens when nodes lack the new key. Empty: refuse.
	Lacking UsePolicy `json:"lacking,omitempty"`
}

func (s *Server) routeRepository() {
	s.route("GET /v1/suites", func(r *http.Request, _ control.Caller) (any, error) {
		suites, err := s.cfg.Librarian.Suites(r.Context())
		return list(suites), err
	})
	s.route("GET /v1/packages/{name}", s.packageVersions)
	s.route("POST /v1/packages/remove", s.removePackages)
	s.route("POST /v1/packages/promote", s.promotePackages)
	s.route("GET /v1/repository", func(r *http.Request, _ control.Caller) (any, error) {
		return s.cfg.Publisher.Repository(r.Context(), suiteOf(r))
	})
	s.route("GET /v1/repository/key", s.keys)
	s.route("POST /v1/repository/key/rotate", s.rotateKey)
	s.route("POST /v1/repository/key/finish", s.finishKey)
	s.route("GET /v1/repository/key/private", s.privateKey)
}

func suiteOf(r *http.Request) string {
	if suite := r.URL.Query().Get("suite"); suite != "" {
		return suite
	}
	return DefaultSuite
}

// usesOf returns who needs each version, by name and version.
func (s *Server) usesOf(ctx context.Context) (map[string][]string, error) {
	uses, err := s.cfg.Operator.PackageUses(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string][]string{}
	for _, u := range uses {
		key := u.Name + " " + u.Version
		if !slices.Contains(by[key], u.By) {
			by[key] = append(by[key], u.By)
		}
	}
	return by, nil
}

func (s *Server) packageVersions(r *http.Request, _ control.Caller) (any, error) {
	name := r.PathValue("name")
	versions, err := s.cfg.Librarian.Versions(r.Context(), name)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		return nil, mesh.Errorf(mesh.CodeNotFound, "no suite has a package %q; `meshctl packages list` shows what there is", name)
	}
	uses, err := s.usesOf(r.Context())
	if err != nil {
		return nil, err
	}
	for i := range versions {
		versions[i].Uses = uses[versions[i].Name+" "+versions[i].Version]
	}
	return versions, nil
}

func (s *Server) removePackages(r *http.Request, by control.Caller) (any, error) {
	var req RemoveRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	if len(req.Packages) == 0 {
		return nil, mesh.Errorf(mesh.CodeInvalid, "no package was named; nothing was removed")
	}
	if err := mayChange(by, req.Packages); err != nil {
		return nil, err
	}
	if req.Use != UseIgnore {
		uses, err := s.usesOf(r.Context())
		if err != nil {
			return nil, err
		}
		for _, ref := range req.Packages {
			if needed := uses[ref.Name+" "+ref.Version]; len(needed) > 0 {
				return nil, mesh.Errorf(mesh.CodeConflict, "%s is needed by %s; nothing was removed. Declare another version first, or say --even-if-used", ref, some(needed))
			}
		}
	}
	gone, err := s.cfg.Librarian.Remove(r.Context(), req.Suite, req.Packages)
	if err != nil {
		return nil, err
	}
	lines := make([]string, len(gone))
	for i, p := range gone {
		lines[i] = fmt.Sprintf("%s %s %s %s", p.Format, p.Name, p.Version, p.Arch)
	}
	return list(gone), s.record(r.Context(), by, "packages removed", req.Suite+": "+strings.Join(lines, ", "))
}

// mayChange returns nil when the caller may change all of the packages.
func mayChange(by control.Caller, packages []PackageRef) error {
	for _, ref := range packages {
		if err := by.MayPublish(ref.Name); err != nil {
			return err
		}
	}
	return nil
}

// some names the first few of a list.
func some(names []string) string {
	const shown = 5
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], "; "), len(names)-shown)
	}
	return strings.Join(names, "; ")
}

// record writes a change of the repository that was made into the audit log.
func (s *Server) record(ctx context.Context, by control.Caller, what, detail string) error {
	if err := s.cfg.Operator.RecordRepository(ctx, by, what, detail); err != nil {
		s.cfg.Log.Error("change of the repository not recorded", "what", what, "error", err)
		return mesh.Errorf(mesh.CodeInternal, "it is done (%s), but the audit log could not be written; see `journalctl -u mesh-control`", what)
	}
	return nil
}

func (s *Server) promotePackages(r *http.Request, by control.Caller) (any, error) {
	var req PromoteRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	if len(req.Packages) == 0 || req.To == "" {
		return nil, mesh.Errorf(mesh.CodeInvalid, "packages and a suite to promote them to are needed; nothing was promoted")
	}
	if err := mayChange(by, req.Packages); err != nil {
		return nil, err
	}
	if req.From == "" {
		req.From = DefaultSuite
	}
	files, err := s.cfg.Librarian.Promote(r.Context(), req.From, req.To, req.Packages)
	if err != nil {
		return nil, err
	}
	return Publication{Suite: req.To, Files: list(files)},
		s.record(r.Context(), by, "packages promoted", req.From+" to "+publishDetail(req.To, files))
}

func (s *Server) keys(r *http.Request, _ control.Caller) (any, error) {
	keys, err := s.cfg.Librarian.Keys(r.Context())
	if err != nil {
		return nil, err
	}
	if len(keys.Keys) > 1 {
		if keys.Lacking, err = s.cfg.Operator.Lacking(r.Context(), keys.SHA256); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func (s *Server) rotateKey(r *http.Request, by control.Caller) (any, error) {
	var req RotateRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	if req.Private != "" && by.Name != rootName {
		return nil, mesh.Errorf(mesh.CodeDenied, "only root may import a private key; nothing was changed")
	}
	return s.changeKey(r.Context(), by, "repository key rotation begun", func(ctx context.Context) (Keys, error) {
		return s.cfg.Librarian.RotateKey(ctx, []byte(req.Private))
	})
}

func (s *Server) finishKey(r *http.Request, by control.Caller) (any, error) {
	var req FinishRequest
	if err := decode(r, maxRequest, &req); err != nil {
		return nil, err
	}
	now, err := s.cfg.Librarian.Keys(r.Context())
	if err != nil {
		return nil, err
	}
	if len(now.Keys) < 2 {
		return nil, mesh.Errorf(mesh.CodeConflict, "no rotation of the key is under way; begin one with `meshctl repo key rotate`")
	}
	if req.Lacking != UseIgnore {
		lacking, err := s.cfg.Operator.Lacking(r.Context(), now.SHA256)
		if err != nil {
			return nil, err
		}
		if len(lacking) > 0 {
			return nil, mesh.Errorf(mesh.CodeConflict, "%s not verified a file with the new key: %s. They could install nothing more; the old key stays. Declare the key for them (`meshctl repo declaration`), or say --even-if-lacking",
				countNodes(len(lacking)), some(lacking))
		}
	}
	return s.changeKey(r.Context(), by, "repository key rotation finished", s.cfg.Librarian.FinishKey)
}

func countNodes(n int) string {
	if n == 1 {
		return "1 node has"
	}
	return fmt.Sprintf("%d nodes have", n)
}

// changeKey changes the keys, records it, and hands the new public part to the
// nodes: every declaration with a file that held the former one is written anew.
func (s *Server) changeKey(ctx context.Context, by control.Caller, what string, change func(context.Context) (Keys, error)) (any, error) {
	before, err := s.cfg.Librarian.Keys(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := change(ctx)
	if err != nil {
		return nil, err
	}
	var prints []string
	for _, k := range keys.Keys {
		prints = append(prints, k.Fingerprint)
	}
	if err := s.record(ctx, by, what, strings.Join(prints, ", ")); err != nil {
		return nil, err
	}
	if keys.Declarations, err = s.cfg.Operator.ReplaceContent(ctx, by, before.SHA256, []byte(keys.Public)); err != nil {
		s.cfg.Log.Error("declarations not given the new key", "error", err)
		return nil, mesh.Errorf(mesh.CodeInternal, "the keys are changed, but the declarations that hold the public key could not all be written: %w; declare it with `meshctl repo declaration`", err)
	}
	return keys, nil
}

// rootName is who root is on the socket.
const rootName = "root"

func (s *Server) privateKey(r *http.Request, by control.Caller) (any, error) {
	if by.Name != rootName {
		return nil, mesh.Errorf(mesh.CodeDenied, "only root may take the private key out")
	}
	key, err := s.cfg.Librarian.PrivateKey(r.Context())
	if err != nil {
		return nil, err
	}
	if err := s.record(r.Context(), by, "repository key exported", ""); err != nil {
		return nil, err
	}
	return RotateRequest{Private: string(key)}, nil
}

// Digest returns the SHA-256 of bytes as the API writes it.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
