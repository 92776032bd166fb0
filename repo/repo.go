// Package repo keeps the mesh's own package repository: a pool of deb and rpm
// files that never change once they are in it, and signed suites that list
// them, published as one tree of plain files.
//
// Every change is built aside, synced, read back from the disk with the
// package's own readers, checked sum by sum and signature by signature, and
// then switched to with one rename. A reader sees the tree before or the tree
// after. A reader that is in the middle keeps finding the indexes and packages
// of the tree that it started with.
//
// The package does not decide who may publish, does not hold the private key
// (it asks a Signer), does not speak HTTP, and never replaces a published file
// by another of the same name, version and architecture.
package repo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Format is the kind of a package file.
type Format string

// The formats that a repository serves.
const (
	Deb Format = "deb"
	RPM Format = "rpm"
)

// DefaultSuite is the suite that exists from the first start on.
const DefaultSuite = "stable"

// DefaultMaxPackage is the largest package file that is accepted by default, in bytes.
const DefaultMaxPackage = 2 << 30

// Signer signs and checks what the repository publishes. Its methods may be
// called at the same time. Verify methods accept what its own sign methods
// made and nothing else; their errors are final.
type Signer interface {
	// ClearSign returns text clear-signed, in the form of an InRelease.
	ClearSign(text []byte) ([]byte, error)
	// DetachSign returns an armored detached signature over data.
	DetachSign(data []byte) ([]byte, error)
	// SignBinary returns one unarmored signature packet over data.
	SignBinary(data []byte) ([]byte, error)
	// VerifyClear returns the text of a clear-signed document that verifies.
	VerifyClear(signed []byte) ([]byte, error)
	VerifyDetached(data, armoredSignature []byte) error
	VerifyBinary(data, signature []byte) error
	// PublicArmored returns the public key or keys as one armored block.
	PublicArmored() ([]byte, error)
	// Fingerprints returns the keys' fingerprints in upper-case hexadecimal.
	Fingerprints() []string
}

// Config says where a repository lives and what it calls itself.
type Config struct {
	// Dir holds pool/ and public/. It is made when it is not there.
	Dir string
	// Origin and Label are what apt shows and pins on. Empty means "mesh".
	// They must not change: apt asks a person to accept a change.
	Origin, Label string
	// MaxPackage is the largest package file in bytes. Zero means DefaultMaxPackage.
	MaxPackage int64
	// Architectures are the Debian architectures that every suite serves even
	// when it holds no package for them. Nil means amd64 and arm64.
	Architectures []string
	// ValidFor is how long clients believe a Release of apt after it was signed.
	// Zero: for ever, and a control plane that is off for long breaks nobody.
	// Otherwise Refresh has to be called in time.
	ValidFor time.Duration
	// Keep says how long old generations stay readable.
	Keep Keep
	// Now is the clock. Nil means the system's.
	Now func() time.Time
}

// Keep bounds how many old generations stay readable beside the current one,
// for readers that started with them. Zero fields mean the defaults.
type Keep struct {
	Min int           // kept whatever their age; 16
	Max int           // never more than this; 256
	For time.Duration // kept this long between Min and Max; 24 hours
}

// Package is one published package.
type Package struct {
	Format  Format `json:"format"`
	Name    string `json:"name"`
	Version string `json:"version"` // full: epoch and revision or release, as the package manager writes it
	Arch    string `json:"arch"`
	SHA256  string `json:"sha256"` // of the served file, lower-case hexadecimal
	Size    int64  `json:"size"`   // of the served file, bytes
	// Uploaded is the SHA-256 of the file as it was uploaded. It differs from
	// SHA256 for rpm, whose served file carries this repository's signature.
	Uploaded string `json:"uploaded"`
	// Published is when the file first entered the repository.
	Published time.Time `json:"published"`
	// File is the served file's path under the root of the tree.
	File string `json:"file"`
	// Compression is how the payload is compressed: gz, xz, zst, or rpm's name. Empty: not at all.
	Compression string `json:"compression,omitempty"`
}

