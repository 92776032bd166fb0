package file

import (
	"context"
	"errors"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"golang.org/x/sys/unix"
)

// unreadable names an error of looking.
func unreadable(path string, err error) error {
	var e *resource.Error
	if errors.As(err, &e) {
		return err
	}
	var pe *pathError
	if errors.As(err, &pe) {
		return unreachable(path, err)
	}
	reason := mesh.ReasonIO
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		reason = mesh.ReasonPermission
	case errors.Is(err, context.DeadlineExceeded):
		reason = mesh.ReasonTimeout
	}
	return resource.Unknown(reason, err, "%s could not be read: %v", path, err)
}

// unreachable names an error of walking to the directory of a path.
func unreachable(path string, err error) error {
	var pe *pathError
	if errors.As(err, &pe) {
		if pe.why == faultLink || pe.why == faultCircle {
			return resource.Failed(mesh.ReasonSymlinkInPath, err, "%s is not written: %s", path, pe.Error())
		}
		return resource.Failed(mesh.ReasonParent, err, "%s cannot be there: %s, and parents are not made unless they are declared", path, pe.Error())
	}
	return unwritable(nil, path, "reach the directory", err)
}

// unwritable names an error of writing at a location.
func (l *location) unwritable(step string, err error) error { return unwritable(l, l.path, step, err) }

// unwritable names an error of writing. The location, where there is one, is
// asked for the flag that explains an EPERM.
func unwritable(at *location, path, step string, err error) error {
	var e *resource.Error
	if errors.As(err, &e) {
		return err
	}
	switch {
	case errors.Is(err, unix.ENOSPC):
		return resource.Failed(mesh.ReasonNoSpace, err, "the file system of %s is full; what stood there stays", path)
	case errors.Is(err, unix.EDQUOT):
		return resource.Failed(mesh.ReasonNoSpace, err, "the quota on the file system of %s is used up; what stood there stays", path)
	case errors.Is(err, unix.EROFS):
		return resource.Failed(mesh.ReasonReadOnly, err, "the file system of %s is read-only", path)
	case errors.Is(err, unix.EBUSY):
		return mountedOver(path, err)
	case errors.Is(err, unix.ENOTEMPTY):
		return resource.Conflict(mesh.ReasonNotEmpty, err, "the directory %s is not empty, so it stays", path)
	case errors.Is(err, unix.EPERM):
		if at != nil && at.immutable() {
			return immovable(path, err)
		}
		return resource.Failed(mesh.ReasonPermission, err, "the kernel refused to %s for %s", step, path)
	case errors.Is(err, unix.EACCES):
		return resource.Failed(mesh.ReasonPermission, err, "the kernel refused to %s for %s", step, path)
	case errors.Is(err, context.DeadlineExceeded):
		return resource.Failed(mesh.ReasonTimeout, err, "it took too long to %s for %s", step, path)
	}
	return resource.Failed(mesh.ReasonIO, err, "%s was not written: %s: %v", path, step, err)
}

// changedJustNow says that somebody else is at a path at this moment. What they
// made of it was not captured.
func changedJustNow(path string) error {
	return resource.Deferred(mesh.ReasonModified, nil, "%s was changed just now; it stays, and is looked at again", path)
}

// mountedOver says that a path cannot be replaced. Writing into what is mounted
// there would neither be whole nor keep to the path.
func mountedOver(path string, err error) error {
	return resource.Failed(mesh.ReasonMountPoint, err, "something is mounted at %s itself, so it cannot be replaced; it stays as it is", path)
}

func immovable(path string, err error) error {
	return resource.Failed(mesh.ReasonImmutable, err, "%s, or its directory, is marked immutable or append-only; the flag stays and so does the file", path)
}

// immutable reports whether the thing or its directory carries a flag that
// forbids the change even to root.
func (l *location) immutable() bool {
	const flags = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND
	var st unix.Statx_t
	if err := unix.Statx(l.fd(), l.name, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err == nil && st.Attributes&flags != 0 {
		return true
	}
	err := unix.Statx(l.fd(), "", unix.AT_EMPTY_PATH, 0, &st)
	return err == nil && st.Attributes&flags != 0
}
