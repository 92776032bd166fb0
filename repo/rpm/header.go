package rpm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	leadSize       = 96
	introSize      = 16 // magic, reserved, number of entries, size of the store
	entrySize      = 16
	maxSigEntries  = 1024
	maxSigStore    = 8 << 20
	maxMainEntries = 16 << 10
	maxMainStore   = 32 << 20
	// maxItems bounds an array: an empty string takes one byte in a header and
	// far more in memory. The largest packages have some hundred thousand files.
	maxItems = 1 << 20
)

var (
	leadMagic   = []byte{0xed, 0xab, 0xee, 0xdb}
	headerMagic = []byte{0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0}
)

// Data types of header entries.
const (
	typeNull        = 0
	typeChar        = 1
	typeInt8        = 2
	typeInt16       = 3
	typeInt32       = 4
	typeInt64       = 5
	typeString      = 6
	typeBin         = 7
	typeStringArray = 8
	typeI18N        = 9
)

// entry is one line of a header's index.
type entry struct {
	tag, kind, offset, count uint32
}

// header is one parsed header: the index by tag, and the store.
type header struct {
	raw     []byte // as it stands in the file, from the magic to the end of the store
	entries []entry
	byTag   map[uint32]entry
	store   []byte
}

// readHeader reads one header from r. The sizes that it claims are bounded
// before anything is allocated for them, and memory grows only with bytes that
// really arrive.
func readHeader(r io.Reader, what string, maxEntries, maxStore uint32) (*header, error) {
	var intro [introSize]byte
	if _, err := io.ReadFull(r, intro[:]); err != nil {
		return nil, cutShort(what, err)
	}
	if !bytes.Equal(intro[:8], headerMagic) {
		return nil, malformed("the %s does not start as one", what)
	}
	n := binary.BigEndian.Uint32(intro[8:])
	size := binary.BigEndian.Uint32(intro[12:])
	if n == 0 || n > maxEntries {
		return nil, malformed("the %s claims %d entries", what, n)
	}
	if size > maxStore {
		return nil, fmt.Errorf("the %s claims %d bytes: %w", what, size, ErrTooLarge)
	}
	want := int64(n)*entrySize + int64(size)
	buf := bytes.NewBuffer(make([]byte, 0, min(want+introSize, 64<<10)))
	buf.Write(intro[:])
	if _, err := io.CopyN(buf, r, want); err != nil {
		return nil, cutShort(what, err)
	}
	return parseHeader(buf.Bytes(), what, n)
}

func cutShort(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the file is cut short in the %s", what)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

func parseHeader(raw []byte, what string, n uint32) (*header, error) {
	h := &header{raw: raw, byTag: make(map[uint32]entry, n)}
	h.store = raw[introSize+int(n)*entrySize:]
	// What all entries hold together fits into the store: entries that overlap
	// would have the same bytes read thousands of times.
	left := len(h.store)
	for i := range int(n) {
		b := raw[introSize+i*entrySize:]
		e := entry{
			tag:    binary.BigEndian.Uint32(b),
			kind:   binary.BigEndian.Uint32(b[4:]),
			offset: binary.BigEndian.Uint32(b[8:]),
			count:  binary.BigEndian.Uint32(b[12:]),
		}
		if e.offset > uint32(len(h.store)) || e.count > uint32(len(h.store)) {
			return nil, malformed("the %s has an entry outside its store", what)
		}
		if _, twice := h.byTag[e.tag]; twice {
			return nil, malformed("the %s has the tag %d twice", what, e.tag)
		}
		if e.kind != typeBin && e.count > maxItems {
			return nil, fmt.Errorf("the %s has %d values of tag %d: %w", what, e.count, e.tag, ErrTooLarge)
		}
		data, err := h.data(e)
		if err != nil {
			return nil, err
		}
		if left -= len(data); left < 0 {
			return nil, malformed("the entries of the %s overlap", what)
		}
		h.entries = append(h.entries, e)
		h.byTag[e.tag] = e
	}
	return h, nil
}

// data returns the bytes of an entry; strings with the zeros that end them.
func (h *header) data(e entry) ([]byte, error) {
	rest := h.store[e.offset:]
	width := uint64(1)
	switch e.kind {
	case typeNull:
		return nil, nil
	case typeChar, typeInt8, typeBin:
	case typeInt16:
		width = 2
	case typeInt32:
		width = 4
	case typeInt64:
		width = 8
	case typeString, typeStringArray, typeI18N:
		count := e.count
		if e.kind == typeString {
			count = 1
		}
		end := 0
		for range count {
			i := bytes.IndexByte(rest[end:], 0)
			if i < 0 {
				return nil, malformed("the text of tag %d has no end", e.tag)
			}
			end += i + 1
		}
		return rest[:end], nil
	default:
		return nil, malformed("tag %d has the unknown type %d", e.tag, e.kind)
	}
	need := width * uint64(e.count)
	if need > uint64(len(rest)) {
		return nil, malformed("tag %d reaches beyond the store", e.tag)
	}
	return rest[:need], nil
}

func (h *header) has(tag uint32) bool {
	_, ok := h.byTag[tag]
	return ok
}

// text returns the first string of a tag, "" when it is absent.
func (h *header) text(tag uint32) string {
	if l := h.texts(tag); len(l) > 0 {
		return l[0]
	}
	return ""
}

// texts returns all strings of a tag.
func (h *header) texts(tag uint32) []string {
	e, ok := h.byTag[tag]
	if !ok || e.kind != typeString && e.kind != typeStringArray && e.kind != typeI18N {
		return nil
	}
	b, err := h.data(e)
	if err != nil || len(b) == 0 {
		return nil
	}
	parts := bytes.Split(b[:len(b)-1], []byte{0})
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = string(p)
	}
	return out
}

// numbers returns the integers of a tag, of any width.
func (h *header) numbers(tag uint32) []uint64 {
	e, ok := h.byTag[tag]
	if !ok {
		return nil
	}
	b, err := h.data(e)
	if err != nil {
		return nil
	}
	out := make([]uint64, 0, e.count)
	switch e.kind {
	case typeInt16:
		for ; len(b) >= 2; b = b[2:] {
			out = append(out, uint64(binary.BigEndian.Uint16(b)))
		}
	case typeInt32:
		for ; len(b) >= 4; b = b[4:] {
			out = append(out, uint64(binary.BigEndian.Uint32(b)))
		}
	case typeInt64:
		for ; len(b) >= 8; b = b[8:] {
			out = append(out, binary.BigEndian.Uint64(b))
		}
	}
	return out
}

func (h *header) number(tag uint32) (uint64, bool) {
	if l := h.numbers(tag); len(l) > 0 {
		return l[0], true
	}
	return 0, false
}

func (h *header) bin(tag uint32) []byte {
	e, ok := h.byTag[tag]
	if !ok || e.kind != typeBin {
		return nil
	}
	b, _ := h.data(e)
	return b
}
