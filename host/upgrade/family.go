package upgrade

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/mesh/host/resource/pkg"
)

// Family is the kind of package that this machine is made of.
type Family string

// The families.
const (
	Deb Family = "deb"
	RPM Family = "rpm"
)

// name of the package that this program belongs to.
const name = "mesh-host"

const (
	askTimeout      = 2 * time.Minute
	downloadTimeout = 10 * time.Minute
	restoreTimeout  = 30 * time.Minute
	// outputLimit bounds what a tool that is asked may say, in bytes.
	outputLimit = 8 << 20
)

// environment of every tool.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "LC_ALL=C", "LANG=C", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "NEEDRESTART_MODE=l",
}

// ask runs a tool that only looks, or that only fetches into dir.
func ask(ctx context.Context, limit time.Duration, dir string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, environment
	var out, errs bounded
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		if said == "" {
			said = strings.TrimSpace(out.String())
		}
		return out.String(), fmt.Errorf("%s: %w: %s", argv[0], err, pkg.LastLines(said, 5))
	}
	return out.String(), nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if room := outputLimit - b.Len(); room > 0 {
		b.Builder.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// versionOf reads name and version out of a package file.
func (f Family) versionOf(ctx context.Context, path string) (string, error) {
	argv := []string{"dpkg-deb", "--show", "--showformat=${Package}\t${Version}", path}
	if f == RPM {
		argv = []string{"rpm", "-qp", "--nosignature", "--qf", "%{NAME}\t%{VERSION}-%{RELEASE}", path}
	}
	out, err := ask(ctx, askTimeout, "/", argv...)
	if err != nil {
		return "", fmt.Errorf("read the package file: %w", err)
	}
	have, version, found := strings.Cut(strings.TrimSpace(out), "\t")
	if !found || have != name {
		return "", fmt.Errorf("read the package file: it says %q, and a package named %s is wanted", strings.TrimSpace(out), name)
	}
	return version, nil
}

// compared reports whether the file of the package must be the same on disk:
// what runs, not what is read by people and may be left out by the admin.
func compared(path string) bool {
	return path == "/usr/bin/"+name || strings.HasPrefix(path, "/usr/lib/"+name+"/") || strings.HasPrefix(path, "/usr/lib/systemd/system/")
}

// sums returns the SHA-256 of each file of a package file that is compared.
func (f Family) sums(ctx context.Context, path string) (map[string]string, error) {
	if f == RPM {
		return rpmSums(ctx, path)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", path)
	cmd.Env = environment
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("read the package file: %w", err)
	}
	sums, err := tarSums(out)
	if err != nil {
		cancel()
	}
	if waited := cmd.Wait(); err == nil {
		err = waited
	}
	if err != nil {
		return nil, fmt.Errorf("read the package file: %w", err)
	}
	return sums, nil
}

func tarSums(r io.Reader) (map[string]string, error) {
	sums := make(map[string]string)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// What follows the end is padding, and is read so that the tool ends well.
			_, err := io.Copy(io.Discard, r)
			return sums, err
		}
		if err != nil {
			return nil, err
		}
		path := "/" + strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Typeflag != tar.TypeReg || !compared(path) {
			continue
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, tr); err != nil {
			return nil, err
		}
		sums[path] = hex.EncodeToString(sum.Sum(nil))
	}
}

func rpmSums(ctx context.Context, path string) (map[string]string, error) {
	out, err := ask(ctx, askTimeout, "/", "rpm", "-qp", "--nosignature", "--dump", path)
	if err != nil {
		return nil, fmt.Errorf("read the package file: %w", err)
	}
	sums := make(map[string]string)
	for line := range strings.Lines(out) {
		// path size mtime digest mode owner group isconfig isdoc rdev symlink
		fields := strings.Fields(line)
		if len(fields) >= 5 && compared(fields[0]) && len(fields[3]) == sha256.Size*2 && strings.HasPrefix(fields[4], "0100") {
			sums[fields[0]] = fields[3]
		}
	}
	return sums, nil
}

