package sqlite_test

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/meshctl/mesh/internal/sqlite"
)

func scripts(texts map[string]string) fs.FS {
	fsys := fstest.MapFS{}
	for name, text := range texts {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

var first = map[string]string{"0001_first.sql": "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)"}

var second = map[string]string{
	"0001_first.sql":  first["0001_first.sql"],
	"0002_second.sql": "ALTER TABLE t ADD COLUMN c TEXT; UPDATE t SET c = b",
}

func open(t *testing.T, file string, texts map[string]string) *sql.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), file, scripts(texts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func one[T any](t *testing.T, db interface {
	QueryRow(string, ...any) *sql.Row
}, query string) T {
	t.Helper()
	var v T
	if err := db.QueryRow(query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestEveryConnectionHasTheSettingsThatKeepDataSafe(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "x.db"), first)
	for range 2 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Kept until the end, so that the second is another connection.
		t.Cleanup(func() { _ = conn.Close() })
		for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
			var got string
			if err := conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("%s is %s, want %s", pragma, got, want)
			}
		}
	}
}

func TestMigrationsRunOnceInOrderAndACopyIsMadeOfDataThatIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a name with ? and # and %41.db")
	db := open(t, file, first)
	if _, err := db.Exec("INSERT INTO t (b) VALUES ('kept')"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db = open(t, file, second)
		if got := one[string](t, db, "SELECT c FROM t"); got != "kept" {
			t.Errorf("the migrated column holds %q", got)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is not where it was asked for: %v", err)
	}
	copied := open(t, file+".before-2", first)
	if got := one[string](t, copied, "SELECT b FROM t"); got != "kept" {
		t.Errorf("the copy holds %q", got)
	}
}

func TestAMigrationThatFailsLeavesTheFileAsItWas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.db")
	if err := open(t, file, first).Close(); err != nil {
		t.Fatal(err)
	}
	broken := map[string]string{"0001_first.sql": first["0001_first.sql"], "0002_b.sql": "CREATE TABLE half (a); SELECT nonsense"}
	if _, err := sqlite.Open(t.Context(), file, scripts(broken)); err == nil {
		t.Fatal("a broken migration was a success")
	}
	db := open(t, file, first)
	if got := one[int](t, db, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"); got != 0 {
		t.Error("half a migration stayed")
	}
	if got := one[int](t, db, "PRAGMA user_version"); got != 1 {
		t.Errorf("the schema is %d", got)
	}
}

func TestAFileOfANewerProgramIsRefusedAndUntouched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.db")
	if err := open(t, file, second).Close(); err != nil {
		t.Fatal(err)
	}
	_, err := sqlite.Open(t.Context(), file, scripts(first))
	var newer *sqlite.NewerError
	if !errors.As(err, &newer) || newer.Have != 2 || newer.Known != 1 {
		t.Errorf("opening it gave %v", err)
	}
}

func TestMigrationsWithAGapAreRefused(t *testing.T) {
	for name, texts := range map[string]map[string]string{
		"none":     {},
		"a gap":    {"0001_a.sql": "", "0003_c.sql": ""},
		"no digit": {"first.sql": ""},
		"twice":    {"0001_a.sql": "", "0001_b.sql": ""},
	} {
		if db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), scripts(texts)); err == nil {
			_ = db.Close()
			t.Errorf("migrations with %s were taken", name)
		}
	}
}

func TestADamagedFileIsSaidToBeDamaged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(file, []byte("this is not a database, and it is long enough to have a header of one\n\n\n\n\n\n\n\n\n\n\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), file, scripts(first)); !errors.Is(err, sqlite.ErrCorrupt) {
		t.Errorf("opening it gave %v", err)
	}
}

func TestErrorsAreToldApart(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "x.db"), first)
	if _, err := db.Exec("INSERT INTO t (a) VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	_, err := db.Exec("INSERT INTO t (a) VALUES (1)")
	if err == nil || sqlite.IsFull(err) || errors.Is(sqlite.Classify(err), sqlite.ErrCorrupt) {
		t.Errorf("a key that is there already is taken for something else: %v", err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "PRAGMA max_page_count = 3"); err != nil {
		t.Fatal(err)
	}
	_, err = conn.ExecContext(t.Context(), "INSERT INTO t (b) VALUES (zeroblob(1000000))")
	if !sqlite.IsFull(err) {
		t.Errorf("a file that may not grow is taken for something else: %v", err)
	}
}
