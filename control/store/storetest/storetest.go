// Package storetest is the contract of control.Store and control.Blobs as
// tests. Every engine passes it, and so does every fake.
//
// It tests what the interfaces promise, and nothing of how it is kept.
package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Fixture opens a store. Opening it again, after Close, must give what was
// stored before.
type Fixture struct {
	Open func(t *testing.T) (store control.Store, closeStore func())
}

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// Run runs the contract.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, control.Store, func() control.Store)
	}{
		{"an enrolment is stored whole and survives", enrolmentIsWhole},
		{"a token is used once and an enrolment that fails leaves nothing", tokenIsUsedOnce},
		{"tokens are listed, and one that nobody used is revoked", tokensAreRevoked},
		{"re-enrolment revokes the former identity and forgets what the former machine said", reEnrolment},
		{"every revision is kept", revisionsAreKept},
		{"a revision is written once", revisionIsWrittenOnce},
		{"what nodes get comes back as it was written", generationsComeBack},
		{"a blob belongs to the nodes whose declarations name it", blobsBelongToNodes},
		{"a message is recorded once for each host store", messagesAreRecordedOnce},
		{"what a store has forgotten is taken back, and its numbers count again", storesGoBack},
		{"a report changes the results and a full one replaces them", reportsChangeResults},
		{"an old report does not take a newer one's place", oldReports},
		{"the recovery copy follows what is said, and does not forget when told not to", recoveryCopy},
		{"revocation marks node and key", revocation},
		{"facts, link and contact are kept", factsAreKept},
		{"what an operator changes about a node is kept, with what follows from it", changesAreKept},
		{"a node fills no more than its share", sharesAreBounded},
		{"events and audit come newest first", newestFirst},
		{"what is not there is said to be not found", notFound},
		{"operators are kept with their limits, once for each name and key", operatorsAreKept},
		{"writes at the same time are all kept", concurrentWrites},
		{"the audit log is forgotten from its oldest entry on", auditIsForgotten},
		{"tokens are forgotten a while after they expired", tokensAreForgotten},
		{"old revisions are forgotten, and never the newest", revisionsAreForgotten},
		{"of former stores of a host the newest are remembered", formerStoresAreForgotten},
		{"of a node that left its name and its keys stay", leftNodesAreForgotten},
		{"names that nothing has are forgotten", namesAreForgotten},
		{"what a revision or a generation names is known", namedBlobs},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := open(t)
			s, closeStore := f.Open(t)
			reopen := func() control.Store {
				t.Helper()
				closeStore()
				s, closeStore = f.Open(t)
				return s
			}
			defer func() { closeStore() }()
			test.run(t, s, reopen)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func token(t *testing.T, s control.Store, hash string) {
	t.Helper()
	must(t, s.IssueToken(t.Context(), control.TokenRecord{Hash: hash, Labels: map[string]string{"role": "web"}, Issued: start, Expires: start.Add(time.Hour)}, entry("token issued")))
}

func entry(what string) control.AuditEntry {
	return control.AuditEntry{At: start, Who: "root", Door: "socket", What: what, Detail: "d"}
}

func enrolment(name string) control.EnrolTx {
	profile := mesh.Profile{OS: mesh.OS{ID: "debian", Version: "12", Family: "debian"}, Arch: "amd64", MachineIDHash: "m-" + name}
	inventory := mesh.Inventory{Units: []string{"ssh.service"}}
	return control.EnrolTx{
		TokenHash: "hash-" + name, Key: "ssh-ed25519 " + name,
		Node: control.NodeRecord{
			Name: name, State: mesh.NodeEnrolled, Labels: map[string]string{"role": "web"}, Machine: "m-" + name, HostVersion: "1.0", Enrolled: start,
			Profile: profile, ProfileDigest: profile.Digest(), InventoryDigest: inventory.Digest(),
			Briefing: mesh.Briefing{Lines: []mesh.Line{{Check: "c", Outcome: mesh.OutcomePass, Detail: "d"}}},
			Floor:    2, Held: 2, LastContact: start,
		},
		Inventory:  inventory,
		Owned:      []mesh.Owned{owned("file:/etc/motd", "a")},
		Generation: &control.GenerationRecord{Node: name, Generation: 3, Resources: resources("x"), Digest: "digest", Released: []mesh.ResourceID{"file:/old"}, At: start},
		Events:     []control.EventView{{Event: mesh.Event{Kind: "enrolled", Detail: "d", At: start}, Node: name, Received: start}},
		Audit:      entry("node enrolled"),
		At:         start,
	}
}

func enrol(t *testing.T, s control.Store, name string) {
	t.Helper()
	token(t, s, "hash-"+name)
	must(t, s.Enrol(t.Context(), enrolment(name)))
}

func owned(id mesh.ResourceID, wrote string) mesh.Owned {
	return mesh.Owned{Resource: id, Made: mesh.MadeCreated, Generation: 1, Wrote: json.RawMessage(fmt.Sprintf("%q", wrote))}
}

func resources(content string) []mesh.Resource {
	spec := &mesh.FileSpec{Type: mesh.FileRegular}
	spec.SetContent([]byte(content))
	return []mesh.Resource{{Kind: mesh.KindFile, Name: "/etc/x", From: "web", File: spec}}
}

func sum(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

func result(id mesh.ResourceID, status mesh.Status) mesh.Result {
	r := mesh.Result{Resource: id, Status: status, Generation: 3, Want: sum(string(id)), At: start}
	if !status.Good() {
		r.Reason, r.Detail, r.Output = mesh.ReasonNotAvailable, "detail", "output"
	}
	return r
}

func enrolmentIsWhole(t *testing.T, s control.Store, reopen func() control.Store) {
	token(t, s, "hash-web-1")
	tx := enrolment("web-1")
	tx.Bootstrap = &control.Revision{Name: "bootstrap", Revision: 1, Document: mesh.Document{Declaration: "bootstrap"}, Digest: "bd", By: "node web-1", Door: "enrol", At: start}
	must(t, s.Enrol(t.Context(), tx))
	s = reopen()

	nodes, err := s.Nodes(t.Context())
	must(t, err)
	want := tx.Node
	want.Floor, want.Declared, want.Digest, want.Released = 3, 3, "digest", []mesh.ResourceID{"file:/old"}
	equal(t, "nodes", nodes, []control.NodeRecord{want})
	identities, err := s.Identities(t.Context())
	must(t, err)
	equal(t, "identities", identities, []control.IdentityRecord{{Key: tx.Key, Node: "web-1", Machine: "m-web-1"}})
	used, err := s.Token(t.Context(), "hash-web-1")
	must(t, err)
	if used.Used != start || used.UsedBy != tx.Key || used.Node != "web-1" {
		t.Errorf("token after use: %+v", used)
	}
	copied, err := s.Owned(t.Context(), "web-1")
	must(t, err)
	equal(t, "recovery copy", copied, tx.Owned)
	inventory, err := s.Inventory(t.Context(), "web-1")
	must(t, err)
	equal(t, "inventory", inventory, tx.Inventory)
	caused, err := s.CausedBy(t.Context(), "bootstrap", 1)
	must(t, err)
	equal(t, "generations of the bootstrap declaration", caused, map[string]mesh.Generation{"web-1": 3})
	events, err := s.Events(t.Context(), "", 10)
	must(t, err)
	equal(t, "events", events, tx.Events)
}

func tokenIsUsedOnce(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	again := enrolment("web-2")
	again.TokenHash = "hash-web-1"
	if err := s.Enrol(t.Context(), again); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("a second use of the token gave %v", err)
	}
	twice := enrolment("web-3")
	token(t, s, twice.TokenHash)
	// The generation exists already, so the last step but two fails.
	twice.Node.Name, twice.Generation.Node = "web-1", "web-1"
	if err := s.Enrol(t.Context(), twice); err == nil {
		t.Error("an enrolment with a generation that is there already was taken")
	}
	s = reopen()
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	identities, err := s.Identities(t.Context())
	must(t, err)
	unused, err := s.Token(t.Context(), twice.TokenHash)
	must(t, err)
	if len(nodes) != 1 || len(identities) != 1 || !unused.Used.IsZero() {
		t.Errorf("after two enrolments that failed there are %d nodes, %d keys, and the token was used at %v", len(nodes), len(identities), unused.Used)
	}
}

func tokensAreRevoked(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	later := control.TokenRecord{Hash: "later", Labels: map[string]string{"role": "web"}, Issued: start.Add(time.Minute), Expires: start.Add(time.Hour)}
	must(t, s.IssueToken(t.Context(), later, entry("token issued")))
	used, err := s.Token(t.Context(), "hash-web-1")
	must(t, err)
	all, err := s.Tokens(t.Context(), 10)
	must(t, err)
	equal(t, "tokens", all, []control.TokenRecord{later, used})
	newest, err := s.Tokens(t.Context(), 1)
	must(t, err)
	equal(t, "the newest token", newest, []control.TokenRecord{later})
	named, err := s.TokenNamed(t.Context(), "hash-w")
	must(t, err)
	equal(t, "the token by its prefix", named, used)
	for _, none := range []string{"hash-w%", "ash-w", "hash-web-10"} {
		if named, err := s.TokenNamed(t.Context(), none); !errors.Is(err, control.ErrNotFound) {
			t.Errorf("the prefix %q gave %+v, %v", none, named, err)
		}
	}

	must(t, s.RevokeToken(t.Context(), "later", entry("token revoked")))
	for _, hash := range []string{"later", "hash-web-1", "none"} {
		if err := s.RevokeToken(t.Context(), hash, entry("again")); !errors.Is(err, control.ErrNotFound) {
			t.Errorf("revoking %s gave %v", hash, err)
		}
	}
	s = reopen()
	all, err = s.Tokens(t.Context(), 10)
	must(t, err)
	equal(t, "tokens", all, []control.TokenRecord{used})
	log, err := s.Audit(t.Context(), 1)
	must(t, err)
	equal(t, "audit", log, []control.AuditEntry{entry("token revoked")})
}

func reEnrolment(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	_, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Report: mesh.Report{Generation: 3, State: mesh.GenerationApplied, Results: []mesh.Result{result("file:/etc/x", mesh.StatusOK)}}, State: mesh.GenerationApplied, At: start})
	must(t, err)
	token(t, s, "second")
	tx := enrolment("web-1")
	tx.TokenHash, tx.Key, tx.RevokeKeys = "second", "ssh-ed25519 new", []string{"ssh-ed25519 web-1"}
	tx.Generation, tx.At = nil, start.Add(time.Minute)
	tx.Owned = []mesh.Owned{owned("package:nginx", "b")}
	must(t, s.Enrol(t.Context(), tx))

	identities, err := s.Identities(t.Context())
	must(t, err)
	byKey := map[string]time.Time{}
	for _, id := range identities {
		byKey[id.Key] = id.Revoked
	}
	equal(t, "keys and when they were revoked", byKey, map[string]time.Time{"ssh-ed25519 web-1": start.Add(time.Minute), "ssh-ed25519 new": {}})
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if n := nodes[0]; n.Declared != 3 || n.Reported != 0 || n.Applied != 0 {
		t.Errorf("the node has declared %s, reported %s, applied %s; want g3 and nothing reported", n.Declared, n.Reported, n.Applied)
	}
	results, err := s.Results(t.Context(), "web-1")
	must(t, err)
	ids, err := s.OwnedIDs(t.Context(), []string{"web-1"})
	must(t, err)
	if len(results) != 0 {
		t.Errorf("results of the former machine are still there: %v", results)
	}
	equal(t, "recovery copy", ids["web-1"], []mesh.ResourceID{"file:/etc/motd", "package:nginx"})
}

