package file_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

// Shows: M4, M5
func TestAFileIsReplacedWholeAndWhatHangsOnItIsKeptOrNamed(t *testing.T) {
	rows(t, []row{
		{"O-021", func(t *testing.T, s *site) {
			s.put("t", "below", 0o644)
			s.put("x", "A", 0o644)
			s.put("removed", "below", 0o644)
			for _, name := range []string{"t", "removed"} {
				bind(t, s.path("x"), s.path(name))
			}
			same := s.untouched()
			s.declare(s.file("t", "B"), absent(s.path("removed")))
			same()
			s.says("t", mesh.StatusFailed, mesh.ReasonMountPoint)
			s.says("removed", mesh.StatusFailed, mesh.ReasonMountPoint)
			s.is("t", "A")
		}},
		{"O-022", func(t *testing.T, s *site) {
			s.put("t", "A", 0o644)
			s.put("mounted", "below", 0o644)
			bind(t, s.path("t"), s.path("mounted"))
			inside(t, s.path("t"), s.path("elsewhere"))
			s.declare(s.file("t", "B"))
			s.says("t", mesh.StatusChanged, "")
			s.notes("t", s.path("mounted"), s.path("elsewhere"), "process ")
			s.is("t", "B")
			s.is("mounted", "A")
		}},
		{"O-023", func(t *testing.T, s *site) {
			program, err := os.ReadFile("/bin/sleep")
			if err != nil {
				t.Fatal(err)
			}
			s.put("bin", string(program), 0o755)
			ctx, cancel := context.WithCancel(t.Context())
			cmd := exec.CommandContext(ctx, s.path("bin"), "60")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); _ = cmd.Wait() }()
			f := s.file("bin", "B")
			f.File.Mode = "0755"
			s.declare(f)
			s.says("bin", mesh.StatusChanged, "")
			s.is("bin", "B")
			if now, err := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/exe"); err != nil || !strings.Contains(now, "(deleted)") {
				t.Errorf("the program that ran has %q, %v", now, err)
			}
		}},
		{"O-024", func(t *testing.T, s *site) {
			s.put("t", "A", 0o644)
			if err := os.Link(s.path("t"), s.path("u")); err != nil {
				t.Fatal(err)
			}
			s.declare(s.file("t", "B"))
			s.says("t", mesh.StatusChanged, "")
			s.notes("t", "1 other names")
			s.is("t", "B")
			s.is("u", "A")
		}},
		{"O-025", func(t *testing.T, s *site) {
			s.put("t", "A", 0o640)
			run(t, "setfacl", "-m", "u:1234:r,g:2345:rw", s.path("t"))
			run(t, "setfattr", "-n", "user.note", "-v", "kept", s.path("t"))
			before := run(t, "getfacl", "-n", s.path("t")) + run(t, "getfattr", "-d", s.path("t"))
			s.declare(s.open("t", "B"))
			s.says("t", mesh.StatusChanged, "")
			s.is("t", "B")
			if after := run(t, "getfacl", "-n", s.path("t")) + run(t, "getfattr", "-d", s.path("t")); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
		}},
		{"O-026", func(t *testing.T, s *site) {
			s.mkdir("d", 0o755)
			run(t, "setfacl", "-d", "-m", "u:1234:rwx", s.path("d"))
			plain, secret := s.file("d/plain", "A"), s.file("d/secret", "A")
			secret.File.Mode = "0600"
			s.declare(plain, secret)
			s.says("d/plain", mesh.StatusChanged, "")
			s.standsAs("d/plain", "-rw-r--r-- 0:0")
			if acl := run(t, "getfacl", "-cpn", s.path("d/plain")); !strings.Contains(acl, "user:1234:rwx") || !strings.Contains(acl, "mask::r--") {
				t.Errorf("the list of the directory is not inherited within the mode:\n%s", acl)
			}
			s.standsAs("d/secret", "-rw------- 0:0")
			if acl := run(t, "getfacl", "-cpn", s.path("d/secret")); !strings.Contains(acl, "mask::---") {
				t.Errorf("the list of the directory lets others at what the mode forbids:\n%s", acl)
			}
		}},
		{"O-028", func(t *testing.T, s *site) {
			label, asked := "system_u:object_r:one_t:s0", []string{}
			s.cfg.Label = func(_ context.Context, _, class, _ string) (string, error) {
				asked = append(asked, class)
				return label, nil
			}
			s.restart()
			s.declare(s.file("t", "A"), directory(s.path("d")))
			labelled := func(name string) string {
				return strings.TrimRight(string(attribute(t, s.path(name), "security.selinux")), "\x00")
			}
			if labelled("t") != label || labelled("d") != label || strings.Join(asked, " ") != "file dir" {
				t.Errorf("asked for %q, labelled %q and %q", asked, labelled("t"), labelled("d"))
			}
			s.settled()
			label = "system_u:object_r:two_t:s0"
			s.declare(s.file("t", "B"), directory(s.path("d")))
			s.says("t", mesh.StatusChanged, "")
			if labelled("t") != label {
				t.Errorf("the policy says %q now, and the file has %q", label, labelled("t"))
			}
			label = ""
			s.declare(s.file("t", "C"), directory(s.path("d")))
			if labelled("t") != "system_u:object_r:two_t:s0" {
				t.Errorf("the policy has no word on it, and the file has %q", labelled("t"))
			}
		}},
		{"O-029", func(t *testing.T, s *site) {
			disk := newDisk(t)
			put(t, filepath.Join(disk.dir, "t"), "old", 0o644)
			put(t, filepath.Join(disk.dir, "half"), "old", 0o644)
			unix.Sync()
			want := regular(filepath.Join(disk.dir, "half"), strings.Repeat("new", 1000))
			want.File.Content = nil
			source := &slowly{halves: [2]string{strings.Repeat("new", 500), strings.Repeat("new", 500)}, look: func() {
				if got := disk.afterPowerCut(t, "half"); got != "old" {
					t.Errorf("cut off in the middle, there is %.20q", got)
				}
			}}
			p := file.New(file.Config{Content: oneBlob{source}})
			for _, r := range []mesh.Resource{regular(filepath.Join(disk.dir, "t"), "new"), want, regular(filepath.Join(disk.dir, "made"), "new")} {
				if err := p.Apply(t.Context(), r, resource.Diff{}); err != nil {
					t.Fatal(err)
				}
				got := disk.afterPowerCut(t, filepath.Base(r.Name))
				if len(got) != int(r.File.Size) || !strings.HasPrefix(got, "new") {
					t.Errorf("%s was said to be written, and after a power cut there is %.20q", r.Name, got)
				}
			}
			if err := p.Apply(t.Context(), absent(filepath.Join(disk.dir, "t")), resource.Diff{}); err != nil {
				t.Fatal(err)
			}
			if got := disk.afterPowerCut(t, "t"); got != "(nothing)" {
				t.Errorf("it was said to be removed, and after a power cut there is %q", got)
			}
		}},
		{"O-030", func(t *testing.T, s *site) {
			s.put("t", "old", 0o644)
			f := s.file("t", "01234567890123456789")
			f.File.Content = nil
			// A disk that alters what was written a moment ago.
			spoil := func() {
				temps, err := filepath.Glob(s.path(".t.mesh-*"))
				if err != nil || len(temps) != 1 {
					t.Fatalf("the temporaries are %q, %v", temps, err)
				}
				w, err := os.OpenFile(temps[0], os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				if _, err := w.WriteAt([]byte("XX"), 2); err != nil {
					t.Fatal(err)
				}
			}
			s.cfg.Content = spoiled{halves: [2]string{"0123456789", "0123456789"}, look: spoil}
			s.restart()
			s.declare(f)
			s.says("t", mesh.StatusFailed, mesh.ReasonReadBack)
			s.notes("t", f.File.SHA256, sumOf("01XX4567890123456789"))
			s.is("t", "old")
			s.cfg.Content = blobs{f.File.SHA256: "01234567890123456789"}
			s.restart()
			s.drift()
			s.says("t", mesh.StatusChanged, "")
		}},
		{"O-032", func(t *testing.T, s *site) {
			const size = 512 << 20
			peak := inChild(t, "write", s.path("big"), strconv.Itoa(size))
			if kib, err := strconv.Atoi(peak); err != nil || kib > 100<<10 {
				t.Errorf("writing and checking %d bytes took %s KiB of memory at most", size, peak)
			}
			if info, err := os.Stat(s.path("big")); err != nil || info.Size() != size {
				t.Errorf("there is %v, %v", info, err)
			}
		}},
		{"O-033", func(_ *testing.T, s *site) {
			s.declare(s.file("t", "A"))
			if err := os.Truncate(s.path("t"), 50<<30); err != nil {
				s.t.Fatal(err)
			}
			peak := inChild(s.t, "check", s.path("t"), "1")
			if kib, err := strconv.Atoi(peak); err != nil || kib > 100<<10 {
				s.t.Errorf("looking took %s KiB of memory at most", peak)
			}
			s.drift()
			s.drifted("size 53687091200")
			s.says("t", mesh.StatusChanged, "")
			s.is("t", "A")
			// One that was never ours is not swallowed either.
			s.put("theirs", "", 0o644)
			if err := os.Truncate(s.path("theirs"), 50<<30); err != nil {
				s.t.Fatal(err)
			}
			same := s.untouched()
			s.declare(s.file("t", "A"), s.file("theirs", "A"))
			same()
			s.says("theirs", mesh.StatusFailed, mesh.ReasonTooLarge)
		}},
	})
}

