package control_test

import (
	"context"
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// Shows: M11
func TestANewKeyOfTheRepositoryReachesEveryDeclarationAndLeavesItsSecretsAlone(t *testing.T) {
	p := newPlane(t)
	ctx := context.Background()
	h := join(p, "web-1", nil)
	key, secret := file("/etc/apt/keyrings/mesh.asc", "old key"), file("/etc/secret", "hidden")
	secret.File.Sensitive = true
	p.declare(doc("a-repo", "", key, secret))
	p.declare(doc("b-other", "", file("/etc/motd", "hello")))
	p.declare(doc("c-gone", `name == "nobody"`, key))
	if _, err := p.RemoveDeclaration(ctx, root, "c-gone"); err != nil {
		t.Fatal(err)
	}

	written, err := p.ReplaceContent(ctx, root, key.File.SHA256, []byte("new key"))

	if err != nil || !slices.Equal(written, []string{"a-repo"}) {
		t.Fatalf("written are %v, %v", written, err)
	}
	got := map[string]string{}
	for _, r := range h.pending().Resources {
		got[r.Name] = string(r.File.Content)
	}
	for path, want := range map[string]string{"/etc/apt/keyrings/mesh.asc": "new key", "/etc/secret": "hidden", "/etc/motd": "hello"} {
		if got[path] != want {
			t.Errorf("%s is to hold %q, want %q", path, got[path], want)
		}
	}
}

// racing writes the declaration once more while it is about to be written.
type racing struct {
	control.Blobs
	once func()
}

func (b *racing) Missing(ctx context.Context, sums []string) ([]string, error) {
	if once := b.once; once != nil {
		b.once = nil
		once()
	}
	return b.Blobs.Missing(ctx, sums)
}

func TestANewKeyDoesNotUndoWhatSomebodyWritesAtTheSameTime(t *testing.T) {
	p := newPlane(t)
	ctx := context.Background()
	blobs := &racing{Blobs: p.blobs}
	c, err := control.New(ctx, control.Config{Store: p.store, Blobs: blobs, Now: p.clock})
	if err != nil {
		t.Fatal(err)
	}
	// Content that travels as a blob has every write ask for it.
	blob, _ := large("/srv/data", "data")
	key := file("/etc/apt/keyrings/mesh.asc", "old key")
	declare := func(resources ...mesh.DocumentResource) {
		t.Helper()
		if _, err := c.Declare(ctx, root, doc("repo", "", resources...)); err != nil {
			t.Fatal(err)
		}
	}
	declare(blob, key)
	blobs.once = func() { declare(blob, key, file("/etc/motd", "written meanwhile")) }

	if _, err := c.ReplaceContent(ctx, root, key.File.SHA256, []byte("new key")); err != nil {
		t.Fatal(err)
	}

	view, err := c.Declaration(ctx, "repo", 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(view.Document.Resources); view.Revision != 3 || n != 3 || string(view.Document.Resources[1].File.Content) != "new key" {
		t.Errorf("the newest revision is %d with %d resources: %+v", view.Revision, n, view.Document.Resources)
	}
}
