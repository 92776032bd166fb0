package file

import (
	"context"
	"fmt"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"golang.org/x/sys/unix"
)

// Not every error can be brought about here: the kernel that runs the tests may
// have no quotas, and a disk does not fail when it is asked to.
//
// Shows: M4
func TestEveryErrorOfTheKernelIsNamed(t *testing.T) {
	for _, c := range []struct {
		err     error
		write   mesh.Status
		writing mesh.Reason
		reading mesh.Reason
	}{
		{unix.ENOSPC, mesh.StatusFailed, mesh.ReasonNoSpace, mesh.ReasonIO},
		{unix.EDQUOT, mesh.StatusFailed, mesh.ReasonNoSpace, mesh.ReasonIO},
		{unix.EROFS, mesh.StatusFailed, mesh.ReasonReadOnly, mesh.ReasonIO},
		{unix.EBUSY, mesh.StatusFailed, mesh.ReasonMountPoint, mesh.ReasonIO},
		{unix.ENOTEMPTY, mesh.StatusConflict, mesh.ReasonNotEmpty, mesh.ReasonIO},
		{unix.EPERM, mesh.StatusFailed, mesh.ReasonPermission, mesh.ReasonPermission},
		{unix.EACCES, mesh.StatusFailed, mesh.ReasonPermission, mesh.ReasonPermission},
		{unix.EIO, mesh.StatusFailed, mesh.ReasonIO, mesh.ReasonIO},
		{unix.EMFILE, mesh.StatusFailed, mesh.ReasonIO, mesh.ReasonIO},
		{unix.ESTALE, mesh.StatusFailed, mesh.ReasonIO, mesh.ReasonIO},
		{context.DeadlineExceeded, mesh.StatusFailed, mesh.ReasonTimeout, mesh.ReasonTimeout},
	} {
		wrapped := fmt.Errorf("a step: %w", c.err)
		if e := resource.AsError(unwritable(nil, "/t", "write", wrapped)); e.Status != c.write || e.Reason != c.writing {
			t.Errorf("writing and %v is %s (%s)", c.err, e.Status, e.Reason)
		}
		if e := resource.AsError(unreadable("/t", wrapped)); e.Status != mesh.StatusUnknown || e.Reason != c.reading {
			t.Errorf("reading and %v is %s (%s)", c.err, e.Status, e.Reason)
		}
	}
}
