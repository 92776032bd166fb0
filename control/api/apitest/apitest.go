// Package apitest holds an Operator and a Publisher that live in memory, for
// tests of the API and of the command line.
//
// They keep what they are given and answer with it. They decide nothing that
// the control plane decides: which nodes a declaration changes, and how far
// these are, is set by the test.
package apitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
)

// Operator is an api.Operator in memory. Set the fields before it is used.
type Operator struct {
	// NodeViews is what Nodes answers; Details what Node does, by name.
	NodeViews []control.NodeView
	Details   map[string]control.NodeDetail
	// Steps are what Progress answers, one after the other; the last stays.
	// Name and revision are filled in. None: nothing is known.
	Steps []control.Progress
	// Watched is called when Progress is asked. Nil: nothing is.
	Watched func()
	// Uses is what PackageUses answers, NodesLacking what Lacking does.
	Uses         []control.PackageUse
	NodesLacking []string
	// Refuse is what every write answers. Nil: it is done.
	Refuse error
	// At is the time of every write.
	At time.Time

	mu        sync.Mutex // guards what follows
	revisions map[string][]control.DeclarationView
	blobs     map[string][]byte
	audit     []control.AuditEntry
	issued    int
	tokens    []control.TokenView
	operators []control.OperatorView
}

func (o *Operator) record(by control.Caller, what, detail string) {
	o.audit = append([]control.AuditEntry{{At: o.At, Who: by.Name, Door: by.Door, Key: by.Key, What: what, Detail: detail}}, o.audit...)
}

// IssueToken makes a token whose only secret is its number.
func (o *Operator) IssueToken(_ context.Context, by control.Caller, req control.TokenRequest) (control.TokenIssued, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return control.TokenIssued{}, o.Refuse
	}
	o.issued++
	t := mesh.Token{Addresses: []string{"192.0.2.1:7022"}}
	if len(req.Addresses) > 0 {
		t.Addresses = req.Addresses
	}
	t.Secret[0] = byte(o.issued)
	o.record(by, "token issued", req.Name)
	ttl := req.TTL
	if ttl == 0 {
		ttl = time.Hour
	}
	id := control.TokenRecord{Hash: mesh.SecretHash(t.SecretText())}.ID()
	o.tokens = append(o.tokens, control.TokenView{ID: id, State: control.TokenOpen, Name: req.Name, Labels: req.Labels, Issued: o.At, Expires: o.At.Add(ttl)})
	return control.TokenIssued{Token: t.String(), ID: id, Expires: o.At.Add(ttl), RepositoryURL: "http://192.0.2.1:7080"}, nil
}

// Tokens lists what was issued and not revoked.
func (o *Operator) Tokens(context.Context, bool) ([]control.TokenView, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	newest := slices.Clone(o.tokens)
	slices.Reverse(newest)
	return newest, nil
}

// RevokeToken forgets a token that was issued.
func (o *Operator) RevokeToken(_ context.Context, by control.Caller, id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.IndexFunc(o.tokens, func(v control.TokenView) bool { return v.ID == id })
	switch {
	case o.Refuse != nil:
		return o.Refuse
	case at < 0:
		return missing("token", id)
	}
	o.tokens = slices.Delete(o.tokens, at, at+1)
	o.record(by, "token revoked", id)
	return nil
}

// Declare keeps a revision when it differs from the newest.
func (o *Operator) Declare(_ context.Context, by control.Caller, doc mesh.Document) (control.Declared, error) {
	return o.declare(by, doc, false)
}

// DeclareAnew keeps a revision whatever is there.
func (o *Operator) DeclareAnew(_ context.Context, by control.Caller, doc mesh.Document) (control.Declared, error) {
	return o.declare(by, doc, true)
}

func (o *Operator) declare(by control.Caller, doc mesh.Document, anew bool) (control.Declared, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return control.Declared{}, o.Refuse
	}
	if err := doc.Validate().Err(); err != nil {
		return control.Declared{}, err
	}
	list := o.revisions[doc.Declaration]
	if n := len(list); !anew && n > 0 && !list[n-1].Removed && equal(*list[n-1].Document, doc) {
		return control.Declared{Declaration: doc.Declaration, Revision: list[n-1].Revision}, nil
	}
	return o.append(by, "declared", control.DeclarationView{Name: doc.Declaration, Resources: len(doc.Resources), Document: &doc}), nil
}

