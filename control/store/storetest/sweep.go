package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// everything forgets until a step has nothing more to do.
func everything(t *testing.T, once func() (int, error)) (total int) {
	t.Helper()
	for range 1000 {
		n, err := once()
		must(t, err)
		if n == 0 {
			return total
		}
		total += n
	}
	t.Fatal("it goes on forgetting")
	return total
}

func leave(t *testing.T, s control.Store, node string, at time.Time) {
	t.Helper()
	must(t, s.Leave(t.Context(), control.LeaveTx{Node: node, State: mesh.NodeRevoked, Event: control.EventView{Event: mesh.Event{Kind: "k", At: at}, Node: node, Received: at}, Audit: entry("node revoked"), At: at}))
}

func auditIsForgotten(t *testing.T, s control.Store, reopen func() control.Store) {
	for i := range 10 {
		e := entry(fmt.Sprintf("write %d", i))
		e.At = start.Add(time.Duration(i) * time.Hour)
		must(t, s.RecordAudit(t.Context(), e))
	}
	n, err := s.ForgetAudit(t.Context(), start.Add(7*time.Hour), 3)
	must(t, err)
	equal(t, "forgotten at once", n, 3)
	equal(t, "forgotten in all", n+everything(t, func() (int, error) { return s.ForgetAudit(t.Context(), start.Add(7*time.Hour), 3) }), 7)
	s = reopen()
	left, err := s.Audit(t.Context(), 100)
	must(t, err)
	if len(left) != 3 || left[2].What != "write 7" {
		t.Errorf("what is left is %+v", left)
	}
}

func tokensAreForgotten(t *testing.T, s control.Store, _ func() control.Store) {
	token(t, s, "old")
	enrol(t, s, "web-1") // uses another of the same time
	must(t, s.IssueToken(t.Context(), control.TokenRecord{Hash: "new", Issued: start, Expires: start.Add(48 * time.Hour)}, entry("token issued")))
	equal(t, "forgotten", everything(t, func() (int, error) { return s.ForgetTokens(t.Context(), start.Add(2*time.Hour), 1) }), 2)
	if _, err := s.Token(t.Context(), "old"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the old token gave %v", err)
	}
	if _, err := s.Token(t.Context(), "new"); err != nil {
		t.Errorf("the new token gave %v", err)
	}
}

func revisionsAreForgotten(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	write := func(name string, n int64, removed bool) {
		t.Helper()
		r := revision(n, fmt.Sprintf("%s %d", name, n))
		r.Name, r.Document.Declaration, r.Removed = name, name, removed
		if removed {
			r.Document = mesh.Document{}
		}
		tx := control.DeclarationTx{Revision: r, Audit: entry("w")}
		if name == "web" {
			tx.Generations = []control.GenerationRecord{{Node: "web-1", Generation: mesh.Generation(10 + n), Resources: resources("x"), Digest: "d", At: start}}
		}
		must(t, s.WriteDeclaration(t.Context(), tx))
	}
	for n := range int64(8) {
		write("web", n+1, false)
	}
	for n := range int64(3) {
		write("gone", n+1, n == 2)
		write("back", n+1, n == 1)
	}
	// All were written within seconds of start.
	forget := func(removed time.Time) int {
		return everything(t, func() (int, error) { return s.ForgetRevisions(t.Context(), 4, removed, 2) })
	}
	equal(t, "while the removal is young", forget(start), 4)
	equal(t, "when the removal is old", forget(start.Add(time.Hour)), 2)
	s = reopen()
	kept := func(name string) (numbers []int64) {
		list, err := s.Revisions(t.Context(), name, 100)
		must(t, err)
		for _, r := range list {
			numbers = append(numbers, r.Revision)
		}
		return numbers
	}
	equal(t, "of what is written", kept("web"), []int64{8, 7, 6, 5})
	equal(t, "of what was removed", kept("gone"), []int64{3})
	equal(t, "of what was removed and came back", kept("back"), []int64{3, 2, 1})
	for n, want := range map[int64]int{4: 0, 5: 1} {
		caused, err := s.CausedBy(t.Context(), "web", n)
		must(t, err)
		equal(t, fmt.Sprintf("nodes of revision %d", n), len(caused), want)
	}
	if _, err := s.Compiled(t.Context(), "web-1", 14); err != nil {
		t.Errorf("what a forgotten revision caused is not there any more: %v", err)
	}
}

