package file_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource/file"
	"golang.org/x/sys/unix"
)

func TestALinkInPlaceOfAFileIsLeftAlone(t *testing.T) {
	for _, content := range []string{"A", "something else"} {
		dir := t.TempDir()
		path, target := filepath.Join(dir, "my.cnf"), filepath.Join(dir, "other")
		if content != "" {
			put(t, target, content, 0o644)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		p := file.New(file.Config{})
		want := regular(path, "A")
		if d, err := p.Check(t.Context(), want); err != nil || d.Zero() {
			t.Errorf("Check of a link says %q, %v", d, err)
		}
		before := describe(t, path) + describe(t, target)
		_, err := p.Capture(t.Context(), want)
		wantError(t, err, mesh.StatusFailed, mesh.ReasonSymlink)
		wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonSymlink)
		if after := describe(t, path) + describe(t, target); after != before {
			t.Errorf("it was %s and is %s", before, after)
		}
	}
}

func TestADanglingLinkIsALinkAndNotNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), path); err != nil {
		t.Fatal(err)
	}
	wantError(t, apply(t, file.New(file.Config{}), regular(path, "A")), mesh.StatusFailed, mesh.ReasonSymlink)
	onlyNames(t, dir, "d")
}

func TestADirectoryThatAUserReplacedByALinkIsNotFollowed(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	home, secret := filepath.Join(dir, "home"), filepath.Join(dir, "secret")
	for _, d := range []string{home, secret} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(secret, "key"), "secret", 0o600)
	link := filepath.Join(home, ".fx")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	before := describe(t, filepath.Join(secret, "key")) + describe(t, secret)
	for _, owner := range []int{1234, 0} {
		// A link that belongs to root is none that root placed here: whoever owns
		// the directory can have moved it in.
		if err := os.Lchown(link, owner, owner); err != nil {
			t.Fatal(err)
		}
		p := file.New(file.Config{})
		want := regular(filepath.Join(link, "key"), "A")
		want.File.Owner = "1234"
		wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonSymlinkInPath)
		_, err := p.Check(t.Context(), want)
		wantError(t, err, mesh.StatusFailed, mesh.ReasonSymlinkInPath)
		_, err = p.Capture(t.Context(), absent(want.Name))
		wantError(t, err, mesh.StatusFailed, mesh.ReasonSymlinkInPath)
	}
	if after := describe(t, filepath.Join(secret, "key")) + describe(t, secret); after != before {
		t.Errorf("it was %s and is %s", before, after)
	}
}

func TestALinkOfTheSystemIsFollowed(t *testing.T) {
	needRoot(t)
	info, err := os.Lstat("/var/run")
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Fatalf("this test needs a /var/run that is a link, as on every distribution: %v", err)
	}
	name := "mesh-test-" + filepath.Base(t.TempDir())
	path := filepath.Join("/var/run", name)
	t.Cleanup(func() { _ = os.Remove(path) })
	manage(t, file.New(file.Config{}), regular(path, "A"))
	if got := describe(t, filepath.Join("/run", name)); !strings.Contains(got, `"A"`) {
		t.Errorf("through /var/run it is right, and in /run there is %s", got)
	}
}

func TestSomethingOfAnotherTypeIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(filepath.Join(full, "member"), 0o755); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain")
	put(t, plain, "A", 0o644)
	p := file.New(file.Config{})
	for _, want := range []mesh.Resource{regular(full, "A"), regular(pipe, "A"), directory(plain), symlink(plain, "x"), symlink(full, "x"), absent(pipe)} {
		before := describe(t, want.Name)
		if d, err := p.Check(t.Context(), want); err != nil || d.Zero() {
			t.Errorf("Check(%s) says %q, %v", want.Name, d, err)
		}
		_, err := p.Capture(t.Context(), want)
		wantError(t, err, mesh.StatusFailed, mesh.ReasonWrongType)
		wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonWrongType)
		if after := describe(t, want.Name); after != before {
			t.Errorf("%s was %s and is %s", want.Name, before, after)
		}
	}
	wantError(t, apply(t, p, absent(full)), mesh.StatusConflict, mesh.ReasonNotEmpty)
}

func TestParentsAreNotMade(t *testing.T) {
	dir := t.TempDir()
	p := file.New(file.Config{})
	want := regular(filepath.Join(dir, "a/b/t"), "A")
	if d, err := p.Check(t.Context(), want); err != nil || d.Zero() {
		t.Errorf("Check says %q, %v", d, err)
	}
	wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonParent)
	onlyNames(t, dir)
}

// Shows: M6
func TestADirectoryWithSomebodysFileStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	p := file.New(file.Config{})
	owned := manage(t, p, directory(path))
	put(t, filepath.Join(path, "theirs"), "x", 0o644)
	wantError(t, p.Remove(t.Context(), owned), mesh.StatusConflict, mesh.ReasonNotEmpty)
	onlyNames(t, path, "theirs")
}

