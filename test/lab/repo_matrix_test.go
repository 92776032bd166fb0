//go:build matrix

package lab_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

// Shows: M11
func TestMatrixRepoIsUsedByEveryOtherClientThatTheLabCanRaise(t *testing.T) {
	repoClients(t, "more-", "bullseye-apt", "bookworm-apt", "trixie-dnf", "sid-dnf5", "trixie-apt", "sid-apt", "bookworm-dnf", "bookworm-zypper")
}

// one admits one reader.
type one struct{ user, password string }

func (o one) Admit(_ context.Context, user, password string) error {
	if user == o.user && password == o.password {
		return nil
	}
	return repohttp.ErrRefused
}

// Shows: M31
func TestMatrixRepoThatIsClosedIsReadByZypperWithACredentialInItsCatalogue(t *testing.T) {
	s := newShelf(t, repohttp.Options{Readers: one{"reader", "secret"}})
	s.publish(t, "hello", "1.1")
	h, ctx := host(t, "more-z", "bookworm-zypper"), lab.TestContext(t)
	do := func(script string) (string, error) {
		out, err := h.Sh(ctx, script)
		t.Logf("$ %s\n%s%s", script, out.Stdout, out.Stderr)
		return out.Stdout + out.Stderr, err
	}
	if out, err := do(strings.Join(append([]string{"set -e"}, s.commands(t, manuals[lab.Zypper].title)...), "\n")); err != nil {
		t.Fatalf("add the repository: %v\n%s", err, out)
	}

	without, refused := do("zypper --non-interactive refresh mesh")
	catalogue := fmt.Sprintf("[%s/rpm/stable/]\nusername = reader\npassword = secret\n", s.url)
	if err := h.WriteFile(ctx, "/etc/zypp/credentials.cat", []byte(catalogue), 0o600); err != nil {
		t.Fatal(err)
	}
	with, err := do("zypper --non-interactive refresh mesh && zypper --non-interactive install hello=1.1-1")

	if refused == nil {
		t.Errorf("without a credential zypper reads the repository:\n%s", without)
	}
	got, look := fleet.Installed(ctx, h, "hello")
	if err != nil || look != nil || got != "1.1-1" {
		t.Errorf("with its credential zypper has hello %q installed (%v, %v), want 1.1-1:\n%s", got, err, look, with)
	}
}