func revision(n int64, content string) control.Revision {
	doc := mesh.Document{Declaration: "web", Select: "true"}
	for _, r := range resources(content) {
		doc.Resources = append(doc.Resources, mesh.DocumentResource{Resource: r, When: "true"})
	}
	return control.Revision{Name: "web", Revision: n, Document: doc, Digest: content, By: "root", Door: "socket", At: start.Add(time.Duration(n) * time.Second)}
}

func revisionsAreKept(t *testing.T, s control.Store, reopen func() control.Store) {
	first, second := revision(1, "one"), revision(2, "two")
	removal := control.Revision{Name: "web", Revision: 3, Removed: true, By: "root", Door: "socket", At: start}
	for _, r := range []control.Revision{first, second, removal} {
		must(t, s.WriteDeclaration(t.Context(), control.DeclarationTx{Revision: r, Audit: entry("declaration written")}))
	}
	s = reopen()
	newest, err := s.Declarations(t.Context())
	must(t, err)
	equal(t, "newest revisions", newest, []control.Revision{removal})
	for _, want := range []control.Revision{first, second, removal} {
		got, err := s.Declaration(t.Context(), "web", want.Revision)
		must(t, err)
		equal(t, fmt.Sprintf("revision %d", want.Revision), got, want)
	}
	got, err := s.Declaration(t.Context(), "web", 0)
	must(t, err)
	equal(t, "revision 0", got, removal)
	list, err := s.Revisions(t.Context(), "web", 2)
	must(t, err)
	equal(t, "history", list, []control.DeclarationView{
		{Name: "web", Revision: 3, Written: start, By: "root", Removed: true},
		{Name: "web", Revision: 2, Written: second.At, By: second.By, Resources: len(second.Document.Resources)},
	})
	none, err := s.Revisions(t.Context(), "nobody", 2)
	must(t, err)
	equal(t, "history of nothing", len(none), 0)
}

