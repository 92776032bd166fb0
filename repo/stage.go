package repo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/meshctl/mesh/repo/apt"
	"github.com/meshctl/mesh/repo/rpm"
)

// staged is one uploaded file that was read, checked and written, durable in a
// directory of its own, and not in the pool yet.
type staged struct {
	given string // Incoming.Name
	dir   string // absolute; holds the file and its record
	rec   *record
}

const recordFile = "record.json"

// errUploadTooLarge ends the reading of an upload beyond Config.MaxPackage.
var errUploadTooLarge = errors.New("upload is larger than the limit")

// upload counts, sums and bounds what is read from a sender, and stops when
// the caller's context does.
type upload struct {
	ctx  context.Context
	r    io.Reader
	sum  hash.Hash
	n    int64
	max  int64
	fail error // the first error that is the sender's connection's, not the package's
}

func (u *upload) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		u.fail = err
		return 0, err
	}
	n, err := u.r.Read(p)
	u.sum.Write(p[:n])
	u.n += int64(n)
	if u.n > u.max {
		u.fail = errUploadTooLarge
		return 0, errUploadTooLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		u.fail = err
	}
	return n, err
}

// manyFiles is from how many files on the file system is synced as a whole,
// once, instead of every file by itself.
const manyFiles = 16

// stageAll stages files, some of them at the same time, and returns them in the
// order given when all of them are durable. On error the ones that were staged
// are returned with it.
func (r *Repo) stageAll(ctx context.Context, files []Incoming) ([]*staged, error) {
	how := syncEach
	if len(files) >= manyFiles {
		how = syncLater
	}
	all := make([]*staged, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(min(4, runtime.GOMAXPROCS(0)))
	for i, in := range files {
		g.Go(func() (err error) {
			if err := gctx.Err(); err != nil {
				return err
			}
			all[i], err = r.stage(gctx, in, how)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return all, err
	}
	if how == syncLater {
		return all, syncFileSystem(r.staging())
	}
	return all, nil
}

// durability says when a staged file is synced.
type durability string

const (
	syncEach  durability = "each"
	syncLater durability = "later" // by the caller, with the whole file system
)

// syncFileSystem makes everything durable that stands on the file system of dir.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	return nil
}

// stage reads one upload to its end into a directory of its own. It needs no
// lock; any number of uploads may be staged at once.
func (r *Repo) stage(ctx context.Context, in Incoming, how durability) (*staged, error) {
	dir, err := os.MkdirTemp(r.staging(), "upload-")
	if err != nil {
		return nil, fmt.Errorf("make staging directory: %w", err)
	}
	s := &staged{given: in.Name, dir: dir}
	if err := r.fill(ctx, s, in.Body, how); err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

func (s *staged) discard() { os.RemoveAll(s.dir) }

// buffers are readers of 64 KiB, which thousands of files in one publish share.
var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 64<<10) }}

func buffered(r io.Reader) *bufio.Reader {
	br := buffers.Get().(*bufio.Reader)
	br.Reset(r)
	return br
}

// release takes a reader back, without what it read from.
func release(br *bufio.Reader) {
	br.Reset(nil)
	buffers.Put(br)
}

func (r *Repo) fill(ctx context.Context, s *staged, body io.Reader, how durability) error {
	up := &upload{ctx: ctx, r: body, sum: sha256.New(), max: r.cfg.MaxPackage}
	br := buffered(up)
	defer release(br)
	magic, err := br.Peek(8)
	if err != nil && up.fail != nil {
		return r.uploadError(s.given, up, err)
	}
	tmp := filepath.Join(s.dir, "incoming")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("create staged file: %w", err)
	}
	defer f.Close()

	var rec *record
	var name string
	switch {
	case bytes.HasPrefix(magic, []byte("!<arch>\n")):
		rec, name, err = r.fillDeb(f, br)
	case bytes.HasPrefix(magic, []byte{0xed, 0xab, 0xee, 0xdb}):
		rec, name, err = r.fillRPM(f, br, r.cfg.Now())
	default:
		return &Refusal{Code: CodeNotAPackage, File: s.given, Sentence: "this is neither a deb nor an rpm file"}
	}
	if err != nil {
		return r.uploadError(s.given, up, err)
	}
	rec.Uploaded = hex.EncodeToString(up.sum.Sum(nil))
	if rec.Format == Deb {
		rec.Content = rec.Uploaded
	}
	return r.finish(s, f, rec, name, how)
}

// finish reads a staged file back, gives it its name and writes its record.
func (r *Repo) finish(s *staged, f *os.File, rec *record, name string, how durability) error {
	if how == syncEach {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync staged file: %w", err)
		}
	}
	if err := r.readBack(f.Name(), rec); err != nil {
		return fmt.Errorf("read staged file back: %w", err)
	}
	if err := os.Rename(f.Name(), filepath.Join(s.dir, name)); err != nil {
		return fmt.Errorf("name staged file: %w", err)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	path := filepath.Join(s.dir, recordFile)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return fmt.Errorf("open staged directory to readers: %w", err)
	}
	if how == syncEach {
		if err := errors.Join(syncPath(path), syncPath(s.dir)); err != nil {
			return err
		}
	}
	s.rec = rec
	return nil
}

