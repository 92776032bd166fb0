package apt

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"
)

// Deb is what a Debian binary package says about itself.
type Deb struct {
	Name         string
	Version      string // with the epoch, as in the control file
	Architecture string
	Control      Paragraph
	// ControlCompression and DataCompression are "", "gz", "xz" or "zst": old
	// dpkg cannot open all of them.
	ControlCompression string
	DataCompression    string
}

const (
	arMagic   = "!<arch>\n"
	arHeader  = 60
	maxMember = 32
	// maxWindow bounds the memory that a compressed member may ask for: what
	// xz -9 and zstd -19 need, and not more.
	maxWindow = 64 << 20
)

type member struct {
	name string
	off  int64
	size int64
}

// ReadDeb reads the package in the first size bytes of r: the outer archive,
// the whole control archive, and the whole data archive entry by entry, so that
// a file that is cut short or cannot be unpacked is refused here and not on the
// machines. Errors hold ErrMalformed or ErrTooLarge, or are r's own.
func ReadDeb(r io.ReaderAt, size int64, limits Limits) (*Deb, error) {
	limits = limits.orDefaults()
	members, err := readMembers(r, size)
	if err != nil {
		return nil, err
	}
	if len(members) < 3 || members[0].name != "debian-binary" {
		return nil, malformed("the archive does not hold debian-binary, control and data in this order")
	}
	if err := checkFormat(r, members[0]); err != nil {
		return nil, err
	}
	var control, data *member
	for i := range members[1:] {
		m := &members[1+i]
		switch {
		case strings.HasPrefix(m.name, "_"): // dpkg ignores these: signatures by other tools
		case control == nil && strings.HasPrefix(m.name, "control.tar"):
			control = m
		case control != nil && data == nil && strings.HasPrefix(m.name, "data.tar"):
			data = m
		default:
			return nil, malformed("the archive holds the unexpected member %q", clip(m.name))
		}
	}
	if control == nil || data == nil {
		return nil, malformed("the archive does not hold debian-binary, control and data in this order")
	}
	d := &Deb{
		ControlCompression: strings.TrimPrefix(strings.TrimPrefix(control.name, "control.tar"), "."),
		DataCompression:    strings.TrimPrefix(strings.TrimPrefix(data.name, "data.tar"), "."),
	}
	text, err := readControlArchive(io.NewSectionReader(r, control.off, control.size), d.ControlCompression, limits)
	if err != nil {
		return nil, fmt.Errorf("control archive: %w", err)
	}
	if d.Control, err = ParseControl(text); err != nil {
		return nil, err
	}
	d.Name, d.Version, d.Architecture = d.Control.Get("Package"), d.Control.Get("Version"), d.Control.Get("Architecture")
	if err := checkName(d.Name); err != nil {
		return nil, err
	}
	if err := checkVersion(d.Version); err != nil {
		return nil, err
	}
	if !KnownArchitecture(d.Architecture) {
		return nil, malformed("dpkg knows no architecture %q", clip(d.Architecture))
	}
	if err := walkData(io.NewSectionReader(r, data.off, data.size), d.DataCompression, limits); err != nil {
		return nil, fmt.Errorf("data archive: %w", err)
	}
	return d, nil
}

func readMembers(r io.ReaderAt, size int64) ([]member, error) {
	head := make([]byte, len(arMagic))
	if size < int64(len(arMagic)) {
		return nil, malformed("the file is too short")
	}
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read archive magic: %w", err)
	}
	if string(head) != arMagic {
		return nil, malformed("the file does not start as an ar archive")
	}
	var out []member
	off := int64(len(arMagic))
	for off < size {
		if len(out) == maxMember {
			return nil, malformed("the archive has more than %d members", maxMember)
		}
		if size-off < arHeader {
			return nil, malformed("the file is cut short")
		}
		var h [arHeader]byte
		if _, err := r.ReadAt(h[:], off); err != nil {
			return nil, fmt.Errorf("read archive member: %w", err)
		}
		if h[58] != '`' || h[59] != '\n' {
			return nil, malformed("the archive has a broken member header")
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(h[48:58])), 10, 64)
		if err != nil || n < 0 {
			return nil, malformed("the archive has a member of impossible size")
		}
		off += arHeader
		if n > size-off {
			return nil, malformed("the file is cut short")
		}
		name := strings.TrimSuffix(strings.TrimRight(string(h[:16]), " "), "/")
		out = append(out, member{name: name, off: off, size: n})
		off += n + n%2
	}
	return out, nil
}

