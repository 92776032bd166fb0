package rpm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/repo/repotest"
)

// rawHeader is a header as it stands in a file, however little sense it makes.
func rawHeader(store []byte, entries ...entry) []byte {
	b := slices.Clone(headerMagic)
	b = binary.BigEndian.AppendUint32(b, uint32(len(entries)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(store)))
	for _, e := range entries {
		for _, n := range []uint32{e.tag, e.kind, e.offset, e.count} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
	}
	return append(b, store...)
}

// Shows: M11
func TestAHeaderThatWouldCostFarMoreThanItsSizeIsRefused(t *testing.T) {
	const store = 24 << 20
	many := make([]entry, maxMainEntries)
	for i := range many {
		many[i] = entry{tag: uint32(i), kind: typeStringArray, count: 1 << 20}
	}
	long := repotest.RPMWith(repotest.Spec{}, func(values map[int]any) {
		dir, names, dirs := "/"+strings.Repeat("d", 1<<20)+"/", make([]string, 1000), make([]int, 1000)
		for i := range names {
			names[i] = "f"
		}
		values[tagBaseNames], values[tagDirNames], values[tagDirIndexes] = names, []string{dir}, dirs
	})
	// In front of the main header stand the lead and the signature header.
	whole := repotest.RPM(repotest.Spec{})
	front := whole[:leadSize+bytes.Index(whole[leadSize+1:], headerMagic)+1]
	for _, c := range []struct {
		what string
		file []byte
		want error
	}{
		{"entries that all read the same bytes", append(slices.Clone(front), rawHeader(make([]byte, store), many...)...), ErrMalformed},
		{"an array of millions of empty texts", append(slices.Clone(front), rawHeader(make([]byte, store), entry{tag: tagProvideName, kind: typeStringArray, count: store})...), ErrTooLarge},
		{"a thousand files in a directory with a name of a megabyte", long, ErrTooLarge},
	} {
		t.Run(c.what, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)

			_, err := Rewrite(io.Discard, bytes.NewReader(c.file), func([]byte) ([]byte, error) { return []byte("signature"), nil })

			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) {
				t.Errorf("it ends with %v, want %v", err, c.want)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 128 {
				t.Errorf("refusing it took %d MiB of memory", took)
			}
		})
	}
}

func FuzzAHeaderOfAnyBytesIsReadWithinBounds(f *testing.F) {
	for _, rpm := range [][]byte{repotest.RPM(repotest.Spec{}), repotest.RPM(repotest.Spec{Version: "9:1~2^3-4", Depends: []string{"a", "b"}})} {
		for rest := rpm; ; {
			at := bytes.Index(rest, headerMagic)
			if at < 0 {
				break
			}
			f.Add(rest[at:])
			rest = rest[at+1:]
		}
	}
	f.Add(rawHeader([]byte("a\x00b\x00"), entry{tagName, typeString, 0, 1}, entry{tagBaseNames, typeStringArray, 0, 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader(bytes.NewReader(b), "header", maxMainEntries, maxMainStore)
		if err != nil {
			return
		}
		held := 0
		for _, e := range h.entries {
			data, err := h.data(e)
			if err != nil {
				t.Fatalf("tag %d was accepted and cannot be read: %v", e.tag, err)
			}
			held += len(data)
			if texts, numbers := h.texts(e.tag), h.numbers(e.tag); len(texts) > len(data) || len(numbers) > len(data) || len(h.bin(e.tag)) > len(data) {
				t.Fatalf("tag %d has %d texts and %d numbers out of %d bytes", e.tag, len(texts), len(numbers), len(data))
			}
		}
		if held > len(b) {
			t.Fatalf("%d bytes hold %d", len(b), held)
		}
		// What a package says of itself is put into the metadata even when it is
		// not one that would be accepted: none of it may panic.
		p := &Package{sig: h, main: h}
		if p.check() == nil {
			p.Fragments(Place{})
		}
	})
}