// Shows: M6
func TestOnlyTheFileThatTheMeshMadeIsRemoved(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "twin"), "A", 0o644)
	p := file.New(file.Config{})
	owned := manage(t, p, regular(filepath.Join(dir, "ours"), "A"))
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	onlyNames(t, dir, "twin")
}

func TestAnOriginalThatDidNotTravelWithTheRecoveryCopyIsNotGuessed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	put(t, path, "original", 0o644)
	p := file.New(file.Config{})
	owned := manage(t, p, regular(path, "A"))
	owned.Undo, owned.Partial = nil, true
	wantError(t, p.Remove(t.Context(), owned), mesh.StatusFailed, mesh.ReasonUndo)
	if got := describe(t, path); !strings.Contains(got, `"A"`) {
		t.Errorf("there is now %s", got)
	}
}

// Shows: M5
func TestAWriteThatWasNeverReadBackIsStillOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	p := file.New(file.Config{})
	owned, err := p.Capture(t.Context(), regular(path, "A"))
	if err != nil {
		t.Fatal(err)
	}
	if err := apply(t, p, regular(path, "A")); err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(t.Context(), owned); err != nil {
		t.Errorf("after a crash before the read-back: %v", err)
	}
	if got := describe(t, path); got != "nothing" {
		t.Errorf("there is still %s", got)
	}
}

func TestAnAccountThatDoesNotExistChangesNothing(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "t")
	put(t, path, "B", 0o600)
	want := regular(path, "A")
	want.File.Owner = "ghost-of-nobody"
	before := describe(t, path)
	p := file.New(file.Config{})
	wantError(t, apply(t, p, want), mesh.StatusFailed, mesh.ReasonAccount)
	if after := describe(t, path); after != before {
		t.Errorf("it was %s and is %s", before, after)
	}
	onlyNames(t, dir, "t")

	p = file.New(file.Config{Getent: func(context.Context, string, string) (uint32, bool, error) { return 4321, true, nil }})
	manage(t, p, want)
}

func TestANameServiceThatDoesNotAnswerIsUnknownAndNotAbsent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t")
	put(t, path, "A", 0o644)
	want := regular(path, "A")
	want.File.Group = "from-the-directory"
	p := file.New(file.Config{Getent: func(context.Context, string, string) (uint32, bool, error) {
		return 0, false, errors.New("no answer")
	}})
	_, err := p.Check(t.Context(), want)
	wantError(t, err, mesh.StatusUnknown, mesh.ReasonAccount)
}

func TestAFileThatTheKernelWouldNotReplaceNamesTheCause(t *testing.T) {
	needRoot(t)
	t.Run("read-only file system", func(t *testing.T) {
		dir := mount(t, "tmpfs", "mesh-test", "size=64k")
		put(t, filepath.Join(dir, "t"), "A", 0o644)
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		wantError(t, apply(t, file.New(file.Config{}), regular(filepath.Join(dir, "t"), "B")), mesh.StatusFailed, mesh.ReasonReadOnly)
	})
	t.Run("full file system", func(t *testing.T) {
		dir := mount(t, "tmpfs", "mesh-test", "size=64k")
		put(t, filepath.Join(dir, "t"), "A", 0o644)
		wantError(t, apply(t, file.New(file.Config{}), regular(filepath.Join(dir, "t"), strings.Repeat("B", 1<<20))), mesh.StatusFailed, mesh.ReasonNoSpace)
		onlyNames(t, dir, "t")
		if got := describe(t, filepath.Join(dir, "t")); !strings.Contains(got, `"A"`) {
			t.Errorf("what stood there is now %s", got)
		}
	})
	t.Run("bind mount", func(t *testing.T) {
		dir := t.TempDir()
		path, source := filepath.Join(dir, "t"), filepath.Join(dir, "x")
		put(t, path, "below", 0o644)
		put(t, source, "A", 0o644)
		if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("bind mount: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
		wantError(t, apply(t, file.New(file.Config{}), regular(path, "B")), mesh.StatusFailed, mesh.ReasonMountPoint)
		onlyNames(t, dir, "t", "x")
		if got := describe(t, path); !strings.Contains(got, `"A"`) {
			t.Errorf("what stood there is now %s", got)
		}
	})
	t.Run("immutable", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "t")
		put(t, path, "A", 0o644)
		if out, err := exec.CommandContext(t.Context(), "chattr", "+i", path).CombinedOutput(); err != nil {
			t.Skipf("the file system of %s keeps no immutable flag: %v: %s", dir, err, out)
		}
		t.Cleanup(func() { _ = exec.CommandContext(context.Background(), "chattr", "-i", path).Run() })
		wantError(t, apply(t, file.New(file.Config{}), regular(path, "B")), mesh.StatusFailed, mesh.ReasonImmutable)
		wantError(t, apply(t, file.New(file.Config{}), absent(path)), mesh.StatusFailed, mesh.ReasonImmutable)
		onlyNames(t, dir, "t")
	})
}

func mount(t *testing.T, fstype, source, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(source, dir, fstype, 0, options); err != nil {
		t.Fatalf("mount a %s: %v", fstype, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
