package lab_test

import (
	"testing"

	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

func TestAnAccountThatOnlyTheNameServiceKnowsOwnsAFile(t *testing.T) {
	onEachNode(t, func(t *testing.T, f *fleet.Fleet, h *lab.Host) {
		must(t, h, `mkdir -p /var/lib/extrausers
echo 'fxdirectory:x:64001:64002:from a directory:/nonexistent:/usr/sbin/nologin' > /var/lib/extrausers/passwd
echo 'fxpeople:x:64002:' > /var/lib/extrausers/group
sed -i 's/^passwd:.*/passwd: files extrausers/; s/^group:.*/group: files extrausers/' /etc/nsswitch.conf
! grep -q fxdirectory /etc/passwd && getent passwd fxdirectory >/dev/null && getent group fxpeople >/dev/null`)
		declare(t, f, h, "nss", "  - file: /etc/fx-nss\n    content: x\n    owner: fxdirectory\n    group: fxpeople\n")
		applied(t, f, h)
		if got := must(t, h, "stat -c '%u %g' /etc/fx-nss"); got != "64001 64002" {
			t.Errorf("the file belongs to %s, want 64001 64002", got)
		}
		undeclare(t, f, h, "nss")
		applied(t, f, h)
	})
}
