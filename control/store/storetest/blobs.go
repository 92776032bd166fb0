package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/meshctl/mesh/control"
)

// RunBlobs runs the contract of control.Blobs. Opening again must give what was
// stored before.
func RunBlobs(t *testing.T, open func(t *testing.T) func() control.Blobs) {
	ctx := context.Background()
	t.Run("content comes back, also after a restart", func(t *testing.T) {
		reopen := open(t)
		must(t, reopen().Put(ctx, sum("content"), bytes.NewReader([]byte("content"))))
		b := reopen()
		must(t, b.Put(ctx, sum("content"), bytes.NewReader([]byte("content"))))
		r, err := b.Open(ctx, sum("content"))
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		if string(data) != "content" {
			t.Errorf("read %q", data)
		}
	})
	t.Run("content that does not have the digest, or breaks off, is not stored", func(t *testing.T) {
		b := open(t)()
		if err := b.Put(ctx, sum("content"), bytes.NewReader([]byte("other"))); !errors.Is(err, control.ErrContent) {
			t.Errorf("other content gave %v", err)
		}
		broken := io.MultiReader(bytes.NewReader([]byte("cont")), errorReader{})
		if err := b.Put(ctx, sum("content"), broken); err == nil {
			t.Error("content that broke off was taken")
		}
		if err := b.Put(ctx, "../../etc/passwd", bytes.NewReader(nil)); err == nil {
			t.Error("a name that is no digest was taken")
		}
		missing, err := b.Missing(ctx, []string{sum("content")})
		must(t, err)
		if len(missing) != 1 {
			t.Error("something was stored")
		}
	})
	t.Run("what is missing is said in order", func(t *testing.T) {
		b := open(t)()
		must(t, b.Put(ctx, sum("b"), bytes.NewReader([]byte("b"))))
		missing, err := b.Missing(ctx, []string{sum("c"), sum("b"), sum("a")})
		must(t, err)
		if !slices.Equal(missing, []string{sum("c"), sum("a")}) {
			t.Errorf("missing %v", missing)
		}
		if _, err := b.Open(ctx, sum("a")); !errors.Is(err, control.ErrNotFound) {
			t.Errorf("opening what is missing gave %v", err)
		}
	})
	t.Run("the same content at the same time is stored once", func(t *testing.T) {
		b := open(t)()
		content := bytes.Repeat([]byte("x"), 1<<20)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := b.Put(ctx, sum(string(content)), bytes.NewReader(content)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r, err := b.Open(ctx, sum(string(content)))
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		if !bytes.Equal(data, content) {
			t.Errorf("read %d bytes, want %d", len(data), len(content))
		}
	})
	blobsAreSwept(t, open)
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("the line was cut") }