func formerStoresAreForgotten(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	say := func(store string, number uint64) bool {
		t.Helper()
		fresh, err := s.StoreEvent(t.Context(), control.EventTx{Sequence: control.Sequence{StoreID: store, Number: number}, Event: control.EventView{Event: mesh.Event{Kind: "drift", At: start}, Node: "web-1", Received: start}})
		must(t, err)
		return fresh
	}
	// The first store is the one that the node has; it had twenty others in between.
	say("first", 1)
	must(t, s.StoreLink(t.Context(), control.LinkTx{Node: "web-1", StoreID: "first"}))
	for i := range 20 {
		say(fmt.Sprintf("other %d", i), 1)
	}
	equal(t, "forgotten", everything(t, func() (int, error) { return s.ForgetSequences(t.Context(), 3) }), 12)
	s = reopen()
	equal(t, "a message of the present store comes again", say("first", 1), false)
	equal(t, "a message of the latest of the others comes again", say("other 19", 1), false)
	equal(t, "the number of the oldest of the others", number(t, s, "other 0"), uint64(0))
}

func number(t *testing.T, s control.Store, store string) uint64 {
	t.Helper()
	n, err := s.Recorded(t.Context(), "web-1", store)
	must(t, err)
	return n
}

func leftNodesAreForgotten(t *testing.T, s control.Store, reopen func() control.Store) {
	for _, name := range []string{"gone", "late", "stays"} {
		enrol(t, s, name)
		var results []mesh.Result
		for i := range 20 {
			results = append(results, result(mesh.ResourceID(fmt.Sprintf("file:/%s/%d", name, i)), mesh.StatusOK))
		}
		_, err := s.StoreReport(t.Context(), control.ReportTx{Node: name, Report: mesh.Report{Generation: 3, Results: results}, State: mesh.GenerationApplied, At: start})
		must(t, err)
	}
	leave(t, s, "gone", start)
	leave(t, s, "late", start.Add(time.Hour))
	left := func() []string {
		t.Helper()
		names, err := s.Left(t.Context(), start.Add(time.Minute))
		must(t, err)
		return names
	}
	equal(t, "who left long ago", left(), []string{"gone"})
	for n := 7; n == 7; {
		var err error
		n, err = s.ForgetNode(t.Context(), "gone", 7)
		must(t, err)
	}
	s = reopen()
	equal(t, "who left long ago and is not forgotten", len(left()), 0)
	if _, err := s.ForgetNode(t.Context(), "stays", 7); mesh.CodeOf(err) != mesh.CodeConflict {
		t.Errorf("forgetting a node that is there gave %v", err)
	}
	for name, want := range map[string]int{"gone": 0, "late": 20, "stays": 20} {
		results, err := s.Results(t.Context(), name)
		must(t, err)
		equal(t, "results of "+name, len(results), want)
		owned, err := s.Owned(t.Context(), name)
		must(t, err)
		equal(t, "recovery copy of "+name, len(owned) > 0, want > 0)
	}
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if n := nodes[0]; n.Name != "gone" || n.State != mesh.NodeRevoked || n.Floor != 3 || n.Declared != 0 {
		t.Errorf("of the node that left is kept %+v", n)
	}
	identities, err := s.Identities(t.Context())
	must(t, err)
	if !slices.ContainsFunc(identities, func(i control.IdentityRecord) bool { return i.Node == "gone" && i.Revoked.Equal(start) }) {
		t.Errorf("the key of the node that left is not known any more: %+v", identities)
	}
	// Whoever takes its place begins anew, and can be forgotten again.
	token(t, s, "hash-again")
	again := enrolment("gone")
	again.TokenHash, again.Key = "hash-again", "ssh-ed25519 again"
	again.Generation.Generation = 4
	must(t, s.Enrol(t.Context(), again))
	leave(t, s, "gone", start.Add(time.Second))
	equal(t, "who left again", left(), []string{"gone"})
}

func namesAreForgotten(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	report := func(full bool, from, to int) {
		t.Helper()
		var results []mesh.Result
		for i := from; i < to; i++ {
			results = append(results, result(mesh.ResourceID(fmt.Sprintf("file:/%d", i)), mesh.StatusOK))
		}
		_, err := s.StoreReport(t.Context(), control.ReportTx{Node: "web-1", Report: mesh.Report{Generation: 3, Full: full, Results: results}, State: mesh.GenerationApplied, At: start})
		must(t, err)
	}
	report(true, 0, 100)
	report(true, 90, 95) // the other names have nothing any more
	s = reopen()
	n, err := s.ForgetNames(t.Context(), 10)
	must(t, err)
	equal(t, "names forgotten", n, 95)
	// A name that was forgotten is a name like any other when it comes again.
	report(false, 0, 100)
	results, err := s.Results(t.Context(), "web-1")
	must(t, err)
	equal(t, "results", len(results), 100)
}

