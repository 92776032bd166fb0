package file

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	attributeACL        = "system.posix_acl_access"
	attributeInherited  = "system.posix_acl_default"
	attributeLabel      = "security.selinux"
	attributeCapability = "security.capability"
)

// carried reports whether an attribute passes from the file that is replaced
// to the one that replaces it. Capabilities belong to the content.
func carried(name string, sameContent bool) bool {
	switch {
	case name == attributeACL, name == attributeInherited, name == attributeLabel, strings.HasPrefix(name, "user."):
		return true
	case name == attributeCapability:
		return sameContent
	}
	return false
}

// dress gives the new file its owner, attributes and mode, in the order in
// which none of them undoes another and at no moment more is allowed than the
// final mode allows.
func (p *Provider) dress(ctx context.Context, at *location, f *os.File, have, target state) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, int(target.UID), int(target.GID)); err != nil {
		return err
	}
	attributes := have.Attributes
	if target.Attributes != nil {
		attributes = target.Attributes
	}
	sameContent := have.SHA256 == target.SHA256 || target.Attributes != nil
	// A new file keeps what its directory gave it.
	if have.Type == typeRegular || target.Attributes != nil {
		if err := setAttributes(fd, attributes, sameContent, target.Mode, attributeACL); err != nil {
			return err
		}
	}
	if target.Attributes == nil {
		old := strings.TrimRight(string(attributes[attributeLabel]), "\x00")
		if err := p.setLabel(ctx, at.path, "file", old, onto(fd)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, target.Mode); err != nil {
		return err
	}
	if value, ok := attributes[attributeCapability]; ok && sameContent {
		if err := unix.Fsetxattr(fd, attributeCapability, value, 0); err != nil {
			return fmt.Errorf("carry over %s: %w", attributeCapability, err)
		}
	}
	return nil
}

// setAttributes makes the carried attributes of something new exactly these.
// Lists names the access lists that its directory may have given it.
// Capabilities are set at the very end by dress: changing owner clears them.
func setAttributes(fd int, attributes map[string][]byte, sameContent bool, mode uint32, lists ...string) error {
	for name, value := range attributes {
		if !carried(name, sameContent) || name == attributeCapability {
			continue
		}
		if name == attributeACL {
			value = aclWithMode(value, mode)
		}
		err := unix.Fsetxattr(fd, name, value, 0)
		if name == attributeLabel && errors.Is(err, unix.EOPNOTSUPP) {
			// The label is that of the whole file system, and this one has it too.
			continue
		}
		if err != nil {
			return fmt.Errorf("carry over %s: %w", name, err)
		}
	}
	for _, list := range lists {
		if _, ok := attributes[list]; ok {
			continue
		}
		err := unix.Fremovexattr(fd, list)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("drop the access list of the directory: %w", err)
		}
	}
	return nil
}

// aclWithMode returns an access list in the kernel's form with the entries for
// owner, mask (or group) and others as the mode says, so that setting it allows
// nothing that the mode does not.
func aclWithMode(acl []byte, mode uint32) []byte {
	const header, entry = 4, 8
	const tagOwner, tagGroup, tagMask, tagOther = 0x01, 0x04, 0x10, 0x20
	out := bytes.Clone(acl)
	if len(out) < header || (len(out)-header)%entry != 0 {
		return out
	}
	masked := false
	for at := header; at < len(out); at += entry {
		masked = masked || binary.LittleEndian.Uint16(out[at:]) == tagMask
	}
	for at := header; at < len(out); at += entry {
		var bits uint32
		switch tag := binary.LittleEndian.Uint16(out[at:]); {
		case tag == tagOwner:
			bits = mode >> 6
		case tag == tagMask, tag == tagGroup && !masked:
			bits = mode >> 3
		case tag == tagOther:
			bits = mode
		default:
			continue
		}
		binary.LittleEndian.PutUint16(out[at+2:], uint16(bits&7))
	}
	return out
}

// attributesLimit bounds the names and values of one file.
const attributesLimit = 256 << 10

func readAttributes(fd int) (map[string][]byte, error) {
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.EOPNOTSUPP) || (err == nil && size == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]byte, size+1024)
	if size, err = unix.Flistxattr(fd, names); err != nil {
		return nil, err
	}
	attributes := make(map[string][]byte)
	total := 0
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		if name == "" || !carried(name, true) {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if total += n; total > attributesLimit {
			return nil, fmt.Errorf("more than %d bytes of attributes", attributesLimit)
		}
		attributes[name] = bytes.Clone(value[:n])
	}
	return attributes, nil
}
