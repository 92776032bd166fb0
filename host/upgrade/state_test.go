package upgrade

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
)

// Shows: M21
func TestWhatWasUndoneIsRefusedUntilAnotherWriteNamesIt(t *testing.T) {
	s := state{Phase: PhaseSettled, Refused: []refusal{{Version: "2-1", Digest: "aa", Named: "web@3", Ending: mesh.EndingByGuard}}}
	for _, c := range []struct {
		what, version, digest, named string
		refused                      bool
	}{
		{"the same write", "2-1", "aa", "web@3", true},
		{"the same write, before the package is fetched", "2-1", "", "web@3", true},
		{"nobody's write", "2-1", "aa", "", true},
		{"a new revision", "2-1", "aa", "web@4", false},
		{"another declaration", "2-1", "aa", "all@1", false},
		{"the same version with other content", "2-1", "bb", "web@3", false},
		{"another version", "3-1", "aa", "web@3", false},
	} {
		if got := s.refuses(c.version, c.digest, c.named) != nil; got != c.refused {
			t.Errorf("%s: refused is %v", c.what, got)
		}
	}
}

func TestTheRecordOfUpgradesComesBackAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "upgrade", "state.json")
	s := state{Phase: PhaseIntended, Intent: &intent{From: "1-1", To: "2-1", Generation: 7, Digest: "aa", Began: time.Unix(1, 0).UTC()}}
	if err := s.save(path); err != nil {
		t.Fatal(err)
	}
	got, err := load(path)
	if err != nil || got.Phase != PhaseIntended || *got.Intent != *s.Intent {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestARecordOfUpgradesThatIsDamagedIsSetAsideAndNothingIsRolledBack(t *testing.T) {
	for what, content := range map[string]string{
		"empty": "", "cut off": `{"phase": "tryi`, "a phase that nobody knows": `{"phase": "later"}`, "no intent": `{"phase": "trying"}`,
	} {
		path := filepath.Join(t.TempDir(), "state.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := load(path)
		if err == nil || got.Phase != PhaseSettled {
			t.Errorf("%s: the phase is %q, and it is said: %v", what, got.Phase, err)
		}
		if again, err := load(path); err != nil || again.Phase != PhaseSettled {
			t.Errorf("%s: it is said twice: %v", what, err)
		}
	}
}