func namedBlobs(t *testing.T, s control.Store, reopen func() control.Store) {
	enrol(t, s, "web-1")
	blob := func(content string) []mesh.Resource {
		return []mesh.Resource{{Kind: mesh.KindFile, Name: "/large", File: &mesh.FileSpec{Type: mesh.FileRegular, SHA256: sum(content), Size: int64(len(content))}}}
	}
	for n := range int64(3) {
		r := revision(n+1, "x")
		r.Document.Resources = []mesh.DocumentResource{{Resource: blob(fmt.Sprintf("revision %d", n+1))[0]}}
		must(t, s.WriteDeclaration(t.Context(), control.DeclarationTx{Revision: r, Audit: entry("w")}))
	}
	must(t, s.WriteGenerations(t.Context(), []control.GenerationRecord{{Node: "web-1", Generation: 9, Resources: blob("generation"), Digest: "d", At: start}}))
	asked := []string{sum("revision 1"), sum("revision 3"), sum("generation"), sum("nobody")}
	named := func() (out []bool) {
		t.Helper()
		found, err := s.Named(t.Context(), asked)
		must(t, err)
		for _, a := range asked {
			out = append(out, found[a])
		}
		return out
	}
	equal(t, "named", named(), []bool{true, true, true, false})
	everything(t, func() (int, error) { return s.ForgetRevisions(t.Context(), 1, start, 10) })
	leave(t, s, "web-1", start)
	_, err := s.ForgetNode(t.Context(), "web-1", 100)
	must(t, err)
	s = reopen()
	equal(t, "named when what named it is forgotten", named(), []bool{false, true, false, false})
}

// blobsAreSwept is the part of the contract of control.Blobs about sweeps.
func blobsAreSwept(t *testing.T, open func(t *testing.T) func() control.Blobs) {
	ctx := context.Background()
	put := func(t *testing.T, b control.Blobs, content string) {
		t.Helper()
		must(t, b.Put(ctx, sum(content), bytes.NewReader([]byte(content))))
	}
	names := func(contents ...string) func(context.Context, []string) (map[string]bool, error) {
		return func(context.Context, []string) (map[string]bool, error) {
			named := map[string]bool{}
			for _, c := range contents {
				named[sum(c)] = true
			}
			return named, nil
		}
	}
	there := func(t *testing.T, b control.Blobs, content string) bool {
		t.Helper()
		r, err := b.Open(ctx, sum(content))
		if errors.Is(err, control.ErrNotFound) {
			return false
		}
		must(t, err)
		must(t, r.Close())
		return true
	}
	t.Run("a sweep removes what nothing names, and nothing else", func(t *testing.T) {
		b := open(t)()
		put(t, b, "named")
		put(t, b, "orphan")
		swept, err := b.Sweep(ctx, 0, names("named"))
		must(t, err)
		equal(t, "swept", swept, control.SweptBlobs{Count: 1, Bytes: int64(len("orphan"))})
		equal(t, "what is there", []bool{there(t, b, "named"), there(t, b, "orphan")}, []bool{true, false})
		put(t, b, "orphan")
		equal(t, "put again", there(t, b, "orphan"), true)
	})
	t.Run("what was put or asked about stays for a while without a name", func(t *testing.T) {
		reopen := open(t)
		b := reopen()
		put(t, b, "fresh")
		_, err := b.Sweep(ctx, time.Hour, names())
		must(t, err)
		equal(t, "after it was put", there(t, b, "fresh"), true)
		b = reopen()
		_, err = b.Sweep(ctx, time.Hour, names())
		must(t, err)
		equal(t, "after a restart", there(t, b, "fresh"), true)
	})
	t.Run("what is asked about while a sweep looks who names it stays", func(t *testing.T) {
		reopen := open(t)
		put(t, reopen(), "raced")
		b := reopen() // which has not heard of it yet
		_, err := b.Sweep(ctx, time.Nanosecond, func(ctx context.Context, sums []string) (map[string]bool, error) {
			// Somebody writes a declaration at this moment, whose first step this is.
			missing, err := b.Missing(ctx, sums)
			equal(t, "missing", len(missing), 0)
			return nil, err
		})
		must(t, err)
		equal(t, "what was said to be there", there(t, b, "raced"), true)
	})
	t.Run("nothing is removed when it is not known who names it", func(t *testing.T) {
		reopen := open(t)
		put(t, reopen(), "unsure")
		b := reopen()
		_, err := b.Sweep(ctx, time.Nanosecond, func(context.Context, []string) (map[string]bool, error) {
			return nil, errors.New("the store cannot be read")
		})
		if err == nil {
			t.Error("the sweep says that it succeeded")
		}
		equal(t, "what is there", there(t, b, "unsure"), true)
	})
}
