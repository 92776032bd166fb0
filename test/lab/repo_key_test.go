package lab_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/test/lab"
)

// Shows: M11, M12
func TestRepoKeyReachesEveryNodeByDeclarationBeforeTheOldOneGoes(t *testing.T) {
	f, ctx := theMesh(t), lab.TestContext(t)
	meshctl := func(args ...string) string {
		t.Helper()
		out, err := f.Meshctl(ctx, args...)
		if err != nil {
			t.Fatalf("meshctl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	everyNodeApplied := func() {
		t.Helper()
		for _, name := range slices.Concat(nodes, spares) {
			applied(t, f, f.Lab.Host(name))
		}
	}
	if out, err := f.Declare(ctx, meshctl("repo", "declaration"), "--wait", "0"); err != nil {
		t.Fatalf("declare the repository: %v\n%s", err, out)
	}
	everyNodeApplied()
	away := f.Lab.Host("dnf-1")
	if err := away.CutOff(ctx); err != nil {
		t.Fatal(err)
	}

	rotated := meshctl("repo", "key", "rotate")
	_, early := f.Meshctl(ctx, "repo", "key", "finish")
	if err := away.Reconnect(ctx); err != nil {
		t.Fatal(err)
	}
	everyNodeApplied()
	finished := meshctl("repo", "key", "finish")

	if !strings.Contains(rotated, "declaration mesh-repository was written anew") || !strings.Contains(finished, "declaration mesh-repository was written anew") {
		t.Errorf("the declaration with the key was not written anew:\n%s\n%s", rotated, finished)
	}
	if early == nil || !strings.Contains(early.Error(), "dnf-1") {
		t.Errorf("the old key could be dropped while dnf-1 was away (error %v)", early)
	}
	everyNodeApplied()
	publish(t, f, simple("after-rotation", "1.0"))
	if out, err := f.Declare(ctx, "declaration: after-rotation\nselect: \"true\"\nresources:\n  - package: after-rotation\n    version: 1.0-1\n", "--wait", "0"); err != nil {
		t.Fatalf("declare a package: %v\n%s", err, out)
	}
	for _, name := range nodes {
		h := f.Lab.Host(name)
		applied(t, f, h)
		wantVersion(t, h, "after-rotation", "1.0-1")
	}
	// The declaration of the repository stays: without it the nodes would be put
	// back to the key that is gone.
	if out, err := f.Meshctl(ctx, "declaration", "remove", "after-rotation"); err != nil {
		t.Fatalf("remove declaration: %v\n%s", err, out)
	}
}
