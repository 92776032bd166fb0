package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// CacheDir is where roots and the disks of running hosts are kept:
// $MESH_LAB_CACHE, else /var/cache/mesh-lab.
func CacheDir() string {
	if dir := os.Getenv("MESH_LAB_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/mesh-lab"
}

// EnsureRoots makes sure of the roots of all these flavours, two at a time.
func EnsureRoots(ctx context.Context, log io.Writer, list ...Flavour) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, f := range list {
		g.Go(func() error {
			_, err := EnsureRoot(ctx, log, f)
			return err
		})
	}
	return g.Wait()
}

// EnsureRoot returns the directory of the flavour's root, building it with
// mmdebstrap when the cache has none made by this recipe. A root appears in
// the cache by one rename, so it is whole or absent. Nobody may write into
// the returned directory: hosts are layers over it.
func EnsureRoot(ctx context.Context, log io.Writer, f Flavour) (string, error) {
	roots := filepath.Join(CacheDir(), "roots")
	dir := filepath.Join(roots, f.key())
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(roots, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	unlock, err := lockFile(ctx, log, filepath.Join(roots, f.Name+".lock"), "another process builds the root "+f.Name)
	if err != nil {
		return "", fmt.Errorf("lock root %s: %w", f.Name, err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	aside := dir + ".building"
	if err := os.RemoveAll(aside); err != nil {
		return "", fmt.Errorf("clear an unfinished root: %w", err)
	}
	say(log, "building root %s (one to two minutes, once)", f.Name)
	began := time.Now()
	if err := buildRoot(ctx, f, aside); err != nil {
		return "", fmt.Errorf("build root %s: %w", f.Name, err)
	}
	if err := os.Rename(aside, dir); err != nil {
		return "", fmt.Errorf("put root %s into the cache: %w", f.Name, err)
	}
	say(log, "root %s is ready after %s", f.Name, time.Since(began).Round(time.Second))
	return dir, nil
}

// buildRoot fills dir with a finished root.
func buildRoot(ctx context.Context, f Flavour, dir string) error {
	site, err := mirror(ctx)
	if err != nil {
		return err
	}
	settings, err := aptSettings(ctx)
	if err != nil {
		return err
	}
	if f.Suite == "sid" {
		// sid's Release is past its date at times.
		settings = append(settings, `Acquire::Check-Valid-Until "false";`)
	}
	settings = append(settings, `Acquire::Languages "none";`, `APT::Install-Recommends "false";`)
	argv := []string{
		"--quiet", "--mode=root", "--variant=apt", "--format=directory",
		"--include=" + strings.Join(f.packages(), ","),
		// Only while it is built: losing power then loses nothing.
		"--dpkgopt=force-unsafe-io",
	}
	for _, s := range settings {
		argv = append(argv, "--aptopt="+s)
	}
	for _, pattern := range excluded {
		argv = append(argv, "--dpkgopt=path-exclude="+pattern)
	}
	argv = append(argv, f.Suite, dir, fmt.Sprintf("deb %s %s main", site, f.Suite))
	if err := runQuiet(exec.CommandContext(ctx, "mmdebstrap", argv...)); err != nil {
		return err
	}
	if err := finishRoot(dir); err != nil {
		return fmt.Errorf("finish the root: %w", err)
	}
	if f.RPM() {
		if err := finishRPM(ctx, dir, f.Manager); err != nil {
			return fmt.Errorf("prepare rpm: %w", err)
		}
	}
	return nil
}

// finishRoot removes the traces of the bootstrap and puts the lab's files in.
func finishRoot(dir string) error {
	for _, pattern := range []string{
		"etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
		"etc/apt/sources.list.d/*", "etc/hostname", "etc/resolv.conf", "etc/machine-id",
		"var/lib/apt/lists/*_*", "var/cache/apt/*.bin", "var/cache/apt/archives/*.deb",
		"var/cache/debconf/*-old", "var/cache/ldconfig/*", "var/lib/dpkg/*-old",
		"var/lib/dbus/machine-id", "var/log/*.log", "var/log/apt/*", "tmp/*", "var/tmp/*",
	} {
		matches, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, m := range matches {
			if err := os.RemoveAll(m); err != nil {
				return err
			}
		}
	}
	for _, f := range rootFiles {
		if err := f.write(dir); err != nil {
			return err
		}
	}
	units := filepath.Join(dir, "etc/systemd/system")
	for _, unit := range masked {
		if err := relink("/dev/null", filepath.Join(units, unit)); err != nil {
			return err
		}
	}
	for _, e := range enabled {
		wants := filepath.Join(units, e[0]+".wants")
		if err := os.MkdirAll(wants, 0o755); err != nil {
			return err
		}
		if err := relink("/etc/systemd/system/"+e[1], filepath.Join(wants, e[1])); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(dir, "var/log/journal"), 0o755)
}

// finishRPM gives a root an rpm database in the usual place, with
// mesh-lab-base in it.
func finishRPM(ctx context.Context, dir string, manager Manager) error {
	for _, f := range rpmFiles {
		if err := f.write(dir); err != nil {
			return err
		}
	}
	repos := "etc/yum.repos.d"
	if manager == Zypper {
		repos = "etc/zypp/repos.d"
	}
	if err := os.MkdirAll(filepath.Join(dir, repos), 0o755); err != nil {
		return err
	}
	for _, l := range rpmLinks {
		if manager == Zypper {
			break // there is no dnf for it to be a name of
		}
		// Debian's dnf4 package brings the name itself.
		if _, err := os.Lstat(filepath.Join(dir, l.path)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := relink(l.target, filepath.Join(dir, l.path)); err != nil {
			return err
		}
	}
	out, err := inRoot(ctx, dir, "dpkg-query", "-W", "-f", "${source:Upstream-Version}", "systemd").Output()
	if err != nil {
		return fmt.Errorf("ask for the version of systemd: %w", err)
	}
	path, err := writeBaseRPM(dir, strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	defer os.Remove(path)
	if err := runQuiet(inRoot(ctx, dir, "rpm", "--initdb")); err != nil {
		return fmt.Errorf("make the rpm database: %w", err)
	}
	// Unsigned, and known to be: it was built a moment ago in this process.
	if err := runQuiet(inRoot(ctx, dir, "rpm", "--install", "--nosignature", "/"+filepath.Base(path))); err != nil {
		return fmt.Errorf("install mesh-lab-base: %w", err)
	}
	if err := runQuiet(inRoot(ctx, dir, "rpm", "--query", "--whatprovides", "/bin/sh")); err != nil {
		return fmt.Errorf("read mesh-lab-base back: %w", err)
	}
	return nil
}

// inRoot is a command that runs in a root that is not booted, with a /proc.
func inRoot(ctx context.Context, dir string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{
		"--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc=" + filepath.Join(dir, "proc"),
		"chroot", dir}, argv...)...)
	cmd.Env = hostEnv
	return cmd
}

// write puts the file into the root that is at dir.
func (f rootFile) write(dir string) error {
	path := filepath.Join(dir, f.path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, []byte(f.content), fs.FileMode(f.mode)); err != nil {
		return err
	}
	return os.Chmod(path, fs.FileMode(f.mode))
}

// relink makes path a symbolic link to target, whatever was there.
func relink(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// lockFile takes an exclusive lock that ends with the process, waiting for
// as long as ctx allows. waiting says why one waits.
func lockFile(ctx context.Context, log io.Writer, path, waiting string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	said := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		if !said {
			say(log, "waiting: %s", waiting)
			said = true
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", waiting, err)
		}
	}
}

// pause waits, or returns early with the context's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