func equal(a, b mesh.Document) bool {
	left, leftErr := json.Marshal(a)
	right, rightErr := json.Marshal(b)
	return leftErr == nil && rightErr == nil && bytes.Equal(left, right)
}

func (o *Operator) append(by control.Caller, what string, v control.DeclarationView) control.Declared {
	if o.revisions == nil {
		o.revisions = map[string][]control.DeclarationView{}
	}
	v.Revision = int64(len(o.revisions[v.Name])) + 1
	v.Written, v.By = o.At, by.Name
	o.revisions[v.Name] = append(o.revisions[v.Name], v)
	o.record(by, what, fmt.Sprintf("%s revision %d", v.Name, v.Revision))
	return control.Declared{Declaration: v.Name, Revision: v.Revision, Changed: true, Nodes: len(o.NodeViews)}
}

// RemoveDeclaration keeps a revision that removes.
func (o *Operator) RemoveDeclaration(_ context.Context, by control.Caller, name string) (control.Declared, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.revisions[name]
	switch {
	case o.Refuse != nil:
		return control.Declared{}, o.Refuse
	case len(list) == 0:
		return control.Declared{}, missing("declaration", name)
	case list[len(list)-1].Removed:
		return control.Declared{Declaration: name, Revision: list[len(list)-1].Revision}, nil
	}
	return o.append(by, "removed", control.DeclarationView{Name: name, Removed: true}), nil
}

func missing(what, name string) error {
	return mesh.Errorf(mesh.CodeNotFound, "there is no %s %q", what, name)
}

// Declarations lists the newest revisions.
func (o *Operator) Declarations(context.Context) ([]control.DeclarationView, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var views []control.DeclarationView
	for _, name := range slices.Sorted(maps.Keys(o.revisions)) {
		v := o.revisions[name][len(o.revisions[name])-1]
		v.Document = nil
		views = append(views, v)
	}
	return views, nil
}

// Declaration returns a revision that was kept.
func (o *Operator) Declaration(_ context.Context, name string, revision int64) (control.DeclarationView, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.revisions[name]
	if revision == 0 {
		revision = int64(len(list))
	}
	if revision < 1 || revision > int64(len(list)) {
		return control.DeclarationView{}, missing("declaration", name)
	}
	return list[revision-1], nil
}

// Progress answers with the next of Steps.
func (o *Operator) Progress(_ context.Context, name string, revision int64) (control.Progress, error) {
	if o.Watched != nil {
		o.Watched()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.Steps) == 0 {
		return control.Progress{}, missing("declaration", name)
	}
	p := o.Steps[0]
	if len(o.Steps) > 1 {
		o.Steps = o.Steps[1:]
	}
	p.Declaration, p.Revision = name, revision
	return p, nil
}

// Nodes answers with NodeViews.
func (o *Operator) Nodes(context.Context) ([]control.NodeView, error) { return o.NodeViews, nil }

// Node answers from Details.
func (o *Operator) Node(_ context.Context, name string) (control.NodeDetail, error) {
	n, ok := o.Details[name]
	if !ok {
		return control.NodeDetail{}, missing("node", name)
	}
	return n, nil
}

// History lists the revisions that were kept, newest first.
func (o *Operator) History(_ context.Context, name string) ([]control.DeclarationView, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.revisions[name]) == 0 {
		return nil, missing("declaration", name)
	}
	views := slices.Clone(o.revisions[name])
	slices.Reverse(views)
	for i := range views {
		views[i].Document = nil
	}
	return views, nil
}

// Compare returns two revisions that were kept.
func (o *Operator) Compare(ctx context.Context, name string, from, to int64) (control.Comparison, error) {
	later, err := o.Declaration(ctx, name, to)
	if err != nil {
		return control.Comparison{}, err
	}
	if from == 0 {
		from = later.Revision - 1
	}
	earlier, err := o.Declaration(ctx, name, from)
	return control.Comparison{From: earlier, To: later}, err
}

// Revert keeps an earlier revision again.
func (o *Operator) Revert(ctx context.Context, by control.Caller, name string, to int64) (control.Declared, error) {
	if to == 0 {
		newest, err := o.Declaration(ctx, name, 0)
		if err != nil {
			return control.Declared{}, err
		}
		to = newest.Revision - 1
	}
	v, err := o.Declaration(ctx, name, to)
	if err != nil {
		return control.Declared{}, err
	}
	if v.Removed {
		return o.RemoveDeclaration(ctx, by, name)
	}
	return o.Declare(ctx, by, *v.Document)
}

