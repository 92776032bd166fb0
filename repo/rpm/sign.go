package rpm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// foreign are the entries of a signature header that do not survive a publish:
// signatures by keys that our clients do not hold make every one of them fail
// with NOKEY, and reserved room is of no use in a file that never changes.
var foreign = map[uint32]bool{
	tagSigRegion: true, sigDSA: true, sigRSA: true, sigOpenPGP: true,
	sigPGP: true, sigGPG: true, sigReserved: true,
}

// value is one entry of a header that is being built.
type value struct {
	tag, kind, count uint32
	data             []byte
}

// withSignature returns a new signature header, padded to eight bytes, that
// holds the digests and sizes of old and the given signature over the main
// header, and no other signature.
func withSignature(old *header, signature []byte) ([]byte, error) {
	values := []value{{tag: sigRSA, kind: typeBin, count: uint32(len(signature)), data: signature}}
	for _, e := range old.entries {
		if foreign[e.tag] {
			continue
		}
		b, err := old.data(e)
		if err != nil {
			return nil, err
		}
		values = append(values, value{tag: e.tag, kind: e.kind, count: e.count, data: b})
	}
	raw := marshalHeader(tagSigRegion, values)
	if pad := len(raw) % 8; pad != 0 {
		raw = append(raw, make([]byte, 8-pad)...)
	}
	return raw, nil
}

// marshalHeader writes a header whose entries all lie in one immutable region,
// which is how rpm itself writes them and what it insists on when it reads.
func marshalHeader(region uint32, values []value) []byte {
	slices.SortStableFunc(values, func(a, b value) int { return cmp.Compare(a.tag, b.tag) })
	var index, store bytes.Buffer
	put := func(b *bytes.Buffer, n ...uint32) {
		for _, v := range n {
			b.Write(binary.BigEndian.AppendUint32(nil, v))
		}
	}
	for _, v := range values {
		width := map[uint32]int{typeInt16: 2, typeInt32: 4, typeInt64: 8}[v.kind]
		for width > 1 && store.Len()%width != 0 {
			store.WriteByte(0)
		}
		put(&index, v.tag, v.kind, uint32(store.Len()), v.count)
		store.Write(v.data)
	}
	// The region's entry stands first in the index and its trailer last in the
	// store; the trailer's offset is the size of the index, negative.
	trailer := uint32(store.Len())
	n := uint32(len(values) + 1)
	put(&store, region, typeBin, uint32(-int32(n*entrySize)), entrySize)

	var out bytes.Buffer
	out.Write(headerMagic)
	put(&out, n, uint32(store.Len()))
	put(&out, region, typeBin, trailer, entrySize)
	out.Write(index.Bytes())
	out.Write(store.Bytes())
	return out.Bytes()
}
