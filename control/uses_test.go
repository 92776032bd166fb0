package control_test

import (
	"context"
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
)

// uses returns what is in use, as name, version and who says so.
func uses(t *testing.T, p *plane) []string {
	t.Helper()
	list, err := p.PackageUses(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, u := range list {
		out = append(out, u.Name+" "+u.Version+" by "+u.By)
	}
	return out
}

// Shows: M12
func TestWhatANodeRunsHasAndWouldGoBackToIsInUseUntilItLeaves(t *testing.T) {
	p := newPlane(t)
	h := join(p, "web-1", nil)
	h.say(mesh.FrameInventory, mesh.Inventory{
		Packages: []mesh.InstalledPackage{{Name: "nginx", Version: "1.22-1"}},
		Host:     &mesh.HostUpgrade{Running: "1.5.0-1", Confirmed: "1.4.0-1", Phase: "settled"},
	})
	join(p, "old-1", nil) // says nothing of its kit, and greets as 1.0

	got := uses(t, p)

	for _, want := range []string{
		"nginx 1.22-1 by node web-1, installed",
		"mesh-host 1.5.0-1 by node web-1, running",
		"mesh-host 1.4.0-1 by node web-1, to go back to",
		"mesh-host 1.0-1 by node old-1, running",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in use; what is: %q", want, got)
		}
	}
	if err := p.Revoke(context.Background(), root, "web-1"); err != nil {
		t.Fatal(err)
	}
	if got := uses(t, p); len(got) != 1 || got[0] != "mesh-host 1.0-1 by node old-1, running" {
		t.Errorf("with web-1 gone this is in use: %q", got)
	}
}

// Shows: M12
func TestAVersionThatADeclarationNamesIsInUseBeforeAnyNodeHasIt(t *testing.T) {
	p := newPlane(t)
	join(p, "web-1", nil)
	nginx := mesh.DocumentResource{Resource: mesh.Resource{Kind: mesh.KindPackage, Name: "nginx", Package: &mesh.PackageSpec{Version: "1.24-1"}}}
	if _, err := p.Declare(context.Background(), root, doc("web", "", nginx)); err != nil {
		t.Fatal(err)
	}

	got := uses(t, p)

	for _, want := range []string{"nginx 1.24-1 by declaration web", "nginx 1.24-1 by node web-1, declared"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in use; what is: %q", want, got)
		}
	}
}