func revisionIsWrittenOnce(t *testing.T, s control.Store, _ func() control.Store) {
	must(t, s.WriteDeclaration(t.Context(), control.DeclarationTx{Revision: revision(1, "one"), Audit: entry("w")}))
	if err := s.WriteDeclaration(t.Context(), control.DeclarationTx{Revision: revision(1, "other"), Audit: entry("second")}); err == nil {
		t.Error("the same revision was written twice")
	}
	log, err := s.Audit(t.Context(), 10)
	must(t, err)
	if len(log) != 1 {
		t.Errorf("the audit log has %d entries, want only that of the write that was taken: %+v", len(log), log)
	}
}

func generationsComeBack(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	enrol(t, s, "web-2")
	shared := resources("shared")
	tx := control.DeclarationTx{Revision: revision(1, "one"), Audit: entry("w")}
	for _, node := range []string{"web-1", "web-2"} {
		tx.Generations = append(tx.Generations, control.GenerationRecord{Node: node, Generation: 4, Resources: shared, Digest: "d4", At: start})
	}
	must(t, s.WriteDeclaration(t.Context(), tx))
	must(t, s.WriteGenerations(t.Context(), []control.GenerationRecord{{Node: "web-2", Generation: 7, Digest: "empty", Released: []mesh.ResourceID{"file:/etc/x"}, At: start}}))
	s = reopen()

	for _, node := range []string{"web-1", "web-2"} {
		got, err := s.Compiled(t.Context(), node, 4)
		must(t, err)
		equal(t, "generation 4 of "+node, got, mesh.Declaration{Node: node, Generation: 4, Resources: shared})
	}
	empty, err := s.Compiled(t.Context(), "web-2", 7)
	must(t, err)
	equal(t, "an empty generation", empty, mesh.Declaration{Node: "web-2", Generation: 7, Resources: []mesh.Resource{}, Released: []mesh.ResourceID{"file:/etc/x"}})
	caused, err := s.CausedBy(t.Context(), "web", 1)
	must(t, err)
	equal(t, "what revision 1 caused", caused, map[string]mesh.Generation{"web-1": 4, "web-2": 4})
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if nodes[0].Declared != 4 || nodes[1].Declared != 7 || nodes[1].Digest != "empty" || nodes[1].Floor != 7 {
		t.Errorf("newest generations: %+v", nodes)
	}
	if _, err := s.Compiled(t.Context(), "web-1", 5); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("a generation that is not there gave %v", err)
	}
}

