package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/store"
	"github.com/meshctl/mesh/control/store/storetest"
	"github.com/meshctl/mesh/internal/sqlite"
)

// Shows: M24, M28, M29
func TestTheSQLiteStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		file := filepath.Join(t.TempDir(), "control.db")
		return storetest.Fixture{Open: func(t *testing.T) (control.Store, func()) {
			s, err := store.Open(t.Context(), file)
			if err != nil {
				t.Fatal(err)
			}
			return s, func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		}}
	})
}

func TestBlobsInADirectoryKeepTheContract(t *testing.T) {
	storetest.RunBlobs(t, func(t *testing.T) func() control.Blobs {
		dir := filepath.Join(t.TempDir(), "blobs")
		return func() control.Blobs {
			b, err := store.OpenBlobs(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			return b
		}
	})
}

func TestBlobsLeaveNothingHalfWrittenBehind(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, "incoming", "0")
	if err := os.MkdirAll(filepath.Dir(half), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := store.OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a blob of a crash is still there: %v", err)
	}
}

func TestContentThatWasDamagedOnTheDiskIsAskedForAgainAndNotHandedOut(t *testing.T) {
	dir := t.TempDir()
	content := []byte("content")
	digest := sha256.Sum256(content)
	sum := hex.EncodeToString(digest[:])
	b, err := store.OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Put(t.Context(), sum, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, sum[:2], sum), []byte("c0ntent"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Open(t.Context(), sum); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("damaged content gave %v, %v", r, err)
	}
	missing, err := b.Missing(t.Context(), []string{sum})
	if err != nil || len(missing) != 1 {
		t.Errorf("missing is %v, %v", missing, err)
	}
	if err := b.Put(t.Context(), sum, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	r, err := b.Open(t.Context(), sum)
	if err != nil {
		t.Fatalf("uploaded again it gave %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestContentThatRevisionsOfAnEarlierProgramNameIsNotSweptAfterAnUpgrade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "control.db")
	before := fstest.MapFS{}
	for _, name := range []string{"0001_first.sql", "0002_lifecycle.sql", "0003_operators.sql"} {
		text, err := os.ReadFile(filepath.Join("migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = &fstest.MapFile{Data: text}
	}
	db, err := sqlite.Open(t.Context(), file, before)
	if err != nil {
		t.Fatal(err)
	}
	digest := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	inline := &mesh.FileSpec{}
	inline.SetContent([]byte("inline"))
	document := mesh.Document{Declaration: "web", Resources: []mesh.DocumentResource{
		{Resource: mesh.Resource{Kind: mesh.KindPackage, Name: "nginx", Package: &mesh.PackageSpec{Version: "1"}}},
		{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/a", File: inline}},
		{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/b", File: &mesh.FileSpec{SHA256: digest("large"), Size: 5}}},
		{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/c", File: &mesh.FileSpec{SHA256: digest("large"), Size: 5}}},
	}}
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := json.Marshal(mesh.Document{})
	if err != nil {
		t.Fatal(err)
	}
	for i, document := range [][]byte{text, removed} {
		if _, err := db.Exec(`INSERT INTO revisions (name, revision, removed, document, digest, who, door, at) VALUES ('web', ?, ?, ?, '', '', '', 0)`, i+1, i, string(document)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	s, err := store.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	named, err := s.Named(t.Context(), []string{digest("large"), digest("nobody")})
	if err != nil || !named[digest("large")] || named[digest("nobody")] {
		t.Errorf("named are %v, %v", named, err)
	}
}

func open(t *testing.T) (*store.Store, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "control.db")
	s, err := store.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	return s, file
}

func TestAFileOfANewerProgramIsRefused(t *testing.T) {
	s, file := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), file, os.DirFS("migrations"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 1000"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	var newer *sqlite.NewerError
	if _, err := store.Open(t.Context(), file); !errors.As(err, &newer) || newer.Have != 1000 {
		t.Errorf("opening it gave %v", err)
	}
}

func TestAWriteWhoseCallerWentAwayBeforeItBeganIsNotMade(t *testing.T) {
	s, _ := open(t)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.RecordAudit(ctx, control.AuditEntry{At: time.Unix(1, 0), Who: "root"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the write gave %v", err)
	}
}

func TestWritesAfterTheStoreWasClosedAreRefused(t *testing.T) {
	s, _ := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecordAudit(t.Context(), control.AuditEntry{}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("the write gave %v", err)
	}
}

func TestOnlyTheNewestGenerationsReportsAndEventsOfANodeAreKept(t *testing.T) {
	s, file := open(t)
	ctx := t.Context()
	when := time.Unix(1, 0)
	if err := s.IssueToken(ctx, control.TokenRecord{Hash: "h"}, control.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Enrol(ctx, control.EnrolTx{TokenHash: "h", Key: "k", Node: control.NodeRecord{Name: "n", State: mesh.NodeEnrolled}, At: when}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 300; i++ {
		spec := &mesh.FileSpec{Type: mesh.FileRegular}
		spec.SetContent(fmt.Append(nil, i))
		record := control.GenerationRecord{Node: "n", Generation: mesh.Generation(i), Digest: "d", At: when, Resources: []mesh.Resource{{Kind: mesh.KindFile, Name: "/x", File: spec}}}
		if err := s.WriteGenerations(ctx, []control.GenerationRecord{record}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.StoreReport(ctx, control.ReportTx{Node: "n", At: when}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.StoreEvent(ctx, control.EventTx{Event: control.EventView{Node: "n", Received: when}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(ctx, file, os.DirFS("migrations"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for table, limit := range map[string]int{"compiled": 8, "bodies": 8, "reports": 20, "events": 200} {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != limit {
			t.Errorf("%d rows in %s, want %d", n, table, limit)
		}
	}
}
