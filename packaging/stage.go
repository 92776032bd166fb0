package packaging

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshctl/mesh/rollback"
	"github.com/meshctl/mesh/systemd"
)

//go:embed scripts debian
var sources embed.FS

// Stage writes everything that the packages hold beside their binaries into
// dir, one directory for each package. A release build takes the same files
// from there. The programs in NativeDir are run for their manual pages and
// completions.
func Stage(ctx context.Context, dir string, o Options) error {
	if err := CheckVersion(o.Version); err != nil {
		return err
	}
	if o.Time.IsZero() {
		o.Time = timeFromEnvironment(os.Getenv)
	}
	if o.NativeDir == "" {
		o.NativeDir = o.BinDir
	}
	for _, p := range programs {
		if len(o.Only) > 0 && !slices.Contains(o.Only, p.name) {
			continue
		}
		if err := p.stage(ctx, filepath.Join(dir, p.name), o); err != nil {
			return fmt.Errorf("stage %s: %w", p.name, err)
		}
	}
	return nil
}

// stage writes the files of one package.
func (p program) stage(ctx context.Context, dir string, o Options) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	content := map[string][]byte{}
	for name, from := range map[string]string{"copyright": "debian/copyright", "overrides": "debian/" + p.name + ".overrides"} {
		b, err := sources.ReadFile(from)
		if err != nil {
			return err
		}
		content[name] = b
	}
	if err := p.programOutput(ctx, content, filepath.Join(o.NativeDir, p.name)); err != nil {
		return err
	}
	licence, err := os.ReadFile(o.LicenseFile)
	if err != nil {
		return fmt.Errorf("read licence: %w", err)
	}
	content["LICENSE"] = licence
	third, err := thirdPartyLicences(ctx, filepath.Join(o.NativeDir, p.name))
	if err != nil {
		return fmt.Errorf("gather licences of libraries: %w", err)
	}
	if content["third-party-licences.gz"], err = compressed(third); err != nil {
		return err
	}
	for _, unit := range p.units {
		if content[unit], err = fs.ReadFile(systemd.Files, "units/"+unit); err != nil {
			return err
		}
	}
	switch p.name {
	case "mesh-host":
		content["rollback"], content["starts"] = rollback.Script, rollback.Starts
		content["version"] = []byte(o.Version + "-" + Release + "\n")
		content["needrestart.conf"], err = fs.ReadFile(systemd.Files, "units/mesh-host.needrestart.conf")
	case "mesh-control":
		content["sysusers.conf"], err = fs.ReadFile(systemd.Files, "units/mesh-control.sysusers")
	}
	if err != nil {
		return err
	}
	content["changelog.yaml"] = changelog(p.name, o)
	for _, format := range []string{Deb, RPM} {
		for name, from := range p.scripts(format) {
			if content[filepath.Join(format, name)], err = script(from); err != nil {
				return err
			}
		}
	}
	for name, b := range o.Replace {
		if _, known := content[name]; !known {
			return fmt.Errorf("replace %s: the package has no such file", name)
		}
		content[name] = b
	}
	for name, b := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// script reads a maintainer script and puts the shared account function in its
// place.
func script(name string) ([]byte, error) {
	b, err := sources.ReadFile("scripts/" + name)
	if err != nil {
		return nil, err
	}
	accounts, err := sources.ReadFile("scripts/accounts.sh")
	if err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(b, []byte("@accounts@\n"), accounts), nil
}

// programOutput runs the program for its manual page and its completions.
func (p program) programOutput(ctx context.Context, content map[string][]byte, binary string) error {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, err := run(ctx, binary, "completion", shell)
		if err != nil {
			return err
		}
		content["completion."+shell] = out
	}
	pages, err := os.MkdirTemp("", "mesh-man-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(pages)
	if _, err := run(ctx, binary, "man", "--section", fmt.Sprint(p.section), pages); err != nil {
		return err
	}
	page, err := os.ReadFile(filepath.Join(pages, fmt.Sprintf("%s.%d", p.name, p.section)))
	if err != nil {
		return fmt.Errorf("read manual page: %w", err)
	}
	content["man.gz"], err = compressed(page)
	return err
}

func run(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// compressed is gzip at its best and without a time, so that it can be repeated.
func compressed(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// changelog is the one entry that both formats show, in the form that nfpm reads.
func changelog(name string, o Options) []byte {
	return fmt.Appendf(nil, `- semver: %q
  date: %s
  packager: %q
  deb:
    urgency: medium
    distributions: [unstable]
  changes:
    - note: "Version %s of %s."
`, o.Version+"-"+Release, o.Time.UTC().Format("2006-01-02T15:04:05Z"), Maintainer, o.Version, name)
}