func blobsBelongToNodes(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	enrol(t, s, "web-2")
	large := []mesh.Resource{{Kind: mesh.KindFile, Name: "/large", File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: sum("large"), Size: 5}}}
	must(t, s.WriteGenerations(t.Context(), []control.GenerationRecord{{Node: "web-1", Generation: 9, Resources: large, Digest: "d", At: start}}))
	for node, want := range map[string]bool{"web-1": true, "web-2": false, "nobody": false} {
		named, err := s.NamesBlob(t.Context(), node, sum("large"))
		must(t, err)
		if named != want {
			t.Errorf("%s names the blob: %v, want %v", node, named, want)
		}
	}
}

func messagesAreRecordedOnce(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	event := func(store string, number uint64) bool {
		t.Helper()
		fresh, err := s.StoreEvent(t.Context(), control.EventTx{Sequence: control.Sequence{StoreID: store, Number: number}, Event: control.EventView{Event: mesh.Event{Kind: "drift", At: start}, Node: "web-1", Received: start}})
		must(t, err)
		return fresh
	}
	got := []bool{event("a", 1), event("a", 1), event("a", 5), event("a", 4)}
	s = reopen()
	got = append(got, event("a", 5), event("b", 1), event("a", 6))
	equal(t, "fresh", got, []bool{true, false, true, false, false, true, true})
	events, err := s.Events(t.Context(), "web-1", 100)
	must(t, err)
	if len(events) != 1+4 {
		t.Errorf("%d events are recorded, want that of the enrolment and 4", len(events))
	}

	seq := control.Sequence{StoreID: "a", Number: 7}
	for i, status := range []mesh.Status{mesh.StatusOK, mesh.StatusFailed} {
		fresh, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Sequence: seq, Report: mesh.Report{Generation: 3, Results: []mesh.Result{result("file:/a", status)}}, State: mesh.GenerationApplied, At: start})
		must(t, err)
		equal(t, "report is fresh", fresh, i == 0)
	}
	results, err := s.Results(t.Context(), "web-1")
	must(t, err)
	equal(t, "results", results, []mesh.Result{result("file:/a", mesh.StatusOK)})

	seq.Number = 8
	for i, wrote := range []string{"first", "second"} {
		fresh, err := s.StoreOwned(t.Context(), control.OwnedTx{Node: "web-1", Sequence: seq, Change: mesh.OwnedChange{Full: true, Owned: []mesh.Owned{owned("file:/a", wrote)}}, Mode: control.OwnedAsSaid})
		must(t, err)
		equal(t, "change of the recovery copy is fresh", fresh, i == 0)
	}
	copied, err := s.Owned(t.Context(), "web-1")
	must(t, err)
	equal(t, "recovery copy", copied, []mesh.Owned{owned("file:/a", "first")})
}

