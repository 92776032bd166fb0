package repo_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/repo/repotest"
)

// rotating is a served repository whose keys can change.
func rotating(t *testing.T) (*site, *openpgp.Keys) {
	t.Helper()
	keys, err := openpgp.OpenKeys(t.TempDir(), openpgp.Options{Bits: openpgp.MinBits, Now: func() time.Time { return time.Now().Add(-time.Minute) }})
	if err != nil {
		t.Fatal(err)
	}
	r, err := repo.Open(t.Context(), repo.Config{Dir: t.TempDir()}, keys, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	s := serveRepo(t, r)
	s.keys = keys.Ring()
	return s, keys
}

func resign(t *testing.T, s *site, steps ...func() error) {
	t.Helper()
	for _, step := range steps {
		if _, err := s.repo.Resign(t.Context(), step); err != nil {
			t.Fatalf("sign again: %v", err)
		}
	}
}

// Shows: M11
func TestARotationOfTheKeyNeverLeavesAClientBehindThatHasEitherKey(t *testing.T) {
	s, keys := rotating(t)
	hello := func() []byte { return repotest.RPM(repotest.Spec{}) }
	publish(t, s.repo, "stable", repotest.Deb(repotest.Spec{}), hello())
	oldApt, oldDnf := newApt(t, s, "stable"), newDnf(t, s, "stable")
	works := func(when string, a *aptClient, d *dnfClient) {
		t.Helper()
		for _, args := range [][]string{
			a.args("apt-get", "update", "-o", "APT::Update::Error-Mode=any"), a.args("apt-get", "download", "hello"),
			d.args("--refresh", "install", "hello"),
		} {
			if out, err := run(t, d.root, args...); err != nil {
				t.Errorf("%s: %v: %v\n%s", when, args, err, out)
			}
		}
	}

	resign(t, s, func() error { return keys.Begin(nil) })
	works("both keys sign, the client has the old one", oldApt, oldDnf)
	s.keys = keys.Ring()
	bothApt, bothDnf := newApt(t, s, "stable"), newDnf(t, s, "stable")
	works("both keys sign, the client has both", bothApt, bothDnf)

	resign(t, s, keys.Prefer, keys.Drop)
	s.keys = keys.Ring()
	newAptClient, newDnfClient := newApt(t, s, "stable"), newDnf(t, s, "stable")
	works("the new key signs alone, the client has both", bothApt, bothDnf)
	works("the new key signs alone, the client has it", newAptClient, newDnfClient)

	if out, err := run(t, oldApt.root, oldApt.args("apt-get", "update", "-o", "APT::Update::Error-Mode=any")...); err == nil {
		t.Errorf("apt-get update trusts a repository whose key it does not have:\n%s", out)
	}
	if err := s.repo.Check(t.Context()); err != nil {
		t.Errorf("the repository does not verify after the rotation: %v", err)
	}
	if p := publish(t, s.repo, "stable", hello()); p.Files[0].Outcome != repo.AlreadyThere {
		t.Errorf("the package that was signed again counts as another one: %s", p.Files[0].Outcome)
	}
}

func TestARotationThatIsInterruptedIsTakenUpAgain(t *testing.T) {
	dir, repoDir := t.TempDir(), t.TempDir()
	open := func() (*repo.Repo, *openpgp.Keys) {
		keys, err := openpgp.OpenKeys(dir, openpgp.Options{Bits: openpgp.MinBits})
		if err != nil {
			t.Fatal(err)
		}
		r, err := repo.Open(t.Context(), repo.Config{Dir: repoDir}, keys, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		return r, keys
	}
	r, keys := open()
	publish(t, r, "stable", repotest.RPM(repotest.Spec{Name: "first"}))
	if _, err := r.Resign(t.Context(), func() error { return keys.Begin(nil) }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resign(t.Context(), keys.Prefer); err != nil {
		t.Fatal(err)
	}
	r.Close()

	r, keys = open() // as after a crash between the two last steps
	publish(t, r, "stable", repotest.RPM(repotest.Spec{Name: "second"}))
	for _, step := range []func() error{keys.Prefer, keys.Drop} {
		if _, err := r.Resign(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()

	r, keys = open()
	defer r.Close()
	if err := r.Check(t.Context()); err != nil || len(keys.Fingerprints()) != 1 {
		t.Errorf("after the second attempt the keys are %v and the check says %v, want one key and no fault", keys.Fingerprints(), err)
	}
	if got := names(list(t, r, "stable")); got != "rpm:first=1.0-1 rpm:second=1.0-1" {
		t.Errorf("the suite holds %q", got)
	}
}

func TestAReleaseThatExpiresIsSignedAgainInTime(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	r, _ := openRepo(t, dir, func(c *repo.Config) {
		c.ValidFor = time.Hour
		c.Now = func() time.Time { return now }
	})
	until := func() string {
		f, err := r.Snapshot().Open("dists/stable/Release")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "Valid-Until: ")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	var got []string
	for range 3 {
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		got = append(got, until())
		now = now.Add(20 * time.Minute)
	}
	r.Close()
	off, _ := openRepo(t, dir, func(c *repo.Config) { c.Now = func() time.Time { return now } })
	r = off
	got = append(got, until())

	want := "Mon, 01 Jun 2026 13:00:00 UTC|Mon, 01 Jun 2026 13:00:00 UTC|Mon, 01 Jun 2026 13:40:00 UTC|"
	if strings.Join(got, "|") != want {
		t.Errorf("valid until %q, want %q: unchanged after 20 minutes, renewed after 40, none when it is off", strings.Join(got, "|"), want)
	}
}

func TestAKeyThatIsInUseOrWeakDoesNotBeginARotation(t *testing.T) {
	dir := t.TempDir()
	keys, err := openpgp.OpenKeys(dir, openpgp.Options{Bits: openpgp.MinBits})
	if err != nil {
		t.Fatal(err)
	}
	same, err := os.ReadFile(filepath.Join(dir, "repository.key"))
	if err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string][]byte{"the key in use": same, "no key": []byte("x")} {
		if err := keys.Begin(key); err == nil || keys.Rotating() {
			t.Errorf("%s began a rotation (error %v)", what, err)
		}
	}
	if err := keys.Drop(); err == nil {
		t.Error("the only key can be dropped")
	}
}