// differs is what sameAsInstalled found; its other errors say that it could not
// look.
type differs struct{ what string }

func (e *differs) Error() string { return e.what }

// sameAsInstalled compares what a package file holds with what is on disk.
func (f Family) sameAsInstalled(ctx context.Context, path, root string) error {
	sums, err := f.sums(ctx, path)
	if err != nil {
		return err
	}
	if sums["/usr/bin/"+name] == "" {
		return &differs{"the package file holds no program /usr/bin/" + name}
	}
	for file, want := range sums {
		have, err := fileSum(filepath.Join(root, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compare with what is installed: %w", err)
		}
		if have != want {
			return &differs{file + " on this machine is not the one of the package"}
		}
	}
	return nil
}

// changedFiles asks the package database which files are not as it holds them.
func (f Family) changedFiles(ctx context.Context) (string, error) {
	argv := []string{"dpkg", "--verify", name}
	if f == RPM {
		argv = []string{"rpm", "-V", "--nodeps", "--noscripts", name}
	}
	// Both end with an error when something differs.
	out, err := ask(ctx, askTimeout, "/", argv...)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", fmt.Errorf("compare with the package database: %w", err)
	}
	var changed []string
	named := 0
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[len(fields)-1], "/") {
			continue
		}
		named++
		if compared(fields[len(fields)-1]) {
			changed = append(changed, fields[len(fields)-1])
		}
	}
	if err != nil && named == 0 {
		return "", fmt.Errorf("compare with the package database: it names no file that differs: %w", err)
	}
	return strings.Join(changed, ", "), nil
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// restore is the command that installs a package file over whatever is there,
// lower or higher, once or twice: the same as the rollback script's.
func (f Family) restore(path string) pkg.Command {
	argv := []string{"/usr/bin/dpkg", "--force-confold", "--force-confdef", "--force-downgrade", "-i", path}
	if f == RPM {
		argv = []string{"/usr/bin/rpm", "-U", "--oldpackage", "--replacepkgs", "--replacefiles", "--nodeps", path}
	}
	return pkg.Command{Name: "put " + name + " back", Argv: argv, Env: environment, Timeout: restoreTimeout}
}

// cached lists package files that the package manager may have kept.
func (f Family) cached() []string {
	patterns := []string{"/var/cache/apt/archives/" + name + "_*.deb"}
	if f == RPM {
		patterns = []string{"/var/cache/dnf/*/packages/" + name + "-*.rpm", "/var/cache/libdnf5/*/packages/" + name + "-*.rpm"}
	}
	var found []string
	for _, p := range patterns {
		matches, err := filepath.Glob(p)
		if err == nil {
			found = append(found, matches...)
		}
	}
	return found
}

// download fetches exactly this version from the repositories into the empty
// directory dir, with the package manager, which verifies it as it always does.
// Installed says that the version is the one installed.
func (f Family) download(ctx context.Context, dir, version string, installed presence) error {
	if f == Deb {
		_, err := ask(ctx, downloadTimeout, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name+"="+version)
		return err
	}
	spec := name + "-" + version
	if _, err := exec.LookPath("dnf5"); err == nil {
		_, err := ask(ctx, downloadTimeout, dir, "dnf5", "-q", "-y", "download", "--destdir="+dir, spec)
		return err
	}
	// dnf 4 has its command "download" in a plugin, and this in itself.
	verb := "install"
	if installed == isInstalled {
		verb = "reinstall"
	}
	_, err := ask(ctx, downloadTimeout, dir, "dnf", "-q", "-y", verb, "--downloadonly", "--destdir="+dir, spec)
	return err
}

// presence says whether a version is the one that is installed.
type presence string

const (
	isInstalled  presence = "installed"
	notInstalled presence = "not-installed"
)

// packageIn returns the package file that was fetched into dir.
func (f Family) packageIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), "."+string(f)) {
			return filepath.Join(dir, e.Name()), nil
		}
	}
	return "", fmt.Errorf("no package file was fetched: %w", fs.ErrNotExist)
}
