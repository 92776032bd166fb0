// Package local is the door through which the commands of mesh-host reach the
// daemon on the same machine: HTTP and JSON on a unix socket that only root can
// open.
//
// It decides nothing and opens no store; the daemon does.
package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
)

// Socket is where the daemon listens by default.
const Socket = "/run/mesh-host/host.sock"

const bodyLimit = 64 << 10

// Daemon is what the commands ask of the host.
type Daemon interface {
	Status(ctx context.Context) (host.Status, error)
	Enrol(ctx context.Context, token string) (mesh.Enrolled, error)
	Apply(ctx context.Context, path string) (host.Status, error)
	Look(ctx context.Context) (host.Status, error)
}

type enrolRequest struct {
	Token string `json:"token"`
}

type applyRequest struct {
	Path string `json:"path"`
}

// Listen makes the socket, readable by root only.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier life: %w", err)
	}
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// Serve answers until ctx ends.
func Serve(ctx context.Context, l net.Listener, d Daemon, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           handler(d, log),
		ReadHeaderTimeout: 5 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the socket: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(closing); err != nil {
		if err := srv.Close(); err != nil {
			log.WarnContext(ctx, "the socket was not closed", "error", err)
		}
	}
	<-ended
	return ctx.Err()
}

func handler(d Daemon, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		s, err := d.Status(r.Context())
		answer(w, r, log, s, err)
	})
	mux.HandleFunc("POST /v1/look", func(w http.ResponseWriter, r *http.Request) {
		s, err := d.Look(r.Context())
		answer(w, r, log, s, err)
	})
	mux.HandleFunc("POST /v1/enrol", func(w http.ResponseWriter, r *http.Request) {
		var req enrolRequest
		if err := decode(w, r, &req); err != nil {
			answer(w, r, log, nil, err)
			return
		}
		e, err := d.Enrol(r.Context(), req.Token)
		answer(w, r, log, e, err)
	})
	mux.HandleFunc("POST /v1/apply", func(w http.ResponseWriter, r *http.Request) {
		var req applyRequest
		if err := decode(w, r, &req); err != nil {
			answer(w, r, log, nil, err)
			return
		}
		s, err := d.Apply(r.Context(), req.Path)
		answer(w, r, log, s, err)
	})
	return mux
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyLimit))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return mesh.Errorf(mesh.CodeInvalid, "the request cannot be read: %w", err)
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request, log *slog.Logger, body any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var e *mesh.Error
		if !errors.As(err, &e) {
			e = &mesh.Error{Code: mesh.CodeOf(err), Message: err.Error()}
		}
		log.WarnContext(r.Context(), "a request was not met", "path", r.URL.Path, "error", e.Message)
		w.WriteHeader(http.StatusUnprocessableEntity)
		body = e
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.WarnContext(r.Context(), "an answer was not delivered", "path", r.URL.Path, "error", err)
	}
}

// Client asks the daemon on this machine.
type Client struct {
	http   *http.Client
	socket string
}

// NewClient makes a client of the socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{http: &http.Client{Transport: &http.Transport{DialContext: dial}}, socket: socket}
}

// Status asks how the host is.
func (c *Client) Status(ctx context.Context) (host.Status, error) {
	var s host.Status
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Look has the host make a pass now.
func (c *Client) Look(ctx context.Context) (host.Status, error) {
	var s host.Status
	return s, c.do(ctx, http.MethodPost, "/v1/look", struct{}{}, &s)
}

// Enrol has the host join the mesh of the token.
func (c *Client) Enrol(ctx context.Context, token string) (mesh.Enrolled, error) {
	var e mesh.Enrolled
	return e, c.do(ctx, http.MethodPost, "/v1/enrol", enrolRequest{token}, &e)
}

// Apply has the host reconcile from a bundle.
func (c *Client) Apply(ctx context.Context, path string) (host.Status, error) {
	var s host.Status
	return s, c.do(ctx, http.MethodPost, "/v1/apply", applyRequest{path}, &s)
}

func (c *Client) do(ctx context.Context, method, path string, body, into any) (err error) {
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://mesh-host"+path, payload)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	dec := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		var e mesh.Error
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("the host answered %s", resp.Status)
		}
		return &e
	}
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("read the host's answer: %w", err)
	}
	return nil
}

// unreachable says why the host was not asked, and what to do.
func (c *Client) unreachable(err error) error {
	e := &mesh.Error{Code: mesh.CodeUnavailable, Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Message = mesh.CodeDenied, "only root may ask the host; run this as root"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Message = fmt.Sprintf("mesh-host is not running on this machine: nothing answers at %s; see systemctl status mesh-host", c.socket)
	default:
		e.Message = fmt.Sprintf("the host's answer was lost: %v; ask again with mesh-host status", err)
	}
	return e
}
