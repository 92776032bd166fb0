//go:build matrix

package lab_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	daemon "github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/test/lab"
)

// powerCut is one moment of an upgrade at which the machine loses its power. The
// host, or the package manager, is held at that moment, so that it is the same
// one every time.
type powerCut struct {
	name string
	// point holds the host, hook a script of the package: "postinst" or "prerm".
	// The other one is empty.
	point, hook string
	// bad is the release that is tried. Nil: a good one.
	bad *spoil
	// undoing: the hook holds what puts the running version back.
	undoing bool
	// later: the host comes to the point at its first start after the upgrade.
	later bool
}

var powerCuts = []powerCut{
	{name: "1: before the intent is written", point: "upgrade.before-intent"},
	{name: "1: the intent is written", point: "upgrade.after-intent"},
	{name: "2: half of the guard is there", point: "upgrade.guard-half-put"},
	{name: "2: the guard stands", point: "upgrade.after-guard"},
	{name: "3: the old package's script runs", hook: "prerm"},
	{name: "4: the new package's script runs", hook: "postinst"},
	{name: "5: it is installed, and not looked at", point: "upgrade.after-install"},
	{name: "5: it was looked at", point: "upgrade.after-check"},
	{name: "6: it is about to be put back", point: "upgrade.putting-back", bad: &spoil{replace: map[string][]byte{"mesh-host.service": {}}}},
	{name: "6: the host is putting it back", hook: "postinst", undoing: true, bad: &spoil{replace: map[string][]byte{"mesh-host.service": {}}}},
	{name: "7: it was found sound", point: "upgrade.after-hand-over"},
	{name: "7: the old version is about to end", point: "upgrade.before-exit"},
	{name: "7: the new version copies the store", point: "store.trial-before-rename"},
	{name: "7: the rollback removes what does not live", hook: "prerm", undoing: true, bad: &spoil{behaviour: "crash"}},
	{name: "7: the rollback installs what lives", hook: "postinst", undoing: true, bad: &spoil{behaviour: "crash"}},
	{name: "8: before it is confirmed", point: "upgrade.before-confirm"},
	{name: "8: the new kit is made", point: "upgrade.kit-before-exchange"},
	{name: "8: the new kit is in place", point: "upgrade.kit-after-exchange"},
	{name: "8: it was reported", point: "upgrade.before-settle"},
	{name: "8: half of the guard is gone", point: "upgrade.guard-half-removed"},
	{name: "8: the copy is about to become the store", point: "store.settle-before-rename", later: true},
	{name: "8: the copy became the store", point: "store.settle-after-rename", later: true},
}

// hooked are the scripts of a package that stop when a file tells them to, once.
func hooked(t *testing.T, version string) map[string][]byte {
	t.Helper()
	scripts := map[string][]byte{}
	for name, file := range map[string]string{
		"deb/postinst": "mesh-host.deb.postinst", "deb/prerm": "mesh-host.deb.prerm", "rpm/postinst": "mesh-host.rpm.post", "rpm/prerm": "mesh-host.rpm.preun",
	} {
		_, script, _ := strings.Cut(name, "/")
		hold := "/root/hold-" + script + "-" + version
		text := projectFile(t, "packaging/scripts/"+file)
		shebang := ""
		if rest, found := strings.CutPrefix(text, "#!/bin/sh\n"); found {
			shebang, text = "#!/bin/sh\n", rest
		}
		scripts[name] = []byte(shebang + "if [ -e " + hold + " ]; then mv " + hold + " /root/held; sleep 900; fi\n" + text)
	}
	return scripts
}

