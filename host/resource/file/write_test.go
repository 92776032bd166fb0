package file_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

func apply(t *testing.T, p *file.Provider, want mesh.Resource) error {
	t.Helper()
	return p.Apply(t.Context(), want, resource.Diff{})
}

func TestContentIsExactlyTheBytesThatWereDeclared(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, content := range []string{"", "\n", "x", "x\n", "x\n\n", "a\r\nb\r\n", "a\x00b", "\xf5", string(all)} {
		path := filepath.Join(t.TempDir(), "naïve-файл")
		if err := apply(t, file.New(file.Config{}), regular(path, content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("declared %.20q, on disk %.20q, %v", content, got, err)
		}
	}
}

func TestContentThatIsNotInlineComesFromTheBlobAndIsVerified(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "big")
	put(t, path, "old", 0o644)
	want := regular(path, "the declared content")
	want.File.Content = nil

	t.Run("not arrived", func(t *testing.T) {
		wantError(t, apply(t, file.New(file.Config{Content: blobs{}}), want), mesh.StatusDeferred, mesh.ReasonContent)
	})
	for name, lie := range map[string]string{"altered": "the declared contenT", "cut": "the declared", "longer": "the declared content and more"} {
		t.Run(name, func(t *testing.T) {
			p := file.New(file.Config{Content: blobs{want.File.SHA256: lie}})
			wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonContent)
			if got := describe(t, path); !strings.Contains(got, `"old"`) {
				t.Errorf("the old content is gone: %s", got)
			}
			onlyNames(t, dir, "big")
		})
	}
	t.Run("whole", func(t *testing.T) {
		manage(t, file.New(file.Config{Content: blobs{want.File.SHA256: "the declared content"}}), want)
	})
}

func TestANewerModeOfAFileWhoseContentIsGoneFromTheBlobsStillWorks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	want := regular(path, "content")
	put(t, path, "content", 0o600)
	want.File.Content = nil
	manage(t, file.New(file.Config{Content: blobs{}}), want)
}

func TestOwnerAndModeAreRightAfterOneApply(t *testing.T) {
	needRoot(t)
	for _, mode := range []string{"0600", "644", "4755", "2750", "1777", "0000"} {
		path := filepath.Join(t.TempDir(), "f")
		put(t, path, "content", 0o755)
		if err := os.Chown(path, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		want := regular(path, "content")
		want.File.Mode, want.File.Owner, want.File.Group = mode, "0", "2345"
		manage(t, file.New(file.Config{}), want)
	}
}

func TestTheUmaskDoesNotMatter(t *testing.T) {
	for _, mask := range []int{0, 0o077} {
		old := unix.Umask(mask)
		dir := t.TempDir()
		manage(t, file.New(file.Config{}), regular(filepath.Join(dir, "f"), "x"))
		manage(t, file.New(file.Config{}), directory(filepath.Join(dir, "d")))
		unix.Umask(old)
	}
}

// slowly calls look between two halves of the content.
type slowly struct {
	halves [2]string
	look   func()
	at     int
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.at == len(s.halves) {
		return 0, io.EOF
	}
	if s.at == 1 {
		s.look()
	}
	s.at++
	return copy(p, s.halves[s.at-1]), nil
}

func (s *slowly) Close() error { return nil }

type oneBlob struct{ r io.ReadCloser }

func (o oneBlob) Open(string) (io.ReadCloser, error) { return o.r, nil }

func TestASecretIsNeverReadableByOthersWhileItIsWritten(t *testing.T) {
	needRoot(t)
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "env")
	put(t, path, "public", 0o644)
	if out, err := exec.CommandContext(t.Context(), "setfacl", "-d", "-m", "u:1234:rwx", dir).CombinedOutput(); err != nil && !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("setfacl: %v: %s", err, out)
	}
	want := regular(path, "SECRET")
	want.File.Content, want.File.Mode = nil, "0600"
	looked := 0
	source := &slowly{halves: [2]string{"SEC", "RET"}, look: func() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			if e.Name() != "env" && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("while it is written, %s has mode %s", e.Name(), info.Mode())
			}
			looked++
		}
	}}
	manage(t, file.New(file.Config{Content: oneBlob{source}}), want)
	if looked != 2 {
		t.Errorf("looked at %d names while writing, want the old file and one temporary", looked)
	}
}

func TestAnotherNameOfAReplacedFileKeepsItsContent(t *testing.T) {
	dir := t.TempDir()
	path, second := filepath.Join(dir, "t"), filepath.Join(dir, "u")
	put(t, path, "A", 0o644)
	if err := os.Link(path, second); err != nil {
		t.Fatal(err)
	}
	manage(t, file.New(file.Config{}), regular(path, "B"))
	if got, _ := os.ReadFile(second); string(got) != "A" {
		t.Errorf("the other name now holds %q", got)
	}
}

