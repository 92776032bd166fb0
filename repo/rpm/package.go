package rpm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
)

// Package is what an rpm says about itself, and how it stands in its file.
type Package struct {
	Name, Version, Release, Arch string
	Epoch                        uint32 // zero when the package names none

	// Content is the SHA-256 of main header and payload, hexadecimal: what two
	// files of the same package have in common whoever signed them.
	Content string
	// HeaderStart and HeaderEnd are the main header's place in the written file, bytes.
	HeaderStart, HeaderEnd int64
	// PayloadCompression is rpm's name for it: gzip, xz, zstd, bzip2, lzma.
	PayloadCompression string

	sig  *header
	main *header
}

// Signer makes an unarmored OpenPGP signature of version 4 over data.
type Signer func(data []byte) ([]byte, error)

// Rewrite reads one rpm from r to its end and writes it to w with the
// signature of sign in its signature header, in one pass that holds the
// headers in memory and never the payload. Main header and payload are written
// as they came. When it returns without an error the package is a whole binary
// rpm whose header and payload have the SHA-256 digests that it claims.
//
// Errors hold ErrMalformed or ErrTooLarge, or are r's, w's or sign's own.
func Rewrite(w io.Writer, r io.Reader, sign Signer) (*Package, error) {
	p, lead, err := readHeaders(r)
	if err != nil {
		return nil, err
	}
	signature, err := sign(p.main.raw)
	if err != nil {
		return nil, err
	}
	sig, err := withSignature(p.sig, signature)
	if err != nil {
		return nil, err
	}
	p.HeaderStart = int64(len(lead) + len(sig))
	p.HeaderEnd = p.HeaderStart + int64(len(p.main.raw))
	for _, b := range [][]byte{lead, sig, p.main.raw} {
		if _, err := w.Write(b); err != nil {
			return nil, fmt.Errorf("write signed package: %w", err)
		}
	}
	return p, p.payload(w, r)
}

// ReadSignature reads only the headers of an rpm and returns the signature in
// its signature header (nil: none) and the main header that it is over.
func ReadSignature(r io.Reader) (signature, signed []byte, err error) {
	p, _, err := readHeaders(r)
	if err != nil {
		return nil, nil, err
	}
	return p.sig.bin(sigRSA), p.main.raw, nil
}

func padding(n int) int { return (8 - n%8) % 8 }

func readHeaders(r io.Reader) (*Package, []byte, error) {
	lead := make([]byte, leadSize)
	if _, err := io.ReadFull(r, lead); err != nil {
		return nil, nil, cutShort("lead", err)
	}
	if !bytes.Equal(lead[:4], leadMagic) {
		return nil, nil, malformed("the file does not start as an rpm")
	}
	if lead[4] != 3 && lead[4] != 4 {
		return nil, nil, malformed("the rpm is of format %d, want 3 or 4", lead[4])
	}
	sig, err := readHeader(r, "signature header", maxSigEntries, maxSigStore)
	if err != nil {
		return nil, nil, err
	}
	if _, err := io.CopyN(io.Discard, r, int64(padding(len(sig.raw)))); err != nil {
		return nil, nil, cutShort("signature header", err)
	}
	main, err := readHeader(r, "header", maxMainEntries, maxMainStore)
	if err != nil {
		return nil, nil, err
	}
	p := &Package{sig: sig, main: main}
	if err := p.check(); err != nil {
		return nil, nil, err
	}
	return p, lead, nil
}

// maxPaths bounds the paths of a package's files together, in bytes: a directory
// is written once in a header, and once for each of its files in the metadata.
const maxPaths = 32 << 20

