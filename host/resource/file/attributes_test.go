package file

import (
	"encoding/binary"
	"testing"
)

func TestAnAccessListThatIsCarriedOverAllowsNoMoreThanTheMode(t *testing.T) {
	list := func(perms map[uint16]uint16, tags ...uint16) []byte {
		b := binary.LittleEndian.AppendUint32(nil, 2)
		for _, tag := range tags {
			b = binary.LittleEndian.AppendUint16(b, tag)
			b = binary.LittleEndian.AppendUint16(b, perms[tag])
			b = binary.LittleEndian.AppendUint32(b, 0)
		}
		return b
	}
	const owner, user, group, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20
	for _, c := range []struct {
		tags []uint16
		want map[uint16]uint16
	}{
		{[]uint16{owner, user, group, mask, other}, map[uint16]uint16{owner: 6, user: 7, group: 7, mask: 4, other: 0}},
		{[]uint16{owner, group, other}, map[uint16]uint16{owner: 6, group: 4, other: 0}},
	} {
		all := map[uint16]uint16{owner: 7, user: 7, group: 7, mask: 7, other: 7}
		if got, want := aclWithMode(list(all, c.tags...), 0o640), list(c.want, c.tags...); string(got) != string(want) {
			t.Errorf("with mode 0640 the list becomes %x, want %x", got, want)
		}
	}
}