func checkFormat(r io.ReaderAt, m member) error {
	if m.size < 4 || m.size > 64 {
		return malformed("debian-binary is not a format number")
	}
	b := make([]byte, m.size)
	if _, err := r.ReadAt(b, m.off); err != nil {
		return fmt.Errorf("read format number: %w", err)
	}
	if !strings.HasPrefix(string(b), "2.") || !bytes.HasSuffix(b, []byte("\n")) {
		return malformed("debian-binary is not of format 2")
	}
	return nil
}

// bounded fails with ErrTooLarge instead of ending when its budget is used up.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// One byte more is asked for, so that an archive of exactly the limit passes.
		var one [1]byte
		n, err := b.r.Read(one[:])
		if n > 0 {
			return 0, fmt.Errorf("unpacked size: %w", ErrTooLarge)
		}
		return 0, err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// unpack returns a bounded reader of a compressed member, and its release.
func unpack(r io.Reader, compression string, limit int64) (io.Reader, func(), error) {
	var src io.Reader
	done := func() {}
	switch compression {
	case "":
		src = r
	case "gz":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, malformed("gzip: %v", err)
		}
		src = z
	case "xz":
		z, err := xz.NewReader(r, maxWindow)
		if err != nil {
			return nil, nil, malformed("xz: %v", err)
		}
		src = z
	case "zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<40))
		if err != nil {
			return nil, nil, malformed("zstd: %v", err)
		}
		src, done = z, z.Close
	default:
		return nil, nil, malformed("it is compressed with %q, want gz, xz or zst", clip(compression))
	}
	return &bounded{r: src, left: limit}, done, nil
}

// inner turns what a decompressor or tar reader says into our words, and keeps
// the errors that are not about the input.
func inner(step string, err error) error {
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooLarge) {
		return err
	}
	return malformed("%s: %v", step, err)
}

func readControlArchive(r io.Reader, compression string, limits Limits) ([]byte, error) {
	src, done, err := unpack(r, compression, limits.Scripts)
	if err != nil {
		return nil, err
	}
	defer done()
	tr := tar.NewReader(src)
	var control []byte
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, inner("unpack", err)
		}
		if n >= 1000 {
			return nil, malformed("it has more than 1000 entries")
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch {
		case h.Typeflag == tar.TypeDir:
			if name != "" {
				return nil, malformed("it holds the directory %q", clip(h.Name))
			}
			continue
		case h.Typeflag != tar.TypeReg:
			return nil, malformed("it holds %q, which is no regular file", clip(h.Name))
		case name == "" || strings.Contains(name, "/") || strings.Contains(h.Name, ".."):
			return nil, malformed("it holds a file at %q", clip(h.Name))
		}
		if name != "control" {
			continue
		}
		if control != nil {
			return nil, malformed("it holds two control files")
		}
		if h.Size > limits.Control {
			return nil, fmt.Errorf("control file of %d bytes: %w", h.Size, ErrTooLarge)
		}
		if control, err = io.ReadAll(tr); err != nil {
			return nil, inner("unpack", err)
		}
	}
	if _, err := io.Copy(io.Discard, src); err != nil {
		return nil, inner("unpack", err)
	}
	if len(control) == 0 {
		return nil, malformed("it holds no control file")
	}
	return control, nil
}

func walkData(r io.Reader, compression string, limits Limits) error {
	src, done, err := unpack(r, compression, limits.Unpacked)
	if err != nil {
		return err
	}
	defer done()
	tr := tar.NewReader(src)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return inner("unpack", err)
		}
		if n >= limits.Entries {
			return fmt.Errorf("more than %d entries: %w", limits.Entries, ErrTooLarge)
		}
		for part := range strings.SplitSeq(h.Name, "/") {
			if part == ".." {
				return malformed("it holds the path %q", clip(h.Name))
			}
		}
	}
	// The rest is read to its end: the compression's own checksum stands there.
	if _, err := io.Copy(io.Discard, src); err != nil {
		return inner("unpack", err)
	}
	return nil
}