// Shows: M5, M14, M18, M20
func TestMatrixOfPowerCutsInAnUpgrade(t *testing.T) {
	versions := []string{"0.5.0", "0.5.1"}
	good := map[string]map[string]string{}
	for _, v := range versions {
		good[v] = build{program: "mesh-host", version: v, fault: true, replace: hooked(t, v)}.make(t)
	}
	bad := make([]map[string]string, len(powerCuts))
	for i, c := range powerCuts {
		if c.bad == nil {
			continue
		}
		version := fmt.Sprintf("0.6.%d", i)
		replace := hooked(t, version)
		for name, content := range c.bad.replace {
			replace[name] = content
		}
		behaviour := c.bad.behaviour
		if behaviour == "" {
			behaviour = "good"
		}
		bad[i] = spoiled(t, version, behaviour, replace, nil)
	}
	everyFlavour(t, "pc", func(t *testing.T, h *lab.Host) {
		if err := h.WriteFile(lab.TestContext(t), "/etc/mesh/host.yaml", []byte("drift_interval: 10s\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		install(t, h, good[versions[0]], "v1")
		must(t, h, "mesh-host apply "+bundleOf(t, h, versions[0], good[versions[0]]))
		rests := func(version string) func(daemon.Status) bool {
			return func(s daemon.Status) bool {
				return s.Version == version && s.Upgrade.Confirmed == version+"-1" && s.Upgrade.CanRollBack && s.Upgrade.Phase == "settled"
			}
		}
		awaitStatus(t, h, 3*time.Minute, "the first version to be able to be gone back to", rests(versions[0]))
		for i, c := range powerCuts {
			cell(t, h, "power cut, step "+c.name, "M5, M18, M20", func(t *testing.T) string {
				from, to := versions[0], versions[1]
				if s := awaitStatus(t, h, time.Minute, "a host that rests", func(s daemon.Status) bool { return rests(s.Version)(s) }); s.Version == to {
					from, to = to, from
				}
				tried, packages, ends := to, good[to], to
				if c.bad != nil {
					tried, packages, ends = fmt.Sprintf("0.6.%d", i), bad[i], from
				}
				hold := tried
				if c.undoing && c.hook == "postinst" || !c.undoing && c.hook == "prerm" {
					hold = from
				}
				// The copy of the store that an earlier case left is settled first.
				must(t, h, "rm -f /root/held /root/hold-*; systemctl restart mesh-host.service")
				if c.hook != "" {
					must(t, h, "touch /root/hold-"+c.hook+"-"+hold)
				} else {
					must(t, h, fmt.Sprintf("mkdir -p /etc/systemd/system/mesh-host.service.d; printf '[Service]\\nEnvironment=MESH_FAULT_POINT=%s MESH_FAULT_ONCE=/root/held MESH_FAULT_HOLD=1\\n' >/etc/systemd/system/mesh-host.service.d/hold.conf; systemctl daemon-reload; systemctl restart mesh-host.service", c.point))
				}
				must(t, h, "systemd-run --quiet --collect mesh-host apply "+bundleOf(t, h, tried, packages))
				if c.later {
					awaitStatus(t, h, 3*time.Minute, to+" to be confirmed", rests(to))
					must(t, h, "systemctl restart --no-block mesh-host.service")
				}
				ctx := lab.TestContext(t)
				long, cancel := context.WithTimeout(ctx, 4*time.Minute)
				defer cancel()
				if err := h.WaitFor(long, "the upgrade to be held: "+c.name, func(ctx context.Context) (bool, string, error) {
					out, err := h.Sh(ctx, "ls /root/held 2>&1; tail -n 2 /var/lib/mesh-host/starts")
					return err == nil && strings.HasPrefix(out.Stdout, "/root/held"), out.Stdout, nil
				}); err != nil {
					t.Fatal(err)
				}
				if err := h.PowerLoss(ctx); err != nil {
					t.Fatal(err)
				}
				if err := h.BootAgain(ctx); err != nil {
					t.Fatal(err)
				}
				s := awaitStatus(t, h, 6*time.Minute, ends+" to run, confirmed and able to be gone back to, after the power was lost", func(s daemon.Status) bool {
					return rests(ends)(s) && s.Upgrade.Last != nil && (c.bad == nil || s.Upgrade.Last.To == tried+"-1")
				})
				guardGone(t, h)
				whole := map[string]string{"deb": "dpkg --audit; dpkg-query -W -f='${db:Status-Abbrev}${Version}' mesh-host", "rpm": "rpm -q --qf 'ii %{VERSION}-%{RELEASE}' mesh-host"}[format(h)]
				eventually(t, "the package database to name "+ends+" alone and whole", func(ctx context.Context) (bool, string, error) {
					out, err := h.Sh(ctx, whole)
					return out.Stdout == "ii "+ends+"-1", out.Stdout, err
				})
				last, undone := s.Upgrade.Last, []mesh.Ending{mesh.EndingPutBack, mesh.EndingByServiceManager, mesh.EndingByGuard, mesh.EndingRefused}
				switch {
				case c.bad == nil && (last.Ending != mesh.EndingUpgraded || last.To != to+"-1"):
					t.Errorf("the upgrade to %s ended as %+v", to, last)
				case c.bad != nil && !strings.Contains(fmt.Sprint(undone), string(last.Ending)):
					t.Errorf("what was undone is said to have ended as %+v", last)
				}
				must(t, h, "rm -f /etc/systemd/system/mesh-host.service.d/hold.conf; systemctl daemon-reload")
				return ""
			})
		}
	})
}
