package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the deb packager
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/meshctl/mesh/test/lab"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { lab.Main(m, "") }

// host returns a host that is up, booted once for all tests that ask for it.
func host(t *testing.T, name, flavour string) *lab.Host {
	t.Helper()
	h, err := lab.Shared(t).Ensure(lab.TestContext(t), name, flavour)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// must returns what a command said on a host, and fails the test otherwise.
func must(t *testing.T, h *lab.Host, script string) string {
	t.Helper()
	out, err := h.Sh(lab.TestContext(t), script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.Stdout)
}

func TestEveryUsualFlavourBootsAtOnceAndIsWhatItsNameSays(t *testing.T) {
	l, ctx := lab.Shared(t), lab.TestContext(t)
	names := map[string]string{"bookworm-apt": "web-1", "trixie-dnf": "rpm-1", "sid-dnf5": "rpm-2", "bullseye-apt": "old-1"}
	systemd := map[string]string{"bookworm-apt": "systemd 252", "trixie-dnf": "systemd 257", "sid-dnf5": "systemd 26", "bullseye-apt": "systemd 247"}
	manager := map[lab.Manager]string{
		lab.Apt:  "apt-get --version >/dev/null && ! command -v rpm",
		lab.Dnf:  "dnf --version >/dev/null && rpm -q mesh-lab-base",
		lab.Dnf5: "dnf5 --version >/dev/null && rpm -q mesh-lab-base",
	}
	var g errgroup.Group
	for flavour, name := range names {
		g.Go(func() error {
			_, err := l.Ensure(ctx, name, flavour)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for flavour, name := range names {
		h := l.Host(name)
		if got := must(t, h, "systemctl --version | head -n1"); !strings.HasPrefix(got, systemd[flavour]) {
			t.Errorf("%s runs %q, want %s", flavour, got, systemd[flavour])
		}
		must(t, h, manager[h.Flavour().Manager])
		if got := must(t, h, "hostname"); got != name {
			t.Errorf("%s calls itself %q, want %q", flavour, got, name)
		}
		// A transient unit over D-Bus, with sandboxing that needs mounts.
		must(t, h, "systemd-run --quiet --wait -p ProtectSystem=strict -p PrivateTmp=yes -p DynamicUser=yes true")
		if out, err := h.Run(ctx, "systemd-run", "--quiet", "--wait", "false"); err == nil {
			t.Errorf("%s: a unit that failed was reported as %+v", flavour, out)
		}
		must(t, h, "busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.DBus.Peer Ping")
	}
}

func TestEveryHostHasAMachineIDOfItsOwn(t *testing.T) {
	a := must(t, host(t, "web-1", "bookworm-apt"), "cat /etc/machine-id")
	b := must(t, host(t, "web-2", "bookworm-apt"), "cat /etc/machine-id")
	if a == b || len(a) != 32 {
		t.Errorf("machine ids are %q and %q, want two different ones", a, b)
	}
}

func TestExitStatusAndBothOutputsPassThrough(t *testing.T) {
	h := host(t, "web-1", "bookworm-apt")
	out, err := h.Sh(lab.TestContext(t), "echo said; echo grumbled >&2; exit 7")
	exit, ok := errors.AsType[*lab.ExitError](err)
	if !ok || exit.Output != out || out != (lab.Output{Stdout: "said\n", Stderr: "grumbled\n", Code: 7}) {
		t.Errorf("got %+v and error %v, want both lines, exit status 7 and an ExitError", out, err)
	}
}

func TestAFileWrittenOnAHostIsReadBackTheSame(t *testing.T) {
	h, ctx := host(t, "web-1", "bookworm-apt"), lab.TestContext(t)
	want := "line\x00with everything\n"
	if err := h.WriteFile(ctx, "/run/new dir/file", []byte(want), 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := h.ReadFile(ctx, "/run/new dir/file")
	if err != nil || string(got) != want {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
	if mode := must(t, h, "stat -c %a '/run/new dir/file'"); mode != "640" {
		t.Errorf("mode is %s, want 640", mode)
	}
	if _, err := h.ReadFile(ctx, "/run/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading an absent file: %v, want fs.ErrNotExist", err)
	}
}

func TestACommandWhoseContextEndsIsKilledWithAllThatItStarted(t *testing.T) {
	h := host(t, "web-1", "bookworm-apt")
	ctx, cancel := context.WithTimeout(lab.TestContext(t), 500*time.Millisecond)
	defer cancel()
	_, err := h.Sh(ctx, "sleep 4242 & sleep 4242")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want the context's", err)
	}
	if left := must(t, h, "ps -C sleep -o pid=,args= | grep 4242 || :"); left != "" {
		t.Errorf("processes are left: %s", left)
	}
}

// greet answers every connection in the lab's network with a line.
func greet(t *testing.T, l *lab.Lab, addr string) {
	t.Helper()
	ln, err := l.Listen(lab.TestContext(t), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "welcome")
			c.Close()
		}
	}()
}

func TestAHostThatIsCutOffReachesNobodyUntilItIsReconnected(t *testing.T) {
	l, ctx := lab.Shared(t), lab.TestContext(t)
	a, b := host(t, "web-1", "bookworm-apt"), host(t, "rpm-1", "trixie-dnf")
	greet(t, l, lab.Gateway+":8077")
	// reached tells whether a pings b and gets a line over TCP.
	reached := func() (ping, tcp bool) {
		_, err := a.Run(ctx, "ping", "-c1", "-W1", b.Addr())
		ping = err == nil
		out, _ := a.Run(ctx, "curl", "--silent", "--http0.9", "--max-time", "1", "http://"+lab.Gateway+":8077/")
		return ping, strings.Contains(out.Stdout, "welcome")
	}
	both := func(context.Context) (bool, string, error) {
		ping, tcp := reached()
		return ping && tcp, fmt.Sprintf("ping %v, tcp %v", ping, tcp), nil
	}
	eventually(t, "both to be reached before", both)
	if err := a.CutOff(ctx); err != nil {
		t.Fatal(err)
	}
	if ping, tcp := reached(); ping || tcp {
		t.Errorf("cut off: ping %v, tcp %v; want neither", ping, tcp)
	}
	if err := a.Reconnect(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both to be reached after the cable is plugged in", both)
}

func TestAHostHasNoRouteOutOfTheLab(t *testing.T) {
	h := host(t, "web-1", "bookworm-apt")
	if routes := must(t, h, "ip route show default; ip -6 route show default"); routes != "" {
		t.Errorf("default routes are %q, want none", routes)
	}
}

func TestTheMachineReachesAServiceOnAHost(t *testing.T) {
	l, ctx := lab.Shared(t), lab.TestContext(t)
	h := host(t, "web-1", "bookworm-apt")
	must(t, h, `printf '[Socket]\nListenStream=7070\nAccept=yes\n' >/run/systemd/system/hello.socket
printf '[Service]\nExecStart=/bin/echo hello\nStandardOutput=socket\n' >/run/systemd/system/hello@.service
systemctl daemon-reload; systemctl start hello.socket`)
	c, err := l.DialContext(ctx, "tcp", net.JoinHostPort(h.Addr(), "7070"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "hello\n" {
		t.Errorf("the service said %q (%v), want hello", line, err)
	}
}

func TestAfterAPowerLossAHostBootsWithWhatItHadSynced(t *testing.T) {
	for _, flavour := range []string{"bookworm-apt", "trixie-dnf"} {
		t.Run(flavour, func(t *testing.T) {
			ctx := lab.TestContext(t)
			h := host(t, map[string]string{"bookworm-apt": "web-1", "trixie-dnf": "rpm-1"}[flavour], flavour)
			before := must(t, h, "cat /proc/sys/kernel/random/boot_id")
			must(t, h, "echo kept >/var/lib/kept; sync /var/lib/kept; touch /run/lost; systemd-run --quiet sleep 1d")
			if err := h.PowerLoss(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Run(ctx, "true"); !errors.Is(err, lab.ErrOff) {
				t.Errorf("a host without power ran a command: %v", err)
			}
			if b, err := h.ReadFile(ctx, "/var/lib/kept"); string(b) != "kept\n" {
				t.Errorf("the disk of the dead host has %q, %v; want what was synced", b, err)
			}
			if err := h.BootAgain(ctx); err != nil {
				t.Fatal(err)
			}
			if got := must(t, h, "cat /var/lib/kept; ls /run/lost 2>/dev/null || echo gone"); got != "kept\ngone" {
				t.Errorf("after the boot: %q, want the synced file and an empty /run", got)
			}
			if after := must(t, h, "cat /proc/sys/kernel/random/boot_id"); after == before {
				t.Errorf("it did not boot again: the boot id is still %s", after)
			}
		})
	}
}

func TestAnOrderlyShutdownRunsStopCommands(t *testing.T) {
	ctx := lab.TestContext(t)
	h := host(t, "web-2", "bookworm-apt")
	must(t, h, `systemd-run --quiet -p ExecStop='/bin/sh -c "echo bye >/var/lib/bye"' -p RemainAfterExit=yes true`)
	if err := h.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if h.State() != lab.Off {
		t.Errorf("state is %s, want off", h.State())
	}
	if b, err := h.ReadFile(ctx, "/var/lib/bye"); string(b) != "bye\n" {
		t.Errorf("the unit left %q, %v; want its farewell", b, err)
	}
	if err := h.BootAgain(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if got := must(t, h, "ip -4 -o address show host0"); !strings.Contains(got, h.Addr()) {
		t.Errorf("after a reboot the address is %q, want %s", got, h.Addr())
	}
}

func TestTheJournalOfAUnitIsReadableWhileTheHostIsUpAndOff(t *testing.T) {
	ctx := lab.TestContext(t)
	h := host(t, "web-2", "bookworm-apt")
	must(t, h, "systemd-run --quiet --wait --unit=speaker echo a word for the journal; journalctl --sync")
	if text, err := h.Journal(ctx, "speaker"); !strings.Contains(text, "a word for the journal") {
		t.Errorf("up: the journal has %q, %v", text, err)
	}
	if err := h.PowerLoss(ctx); err != nil {
		t.Fatal(err)
	}
	if text, err := h.Journal(ctx, "speaker"); !strings.Contains(text, "a word for the journal") {
		t.Errorf("off: the journal has %q, %v", text, err)
	}
	if err := h.BootAgain(ctx); err != nil {
		t.Fatal(err)
	}
}

// Roots are layers: what package managers do there has to work as on a disk.
func TestInstalledAndRemovedPackagesAreAsLeftAfterAPowerLoss(t *testing.T) {
	for _, c := range []struct{ name, flavour, format, install, verify, remove, removed string }{
		{"deb", "bookworm-apt", "deb", "dpkg -i", "dpkg --verify probe", "dpkg -r iputils-ping", "! command -v ping"},
		{"rpm4", "trixie-dnf", "rpm", "rpm -i --nosignature", "rpm --verify probe", "rpm -e mesh-lab-base", "! rpm -q mesh-lab-base"},
		{"rpm6", "sid-dnf5", "rpm", "rpm -i --nosignature", "rpm --verify probe", "rpm -e mesh-lab-base", "! rpm -q mesh-lab-base"},
	} {
		t.Run(c.flavour, func(t *testing.T) {
			ctx := lab.TestContext(t)
			h := host(t, "pkg-"+c.name, c.flavour)
			if err := h.CopyIn(ctx, probe(t, c.format), "/root/probe"); err != nil {
				t.Fatal(err)
			}
			must(t, h, c.install+" /root/probe && "+c.remove)
			if err := h.PowerLoss(ctx); err != nil {
				t.Fatal(err)
			}
			if err := h.BootAgain(ctx); err != nil {
				t.Fatal(err)
			}
			if got := must(t, h, c.verify+"; cat /usr/lib/probe/file"); got != "probe" {
				t.Errorf("verifying said %q, want nothing but the file's content", got)
			}
			must(t, h, c.removed)
		})
	}
}

// probe builds a package that holds one file.
func probe(t *testing.T, format string) string {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "file"), filepath.Join(dir, "probe."+format)
	if err := os.WriteFile(source, []byte("probe\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		t.Fatal(err)
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "probe", Arch: "all", Platform: "linux", Version: "1.0.0", Maintainer: "The mesh lab <lab@invalid>", Description: "A probe",
		Overridables: nfpm.Overridables{Contents: files.Contents{{Source: source, Destination: "/usr/lib/probe/file"}}},
	})
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := packager.Package(info, f); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEvidenceOfAHostHoldsJournalUnitsAndFiles(t *testing.T) {
	ctx, dir := lab.TestContext(t), t.TempDir()
	h := host(t, "web-1", "bookworm-apt")
	must(t, h, "mkdir -p /var/lib/mesh-host /etc/mesh; echo store >/var/lib/mesh-host/store.db; echo name >/etc/mesh/host.yaml")
	if err := h.Collect(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"journal.txt", "console.txt", "units.txt", "files/var/lib/mesh-host/store.db", "files/etc/mesh/host.yaml"} {
		if info, err := os.Stat(filepath.Join(dir, "web-1", name)); err != nil || info.Size() == 0 {
			t.Errorf("evidence %s is missing or empty: %v", name, err)
		}
	}
}

func TestWaitingInVainSaysWhatWasLastSeen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := lab.WaitFor(ctx, "the tide", func(context.Context) (bool, string, error) { return false, "low water", nil })
	if err == nil || !strings.Contains(err.Error(), "the tide") || !strings.Contains(err.Error(), "low water") {
		t.Errorf("got %v, want what was waited for and what was seen", err)
	}
}

func TestAHostMovesOnlyBetweenStatesThatFollowEachOther(t *testing.T) {
	allowed := map[[2]lab.State]bool{
		{lab.Off, lab.Starting}: true, {lab.Starting, lab.Up}: true,
		{lab.Starting, lab.Off}: true, {lab.Up, lab.Off}: true,
	}
	all := []lab.State{lab.Off, lab.Starting, lab.Up}
	for _, from := range all {
		for _, to := range all {
			if _, err := from.Step(to); (err == nil) != allowed[[2]lab.State{from, to}] {
				t.Errorf("from %s to %s: %v", from, to, err)
			}
		}
	}
}

// runs reports whether a process of this machine has not ended; one that
// nobody has waited for yet has no program any more.
func runs(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// A lab that is killed is cleaned by the next one. The victim is this test
// binary again, in an instance of its own.
func TestALabWhoseProcessWasKilledIsCleanedByTheNextOne(t *testing.T) {
	if os.Getenv("MESH_LAB_VICTIM") != "" {
		h := host(t, "orphan", "bookworm-apt")
		fmt.Println("leader", h.Leader())
		<-t.Context().Done()
		return
	}
	lab.Shared(t) // for its root privileges and tools
	ctx := lab.TestContext(t)
	victim := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	victim.Env = append(os.Environ(), "MESH_LAB_VICTIM=1", "MESH_LAB_INSTANCE=victim")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	leader := 0
	for sc := bufio.NewScanner(out); leader == 0 && sc.Scan(); {
		fmt.Sscanf(sc.Text(), "leader %d", &leader)
	}
	if leader == 0 {
		t.Fatal("the victim booted nothing")
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	victim.Wait()
	if !runs(leader) {
		t.Fatal("the orphan died with its lab, so this test shows nothing")
	}

	t.Setenv("MESH_LAB_INSTANCE", "victim")
	next, err := lab.Open(ctx, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if runs(leader) {
		t.Error("the orphan still runs")
	}
	if hosts := next.Hosts(); len(hosts) != 0 {
		t.Errorf("the next lab begins with %d hosts, want none", len(hosts))
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), "mesh-lab-victim") {
		t.Errorf("mounts of the closed lab are left (%v)", err)
	}
}
