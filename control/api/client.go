package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// maxAnswer bounds what a client reads of an answer, in bytes.
const maxAnswer = 256 << 20

// DefaultSocket is where a control plane answers its operators.
const DefaultSocket = "/run/mesh-control/api.sock"

// Client asks a control plane. Every error that it returns for something that
// the control plane said, or for not reaching it, is a *mesh.Error. It is safe
// for concurrent use.
type Client struct {
	// socket is the path of a unix socket; empty for another door.
	socket string
	// where names the control plane in messages.
	where string
	http  *http.Client
	close func() error
}

// Dialer opens connections on which a control plane answers HTTP. Its errors
// that are *mesh.Error reach the operator as they are. It is safe for
// concurrent use.
type Dialer interface {
	DialContext(ctx context.Context) (net.Conn, error)
	// Close ends what is open. It is called once.
	Close() error
}

// NewClient makes a client of the control plane that answers at the socket. It
// dials when it is first asked something.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, where: socket, http: clientOver(dial)}
}

// NewClientOver makes a client of the control plane that the dialer reaches;
// where names it in messages. The client closes the dialer.
func NewClientOver(d Dialer, where string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx) }
	return &Client{where: where, http: clientOver(dial), close: d.Close}
}

func clientOver(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:     dial,
		MaxIdleConns:    2,
		IdleConnTimeout: 30 * time.Second,
	}}
}

// Close drops the connections that are idle, and the dialer.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	if c.close != nil {
		// Nothing more is asked; how the connection ends changes nothing.
		_ = c.close()
	}
}

// Health asks whether the control plane works, and which version it is.
func (c *Client) Health(ctx context.Context) (Health, error) {
	return ask[Health](ctx, c, http.MethodGet, "/v1/health", nil)
}

// IssueToken asks for a token.
func (c *Client) IssueToken(ctx context.Context, req control.TokenRequest) (TokenAnswer, error) {
	return ask[TokenAnswer](ctx, c, http.MethodPost, "/v1/tokens", req)
}

// Tokens lists the tokens that can still be used, or all, newest first.
func (c *Client) Tokens(ctx context.Context, all bool) ([]control.TokenView, error) {
	path := "/v1/tokens"
	if all {
		path += "?all=1"
	}
	return ask[[]control.TokenView](ctx, c, http.MethodGet, path, nil)
}

// RevokeToken ends a token that nobody used.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
}

// Declare writes a named declaration. Blobs are uploaded before.
func (c *Client) Declare(ctx context.Context, doc mesh.Document) (control.Declared, error) {
	return ask[control.Declared](ctx, c, http.MethodPut, "/v1/declarations/"+url.PathEscape(doc.Declaration), doc)
}

// DeclareAnew is Declare that writes also what is the same already.
func (c *Client) DeclareAnew(ctx context.Context, doc mesh.Document) (control.Declared, error) {
	return ask[control.Declared](ctx, c, http.MethodPut, "/v1/declarations/"+url.PathEscape(doc.Declaration)+"?anew=1", doc)
}

// RemoveDeclaration removes a named declaration; its revisions stay readable.
func (c *Client) RemoveDeclaration(ctx context.Context, name string) (control.Declared, error) {
	return ask[control.Declared](ctx, c, http.MethodDelete, "/v1/declarations/"+url.PathEscape(name), nil)
}

// Declarations lists the named declarations.
func (c *Client) Declarations(ctx context.Context) ([]control.DeclarationView, error) {
	return ask[[]control.DeclarationView](ctx, c, http.MethodGet, "/v1/declarations", nil)
}

// Declaration returns one revision; zero: the newest.
func (c *Client) Declaration(ctx context.Context, name string, revision int64) (control.DeclarationView, error) {
	return ask[control.DeclarationView](ctx, c, http.MethodGet, "/v1/declarations/"+url.PathEscape(name)+revisionQuery(revision), nil)
}

// Progress says how far the nodes of a revision have come; zero: the newest.
func (c *Client) Progress(ctx context.Context, name string, revision int64) (control.Progress, error) {
	return ask[control.Progress](ctx, c, http.MethodGet, "/v1/declarations/"+url.PathEscape(name)+"/progress"+revisionQuery(revision), nil)
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) ([]control.NodeView, error) {
	return ask[[]control.NodeView](ctx, c, http.MethodGet, "/v1/nodes", nil)
}

// Node returns everything that is known of a node.
func (c *Client) Node(ctx context.Context, name string) (control.NodeDetail, error) {
	return ask[control.NodeDetail](ctx, c, http.MethodGet, "/v1/nodes/"+url.PathEscape(name), nil)
}

// Revoke ends the identity of a node for good.
func (c *Client) Revoke(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/revoke", nil, nil)
}

// AddOperator registers an operator.
func (c *Client) AddOperator(ctx context.Context, req control.OperatorRequest) (control.OperatorAdded, error) {
	return ask[control.OperatorAdded](ctx, c, http.MethodPost, "/v1/operators", req)
}

// RemoveOperator ends an operator.
func (c *Client) RemoveOperator(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/operators/"+url.PathEscape(name), nil, nil)
}

// Operators lists the registered operators.
func (c *Client) Operators(ctx context.Context) ([]control.OperatorView, error) {
	return ask[[]control.OperatorView](ctx, c, http.MethodGet, "/v1/operators", nil)
}