// ID is what names a package: no two published packages have the same.
func (p Package) ID() string {
	return string(p.Format) + "/" + p.Name + "/" + p.Version + "/" + p.Arch
}

// Repo is an open repository. Its methods may be called at the same time.
type Repo struct {
	cfg    Config
	signer Signer
	log    *slog.Logger
	lock   *os.File // flock: one process at a time writes a repository

	state atomic.Pointer[state] // what readers see; replaced as a whole

	turn   chan struct{} // holds one token: the right to commit
	closed chan struct{} // closed by Close
	mu     sync.Mutex    // guards queue
	queue  []*change     // changes that wait for a commit

	// Used only by the holder of the turn.
	kept []*state       // current and older generations, newest first
	refs map[string]int // pool digest to number of kept parts that list it
}

var suiteName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)

// Open opens the repository in cfg.Dir and makes it, with an empty signed
// default suite, when it is not there. What a crash left half built is
// discarded; a published tree that does not verify any more is built again
// from the pool. One process at a time may have a repository open. The caller
// closes it.
func Open(ctx context.Context, cfg Config, signer Signer, log *slog.Logger) (*Repo, error) {
	if cfg.Origin == "" {
		cfg.Origin = "mesh"
	}
	if cfg.Label == "" {
		cfg.Label = "mesh"
	}
	if cfg.MaxPackage == 0 {
		cfg.MaxPackage = DefaultMaxPackage
	}
	if cfg.Architectures == nil {
		cfg.Architectures = []string{"amd64", "arm64"}
	}
	if cfg.Keep.Min == 0 {
		cfg.Keep.Min = 16
	}
	if cfg.Keep.Max == 0 {
		cfg.Keep.Max = 256
	}
	if cfg.Keep.For == 0 {
		cfg.Keep.For = 24 * time.Hour
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Repo{cfg: cfg, signer: signer, log: log, turn: make(chan struct{}, 1), closed: make(chan struct{}), refs: map[string]int{}}
	for _, d := range []string{r.pool(), r.staging(), r.public("gen"), r.public("parts")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make repository directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, "repository.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open repository lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock the repository in %s, which another process has open: %w", cfg.Dir, err)
	}
	r.lock = lock
	if err := r.recover(ctx); err != nil {
		lock.Close()
		return nil, err
	}
	r.turn <- struct{}{}
	return r, nil
}

// ErrClosed is the error of a change after Close.
var ErrClosed = errors.New("the repository is closed")

// Close waits for the commit under way and lets another process open the
// repository. Changes are refused with ErrClosed afterwards. Closing again does
// nothing; only one goroutine may close.
func (r *Repo) Close() error {
	select {
	case <-r.closed:
		return nil
	case <-r.turn:
	}
	close(r.closed)
	return r.lock.Close()
}

func (r *Repo) pool(elem ...string) string {
	return filepath.Join(append([]string{r.cfg.Dir, "pool"}, elem...)...)
}

func (r *Repo) staging(elem ...string) string {
	return filepath.Join(append([]string{r.cfg.Dir, "pool", ".incoming"}, elem...)...)
}

func (r *Repo) public(elem ...string) string {
	return filepath.Join(append([]string{r.cfg.Dir, "public"}, elem...)...)
}

// Suites returns the names of the suites, sorted.
func (r *Repo) Suites() []string { return r.state.Load().suites() }

// Generation returns the number of the published generation. It grows by one
// with every change.
func (r *Repo) Generation() uint64 { return r.state.Load().generation }

// PublicKey returns the armored public key that the tree is signed with.
func (r *Repo) PublicKey() ([]byte, error) { return r.signer.PublicArmored() }

// Fingerprints returns the fingerprints of the keys that the tree is signed
// with, in upper-case hexadecimal.
func (r *Repo) Fingerprints() []string { return r.signer.Fingerprints() }

