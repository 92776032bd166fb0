//go:build fault

package repo_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/meshctl/mesh/internal/fault"
	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/repo/repotest"
)

// envCrashDir makes a test process publish into the named directory and end.
const envCrashDir = "REPO_TEST_CRASH_DIR"

func crashOptions() openpgp.Options { return openpgp.Options{Bits: openpgp.MinBits} }

func TestMain(m *testing.M) {
	dir := os.Getenv(envCrashDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	keys, err := openpgp.Open(dir+"/keys", crashOptions())
	if err != nil {
		slog.Error("open keys", "error", err)
		os.Exit(3)
	}
	r, err := repo.Open(ctx, repo.Config{Dir: dir}, keys, slog.New(slog.DiscardHandler))
	if err != nil {
		slog.Error("open repository", "error", err)
		os.Exit(3)
	}
	_, err = r.Publish(ctx, "stable", []repo.Incoming{
		{Name: "deb", Body: bytes.NewReader(repotest.Deb(repotest.Spec{Name: "second"}))},
		{Name: "rpm", Body: bytes.NewReader(repotest.RPM(repotest.Spec{Name: "second"}))},
	})
	if err != nil {
		slog.Error("publish", "error", err)
		os.Exit(3)
	}
	os.Exit(0)
}

// Shows: M11
func TestAKillAtAnyPointOfAPublishLeavesTheOldTreeOrTheNewOne(t *testing.T) {
	const old, whole = "deb:first=1.0-1", "deb:first=1.0-1 deb:second=1.0-1 rpm:second=1.0-1"
	for point, want := range map[string]string{
		"repo.after-stage": old, "repo.after-pool": old, "repo.after-build": old, "repo.before-switch": old, "repo.after-switch": whole,
	} {
		t.Run(point, func(t *testing.T) {
			dir := t.TempDir()
			keys, err := openpgp.Open(dir+"/keys", crashOptions())
			if err != nil {
				t.Fatal(err)
			}
			open := func() *repo.Repo {
				r, err := repo.Open(t.Context(), repo.Config{Dir: dir}, keys, slog.New(slog.NewTextHandler(t.Output(), nil)))
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				return r
			}
			r := open()
			publish(t, r, "stable", repotest.Deb(repotest.Spec{Name: "first"}))
			r.Close()

			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), envCrashDir+"="+dir, fault.EnvPoint+"="+point)
			out, err := child.CombinedOutput()
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != -1 {
				t.Fatalf("the publisher was not killed at %s: %v\n%s", point, err, out)
			}

			r = open()
			defer r.Close()
			if got := names(list(t, r, "stable")); got != want {
				t.Errorf("after the kill the suite holds %q, want %q", got, want)
			}
			if err := r.Check(t.Context()); err != nil {
				t.Errorf("after the kill the repository does not verify: %v", err)
			}
			publish(t, r, "stable", repotest.Deb(repotest.Spec{Name: "second"}), repotest.RPM(repotest.Spec{Name: "second"}))
			if got := names(list(t, r, "stable")); got != whole {
				t.Errorf("published again, the suite holds %q, want %q", got, whole)
			}
		})
	}
}