// spoiled hands out content in two halves, with an accident between them, every
// time.
type spoiled slowly

func (s spoiled) Open(string) (io.ReadCloser, error) {
	again := slowly(s)
	return oneBlob{&again}.Open("")
}

func bind(t *testing.T, source, target string) {
	t.Helper()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("bind mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// inside mounts a file in a mount namespace of its own, as a container does.
func inside(t *testing.T, source, target string) {
	t.Helper()
	put(t, target, "below", 0o644)
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && echo ready && exec sleep 60`, "sh", source, target)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the namespace says %q, %v", line, err)
	}
}

// disk is an ext4 of its own whose power can be cut.
type disk struct{ image, dir string }

func newDisk(t *testing.T) disk {
	t.Helper()
	d := disk{image: filepath.Join(t.TempDir(), "disk"), dir: t.TempDir()}
	run(t, "truncate", "-s", "64M", d.image)
	run(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image)
	run(t, "mount", "-o", "loop", d.image, d.dir)
	t.Cleanup(func() { run(t, "umount", d.dir) })
	return d
}

// afterPowerCut returns what a file holds when the machine comes up again with
// what has reached the disk by now.
func (d disk) afterPowerCut(t *testing.T, name string) string {
	t.Helper()
	copied, dir := filepath.Join(t.TempDir(), "copy"), t.TempDir()
	data, err := os.ReadFile(d.image)
	if err == nil {
		err = os.WriteFile(copied, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-o", "loop", copied, dir)
	defer run(t, "umount", dir)
	got, err := os.ReadFile(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return "(nothing)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

const envChild = "MESH_TEST_FILE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		if err := child(os.Args[1:], os.Stdout); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// inChild works on a file in a process of its own, and returns the most memory
// that it had, in KiB.
func inChild(t *testing.T, what, path, size string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], what, path, size)
	cmd.Env = append(os.Environ(), envChild+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", what, path, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}