// List returns the packages of a suite, sorted by format, name, version and
// architecture; versions in the order of their package manager.
func (r *Repo) List(ctx context.Context, suite string) ([]Package, error) {
	s := r.state.Load()
	var out []Package
	found := false
	for _, f := range []Format{Deb, RPM} {
		p, ok := s.parts[partKey{suite, f}]
		if !ok {
			continue
		}
		found = true
		for _, rec := range p.records {
			out = append(out, rec.Package)
		}
	}
	if !found {
		return nil, noSuchSuite(suite, s)
	}
	return out, ctx.Err()
}

// SuitePackage is a package in one of the suites that hold it.
type SuitePackage struct {
	Suite string `json:"suite"`
	Package
}

// Versions returns every package of a name in every suite, sorted by suite,
// format and version.
func (r *Repo) Versions(name string) []SuitePackage {
	s := r.state.Load()
	var out []SuitePackage
	for _, suite := range s.suites() {
		for _, f := range []Format{Deb, RPM} {
			if p := s.parts[partKey{suite, f}]; p != nil {
				for _, rec := range p.named(name) {
					out = append(out, SuitePackage{suite, rec.Package})
				}
			}
		}
	}
	return out
}

// Incoming is one file that is to be published.
type Incoming struct {
	// Name is what the sender calls the file. It appears in messages and decides nothing.
	Name string
	// Body is read once, to its end. The caller closes it.
	Body io.Reader
	// Allow is asked with what was read out of the file before anything is
	// published; its error is that of the publish. Nil: everything is allowed.
	Allow func(Package) error
}

// Outcome is what a publish did with one file.
type Outcome string

// The outcomes of a successful publish.
const (
	Added        Outcome = "added"         // it is in the suite since this publish
	AlreadyThere Outcome = "already-there" // the same content was in the suite before
)

// PublishedFile is one file of a publish.
type PublishedFile struct {
	Name    string  `json:"name"` // as given in Incoming
	Outcome Outcome `json:"outcome"`
	Package Package `json:"package"`
}

// Published is a publish that was done, read back and switched to.
type Published struct {
	Suite      string          `json:"suite"`
	Generation uint64          `json:"generation"`
	Files      []PublishedFile `json:"files"` // in the order given
}

// Code names the reason of a refusal, for programs.
type Code string

// The reasons for which a change is refused.
const (
	CodeNotAPackage Code = "not-a-package"    // neither deb nor rpm, damaged, or with fields that the format does not allow
	CodeTooLarge    Code = "too-large"        // beyond a limit
	CodeConflict    Code = "content-conflict" // same name, version and architecture, other content
	CodeBadSuite    Code = "bad-suite"        // not a name that a suite may have
	CodeNoSuite     Code = "no-such-suite"
	CodeNoPackage   Code = "no-such-package"
	CodeNoFiles     Code = "no-files"
)

// Refusal is the error of a change that was not made because of what was
// asked. Nothing of the change was done. Asking again does not help.
type Refusal struct {
	Code     Code
	File     string // as given in Incoming; empty when it is not about one file
	Sentence string // for a person: what is wrong and what to do
}

func (r *Refusal) Error() string {
	if r.File != "" {
		return r.File + ": " + r.Sentence
	}
	return r.Sentence
}

// Is lets errors.Is(err, &Refusal{Code: c}) ask for the code alone.
func (r *Refusal) Is(target error) bool {
	t, ok := errors.AsType[*Refusal](target)
	return ok && t.Code == r.Code && (t.File == "" || t.File == r.File) && (t.Sentence == "" || t.Sentence == r.Sentence)
}

func noSuchSuite(suite string, s *state) error {
	return &Refusal{Code: CodeNoSuite, Sentence: fmt.Sprintf("there is no suite %q; the suites are %v", clip(suite), s.suites())}
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
