package repo_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/repotest"
)

// fill publishes n debs and n rpms of distinct names in one generation.
func fill(t testing.TB, r *repo.Repo, n int) {
	t.Helper()
	var in []repo.Incoming
	for i := range n {
		name := fmt.Sprintf("package-%05d", i)
		in = append(in,
			repo.Incoming{Name: name + ".deb", Body: bytes.NewReader(repotest.Deb(repotest.Spec{Name: name, Arch: "amd64"}))},
			repo.Incoming{Name: name + ".rpm", Body: bytes.NewReader(repotest.RPM(repotest.Spec{Name: name}))})
	}
	if _, err := r.Publish(t.Context(), "stable", in); err != nil {
		t.Fatalf("publish %d packages: %v", 2*n, err)
	}
}

// BenchmarkAddOneOfEachFormat adds one deb and one rpm, in one publish, to a
// suite that holds 5,000 of each.
func BenchmarkAddOneOfEachFormat(b *testing.B) {
	r := openForBenchmark(b)
	began := time.Now()
	fill(b, r, 5000)
	b.Logf("5,000 debs and 5,000 rpms published from nothing in %s", time.Since(began))
	i := 0
	for b.Loop() {
		i++
		name := fmt.Sprintf("added-%05d", i)
		deb := repotest.Deb(repotest.Spec{Name: name, Arch: "amd64"})
		rpm := repotest.RPM(repotest.Spec{Name: name})
		_, err := r.Publish(b.Context(), "stable", []repo.Incoming{{Name: "deb", Body: bytes.NewReader(deb)}, {Name: "rpm", Body: bytes.NewReader(rpm)}})
		if err != nil {
			b.Fatal(err)
		}
	}
}