func storesGoBack(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	report := func(store string, number uint64) bool {
		t.Helper()
		fresh, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Sequence: control.Sequence{StoreID: store, Number: number}, Report: mesh.Report{Generation: mesh.Generation(number)}, State: mesh.GenerationApplied, At: start})
		must(t, err)
		return fresh
	}
	recorded := func(store string) uint64 {
		t.Helper()
		number, err := s.Recorded(t.Context(), "web-1", store)
		must(t, err)
		return number
	}
	equal(t, "nothing recorded", recorded("a"), uint64(0))
	report("a", 9)
	report("b", 5)

	must(t, s.TakeBack(t.Context(), control.TakeBackTx{Node: "web-1", Sequence: control.Sequence{StoreID: "a", Number: 3}, Applied: 2, Events: []control.EventView{{Event: mesh.Event{Kind: "back", At: start}, Node: "web-1", Received: start}}}))
	s = reopen()

	equal(t, "recorded of each store", []uint64{recorded("a"), recorded("b")}, []uint64{3, 5})
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if n := nodes[0]; n.Reported != 0 || n.ReportedState != "" || n.Applied != 2 {
		t.Errorf("the node has reported %s as %q and applied %s", n.Reported, n.ReportedState, n.Applied)
	}
	if events, err := s.Events(t.Context(), "web-1", 1); err != nil || len(events) != 1 || events[0].Kind != "back" {
		t.Errorf("the newest event is %+v, %v", events, err)
	}
	equal(t, "fresh", []bool{report("a", 3), report("a", 4)}, []bool{false, true})
}

func reportsChangeResults(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	report := func(r mesh.Report) {
		t.Helper()
		r.Generation, r.State = 3, mesh.GenerationFailed
		_, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Report: r, State: r.State, At: start})
		must(t, err)
	}
	a, b, c := result("file:/a", mesh.StatusOK), result("file:/b", mesh.StatusFailed), result("package:c", mesh.StatusConflict)
	check := func(when string, want ...mesh.Result) {
		t.Helper()
		got, err := s.Results(t.Context(), "web-1")
		must(t, err)
		equal(t, "results "+when, got, want)
	}
	report(mesh.Report{Results: []mesh.Result{a, b}, Kept: []mesh.ResourceID{"file:/kept"}})
	check("after the first report", a, b)
	b.Status, b.Reason, b.Detail, b.Output = mesh.StatusChanged, "", "", ""
	removed := result("file:/a", mesh.StatusRemoved)
	report(mesh.Report{Results: []mesh.Result{b, c, removed}, Gone: []mesh.ResourceID{"file:/a"}})
	check("after one that changes, adds and ends", b, c)
	bad, err := s.BadResults(t.Context(), nil)
	must(t, err)
	quiet := c
	quiet.Output = ""
	equal(t, "bad results, of which the output is left out", bad, map[string][]mesh.Result{"web-1": {quiet}})
	none, err := s.BadResults(t.Context(), []string{"web-2"})
	must(t, err)
	equal(t, "bad results of another node", none, map[string][]mesh.Result{})
	report(mesh.Report{Full: true, Results: []mesh.Result{a}})
	check("after a full report", a)
}

func oldReports(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	for _, r := range []control.ReportTx{
		{Report: mesh.Report{Generation: 3, Kept: []mesh.ResourceID{"file:/k"}}, State: mesh.GenerationApplied},
		{Report: mesh.Report{Generation: 4}, State: mesh.GenerationFailed},
		{Report: mesh.Report{Generation: 2}, State: mesh.GenerationApplied},
	} {
		r.Node, r.At = "web-1", start
		_, err := s.StoreReport(t.Context(), r)
		must(t, err)
	}
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if n := nodes[0]; n.Reported != 4 || n.ReportedState != mesh.GenerationFailed || n.Applied != 3 || n.Kept != nil {
		t.Errorf("reported %s %s, applied %s, kept %v; want g4 failed, g3, none", n.Reported, n.ReportedState, n.Applied, n.Kept)
	}
}

