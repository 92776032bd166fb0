package control_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Shows: M8
func TestAWriteGivesANewGenerationOnlyToNodesForWhichSomethingChanges(t *testing.T) {
	p := newPlane(t)
	web := join(p, "web-1", map[string]string{"role": "web"})
	db := join(p, "db-1", map[string]string{"role": "db"})
	got := p.declare(doc("web", `labels.role == "web"`, file("/etc/web", "one")))
	if got != (control.Declared{Declaration: "web", Revision: 1, Changed: true, Nodes: 1}) {
		t.Errorf("the write answers %+v", got)
	}
	wantPending(t, web, "g1 [file:/etc/web] released []")
	wantPending(t, db, "nothing")
	if web.link.wakes() != 1 || db.link.wakes() != 0 {
		t.Errorf("links were woken %d and %d times", web.link.wakes(), db.link.wakes())
	}
	if got := p.declare(doc("web", `labels.role == "web"`, file("/etc/web", "one"))); got.Changed || got.Revision != 1 || got.Nodes != 0 {
		t.Errorf("the same document again answers %+v", got)
	}
	moved := p.declare(doc("web", `labels.role in ["web"]`, file("/etc/web", "one")))
	if moved.Revision != 2 || moved.Nodes != 0 {
		t.Errorf("a revision that changes nothing on any node answers %+v", moved)
	}
}

func TestADocumentWithFaultsIsRefusedWholeWithEveryFault(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	bad := file("relative", "x")
	bad.File.Mode = "9"
	_, err := p.Declare(context.Background(), root, doc("web", "", bad))
	wantCode(t, "an invalid document", err, mesh.CodeInvalid, "resources[0].file", "resources[0].mode")
	_, err = p.Declare(context.Background(), root, doc("web", "labels.role", file("/x", "x")))
	wantCode(t, "a selection that is no question", err, mesh.CodeInvalid, "select:")
	unknown := mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/x", File: &mesh.FileSpec{SHA256: strings.Repeat("a", 64), Size: 7}}}
	_, err = p.Declare(context.Background(), root, doc("web", "", unknown))
	wantCode(t, "a document whose blob is missing", err, mesh.CodeInvalid, "was not uploaded")
	views, err := p.Declarations(context.Background())
	if err != nil || len(views) != 0 {
		t.Errorf("something was written: %+v, %v", views, err)
	}
	wantPending(t, h, "nothing")
}

func TestAWriteThatContradictsAnotherDeclarationIsRefusedAndNamesBoth(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", map[string]string{"role": "web"})
	p.declare(doc("base", "", file("/etc/motd", "base")))
	_, err := p.Declare(context.Background(), root, doc("web", `labels.role == "web"`, file("/etc/motd", "web")))
	wantCode(t, "the second claim", err, mesh.CodeConflict, "web-1", "file:/etc/motd", "base", "web")
	if _, err := p.Declaration(context.Background(), "web", 0); mesh.CodeOf(err) != mesh.CodeNotFound {
		t.Errorf("the refused declaration is there: %v", err)
	}
	wantPending(t, h, "g1 [file:/etc/motd] released []")
	p.declare(doc("db", `labels.role == "db"`, file("/etc/motd", "db")))
}

func TestANewNodeOnWhichDeclarationsContradictGetsAFailedLineAndNothingElse(t *testing.T) {
	p := newPlane(t)
	p.declare(doc("base", "", file("/etc/motd", "base")))
	p.declare(doc("db", `labels.role == "db"`, file("/etc/motd", "db")))
	h := join(p, "db-1", map[string]string{"role": "db"})
	wantPending(t, h, "nothing")
	row := h.row()
	if len(row.Failed) != 1 || row.Failed[0].Resource != "file:/etc/motd" || row.Failed[0].Reason != control.ReasonDeclaredTwice {
		t.Errorf("failed lines: %+v", row.Failed)
	}
	p.restart()
	if again := h.row(); len(again.Failed) != 1 {
		t.Errorf("after a restart the failed line is gone: %+v", again)
	}
	h.connect()
	if _, err := p.RemoveDeclaration(context.Background(), root, "db"); err != nil {
		t.Fatal(err)
	}
	wantPending(t, h, "g1 [file:/etc/motd] released []")
	if row := h.row(); len(row.Failed) != 0 {
		t.Errorf("the failed line stays: %+v", row.Failed)
	}
}

// Shows: M6
func TestWhatIsNoLongerDeclaredIsReleasedOnlyAsFarAsTheNodeOwnsIt(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a"), file("/etc/b", "b")))
	h.apply()
	p.declare(doc("web", "", file("/etc/a", "a")))
	h.receive()
	if d := h.detail(); d.Declared != 2 {
		t.Fatalf("declared %s", d.Declared)
	}
	p.declare(doc("web", "", file("/etc/a", "a"), file("/etc/c", "c")))
	wantPending(t, h, "g3 [file:/etc/a file:/etc/c] released [file:/etc/b]")
}

