package repo_test

import (
	"log/slog"
	"testing"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/repotest"
)

func openForBenchmark(b *testing.B) *repo.Repo {
	b.Helper()
	r, err := repo.Open(b.Context(), repo.Config{Dir: b.TempDir()}, repotest.Signer(b), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close() })
	return r
}