func recoveryCopy(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	say := func(mode control.OwnedMode, change mesh.OwnedChange) {
		t.Helper()
		_, err := s.StoreOwned(t.Context(), control.OwnedTx{Node: "web-1", Change: change, Mode: mode})
		must(t, err)
	}
	check := func(when string, want ...mesh.Owned) {
		t.Helper()
		got, err := s.Owned(t.Context(), "web-1")
		must(t, err)
		equal(t, "recovery copy "+when, got, want)
	}
	undo := owned("package:b", "b")
	undo.Undo, undo.Made, undo.Partial = json.RawMessage(`{"x": 1}`), mesh.MadeReplaced, true
	bare := mesh.Owned{Resource: "file:/bare", Made: mesh.MadeExisted, Generation: 2}
	say(control.OwnedAsSaid, mesh.OwnedChange{Owned: []mesh.Owned{undo, bare}})
	check("after additions", bare, owned("file:/etc/motd", "a"), undo)
	say(control.OwnedAsSaid, mesh.OwnedChange{Owned: []mesh.Owned{owned("file:/etc/motd", "z")}, Gone: []mesh.ResourceID{"file:/bare"}})
	check("after a change and an end", owned("file:/etc/motd", "z"), undo)
	say(control.OwnedOnlyAdd, mesh.OwnedChange{Full: true, Owned: []mesh.Owned{owned("file:/etc/motd", "lost"), owned("file:/n", "n")}, Gone: []mesh.ResourceID{"package:b"}})
	check("after a host that lost its store spoke", owned("file:/etc/motd", "z"), owned("file:/n", "n"), undo)
	say(control.OwnedAsSaid, mesh.OwnedChange{Full: true, Owned: []mesh.Owned{bare}})
	check("after everything was said anew", bare)
}

func revocation(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	must(t, s.Leave(t.Context(), control.LeaveTx{Node: "web-1", State: mesh.NodeRevoked, Event: control.EventView{Event: mesh.Event{Kind: "k", At: start}, Node: "web-1", Received: start}, Audit: entry("node revoked"), At: start.Add(time.Hour)}))
	s = reopen()
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	identities, err := s.Identities(t.Context())
	must(t, err)
	if nodes[0].State != mesh.NodeRevoked || !identities[0].Revoked.Equal(start.Add(time.Hour)) {
		t.Errorf("node is %s, key revoked at %v", nodes[0].State, identities[0].Revoked)
	}
}

func factsAreKept(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	profile := mesh.Profile{OS: mesh.OS{ID: "fedora"}, Disks: []mesh.Disk{{Mount: "/", SizeBytes: 5}}}
	briefing := mesh.Briefing{Lines: []mesh.Line{{Check: "c", Outcome: mesh.OutcomeFail, Detail: "d"}}}
	inventory := mesh.Inventory{Packages: []mesh.InstalledPackage{{Name: "p", Version: "1"}}}
	must(t, s.StoreFacts(t.Context(), control.FactsTx{Node: "web-1", Profile: &profile, ProfileDigest: "pd", Generation: &control.GenerationRecord{Node: "web-1", Generation: 4, Digest: "d", At: start}}))
	must(t, s.StoreFacts(t.Context(), control.FactsTx{Node: "web-1", Briefing: &briefing}))
	must(t, s.StoreFacts(t.Context(), control.FactsTx{Node: "web-1", Inventory: &inventory, InventoryDigest: "id"}))
	must(t, s.StoreLink(t.Context(), control.LinkTx{Node: "web-1", HostVersion: "2.0", StoreID: "s", Floor: 12, Held: 10, Ahead: true, Refused: 10, RefusedWhy: "why"}))
	must(t, s.StoreContacts(t.Context(), []control.Contact{{Node: "web-1", At: start.Add(time.Hour), Held: 11, Drift: 7}}))
	s = reopen()
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	want := enrolment("web-1").Node
	want.Profile, want.ProfileDigest, want.Briefing, want.InventoryDigest = profile, "pd", briefing, "id"
	want.HostVersion, want.StoreID, want.Floor, want.Held, want.Ahead, want.Refused, want.RefusedWhy = "2.0", "s", 12, 11, true, 10, "why"
	want.LastContact, want.Drift, want.Declared, want.Digest = start.Add(time.Hour), 7, 4, "d"
	equal(t, "node", nodes, []control.NodeRecord{want})
	got, err := s.Inventory(t.Context(), "web-1")
	must(t, err)
	equal(t, "inventory", got, inventory)
	must(t, s.WriteGenerations(t.Context(), []control.GenerationRecord{{Node: "web-1", Generation: 13, Digest: "d", At: start}}))
	nodes, err = s.Nodes(t.Context())
	must(t, err)
	if nodes[0].Ahead || nodes[0].Floor != 13 {
		t.Errorf("after a generation above what the node holds: ahead %v, floor %s", nodes[0].Ahead, nodes[0].Floor)
	}
}

