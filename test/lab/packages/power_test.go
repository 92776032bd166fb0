package packages_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/test/lab"
)

// everyPoint has each fault point killed at, and powerSeeds is how many losses
// of power are tried on each host; both are raised by the tag "matrix".
var (
	everyPoint bool
	powerSeeds = 0
)

// line takes a line in the table that make test-matrix prints.
func line(t *testing.T, h *lab.Host, name, requirement string) {
	t.Helper()
	out, err := h.Sh(lab.TestContext(t), "systemctl --version | head -n 1 | cut -d ' ' -f 2")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{"case": name, "requirement": requirement, "host": h.Flavour().Name, "systemd": strings.TrimSpace(out.Stdout), "manager": string(h.Flavour().Manager)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("matrix: %s", text)
}

// seeds is how many losses of power to try on a flavour, from the environment if
// it says so. Those that are not in every run have a quarter.
func seeds(t *testing.T, flavour string) int {
	t.Helper()
	if text := os.Getenv("MESH_POWER_SEEDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("MESH_POWER_SEEDS: %v", err)
		}
		return n
	}
	if !slices.Contains(everyRun, flavour) {
		return max(powerSeeds/4, 1)
	}
	return max(powerSeeds, 1)
}

// Shows: M5
func TestMatrixPackagesConvergeAfterALossOfPowerAtAnyMoment(t *testing.T) {
	l := lab.Shared(t)
	program, s, k := buildDriver(t), newServer(t, l), newKey(t, "rows")
	for _, flavour := range flavours() {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			n := seeds(t, flavour)
			h := rowHost(t, l, flavour, program)
			line(t, h, fmt.Sprintf("packages after %d losses of power", n), "M5")
			m := newMachine(t, h, s, k)
			slow := func(name, version string) pack {
				p := pack{name: name, version: version, postinst: "sleep 0.3", prerm: "sleep 0.1", postrm: "sleep 0.1", preinst: "sleep 0.1"}
				p.files = map[string]string{"/usr/share/rows-" + name + "/data": version}
				return p
			}
			for _, name := range []string{"fx", "fx2", "fx3", "fx4"} {
				m.offer(slow(name, "1"), slow(name, "2"))
			}
			m.refresh()
			for seed := range n {
				powerLoss(m, uint64(seed))
				if t.Failed() {
					t.Fatalf("with seed %d", seed)
				}
			}
		})
	}
}

// powerLoss cuts the power at a moment that the seed chooses while a pass goes
// to versions that the seed chooses, and has the machine converge afterwards.
func powerLoss(m *machine, seed uint64) {
	m.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	var rs []mesh.Resource
	want := versions{}
	for _, name := range []string{"fx", "fx2", "fx3", "fx4"} {
		switch r.IntN(3) {
		case 0:
			rs, want[name] = append(rs, absent(name)), ""
		case 1:
			rs, want[name] = append(rs, present(name, "1-1")), "1-1"
		default:
			rs, want[name] = append(rs, present(name, "2-1")), "2-1"
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := m.tryPass(rs...)
		ended <- err
	}()
	moment := time.NewTimer(time.Duration(r.IntN(5000)) * time.Millisecond)
	<-moment.C
	if err := m.h.PowerLoss(m.context()); err != nil {
		m.Fatal(err)
	}
	<-ended
	if err := m.h.BootAgain(m.context()); err != nil {
		m.Fatal(err)
	}
	var a answer
	for range 3 {
		if a = m.pass(rs...); a.State == mesh.GenerationApplied {
			break
		}
	}
	for _, res := range a.Results {
		if !res.Status.Good() {
			m.Errorf("%s is %s: %s\n%s", res.Resource, word(res), res.Detail, res.Output)
		}
	}
	m.wantVersions(want)
	for name, version := range want {
		if version == "" {
			continue
		}
		if got := m.sh("cat /usr/share/rows-%s/data", name); got+"-1" != version {
			m.Errorf("%s is there in version %s and its file holds %q", name, version, got)
		}
	}
	if again := m.pass(rs...); len(again.Commands) > 0 {
		m.Errorf("the pass after it ran %q", again.Commands)
	}
	if !m.rpm() {
		m.sh(`test -z "$(dpkg --audit)"`)
	}
}
