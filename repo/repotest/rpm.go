package repotest

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Value is one entry of an rpm header. Data is of type int, []int (32 bits),
// []int16, string, []string or []byte.
type Value struct {
	Tag  int
	Data any
}

// RPM returns a binary rpm of format 4, not signed.
func RPM(s Spec) []byte {
	return RPMWith(s, nil)
}

// RPMWith returns an rpm whose main header values were changed by edit, which
// may be nil.
func RPMWith(s Spec, edit func(map[int]any)) []byte {
	s = s.orDefaults("noarch")
	version, release, _ := strings.Cut(s.Version, "-")
	epoch := -1
	if e, rest, ok := strings.Cut(version, ":"); ok {
		fmt.Sscanf(e, "%d", &epoch)
		version = rest
	}
	dir, base := "/usr/share/doc/"+s.Name+"/", "about"
	payload := Gzip(cpio("."+dir+base, s.Content))
	full := version + "-" + release
	if epoch > 0 {
		full = fmt.Sprintf("%d:%s", epoch, full)
	}
	requires := []string{"rpmlib(CompressedFileNames)", "rpmlib(FileDigests)", "rpmlib(PayloadFilesHavePrefix)"}
	flags := []int{1<<24 | 10, 1<<24 | 10, 1<<24 | 10}
	versions := []string{"3.0.4-1", "4.6.0-1", "4.0-1"}
	for _, d := range s.Depends {
		requires, flags, versions = append(requires, d), append(flags, 0), append(versions, "")
	}
	values := map[int]any{
		100: []string{"C"}, 1000: s.Name, 1001: version, 1002: release,
		1004: []string{"made for a test"}, 1005: []string{"It has <one> & only line."},
		1006: []int{int(stamp.Unix())}, 1007: "builder.example.org", 1009: []int{len(s.Content)},
		1014: "Apache-2.0", 1016: []string{"Unspecified"}, 1021: "linux", 1022: s.Arch,
		1028: []int{len(s.Content)}, 1030: []int16{0o100644 - 1<<16}, 1033: []int16{0},
		1034: []int{int(stamp.Unix())}, 1035: []string{fmt.Sprintf("%x", sha256.Sum256([]byte(s.Content)))},
		1036: []string{""}, 1037: []int{0}, 1039: []string{"root"}, 1040: []string{"root"},
		1044: s.Name + "-" + version + "-" + release + ".src.rpm", 1045: []int{-1},
		1047: []string{s.Name}, 1048: flags, 1049: requires, 1050: versions,
		1064: "4.18.0", 1080: []int{int(stamp.Unix())}, 1081: []string{"Test <test@example.org>"}, 1082: []string{"- made"},
		1095: []int{1}, 1096: []int{1}, 1097: []string{""},
		1112: []int{8}, 1113: []string{full}, 1116: []int{0}, 1117: []string{base}, 1118: []string{dir},
		1124: "cpio", 1125: "gzip", 1126: "9", 5011: []int{8},
		5092: []string{fmt.Sprintf("%x", sha256.Sum256(payload))}, 5093: []int{8},
	}
	if epoch >= 0 {
		values[1003] = []int{epoch}
	}
	if edit != nil {
		edit(values)
	}
	main := Header(63, values)
	hp := md5.New()
	hp.Write(main)
	hp.Write(payload)
	sig := Header(62, map[int]any{
		273: fmt.Sprintf("%x", sha256.Sum256(main)), 1000: []int{len(main) + len(payload)},
		1004: hp.Sum(nil), 1007: []int{len(cpio("."+dir+base, s.Content))},
	})
	for len(sig)%8 != 0 {
		sig = append(sig, 0)
	}
	var out bytes.Buffer
	out.Write(Lead(s.Name + "-" + full))
	out.Write(sig)
	out.Write(main)
	out.Write(payload)
	return out.Bytes()
}

// Lead returns the 96 bytes that an rpm starts with.
func Lead(name string) []byte {
	b := make([]byte, 96)
	copy(b, []byte{0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, 1})
	copy(b[10:75], name)
	b[77] = 1 // os number, big-endian
	b[79] = 5 // signature is a header
	return b
}

// Header returns an rpm header in one region.
func Header(region int, values map[int]any) []byte {
	tags := make([]int, 0, len(values))
	for t := range values {
		tags = append(tags, t)
	}
	slices.Sort(tags)
	var index, store bytes.Buffer
	u32 := func(b *bytes.Buffer, n ...int) {
		for _, v := range n {
			must(binary.Write(b, binary.BigEndian, int32(v)))
		}
	}
	for _, t := range tags {
		switch v := values[t].(type) {
		case string:
			u32(&index, t, 6, store.Len(), 1)
			store.WriteString(v + "\x00")
		case []string:
			kind := 8
			if t == 1004 && region == 63 || t == 1005 || t == 1016 {
				kind = 9
			}
			u32(&index, t, kind, store.Len(), len(v))
			for _, s := range v {
				store.WriteString(s + "\x00")
			}
		case []int:
			for store.Len()%4 != 0 {
				store.WriteByte(0)
			}
			u32(&index, t, 4, store.Len(), len(v))
			u32(&store, v...)
		case []int16:
			for store.Len()%2 != 0 {
				store.WriteByte(0)
			}
			u32(&index, t, 3, store.Len(), len(v))
			must(binary.Write(&store, binary.BigEndian, v))
		case []byte:
			u32(&index, t, 7, store.Len(), len(v))
			store.Write(v)
		default:
			panic(fmt.Sprintf("value of tag %d is a %T", t, v))
		}
	}
	trailer := store.Len()
	n := len(tags) + 1
	u32(&store, region, 7, -n*16, 16)
	var out bytes.Buffer
	out.Write([]byte{0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0})
	u32(&out, n, store.Len(), region, 7, trailer, 16)
	out.Write(index.Bytes())
	out.Write(store.Bytes())
	return out.Bytes()
}

// cpio returns an archive of one file in the "newc" form.
func cpio(name, body string) []byte {
	var b bytes.Buffer
	pad := func() {
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	one := func(name string, mode, inode int, body string) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			inode, mode, 0, 0, 1, stamp.Unix(), len(body), 0, 1, 0, 0, len(name)+1, 0)
		b.WriteString(name + "\x00")
		pad()
		b.WriteString(body)
		pad()
	}
	one(name, 0o100644, 1, body)
	one("TRAILER!!!", 0, 0, "")
	return b.Bytes()
}