func changesAreKept(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	yes, no := true, false
	event := control.EventView{Event: mesh.Event{Kind: "retiring", Detail: "d", At: start}, Node: "web-1", Received: start}
	must(t, s.StoreLink(t.Context(), control.LinkTx{Node: "web-1", HostVersion: "1.0", Floor: 2, Held: 2, Ahead: true, Unheard: true}))
	must(t, s.ChangeNode(t.Context(), control.ChangeTx{
		Node: "web-1", Labels: map[string]string{"role": "db"}, Retiring: &yes, Audit: entry("node retired"), Events: []control.EventView{event},
		Generation: &control.GenerationRecord{Node: "web-1", Generation: 4, Final: true, Digest: "final", Released: []mesh.ResourceID{"file:/etc/motd"}, At: start},
	}))
	s = reopen()
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	want := enrolment("web-1").Node
	want.Labels, want.Retiring, want.Unheard, want.Floor = map[string]string{"role": "db"}, true, true, 4
	want.Declared, want.Digest, want.Released = 4, "final", []mesh.ResourceID{"file:/etc/motd"}
	equal(t, "node", nodes, []control.NodeRecord{want})
	d, err := s.Compiled(t.Context(), "web-1", 4)
	must(t, err)
	if !d.Final || len(d.Resources) != 0 || len(d.Released) != 1 {
		t.Errorf("the final declaration came back as %+v", d)
	}
	events, err := s.Events(t.Context(), "web-1", 1)
	must(t, err)
	equal(t, "events", events, []control.EventView{event})

	must(t, s.StoreLink(t.Context(), control.LinkTx{Node: "web-1", HostVersion: "1.0", Floor: 9, Held: 9, Ahead: true}))
	must(t, s.ChangeNode(t.Context(), control.ChangeTx{Node: "web-1", Retiring: &no, Ahead: &no, Audit: entry("node recovered")}))
	nodes, err = s.Nodes(t.Context())
	must(t, err)
	if n := nodes[0]; n.Retiring || n.Ahead || n.Unheard || n.Labels["role"] != "db" {
		t.Errorf("what was not set was changed, or what was set was not: %+v", n)
	}
}

func sharesAreBounded(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	report := func(seq uint64, ids ...mesh.ResourceID) error {
		r := mesh.Report{Generation: 3, State: mesh.GenerationApplied}
		for _, id := range ids {
			r.Results = append(r.Results, result(id, mesh.StatusOK))
		}
		_, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Sequence: control.Sequence{StoreID: "s", Number: seq}, Report: r, State: r.State, At: start, Limit: 2})
		return err
	}
	own := func(seq uint64, ids ...mesh.ResourceID) error {
		change := mesh.OwnedChange{Full: seq == 2}
		for _, id := range ids {
			change.Owned = append(change.Owned, owned(id, "x"))
		}
		_, err := s.StoreOwned(t.Context(), control.OwnedTx{Node: "web-1", Sequence: control.Sequence{StoreID: "s", Number: seq}, Change: change, Mode: control.OwnedAsSaid, Limit: control.CopyLimit{Entries: 2, Bytes: 100}})
		return err
	}
	must(t, report(1, "file:/a", "file:/b"))
	must(t, own(2, "file:/a", "file:/b"))
	fat := mesh.OwnedChange{Owned: []mesh.Owned{owned("file:/a", strings.Repeat("x", 50)), owned("file:/b", strings.Repeat("x", 50))}}
	_, bytes := s.StoreOwned(t.Context(), control.OwnedTx{Node: "web-1", Change: fat, Mode: control.OwnedAsSaid, Limit: control.CopyLimit{Entries: 2, Bytes: 100}})
	token(t, s, "hash-again")
	again := enrolment("web-1")
	again.TokenHash, again.Generation, again.Owned, again.Limit = "hash-again", nil, fat.Owned, control.CopyLimit{Bytes: 100}
	for what, err := range map[string]error{"results": report(3, "file:/b", "file:/c"), "entries": own(4, "file:/c"), "bytes": bytes, "an enrolment": s.Enrol(t.Context(), again)} {
		if mesh.CodeOf(err) != mesh.CodeInvalid {
			t.Errorf("%s beyond the limit gave %v", what, err)
		}
	}
	results, err := s.Results(t.Context(), "web-1")
	must(t, err)
	held, err := s.Owned(t.Context(), "web-1")
	must(t, err)
	if len(results) != 2 || len(held) != 2 {
		t.Errorf("a write that was refused left %d results and %d entries", len(results), len(held))
	}
	must(t, report(3, "file:/a", "file:/b"))
}

func newestFirst(t *testing.T, s control.Store, _ func() control.Store) {
	enrol(t, s, "web-1")
	for i := range 3 {
		must(t, s.RecordAudit(t.Context(), entry(fmt.Sprint(i))))
		_, err := s.StoreEvent(t.Context(), control.EventTx{Event: control.EventView{Event: mesh.Event{Kind: mesh.EventKind(fmt.Sprint(i)), Resource: "file:/x", Detail: "d", At: start}, Node: "web-1", Received: start.Add(time.Second)}})
		must(t, err)
	}
	log, err := s.Audit(t.Context(), 2)
	must(t, err)
	equal(t, "audit", log, []control.AuditEntry{entry("2"), entry("1")})
	events, err := s.Events(t.Context(), "web-1", 1)
	must(t, err)
	equal(t, "events", events, []control.EventView{{Event: mesh.Event{Kind: "2", Resource: "file:/x", Detail: "d", At: start}, Node: "web-1", Received: start.Add(time.Second)}})
}