// Shows: M6
func TestRemovingADeclarationReleasesWhatItMadeAndANodeThatNeverHadOneGetsNothing(t *testing.T) {
	p := newPlane(t)
	web := join(p, "web-1", map[string]string{"role": "web"})
	p.declare(doc("web", `labels.role == "web"`, file("/etc/a", "a")))
	web.apply()
	idle := machine(p, "idle-1")
	idle.e.Owned = []mesh.Owned{{Resource: "file:/etc/mine", Made: mesh.MadeCreated}}
	if _, err := idle.enrol(control.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	idle.connect()
	removed, err := p.RemoveDeclaration(context.Background(), root, "web")
	if err != nil || removed.Revision != 2 || removed.Nodes != 1 {
		t.Errorf("the removal answers %+v, %v", removed, err)
	}
	wantPending(t, web, "g2 [] released [file:/etc/a]")
	wantPending(t, idle, "nothing")
	_, err = p.RemoveDeclaration(context.Background(), root, "web")
	wantCode(t, "removing it again", err, mesh.CodeNotFound)
	if again := p.declare(doc("web", `labels.role == "web"`, file("/etc/a", "a"))); again.Revision != 3 {
		t.Errorf("writing it again answers %+v", again)
	}
}

// Shows: M6, M29
func TestWhatAHostKeptIsReleasedOnceTheRecoveryCopyHasIt(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	p.declare(doc("web", "", file("/etc/a", "a")))
	h.receive()
	p.declare(doc("web", "", file("/etc/b", "b")))
	h.receive()
	// The host made /etc/a before the second generation came, and says so late.
	h.say(mesh.FrameReport, mesh.Report{Generation: 2, State: mesh.GenerationApplied, Kept: []mesh.ResourceID{"file:/etc/a"}})
	wantPending(t, h, "nothing")
	h.say(mesh.FrameOwned, mesh.OwnedChange{Owned: []mesh.Owned{{Resource: "file:/etc/a", Made: mesh.MadeCreated, Generation: 1}}})
	d := h.receive()
	if got := ids(d); got != "g3 [file:/etc/b] released [file:/etc/a]" {
		t.Errorf("pushed %s", got)
	}
	h.say(mesh.FrameReport, mesh.Report{Generation: 3, State: mesh.GenerationFailed, Results: []mesh.Result{{Resource: "file:/etc/a", Status: mesh.StatusConflict, Reason: mesh.ReasonModified}}})
	h.say(mesh.FrameOwned, mesh.OwnedChange{Owned: []mesh.Owned{{Resource: "file:/etc/a", Made: mesh.MadeCreated, Generation: 1}}})
	wantPending(t, h, "nothing")
}

func TestLargeContentTravelsAsABlobThatOnlyItsNodesCanOpen(t *testing.T) {
	p := newPlane(t)
	web := join(p, "web-1", map[string]string{"role": "web"})
	db := join(p, "db-1", nil)
	content := bytes.Repeat([]byte("x"), mesh.InlineLimit+1)
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	p.declare(doc("web", `labels.role == "web"`, file("/large", string(content)), file("/empty", "")))
	d := web.receive()
	if f := d.Resources[0].File; f.Content != nil || f.SHA256 != name || f.Size != int64(len(content)) {
		t.Errorf("the large file travels as %+v", f)
	}
	if blobs := d.Blobs(); len(blobs) != 1 {
		t.Errorf("the declaration names the blobs %v", blobs)
	}
	r, err := p.OpenBlob(context.Background(), web.name, name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || r.Close() != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	_, err = p.OpenBlob(context.Background(), db.name, name)
	wantCode(t, "a blob of another node", err, mesh.CodeDenied)
	_, err = p.OpenBlob(context.Background(), web.name, "../control.db")
	wantCode(t, "a name that is no digest", err, mesh.CodeInvalid)
	err = p.PutBlob(context.Background(), root, name, strings.NewReader("other"))
	if err != nil {
		t.Errorf("a blob that is there already gave %v", err)
	}
	err = p.PutBlob(context.Background(), root, strings.Repeat("a", 64), strings.NewReader("other"))
	wantCode(t, "content with another digest", err, mesh.CodeInvalid, "nothing was stored")
}

func TestTheContentOfASensitiveFileIsNotShown(t *testing.T) {
	p := newPlane(t)
	secret := file("/etc/secret", "hunter2")
	secret.File.Sensitive = true
	p.declare(doc("web", "", secret, file("/etc/open", "open")))
	view, err := p.Declaration(context.Background(), "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	if f := view.Document.Resources[0].File; f.Content != nil || f.SHA256 != "" || f.Size != 0 {
		t.Errorf("shown: %+v", f)
	}
	if f := view.Document.Resources[1].File; string(f.Content) != "open" {
		t.Errorf("the other file is shown as %+v", f)
	}
	h := join(p, "web-1", nil)
	if d := h.pending(); string(d.Resources[0].File.Content) != "hunter2" {
		t.Errorf("the node gets %+v", d.Resources[0].File)
	}
}

func TestEveryRevisionCanBeReadAndEveryWriteIsInTheAuditLog(t *testing.T) {
	p := newPlane(t)
	p.declare(doc("web", "", file("/a", "one")))
	p.declare(doc("web", "", file("/a", "two")))
	if _, err := p.RemoveDeclaration(context.Background(), root, "web"); err != nil {
		t.Fatal(err)
	}
	p.token(control.TokenRequest{Name: "n"})
	if err := p.RecordRepository(context.Background(), root, "packages published", "hello 1.0"); err != nil {
		t.Fatal(err)
	}
	p.restart()
	first, err := p.Declaration(context.Background(), "web", 1)
	if err != nil || string(first.Document.Resources[0].File.Content) != "one" {
		t.Errorf("revision 1 is %+v, %v", first, err)
	}
	if newest, err := p.Declaration(context.Background(), "web", 0); err != nil || !newest.Removed || newest.Revision != 3 || newest.Document != nil {
		t.Errorf("the newest revision is %+v, %v", newest, err)
	}
	_, err = p.Declaration(context.Background(), "web", 9)
	wantCode(t, "a revision that is not there", err, mesh.CodeNotFound, "newest is 3")
	log, err := p.Audit(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	var what []string
	for _, e := range log {
		what = append(what, e.What)
		if e.Who != "root" || e.Door != "socket" || e.At.IsZero() {
			t.Errorf("entry %+v", e)
		}
	}
	if got := strings.Join(what, ", "); got != "packages published, token issued, declaration removed, declaration written, declaration written" {
		t.Errorf("the audit log says: %s", got)
	}
}

func TestWhatOthersDeclareForANodeKeepsNobodyFromWriting(t *testing.T) {
	tall := func(prefix string, n int) []mesh.DocumentResource {
		var all []mesh.DocumentResource
		for i := range n {
			all = append(all, file(fmt.Sprintf("/%s-%d", prefix, i), ""))
		}
		return all
	}
	wide := func(prefix string) []mesh.DocumentResource {
		var all []mesh.DocumentResource
		for i := range 1600 {
			all = append(all, file(fmt.Sprintf("/%s-%d%s", prefix, i, strings.Repeat("/"+strings.Repeat("x", 250), 15)), ""))
		}
		return all
	}
	for name, parts := range map[string][2][]mesh.DocumentResource{
		"more resources than one node can have":        {tall("a", 6000), tall("b", 6000)},
		"more bytes than one node can be sent at once": {wide("a"), wide("b")},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			p.declare(doc("a", `labels.a == "yes"`, parts[0]...))
			p.declare(doc("b", `labels.b == "yes"`, parts[1]...))
			both := join(p, "both-1", map[string]string{"a": "yes", "b": "yes"})
			other := join(p, "other-1", nil)
			if failed := both.row().Failed; len(failed) != 1 {
				t.Fatalf("the node of both has failed lines %+v, want one that says what is too much", failed)
			}

			p.declare(doc("motd", `name == "other-1"`, file("/etc/motd", "hello")))

			wantPending(t, other, "g1 [file:/etc/motd] released []")
			wantPending(t, both, "nothing")
			p.restart()
			if failed := both.row().Failed; len(failed) != 1 {
				t.Errorf("after a restart the node of both has failed lines %+v", failed)
			}
			_, err := p.Declare(context.Background(), root, doc("motd", "", file("/etc/motd", "hello")))
			if err == nil || !strings.Contains(err.Error(), "both-1") {
				t.Errorf("a declaration that adds to what is too much for both-1 gave %v", err)
			}
		})
	}
}

// Shows: M21
func TestWhatIsWrittenAnewIsARevisionAndAGenerationForItsNodesThoughItIsTheSame(t *testing.T) {
	p := newPlane(t)
	web, db := join(p, "web-1", map[string]string{"role": "web"}), join(p, "db-1", map[string]string{"role": "db"})
	same := doc("web", `labels.role == "web"`, file("/etc/web", "one"))
	p.declare(same)
	p.declare(doc("base", "", file("/etc/base", "one")))
	web.apply()
	db.apply()

	got, err := p.DeclareAnew(t.Context(), root, same)

	if err != nil || got != (control.Declared{Declaration: "web", Revision: 2, Changed: true, Nodes: 1}) {
		t.Errorf("writing the same anew answers %+v, %v", got, err)
	}
	d := web.pending()
	if got, want := ids(d), "g3 [file:/etc/base file:/etc/web] released []"; got != want {
		t.Fatalf("web-1 gets %s, want %s", got, want)
	}
	for _, r := range d.Resources {
		if want := map[string]int64{"web": 2, "base": 1}[r.From]; r.Revision != want {
			t.Errorf("%s is of revision %d of %s, want %d", r.ID(), r.Revision, r.From, want)
		}
	}
	wantPending(t, db, "nothing")
	_, err = p.DeclareAnew(t.Context(), control.Caller{Name: "anna", Role: control.RoleReader}, same)
	wantCode(t, "a reader's write", err, mesh.CodeDenied)
}