// Events returns the events of Details.
func (o *Operator) Events(_ context.Context, node string, limit int) ([]control.EventView, error) {
	var events []control.EventView
	for _, name := range slices.Sorted(maps.Keys(o.Details)) {
		if node == "" || node == name {
			events = append(events, o.Details[name].Events...)
		}
	}
	if _, ok := o.Details[node]; node != "" && !ok {
		return nil, missing("node", node)
	}
	return events[:min(limit, len(events))], nil
}

// onNode records a write about a node of Details.
func (o *Operator) onNode(by control.Caller, what, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return o.Refuse
	}
	if _, ok := o.Details[name]; !ok {
		return missing("node", name)
	}
	o.record(by, what, name)
	return nil
}

// Retire records that a node of Details retires.
func (o *Operator) Retire(_ context.Context, by control.Caller, name string) (control.Retiring, error) {
	n := o.Details[name]
	return control.Retiring{Node: name, Generation: n.Declared + 1, Resources: len(n.Owned), Changed: true}, o.onNode(by, "retired", name)
}

// Keep records that a node of Details stays.
func (o *Operator) Keep(_ context.Context, by control.Caller, name string) (control.Retiring, error) {
	return control.Retiring{Node: name, Generation: o.Details[name].Declared + 2, Changed: true}, o.onNode(by, "kept", name)
}

// Label records new labels of a node of Details, which stays as it is.
func (o *Operator) Label(_ context.Context, by control.Caller, name string, set map[string]string, drop []string) (map[string]string, error) {
	labels := maps.Clone(o.Details[name].Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, k := range drop {
		delete(labels, k)
	}
	maps.Copy(labels, set)
	return labels, o.onNode(by, "labelled", name)
}

// Recover records that a node of Details was confirmed.
func (o *Operator) Recover(_ context.Context, by control.Caller, name string) (control.Recovered, error) {
	n := o.Details[name]
	return control.Recovered{Node: name, Held: n.Held, Generation: n.Held + 1}, o.onNode(by, "recovered", name)
}

// Revoke records that a node of Details was revoked.
func (o *Operator) Revoke(_ context.Context, by control.Caller, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return o.Refuse
	}
	if _, ok := o.Details[name]; !ok {
		return missing("node", name)
	}
	o.record(by, "revoked", name)
	return nil
}

// AddOperator keeps an operator, whatever is asked for.
func (o *Operator) AddOperator(_ context.Context, by control.Caller, req control.OperatorRequest) (control.OperatorAdded, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return control.OperatorAdded{}, o.Refuse
	}
	view := control.OperatorView{Name: req.Name, Role: req.Role, Limits: req.Limits, Key: "SHA256:" + req.Key, Added: o.At, By: by.Name}
	o.operators = append(o.operators, view)
	o.record(by, "operator added", req.Name)
	return control.OperatorAdded{OperatorView: view, Changed: true, Addresses: []string{"192.0.2.1:7022"}, Fingerprint: "SHA256:control"}, nil
}

// RemoveOperator drops an operator that was kept.
func (o *Operator) RemoveOperator(_ context.Context, by control.Caller, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.IndexFunc(o.operators, func(v control.OperatorView) bool { return v.Name == name })
	switch {
	case o.Refuse != nil:
		return o.Refuse
	case at < 0:
		return missing("operator", name)
	}
	o.operators = slices.Delete(o.operators, at, at+1)
	o.record(by, "operator removed", name)
	return nil
}

// Operators lists what was kept.
func (o *Operator) Operators(context.Context) ([]control.OperatorView, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.operators), nil
}

// Audit returns what was recorded.
func (o *Operator) Audit(_ context.Context, limit int) ([]control.AuditEntry, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.audit[:min(limit, len(o.audit))]), nil
}