func operatorsAreKept(t *testing.T, s control.Store, reopen func() control.Store) {
	anna := control.OperatorRecord{Name: "anna", Key: "ssh-ed25519 AAAA", Role: control.RoleAdmin, Added: start, By: "root"}
	ci := control.OperatorRecord{Name: "ci", Key: "ssh-ed25519 BBBB", Role: control.RolePublisher, Added: start, By: "anna", Limits: control.Limits{Declarations: []string{"web"}, Packages: []string{"web-*"}}}
	written := entry("operator added")
	written.Key = "SHA256:key"
	must(t, s.AddOperator(t.Context(), ci, written))
	must(t, s.AddOperator(t.Context(), anna, written))
	for what, again := range map[string]control.OperatorRecord{
		"a name": {Name: "anna", Key: "ssh-ed25519 CCCC", Role: control.RoleReader, Added: start, By: "root"},
		"a key":  {Name: "bert", Key: anna.Key, Role: control.RoleReader, Added: start, By: "root"},
	} {
		if err := s.AddOperator(t.Context(), again, entry("again")); err == nil {
			t.Errorf("%s was given twice", what)
		}
	}
	s = reopen()
	all, err := s.Operators(t.Context())
	must(t, err)
	equal(t, "operators", all, []control.OperatorRecord{anna, ci})
	log, err := s.Audit(t.Context(), 10)
	must(t, err)
	equal(t, "audit", log, []control.AuditEntry{written, written})
	must(t, s.RemoveOperator(t.Context(), "anna", entry("removed")))
	if err := s.RemoveOperator(t.Context(), "anna", entry("removed")); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("removing an operator who is not there gave %v", err)
	}
	all, err = s.Operators(t.Context())
	must(t, err)
	equal(t, "operators", all, []control.OperatorRecord{ci})
}

func notFound(t *testing.T, s control.Store, _ func() control.Store) {
	_, tokenErr := s.Token(t.Context(), "none")
	_, declarationErr := s.Declaration(t.Context(), "none", 0)
	_, compiledErr := s.Compiled(t.Context(), "none", 1)
	_, reportErr := s.StoreReport(t.Context(), control.ReportTx{Node: "none"})
	revokeErr := s.Leave(t.Context(), control.LeaveTx{Node: "none", State: mesh.NodeRevoked})
	for what, err := range map[string]error{"token": tokenErr, "declaration": declarationErr, "generation": compiledErr, "report": reportErr, "revocation": revokeErr} {
		if !errors.Is(err, control.ErrNotFound) {
			t.Errorf("%s of nothing gave %v", what, err)
		}
	}
	for _, query := range []func() (int, error){
		func() (int, error) { r, err := s.Results(t.Context(), "none"); return len(r), err },
		func() (int, error) { r, err := s.Owned(t.Context(), "none"); return len(r), err },
		func() (int, error) { r, err := s.CausedBy(t.Context(), "none", 1); return len(r), err },
		func() (int, error) { r, err := s.Nodes(t.Context()); return len(r), err },
	} {
		if n, err := query(); n != 0 || err != nil {
			t.Errorf("a list of nothing has %d entries and error %v", n, err)
		}
	}
}

func concurrentWrites(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	const writers, each = 16, 20
	var wg sync.WaitGroup
	failed := make(chan error, writers*each)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				ctx := t.Context()
				if w == 0 {
					// A write that fails must not take others with it.
					if _, err := s.StoreReport(ctx, control.ReportTx{Node: "nobody"}); !errors.Is(err, control.ErrNotFound) {
						failed <- fmt.Errorf("a report of nobody gave %w", err)
					}
					continue
				}
				r := result(mesh.ResourceID(fmt.Sprintf("file:/%d/%d", w, i)), mesh.StatusOK)
				if _, err := s.StoreReport(ctx, control.ReportTx{Node: "web-1", Report: mesh.Report{Generation: 3, Results: []mesh.Result{r}}, State: mesh.GenerationApplied, At: start}); err != nil {
					failed <- err
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	s = reopen()
	results, err := s.Results(t.Context(), "web-1")
	must(t, err)
	if want := (writers - 1) * each; len(results) != want {
		t.Errorf("%d results are kept, want %d", len(results), want)
	}
}