// Audit returns at most limit entries, newest first; zero: a hundred.
func (c *Client) Audit(ctx context.Context, limit int) ([]control.AuditEntry, error) {
	return ask[[]control.AuditEntry](ctx, c, http.MethodGet, "/v1/audit?limit="+strconv.Itoa(limit), nil)
}

// MissingBlobs returns those of sums that the control plane does not hold.
func (c *Client) MissingBlobs(ctx context.Context, sums []string) ([]string, error) {
	m, err := ask[missing](ctx, c, http.MethodPost, "/v1/blobs/missing", missing{SHA256: list(sums)})
	return m.SHA256, err
}

// PutBlob uploads content under its SHA-256.
func (c *Client) PutBlob(ctx context.Context, sum string, body io.Reader) error {
	return c.send(ctx, http.MethodPut, "/v1/blobs/"+url.PathEscape(sum), "application/octet-stream", body, nil)
}

// Packages lists a suite.
func (c *Client) Packages(ctx context.Context, suite string) ([]Package, error) {
	return ask[[]Package](ctx, c, http.MethodGet, "/v1/packages?suite="+url.QueryEscape(suite), nil)
}

// Publish uploads all files and publishes them in one step, or none. Sending
// the same again is a success that changes nothing.
func (c *Client) Publish(ctx context.Context, suite string, files []Upload) (Publication, error) {
	pr, pw := io.Pipe()
	form := multipart.NewWriter(pw)
	written := make(chan struct{})
	go func() {
		defer close(written)
		pw.CloseWithError(writeFiles(form, files))
	}()
	var p Publication
	err := c.send(ctx, http.MethodPost, "/v1/packages?suite="+url.QueryEscape(suite), form.FormDataContentType(), pr, &p)
	pr.CloseWithError(io.ErrClosedPipe)
	<-written
	return p, err
}

func writeFiles(form *multipart.Writer, files []Upload) error {
	for _, f := range files {
		part, err := form.CreateFormFile(partPackage, filepath.Base(f.Name))
		if err != nil {
			return err
		}
		if _, err := io.Copy(part, f.Body); err != nil {
			return fmt.Errorf("read %s: %w", f.Name, err)
		}
	}
	return form.Close()
}

func revisionQuery(revision int64) string {
	if revision == 0 {
		return ""
	}
	return "?revision=" + strconv.FormatInt(revision, 10)
}

// ask is call with an answer of type T.
func ask[T any](ctx context.Context, c *Client, method, path string, v any) (T, error) {
	var answer T
	err := c.call(ctx, method, path, v, &answer)
	return answer, err
}

// call sends v as JSON (nil: nothing) and decodes the answer into answer (nil:
// none is expected).
func (c *Client) call(ctx context.Context, method, path string, v, answer any) error {
	var body io.Reader
	if v != nil {
		data, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("write request as JSON: %w", err)
		}
		body = bytes.NewReader(data)
	}
	return c.send(ctx, method, path, "application/json", body, answer)
}

func (c *Client) send(ctx context.Context, method, path, contentType string, body io.Reader, answer any) error {
	// The host is not looked at: the socket is the address.
	req, err := http.NewRequestWithContext(ctx, method, "http://mesh-control"+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		// Without Expect: a server that was asked for it does not wait, after a
		// refusal in the middle of an upload, until the refusal was read.
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.unreachable(ctx, err)
	case len(data) > maxAnswer:
		return mesh.Errorf(mesh.CodeInternal, "the answer of the control plane is longer than %d bytes", maxAnswer)
	case resp.StatusCode >= 300:
		return refusal(resp.StatusCode, data)
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return mesh.Errorf(mesh.CodeInternal, "the answer of the control plane cannot be read: %w; compare the versions with `meshctl version`", err)
	}
	return nil
}

func refusal(status int, data []byte) error {
	var e mesh.Error
	if err := json.Unmarshal(data, &e); err != nil || e.Code == "" || e.Message == "" {
		return mesh.Errorf(mesh.CodeInternal, "what answered with status %d is not a control plane; check --socket and --control", status)
	}
	return &e
}

// unreachable says why the control plane was not asked, and what to do.
func (c *Client) unreachable(ctx context.Context, err error) error {
	e := &mesh.Error{Code: mesh.CodeUnavailable, Err: err}
	var (
		file *fs.PathError
		told *mesh.Error
	)
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &file):
		// The body came from a file, and the file is at fault.
		e.Code = mesh.CodeInvalid
		e.Message = fmt.Sprintf("the upload ended early: %v; nothing was done", file)
	case ctx.Err() != nil:
		e.Err = ctx.Err()
		e.Message = "given up before the control plane answered; whether it did what was asked is not known: look, then ask again"
	case c.socket == "":
		e.Message = fmt.Sprintf("the control plane at %s did not answer: %v; whether it did what was asked is not known: look, then ask again", c.where, err)
	case errors.Is(err, fs.ErrNotExist):
		e.Message = fmt.Sprintf("no control plane answers at %s: there is no such socket; start it with `systemctl start mesh-control`, or name its socket with --socket", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message = fmt.Sprintf("no control plane answers at %s: nothing listens there any more; look at `systemctl status mesh-control`", c.socket)
	case errors.Is(err, fs.ErrPermission):
		e.Code = mesh.CodeDenied
		e.Message = fmt.Sprintf("%s may not be opened by this user; run meshctl as root, or add the user to group %s and log in again", c.socket, AdminGroup)
	default:
		e.Message = fmt.Sprintf("the control plane at %s did not answer: %v; look at `systemctl status mesh-control`", c.socket, err)
	}
	return e
}