// acl makes an access list in the kernel's form that lets one user more read.
func acl(user uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 6, ^uint32(0)}, {0x02, 4, user}, {0x04, 4, ^uint32(0)}, {0x10, 4, ^uint32(0)}, {0x20, 4, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

func attribute(t *testing.T, path, name string) []byte {
	t.Helper()
	value := make([]byte, 4096)
	n, err := unix.Lgetxattr(path, name, value)
	if errors.Is(err, unix.ENODATA) {
		return nil
	}
	if err != nil {
		t.Fatalf("read %s of %s: %v", name, path, err)
	}
	return value[:n]
}

func TestAccessListAndAttributesOfAReplacedFileAreKept(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "t")
	put(t, path, "A", 0o644)
	for name, value := range map[string][]byte{"system.posix_acl_access": acl(1234), "user.note": []byte("kept")} {
		if err := unix.Setxattr(path, name, value, 0); err != nil {
			t.Fatalf("this file system keeps no %s: %v", name, err)
		}
	}
	p := file.New(file.Config{})
	owned := manage(t, p, regular(path, "B"))
	if !bytes.Equal(attribute(t, path, "system.posix_acl_access"), acl(1234)) || string(attribute(t, path, "user.note")) != "kept" {
		t.Error("after replacing the content the access list or attribute is another one")
	}
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(attribute(t, path, "system.posix_acl_access"), acl(1234)) || string(attribute(t, path, "user.note")) != "kept" {
		t.Error("after putting the original back the access list or attribute is another one")
	}
}

func TestCapabilitiesDoNotPassToOtherContent(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "t")
	put(t, path, "A", 0o755)
	// Version 2, cap_net_raw, effective.
	capability := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(path, "security.capability", capability, 0); err != nil {
		t.Fatalf("this file system keeps no capabilities: %v", err)
	}
	p := file.New(file.Config{})
	owned := manage(t, p, regular(path, "B"))
	if attribute(t, path, "security.capability") != nil {
		t.Error("the new content inherited the capability of the old")
	}
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(attribute(t, path, "security.capability"), capability) {
		t.Error("the original came back without its capability")
	}
}

// Shows: M5
func TestTemporariesOfACrashAreClearedAwayAndOtherFilesAreNot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t")
	put(t, filepath.Join(dir, ".t.mesh-0123456789ab"), "half", 0o600)
	put(t, filepath.Join(dir, ".t.mesh-notours"), "somebody's", 0o600)
	put(t, filepath.Join(dir, ".tt.mesh-0123456789ab"), "another file's", 0o600)
	manage(t, file.New(file.Config{}), regular(path, "A"))
	onlyNames(t, dir, ".t.mesh-notours", ".tt.mesh-0123456789ab", "t")
}

func TestALongNameHasRoomForItsTemporary(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("n", 255)
	manage(t, file.New(file.Config{}), regular(filepath.Join(dir, name), "A"))
	onlyNames(t, dir, name)
}

func TestARunningProgramCanBeReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sleeper")
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	put(t, path, string(program), 0o755)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, path, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	want := regular(path, "B")
	want.File.Mode = "0755"
	manage(t, file.New(file.Config{}), want)
}

func TestWhatAppearsWhileWritingIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t")
	want := regular(path, "AB")
	want.File.Content = nil
	source := &slowly{halves: [2]string{"A", "B"}, look: func() { put(t, path, "somebody's", 0o600) }}
	err := apply(t, file.New(file.Config{Content: oneBlob{source}}), want)
	wantError(t, err, mesh.StatusConflict, mesh.ReasonSomebodyElse)
	if got, _ := os.ReadFile(path); string(got) != "somebody's" {
		t.Errorf("somebody's file now holds %q", got)
	}
	onlyNames(t, dir, "t")
}

func TestAnOriginalThatIsTooLargeToKeepIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	put(t, path, "", 0o644)
	if err := os.Truncate(path, file.OriginalLimit+1); err != nil {
		t.Fatal(err)
	}
	_, err := file.New(file.Config{}).Capture(t.Context(), regular(path, "B"))
	wantError(t, err, mesh.StatusFailed, mesh.ReasonTooLarge)
}

func TestAFileOfAnotherSizeIsNotReadToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	put(t, path, "", 0o644)
	if err := os.Truncate(path, 50<<30); err != nil {
		t.Fatal(err)
	}
	d, err := file.New(file.Config{}).Check(t.Context(), regular(path, "B"))
	if err != nil || len(d.Fields) != 1 || d.Fields[0].Name != "size" {
		t.Errorf("Check says %q, %v; want a difference in size", d, err)
	}
}

func TestANewTimestampAloneIsNoDifference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	want := regular(path, "A")
	manage(t, file.New(file.Config{}), want)
	if out, err := exec.CommandContext(t.Context(), "touch", "-d", "tomorrow", path).CombinedOutput(); err != nil {
		t.Fatalf("touch: %v: %s", err, out)
	}
	if d, err := file.New(file.Config{}).Check(t.Context(), want); err != nil || !d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
}

func TestContentOfASensitiveFileIsNotNamedByItsDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	put(t, path, "PASSWORD1", 0o644)
	want := regular(path, "PASSWORD2")
	want.File.Sensitive = true
	d, err := file.New(file.Config{}).Check(t.Context(), want)
	if err != nil || d.Zero() || strings.Contains(d.String(), sumOf("PASSWORD1")) || strings.Contains(d.String(), sumOf("PASSWORD2")) {
		t.Errorf("Check says %q, %v", d, err)
	}
}

// run runs a tool that must succeed, and returns what it wrote.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}
