package repo_test

import (
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

func TestARepositoryThatIsOpenedAgainHasWhatItHad(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	publish(t, r, "stable", repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{}))
	publish(t, r, "testing", repotest.Deb(repotest.Spec{Name: "other"}))
	generation := r.Generation()
	r.Close()

	r, _ = openRepo(t, dir)

	if got := names(list(t, r, "stable")) + " " + names(list(t, r, "testing")); got != "deb:hello=1.0-1 rpm:hello=1.0-1 deb:other=1.0-1" || r.Generation() != generation {
		t.Errorf("opened again it has %q in generation %d, want the three packages in %d", got, r.Generation(), generation)
	}
	if err := r.Check(t.Context()); err != nil {
		t.Errorf("opened again it does not verify: %v", err)
	}
}

func TestTwoProcessesCannotHaveARepositoryOpen(t *testing.T) {
	dir := t.TempDir()
	openRepo(t, dir)

	_, err := repo.Open(t.Context(), repo.Config{Dir: dir}, repotest.Signer(t), slog.New(slog.DiscardHandler))

	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opening it twice gives %v, want an error that names the other process", err)
	}
}

func TestWhatACrashLeftHalfBuiltIsDiscarded(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	publish(t, r, "stable", repotest.Deb(repotest.Spec{}))
	r.Close()
	sha := strings.Repeat("ab", 32)
	leftovers := []string{
		"public/gen/000000000099/state.json", "public/parts/deb-stable-000000000099/tree/InRelease",
		"pool/.incoming/upload-1/incoming", "pool/ab/" + sha + "/record.json",
	}
	for _, l := range leftovers {
		write(t, filepath.Join(dir, l), "half")
	}
	if err := os.Symlink("gen/000000000099", filepath.Join(dir, "public/current.new")); err != nil {
		t.Fatal(err)
	}

	openRepo(t, dir)

	for _, l := range append(leftovers, "public/current.new") {
		if _, err := os.Lstat(filepath.Join(dir, l)); !os.IsNotExist(err) {
			t.Errorf("%s is still there (error %v)", l, err)
		}
	}
}

func TestDamagedIndexesAreNoticedAndBuiltAgain(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	publish(t, r, "stable", repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{}))
	r.Close()
	write(t, filepath.Join(dir, "public/current/dists/stable/main/binary-amd64/Packages"), "nonsense\n")

	r, _ = openRepo(t, dir)

	if err := r.Check(t.Context()); err != nil {
		t.Errorf("the repository does not verify after the repair: %v", err)
	}
}

func TestADamagedPackageFileIsFoundByTheCheck(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	p := publish(t, r, "stable", repotest.Deb(repotest.Spec{}))
	write(t, filepath.Join(dir, p.Files[0].Package.File), "not the package any more")

	err := r.Check(t.Context())

	if err == nil || !strings.Contains(err.Error(), "deb/hello/1.0-1/all") {
		t.Errorf("the check says %v, want an error that names deb/hello/1.0-1/all", err)
	}
}

func TestANewKeySignsEverythingAgainAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	publish(t, r, "stable", repotest.Deb(repotest.Spec{}))
	r.Close()
	key, err := openpgp.Generate("another", openpgp.MinBits, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := openpgp.NewKeyring(nil, key)
	if err != nil {
		t.Fatal(err)
	}

	r, err = repo.Open(t.Context(), repo.Config{Dir: dir}, other, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	signed, err := os.ReadFile(filepath.Join(dir, "public/current/dists/stable/InRelease"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.VerifyClear(signed); err != nil {
		t.Errorf("InRelease is not signed with the new key: %v", err)
	}
}

func TestAReleaseIsNeverDatedBackwardsAndIsModifiedWithEveryPublish(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	r, _ := openRepo(t, t.TempDir(), func(c *repo.Config) { c.Now = func() time.Time { return now } })
	modified := func() time.Time {
		f, err := r.Snapshot().Open("dists/stable/InRelease")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Modified
	}
	before := modified()
	now = now.Add(-3 * time.Second)

	publish(t, r, "stable", repotest.Deb(repotest.Spec{Name: "second-in-the-same-second"}))

	if !modified().After(before) {
		t.Errorf("Last-Modified was %s and is %s, want it to grow by a second at least", before, modified())
	}
	f, err := r.Snapshot().Open("dists/stable/Release")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, f.Size)
	if _, err := f.Read(b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "Date: Mon, 01 Jun 2026 12:00:00 UTC\n") {
		t.Errorf("the Release of a clock that went back three seconds has another date than the one before:\n%s", b)
	}
}