// check reads the identity of the package and refuses what no client should meet.
func (p *Package) check() error {
	h := p.main
	p.Name, p.Version, p.Release, p.Arch = h.text(tagName), h.text(tagVersion), h.text(tagRelease), h.text(tagArch)
	for _, f := range []struct{ what, value string }{
		{"name", p.Name}, {"version", p.Version}, {"release", p.Release},
	} {
		if !allowed(f.value, f.what) {
			return malformed("the %s %q is not allowed", f.what, clip(f.value))
		}
	}
	if h.has(tagSourcePackage) || !h.has(tagSourceRPM) {
		return malformed("it is a source package; this repository serves binary packages")
	}
	if !architectures[p.Arch] {
		return malformed("rpm knows no architecture %q", clip(p.Arch))
	}
	if e, ok := h.number(tagEpoch); ok {
		if e > 1<<31-1 {
			return malformed("the epoch %d is not allowed", e)
		}
		p.Epoch = uint32(e)
	}
	p.PayloadCompression = h.text(tagPayloadComp)
	if f := h.text(tagPayloadFormat); f != "" && f != "cpio" {
		return malformed("the payload is of format %q, want cpio", clip(f))
	}
	if want := p.sig.text(sigSHA256); want != "" && want != hexSum(h.raw) {
		return malformed("the header does not have the SHA-256 digest that it claims")
	}
	algo, _ := h.number(tagPayloadAlgo)
	if len(h.texts(tagPayloadDigest)) == 0 || algo != digestAlgoSHA256 {
		return malformed("it carries no SHA-256 digest of its payload, which machines in FIPS mode and rpm 6 insist on; build it with rpm 4.14 or newer")
	}
	if names := h.texts(tagBaseNames); len(names) > 0 {
		if a, ok := h.number(tagFileDigestAlgo); !ok || a < digestAlgoSHA256 {
			return malformed("its files have no SHA-256 digests, which machines in FIPS mode insist on")
		}
		dirs, idx := h.texts(tagDirNames), h.numbers(tagDirIndexes)
		if len(idx) != len(names) {
			return malformed("it has %d file names and %d directories for them", len(names), len(idx))
		}
		total := 0
		for n, i := range idx {
			if i >= uint64(len(dirs)) {
				return malformed("a file stands in a directory that the header does not list")
			}
			if total += len(dirs[i]) + len(names[n]); total > maxPaths {
				return fmt.Errorf("the paths of its files have more than %d bytes: %w", maxPaths, ErrTooLarge)
			}
		}
	} else if h.has(tagOldFileNames) {
		return malformed("it lists its files in the form of rpm 3; build it with rpm 4.14 or newer")
	}
	return nil
}

// payload copies the rest of r to w and checks it against the header's digest.
func (p *Package) payload(w io.Writer, r io.Reader) error {
	content, sum := sha256.New(), sha256.New()
	content.Write(p.main.raw)
	n, err := io.Copy(io.MultiWriter(w, content, sum), r)
	if err != nil {
		return fmt.Errorf("copy payload: %w", err)
	}
	if got := hexOf(sum); !strings.EqualFold(got, p.main.text(tagPayloadDigest)) {
		return malformed("the payload (%d bytes) does not have the SHA-256 digest that the header claims; the file is cut short or damaged", n)
	}
	p.Content = hexOf(content)
	return nil
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func hexSum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// Architectures that rpm knows and that a mesh can meet.
var architectures = map[string]bool{
	"noarch": true, "x86_64": true, "x86_64_v2": true, "x86_64_v3": true, "i386": true,
	"i486": true, "i586": true, "i686": true, "aarch64": true, "armv6hl": true,
	"armv7hl": true, "armv7hnl": true, "ppc64le": true, "ppc64": true, "s390x": true,
	"riscv64": true, "loongarch64": true, "mips64el": true, "mipsel": true,
}

// allowed tells whether a name, version or release may become part of a path
// and of a package manager's argument. The dash is the separator between them.
func allowed(s, what string) bool {
	if s == "" || len(s) > 200 || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.' || c == '_' || c == '+':
		case what == "name" && c == '-' && i > 0:
		case what != "name" && (c == '~' || c == '^'):
		default:
			return false
		}
	}
	return true
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// FullVersion returns epoch:version-release, without an epoch of zero.
func (p *Package) FullVersion() string {
	v := p.Version + "-" + p.Release
	if p.Epoch != 0 {
		v = strconv.FormatUint(uint64(p.Epoch), 10) + ":" + v
	}
	return v
}

// FileName returns the conventional file name, which has no epoch.
func (p *Package) FileName() string {
	return p.Name + "-" + p.Version + "-" + p.Release + "." + p.Arch + ".rpm"
}
