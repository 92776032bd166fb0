package host_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
)

// listening is a link that notes what it is asked to send again.
type listening struct {
	link
	wants chan string
}

func (l *listening) Refresh(want string) { l.wants <- want }

// changing is a machine whose inventory, or only a moving number, changes.
type changing struct {
	machine
	packages atomic.Int64
	free     atomic.Int64
}

func (c *changing) Inventory(context.Context) (mesh.Inventory, error) {
	return mesh.Inventory{Packages: make([]mesh.InstalledPackage, c.packages.Load())}, nil
}

func (c *changing) Profile(context.Context) (mesh.Profile, error) {
	return mesh.Profile{Disks: []mesh.Disk{{Mount: "/", FreeBytes: c.free.Add(1)}}}, nil
}

func TestTheControlPlaneIsToldWhenTheMachineWouldBeDescribedDifferently(t *testing.T) {
	in(t, enrolled, func(b *bench) {
		l := &listening{wants: make(chan string, 100)}
		m := &changing{}
		b.cfg.Describer = m
		b.cfg.Dial = func(host.Settings, *host.Host) host.Link { return l }
		told := func() []string {
			var wants []string
			for len(l.wants) > 0 {
				wants = append(wants, <-l.wants)
			}
			slices.Sort(wants)
			return wants
		}
		b.start()
		b.declare(1)
		b.wait(16 * time.Minute)
		told() // what it looks like at first
		b.wait(time.Hour)
		if wants := told(); len(wants) != 0 {
			t.Errorf("nothing changed but a free byte, and %q is sent again", wants)
		}
		m.packages.Store(3)
		b.wait(15 * time.Minute)
		same(t, "sent again", told(), []string{mesh.WantInventory})
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}