// uploadError turns what reading an upload ended with into a refusal, when the
// package is at fault.
func (r *Repo) uploadError(given string, up *upload, err error) error {
	switch {
	case errors.Is(up.fail, errUploadTooLarge):
		return &Refusal{Code: CodeTooLarge, File: given, Sentence: fmt.Sprintf("it is larger than %d bytes, the limit of this repository", r.cfg.MaxPackage)}
	case up.fail != nil:
		return fmt.Errorf("receive %s: %w", clip(given), up.fail)
	case errors.Is(err, apt.ErrTooLarge), errors.Is(err, rpm.ErrTooLarge):
		return &Refusal{Code: CodeTooLarge, File: given, Sentence: err.Error()}
	case errors.Is(err, apt.ErrMalformed), errors.Is(err, rpm.ErrMalformed):
		return &Refusal{Code: CodeNotAPackage, File: given, Sentence: err.Error()}
	}
	return fmt.Errorf("stage %s: %w", clip(given), err)
}

func (r *Repo) fillDeb(f *os.File, body io.Reader) (*record, string, error) {
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), body)
	if err != nil {
		return nil, "", err
	}
	d, err := apt.ReadDeb(f, n, apt.Limits{})
	if err != nil {
		return nil, "", err
	}
	compression := d.DataCompression
	if d.ControlCompression == "zst" {
		compression = "zst" // the one that old dpkg cannot open, in either archive
	}
	rec := &record{Package: Package{
		Format: Deb, Name: d.Name, Version: d.Version, Arch: d.Architecture,
		SHA256: hex.EncodeToString(h.Sum(nil)), Size: n,
		Published: r.cfg.Now().UTC(), Compression: compression,
	}}
	name := apt.FileName(d.Name, d.Version, d.Architecture)
	rec.File = poolPath(rec.SHA256, name)
	rec.Stanza = string(d.Stanza(rec.File, n, rec.SHA256))
	return rec, name, nil
}

// maxMetadata bounds what one rpm takes in the metadata, in bytes: every client
// reads it, and it is held in memory.
const maxMetadata = 32 << 20

func (r *Repo) fillRPM(f *os.File, body io.Reader, published time.Time) (*record, string, error) {
	h := sha256.New()
	count := &counter{w: io.MultiWriter(f, h)}
	key := r.signer.Fingerprints()[0]
	p, err := rpm.Rewrite(count, body, r.signer.SignBinary)
	if err != nil {
		return nil, "", err
	}
	rec := &record{Content: p.Content, SignedBy: key, Package: Package{
		Format: RPM, Name: p.Name, Version: p.FullVersion(), Arch: p.Arch,
		SHA256: hex.EncodeToString(h.Sum(nil)), Size: count.n,
		Published: published.UTC(), Compression: p.PayloadCompression,
	}}
	name := p.FileName()
	rec.File = poolPath(rec.SHA256, name)
	frag := p.Fragments(rpm.Place{Href: rec.File, Size: rec.Size, SHA256: rec.SHA256, Time: rec.Published.Unix()})
	if n := len(frag.Primary) + len(frag.Filelists) + len(frag.Other); n > maxMetadata {
		return nil, "", fmt.Errorf("it takes %d bytes in the metadata: %w", n, rpm.ErrTooLarge)
	}
	rec.Primary, rec.Filelists, rec.Other = string(frag.Primary), string(frag.Filelists), string(frag.Other)
	return rec, name, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// readBack reads a package file from the disk and compares it with its record.
func (r *Repo) readBack(path string, rec *record) error {
	n, got, err := sumFile(path)
	if err != nil {
		return err
	}
	if n != rec.Size || got != rec.SHA256 {
		return fmt.Errorf("%s has %d bytes with SHA-256 %s, want %d with %s", rec.File, n, got, rec.Size, rec.SHA256)
	}
	if rec.Format != RPM {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	signature, signed, err := rpm.ReadSignature(f)
	if err != nil {
		return err
	}
	return r.signer.VerifyBinary(signed, signature)
}

// poolPath is the place of a file in the tree. It holds the file's digest, so
// that the bytes behind a path never change.
func poolPath(sha256, name string) string {
	return "pool/" + sha256[:2] + "/" + sha256 + "/" + name
}

// loadRecord reads the record of a pool digest.
func (r *Repo) loadRecord(sha string) (*record, error) {
	if len(sha) != 64 {
		return nil, fmt.Errorf("pool digest %q is not one", clip(sha))
	}
	b, err := os.ReadFile(r.pool(sha[:2], sha, recordFile))
	if err != nil {
		return nil, fmt.Errorf("read pool record: %w", err)
	}
	rec := &record{}
	if err := json.Unmarshal(b, rec); err != nil {
		return nil, fmt.Errorf("read pool record %s: %w", sha, err)
	}
	if rec.SHA256 != sha {
		return nil, fmt.Errorf("pool record %s is of another file", sha)
	}
	return rec, nil
}