// ReplaceContent keeps a revision of every declaration with a file of the content.
func (o *Operator) ReplaceContent(ctx context.Context, by control.Caller, old string, content []byte) ([]string, error) {
	views, err := o.Declarations(ctx)
	if err != nil {
		return nil, err
	}
	var written []string
	for _, v := range views {
		full, err := o.Declaration(ctx, v.Name, 0)
		if err != nil {
			return written, err
		}
		if full.Document == nil {
			continue
		}
		doc, found := *full.Document, false
		doc.Resources = slices.Clone(doc.Resources)
		for i, r := range doc.Resources {
			if r.File != nil && r.File.SHA256 == old {
				file := *r.File
				file.SetContent(content)
				doc.Resources[i].File, found = &file, true
			}
		}
		if !found {
			continue
		}
		if _, err := o.declare(by, doc, false); err != nil {
			return written, err
		}
		written = append(written, v.Name)
	}
	return written, nil
}

// PutBlob keeps content whose digest is right.
func (o *Operator) PutBlob(_ context.Context, by control.Caller, sum string, r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
		return mesh.Errorf(mesh.CodeInvalid, "the content is not that of %s", sum)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blobs == nil {
		o.blobs = map[string][]byte{}
	}
	o.blobs[sum] = data
	o.record(by, "uploaded", "content")
	return nil
}

// MissingBlobs returns what was not put.
func (o *Operator) MissingBlobs(_ context.Context, sums []string) ([]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(sums), func(sum string) bool { _, ok := o.blobs[sum]; return ok }), nil
}

// PackageUses answers with Uses.
func (o *Operator) PackageUses(context.Context) ([]control.PackageUse, error) { return o.Uses, nil }

// Lacking answers with NodesLacking.
func (o *Operator) Lacking(context.Context, string) ([]string, error) { return o.NodesLacking, nil }

// RecordRepository records.
func (o *Operator) RecordRepository(_ context.Context, by control.Caller, what, detail string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refuse != nil {
		return o.Refuse
	}
	o.record(by, what, detail)
	return nil
}

// Publisher is an api.Publisher in memory. A file's name stands for the name of
// its package, and its first line for the version.
type Publisher struct {
	// Refuse is what Publish answers. Nil: it is done.
	Refuse error
	// Down is what Repository answers. Nil: it can say.
	Down error

	mu     sync.Mutex // guards suites
	suites map[string][]api.Package
}

// Publish keeps all files, or none when one is there with other content.
func (p *Publisher) Publish(_ context.Context, suite string, files []api.Upload) ([]api.Published, error) {
	var done []api.Published
	for _, f := range files {
		if f.Allow != nil {
			if err := f.Allow(f.Name); err != nil {
				return nil, err
			}
		}
		data, err := io.ReadAll(f.Body)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		done = append(done, api.Published{File: f.Name, Outcome: api.PublishAdded, Package: api.Package{
			Name: f.Name, Version: "1.0", Arch: "all", Format: "deb", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Refuse != nil {
		return nil, p.Refuse
	}
	if p.suites == nil {
		p.suites = map[string][]api.Package{}
	}
	var added []api.Package
	for i, d := range done {
		at := slices.IndexFunc(p.suites[suite], func(have api.Package) bool { return have.Name == d.Name })
		switch {
		case at < 0:
			added = append(added, d.Package)
		case p.suites[suite][at].SHA256 != d.SHA256:
			return nil, mesh.Errorf(mesh.CodeConflict, "%s is there with other content; nothing was published", d.Name)
		default:
			done[i].Outcome = api.PublishPresent
		}
	}
	p.suites[suite] = append(p.suites[suite], added...)
	return done, nil
}

// Packages lists what was published.
func (p *Publisher) Packages(_ context.Context, suite string) ([]api.Package, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.suites[suite]), nil
}

// Repository describes a repository that is not there.
func (p *Publisher) Repository(_ context.Context, suite string) (api.Repository, error) {
	if p.Down != nil {
		return api.Repository{}, p.Down
	}
	const url = "http://192.0.2.1:7080"
	return api.Repository{
		URL: url, Suite: suite, KeyURL: url + "/mesh.asc", KeySHA256: fmt.Sprintf("%064d", 7),
		AptKeyFile: "/etc/apt/keyrings/mesh.asc", AptSource: "Types: deb\nSigned-By: /etc/apt/keyrings/mesh.asc\n",
		DnfKeyFile: "/etc/pki/rpm-gpg/RPM-GPG-KEY-mesh", DnfSource: "[mesh]\ngpgcheck=1\n",
	}, nil
}
