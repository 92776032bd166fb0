package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/fault"
)

// ErrOlder: a declaration is not newer than the one that is held.
var ErrOlder = errors.New("the declaration is not newer than the one held")

// Declaration returns the declaration that the host holds; nil when it has none.
// It is kept decoded, so callers must not change it.
func (s *Store) Declaration(ctx context.Context) (*mesh.Declaration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var generation mesh.Generation
	if err := s.db.QueryRowContext(ctx, "SELECT coalesce(max(generation), 0) FROM declaration").Scan(&generation); err != nil {
		return nil, classify(fmt.Errorf("read the generation of the declaration: %w", err))
	}
	if s.decoded != nil && s.decoded.Generation == generation {
		return s.decoded, nil
	}
	var document []byte
	err := s.db.QueryRowContext(ctx, "SELECT document FROM declaration").Scan(&document)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(fmt.Errorf("read the declaration: %w", err))
	}
	var d mesh.Declaration
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("decode the declaration held: %w", err)
	}
	s.decoded = &d
	return &d, nil
}

// Hold stores a declaration, durable when it returns nil. All its blobs must be
// there. A generation that is not greater than the one held is ErrOlder, and
// nothing changes.
func (s *Store) Hold(ctx context.Context, d mesh.Declaration) error {
	for _, sum := range d.Blobs() {
		if !s.HasBlob(sum) {
			return fmt.Errorf("hold generation %d: content %s is not here", d.Generation, sum)
		}
	}
	document, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode the declaration: %w", err)
	}
	fault.Point("store.before-hold")
	err = s.tx(ctx, func(tx *sql.Tx) error {
		var held mesh.Generation
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(generation), 0) FROM declaration").Scan(&held); err != nil {
			return err
		}
		if d.Generation <= held {
			return fmt.Errorf("generation %d, and %d is held: %w", d.Generation, held, ErrOlder)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO declaration (one, generation, document, received) VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET generation = excluded.generation, document = excluded.document, received = excluded.received",
			d.Generation, document, s.now().UTC().Format(time.RFC3339Nano))
		return err
	})
	if err != nil {
		return err
	}
	fault.Point("store.after-hold")
	if s.trial.Load() {
		return nil
	}
	// The declaration is held, whatever becomes of content that is not declared
	// any more; what stays behind is dropped with the next declaration.
	_ = s.dropBlobs(d.Blobs())
	return nil
}

// HasBlob reports whether the content is here. It was verified when it came.
func (s *Store) HasBlob(sum string) bool {
	_, err := os.Lstat(s.blobPath(sum))
	return err == nil
}

// AddBlob stores content that write produces. It is kept only when its SHA-256
// is sum.
func (s *Store) AddBlob(ctx context.Context, sum string, write func(context.Context, io.Writer) error) error {
	if !mesh.ValidDigest(sum) {
		return fmt.Errorf("%q is not the digest of content", sum)
	}
	dir := filepath.Join(s.dir, blobsDir)
	f, err := os.CreateTemp(dir, unfinishedPrefix+"*")
	if err != nil {
		return fmt.Errorf("make room for content: %w", err)
	}
	hash := sha256.New()
	err = write(ctx, io.MultiWriter(f, hash))
	if err == nil {
		if got := hex.EncodeToString(hash.Sum(nil)); got != sum {
			err = fmt.Errorf("content has digest %s, not %s", got, sum)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.blobPath(sum))
	}
	if err == nil {
		return syncDir(dir)
	}
	return errors.Join(fmt.Errorf("store content: %w", err), os.Remove(f.Name()))
}

// Open returns the content with the digest.
func (s *Store) Open(sum string) (io.ReadCloser, error) {
	if !mesh.ValidDigest(sum) {
		return nil, fs.ErrNotExist
	}
	return os.Open(s.blobPath(sum))
}

func (s *Store) blobPath(sum string) string {
	return filepath.Join(s.dir, blobsDir, sum)
}

// unfinishedPrefix begins the names of content that has not arrived whole.
const unfinishedPrefix = ".new-"

func (s *Store) dropBlobs(keep []string) error {
	dir := filepath.Join(s.dir, blobsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list content: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(keep, e.Name()) || strings.HasPrefix(e.Name(), unfinishedPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("drop content that is not declared any more: %w", err)
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
