package repo

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// index is one compressed index: gzip members that stand one after the other,
// which every reader of gzip takes as one file. A piece that did not change is
// taken over from the index before, so that adding a package costs what changed
// and not what is there.
type index struct {
	pieces        []*piece
	size, plain   int64  // bytes, packed and not
	sum, plainSum string // SHA-256, packed and not
}

// piece is one gzip member. It does not change, but for verified, which only
// the holder of the turn uses.
type piece struct {
	records  []*record // nil for the head and the tail of a document
	packed   []byte
	plain    int64
	verified bool // whether it was read back from the disk and compared
}

// pieceOdds is the average number of packages in a piece.
const pieceOdds = 64

// begins reports whether a piece begins at a package of this name. The name
// alone decides, so that a new package changes the piece that it falls into and
// no other.
func begins(name string) bool {
	h := fnv.New32a()
	io.WriteString(h, name)
	return h.Sum32()%pieceOdds == 0
}

// document says how an index is written: a head and a tail around the text of
// each record, which write appends to b.
type document struct {
	head, tail string
	write      func(b []byte, rec *record) []byte
}

// packers are compressors, of which each takes a megabyte.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// makeIndex writes the index of records, taking from prev, which may be nil,
// what is the same there.
func (doc document) makeIndex(prev *index, records []*record) (*index, error) {
	known := map[*record]*piece{}
	if prev != nil {
		for _, p := range prev.pieces {
			if len(p.records) > 0 {
				known[p.records[0]] = p
			}
		}
	}
	ix := &index{}
	packed, plain := sha256.New(), sha256.New()
	add := func(p *piece) {
		ix.pieces = append(ix.pieces, p)
		ix.size += int64(len(p.packed))
		ix.plain += p.plain
		packed.Write(p.packed)
	}
	pack := packers.Get().(*gzip.Writer)
	defer func() {
		pack.Reset(io.Discard)
		packers.Put(pack)
	}()
	member := func(text []byte, records []*record) error {
		var buf bytes.Buffer
		pack.Reset(&buf)
		if _, err := pack.Write(text); err != nil {
			return err
		}
		if err := pack.Close(); err != nil {
			return err
		}
		add(&piece{records: records, packed: slices.Clip(buf.Bytes()), plain: int64(len(text))})
		return nil
	}
	frame := func(text string) error {
		if text == "" {
			return nil
		}
		plain.Write([]byte(text))
		return member([]byte(text), nil)
	}
	if err := frame(doc.head); err != nil {
		return nil, err
	}
	var text []byte // of one piece; used again for the next
	for len(records) > 0 {
		n := 1
		for n < len(records) && (records[n].Name == records[n-1].Name || !begins(records[n].Name)) {
			n++
		}
		run := records[:n:n]
		records = records[n:]
		text = doc.writeAll(text[:0], run)
		plain.Write(text)
		if p := known[run[0]]; p != nil && slices.Equal(p.records, run) {
			add(p)
		} else if err := member(text, run); err != nil {
			return nil, err
		}
	}
	if err := frame(doc.tail); err != nil {
		return nil, err
	}
	if len(ix.pieces) == 0 {
		if err := member(nil, nil); err != nil {
			return nil, err
		}
	}
	ix.sum, ix.plainSum = hex.EncodeToString(packed.Sum(nil)), hex.EncodeToString(plain.Sum(nil))
	return ix, nil
}

// writeAll appends the text of records to b.
func (doc document) writeAll(b []byte, run []*record) []byte {
	for _, rec := range run {
		b = doc.write(b, rec)
	}
	return b
}

func (ix *index) bytes() [][]byte {
	out := make([][]byte, len(ix.pieces))
	for i, p := range ix.pieces {
		out[i] = p.packed
	}
	return out
}

// verify compares an index as it was read from the disk with what was meant. A
// piece that was compared by an earlier publish is only compared with the bytes
// that it had then; a new one is unpacked and read.
func (ix *index) verify(doc document, file []byte, read func(plain []byte, records []*record) error) error {
	for _, p := range ix.pieces {
		if len(file) < len(p.packed) || !bytes.Equal(file[:len(p.packed)], p.packed) {
			return errors.New("it does not hold what was written")
		}
		own := file[:len(p.packed)]
		file = file[len(p.packed):]
		if p.verified {
			continue
		}
		plain, err := unpackBounded(own, p.plain)
		if err != nil {
			return err
		}
		if p.records != nil {
			if !bytes.Equal(plain, doc.writeAll(make([]byte, 0, len(plain)), p.records)) {
				return errors.New("it unpacks to something else than was written")
			}
			if err := read(plain, p.records); err != nil {
				return err
			}
		} else if s := string(plain); s != doc.head && s != doc.tail && s != "" {
			return errors.New("its frame is not the one that was written")
		}
		p.verified = true
	}
	if len(file) > 0 {
		return fmt.Errorf("it has %d bytes too many", len(file))
	}
	return nil
}

// unpackBounded unpacks gzip and fails when it is not exactly want bytes.
func unpackBounded(packed []byte, want int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	buf.Grow(int(want) + bytes.MinRead)
	if _, err := io.Copy(&buf, io.LimitReader(z, want+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) != want {
		return nil, fmt.Errorf("it unpacks to %d bytes, want %d", buf.Len(), want)
	}
	return buf.Bytes(), nil
}
