package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

// BlobLimit is the greatest length of one blob in bytes.
const BlobLimit = 1 << 30

// Blobs is a control.Blobs in a directory: a file for each, named by its
// SHA-256, in a directory of its first two digits.
type Blobs struct {
	root *os.Root
	dir  string

	// mu keeps a blob from being removed while somebody learns that it is there.
	mu sync.Mutex
	// wanted holds when a blob was last put or asked about, under mu.
	wanted map[string]time.Time
	// whole holds the blobs that were read whole in this life, under mu.
	whole map[string]struct{}
}

const incoming = "incoming"

// OpenBlobs opens or makes the directory, and clears what a crash left half
// written.
func OpenBlobs(dir string) (*Blobs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of blobs: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of blobs: %w", err)
	}
	if err := root.RemoveAll(incoming); err != nil {
		return nil, errors.Join(fmt.Errorf("clear half written blobs: %w", err), root.Close())
	}
	if err := root.Mkdir(incoming, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make directory of incoming blobs: %w", err), root.Close())
	}
	return &Blobs{root: root, dir: dir, wanted: make(map[string]time.Time), whole: make(map[string]struct{})}, nil
}

// Close gives the directory back. Blobs that are open stay readable.
func (b *Blobs) Close() error { return b.root.Close() }

func place(sum string) string { return sum[:2] + "/" + sum }

// Put stores what r gives, verified before it is named.
func (b *Blobs) Put(ctx context.Context, sum string, r io.Reader) (err error) {
	defer func() { err = room(err) }()
	if !mesh.ValidDigest(sum) {
		return fmt.Errorf("name of a blob: %w", control.ErrContent)
	}
	if there, err := b.want(sum); err != nil || there {
		return err
	}
	f, name, err := b.temporary()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), b.root.Remove(name))
		}
	}()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(&withContext{ctx, r}, BlobLimit+1))
	if err != nil {
		return fmt.Errorf("write blob: %w", err)
	}
	if n > BlobLimit {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: fmt.Sprintf("a blob has at most %d bytes", BlobLimit)}
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != sum {
		return fmt.Errorf("wanted %s, got %s: %w", sum, got, control.ErrContent)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync blob: %w", err)
	}
	if err := b.root.Mkdir(sum[:2], 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make directory for blob: %w", err)
	}
	b.comes(sum)
	if err := b.root.Rename(name, place(sum)); err != nil {
		return fmt.Errorf("name blob: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close blob: %w", err)
	}
	return errors.Join(b.sync(sum[:2]), b.sync("."))
}

func (b *Blobs) temporary() (*os.File, string, error) {
	for n := 0; ; n++ {
		name := fmt.Sprintf("%s/%d", incoming, n)
		f, err := b.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("make file for blob: %w", err)
		}
		return f, name, nil
	}
}

func (b *Blobs) sync(dir string) error {
	d, err := b.root.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory of blob: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// want tells whether a blob is there, and keeps it from a sweep from now on.
func (b *Blobs) want(sum string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	there, err := b.has(sum)
	if there {
		b.wanted[strings.Clone(sum)] = time.Now()
	}
	return there, err
}

// comes keeps a blob that is about to be there from a sweep.
func (b *Blobs) comes(sum string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted[strings.Clone(sum)] = time.Now()
}

func (b *Blobs) has(sum string) (bool, error) {
	info, err := b.root.Lstat(place(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for blob: %w", err)
	}
	return info.Mode().IsRegular(), nil
}

// Open returns control.ErrNotFound when the content is not there. Content that
// is damaged is not there either: it is removed, so that whoever uploads it again
// is not told that it is there. It is read whole for that once in each life.
func (b *Blobs) Open(ctx context.Context, sum string) (io.ReadCloser, error) {
	if !mesh.ValidDigest(sum) {
		return nil, control.ErrNotFound
	}
	f, err := b.root.Open(place(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, control.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	if err := b.verify(ctx, sum, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (b *Blobs) verify(ctx context.Context, sum string, f *os.File) error {
	b.mu.Lock()
	_, known := b.whole[sum]
	b.mu.Unlock()
	if known {
		return nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, &withContext{ctx, f}); err != nil {
		return fmt.Errorf("read blob: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("go back in blob: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if hex.EncodeToString(hash.Sum(nil)) == sum {
		b.whole[strings.Clone(sum)] = struct{}{}
		return nil
	}
	// Somebody may have removed and uploaded it again since it was opened.
	read, readErr := f.Stat()
	there, thereErr := b.root.Lstat(place(sum))
	if readErr != nil || thereErr != nil || !os.SameFile(read, there) {
		return control.ErrNotFound
	}
	if err := b.root.Remove(place(sum)); err != nil {
		return fmt.Errorf("remove a damaged blob: %w", err)
	}
	return control.ErrNotFound
}

// Missing returns those that are not there, in the same order.
func (b *Blobs) Missing(_ context.Context, sums []string) ([]string, error) {
	var missing []string
	for _, sum := range sums {
		if !mesh.ValidDigest(sum) {
			missing = append(missing, strings.Clone(sum))
			continue
		}
		there, err := b.want(sum)
		if err != nil {
			return nil, err
		}
		if !there {
			missing = append(missing, sum)
		}
	}
	return missing, nil
}

// withContext stops a read when its ctx ends.
type withContext struct {
	ctx context.Context
	r   io.Reader
}

func (r *withContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
