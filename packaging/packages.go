package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"

	"github.com/meshctl/mesh/internal/version"
)

const homepage = "https://github.com/meshctl/mesh"

// Release is the package release of everything that is built here. Both formats
// show it, so that one version string, for example "1.4.0-1", names the package
// on every machine.
const Release = version.Release

// Options say what to build.
type Options struct {
	// Version is the upstream version, for example "1.4.0" or "1.5.0~rc1".
	Version string
	// Arch is amd64 or arm64.
	Arch string
	// BinDir holds the binaries to pack: mesh-host, mesh-control, meshctl.
	BinDir string
	// NativeDir holds the same programs for this machine; their manual pages and
	// completions come from running them. "" is BinDir.
	NativeDir string
	// OutDir gets the package files. It is made when it does not exist.
	OutDir string
	// Formats are [Deb] and [RPM]; empty is both.
	Formats []string
	// Only names the packages to build; empty is all.
	Only []string
	// LicenseFile is the project's licence text.
	LicenseFile string
	// Replace has files of a package be something else, by their names in its
	// stage: tests make releases with it that cannot run. Nil: nothing.
	Replace map[string][]byte
	// Time is the time of every file; zero is SOURCE_DATE_EPOCH or [DefaultTime].
	Time time.Time
}

// program is one of the three packages.
type program struct {
	name        string
	section     int // of its manual page
	summary     string
	description string // lines of at most 75 columns
	units       []string
	deb, rpm    map[string]string // script name to file in scripts/
	depends     map[string][]string
}

var programs = []program{
	{
		name: "mesh-host", section: 8,
		summary: "applies and verifies what the mesh declares for this machine",
		description: `The host daemon of a mesh. It keeps one link to the control plane open,
applies the files and packages that are declared for this machine, reads
every one of them back, and reports what it saw.
What is no longer declared is removed, and only what the mesh made.
A release that cannot run is undone by a script of the confirmed version.`,
		units:   []string{"mesh-host.service", "mesh-host-rollback.service"},
		deb:     map[string]string{"postinst": "mesh-host.deb.postinst", "prerm": "mesh-host.deb.prerm", "postrm": "mesh-host.deb.postrm"},
		rpm:     map[string]string{"postinst": "mesh-host.rpm.post", "prerm": "mesh-host.rpm.preun", "postrm": "mesh-host.rpm.postun"},
		depends: map[string][]string{Deb: {"systemd"}, RPM: {"/bin/sh", "systemd"}},
	},
	{
		name: "mesh-control", section: 8,
		summary: "control plane and package repository of a mesh",
		description: `The control plane of a mesh. It keeps identities, tokens and declarations,
pushes each declaration to the machines that it concerns, and records what
they report.
It also serves the mesh's own signed repository for apt and dnf, from which
the machines install everything, the host daemon included.`,
		units:   []string{"mesh-control.service"},
		deb:     map[string]string{"postinst": "mesh-control.deb.postinst", "prerm": "mesh-control.deb.prerm", "postrm": "mesh-control.deb.postrm"},
		rpm:     map[string]string{"postinst": "mesh-control.rpm.post", "prerm": "mesh-control.rpm.preun", "postrm": "mesh-control.rpm.postun"},
		depends: map[string][]string{Deb: {"systemd"}, RPM: {"/bin/sh", "systemd"}},
	},
	{
		name: "meshctl", section: 1,
		summary: "operator's command line of a mesh",
		description: `The operator's tool of a mesh. It issues tokens, writes declarations and
publishes packages.
It shows for each machine what is applied, what is outstanding, what
failed, and when the machine was last heard of.`,
	},
}

// Names are the packages that [Build] knows, in the order in which it builds.
func Names() []string {
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	return names
}

var versionPattern = regexp.MustCompile(`^[0-9][0-9A-Za-z.+~]{0,99}$`)

// CheckVersion says whether a version means the same to dpkg and to rpm: it
// begins with a digit and holds letters, digits, ".", "+" and "~".
func CheckVersion(v string) error {
	if !versionPattern.MatchString(v) {
		return fmt.Errorf("version %q: want a digit, then letters, digits, '.', '+' and '~'", v)
	}
	return nil
}

// Build builds the packages and returns the paths of their files. It stops
// between two packages when ctx ends.
func Build(ctx context.Context, o Options) ([]string, error) {
	if o.Arch != "amd64" && o.Arch != "arm64" {
		return nil, fmt.Errorf("architecture %q: want amd64 or arm64", o.Arch)
	}
	if len(o.Formats) == 0 {
		o.Formats = []string{Deb, RPM}
	}
	if o.Time.IsZero() {
		o.Time = timeFromEnvironment(os.Getenv)
	}
	if err := os.MkdirAll(o.OutDir, 0o755); err != nil {
		return nil, fmt.Errorf("make output directory: %w", err)
	}
	stage, err := os.MkdirTemp("", "mesh-stage-")
	if err != nil {
		return nil, fmt.Errorf("make stage: %w", err)
	}
	defer os.RemoveAll(stage)
	if err := Stage(ctx, stage, o); err != nil {
		return nil, err
	}
	var built []string
	for _, p := range programs {
		if len(o.Only) > 0 && !slices.Contains(o.Only, p.name) {
			continue
		}
		for _, format := range o.Formats {
			if err := ctx.Err(); err != nil {
				return built, err
			}
			content, err := pack(p.info(stage, o, format), format)
			if err != nil {
				return built, err
			}
			path := filepath.Join(o.OutDir, FileName(p.name, o.Version, o.Arch, format))
			if err := writeWhole(path, content); err != nil {
				return built, fmt.Errorf("write package: %w", err)
			}
			built = append(built, path)
		}
	}
	return built, nil
}

// FileName is the conventional name of a package file.
func FileName(name, version, arch, format string) string {
	if format == RPM {
		return fmt.Sprintf("%s-%s-%s.%s.rpm", name, version, Release, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch])
	}
	return fmt.Sprintf("%s_%s-%s_%s.deb", name, version, Release, arch)
}

func timeFromEnvironment(getenv func(string) string) time.Time {
	if n, err := strconv.ParseInt(getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil && n > 0 {
		return time.Unix(n, 0).UTC()
	}
	return DefaultTime
}

// entry is one file of a package: where it comes from in the stage ("bin:" is
// the directory of the binaries), where it goes, and in which format.
type entry struct {
	src, dst string
	mode     os.FileMode
	format   string // "" is both
	kind     string // nfpm's type; "" is a plain file
}

func (p program) entries() []entry {
	n := p.name
	page := fmt.Sprintf("/usr/share/man/man%d/%s.%d.gz", p.section, n, p.section)
	e := []entry{
		{src: "bin:" + n, dst: "/usr/bin/" + n, mode: 0o755},
		{src: "man.gz", dst: page, format: Deb},
		{src: "man.gz", dst: page, format: RPM, kind: files.TypeRPMDoc},
		{src: "completion.bash", dst: "/usr/share/bash-completion/completions/" + n},
		{src: "completion.zsh", dst: "/usr/share/zsh/vendor-completions/_" + n, format: Deb},
		{src: "completion.zsh", dst: "/usr/share/zsh/site-functions/_" + n, format: RPM},
		{src: "completion.fish", dst: "/usr/share/fish/vendor_completions.d/" + n + ".fish"},
		{src: "copyright", dst: "/usr/share/doc/" + n + "/copyright", format: Deb},
		{src: "overrides", dst: "/usr/share/lintian/overrides/" + n, format: Deb},
		{src: "third-party-licences.gz", dst: "/usr/share/doc/" + n + "/third-party-licences.gz", format: Deb},
		{src: "third-party-licences.gz", dst: "/usr/share/doc/" + n + "/third-party-licences.gz", format: RPM, kind: files.TypeRPMDoc},
		{src: "LICENSE", dst: "/usr/share/licenses/" + n + "/LICENSE", format: RPM, kind: files.TypeRPMLicense},
	}
	for _, unit := range p.units {
		e = append(e, entry{src: unit, dst: "/usr/lib/systemd/system/" + unit})
	}
	switch n {
	case "mesh-host":
		e = append(e,
			entry{src: "rollback", dst: "/usr/lib/mesh-host/rollback", mode: 0o755},
			entry{src: "starts", dst: "/usr/lib/mesh-host/starts", mode: 0o755},
			entry{src: "version", dst: "/usr/lib/mesh-host/version"},
			// Not a conffile: nobody edits it, and dpkg must never ask about it.
			entry{src: "needrestart.conf", dst: "/etc/needrestart/conf.d/mesh-host.conf"},
		)
	case "mesh-control":
		e = append(e, entry{src: "sysusers.conf", dst: "/usr/lib/sysusers.d/mesh-control.conf"})
	}
	for i := range e {
		if e[i].mode == 0 {
			e[i].mode = 0o644
		}
	}
	return e
}

// info describes one package in one format to nfpm.
func (p program) info(stage string, o Options, format string) *nfpm.Info {
	dir := filepath.Join(stage, p.name)
	info := &nfpm.Info{
		Name: p.name, Arch: o.Arch, Platform: "linux",
		Version: o.Version, Release: Release, VersionSchema: "none",
		Section: "admin", Priority: "optional", Maintainer: Maintainer,
		Description: p.text(), Homepage: homepage, License: "Apache-2.0",
		Changelog: filepath.Join(dir, "changelog.yaml"), MTime: o.Time, DisableGlobbing: true,
	}
	info.RPM.Summary = strings.ToUpper(p.summary[:1]) + p.summary[1:]
	info.RPM.Group = "System Environment/Daemons"
	info.Deb.Compression = "xz"
	info.RPM.Compression = "xz"
	info.Depends = p.depends[format]
	for _, e := range p.entries() {
		if e.format != "" && e.format != format {
			continue
		}
		src := filepath.Join(dir, e.src)
		if name, ok := strings.CutPrefix(e.src, "bin:"); ok {
			src = filepath.Join(o.BinDir, name)
		}
		info.Contents = append(info.Contents, &files.Content{
			Source: src, Destination: e.dst, Type: e.kind,
			FileInfo: &files.ContentFileInfo{Mode: e.mode, Owner: "root", Group: "root", MTime: o.Time},
		})
	}
	if len(p.scripts(format)) > 0 {
		script := func(name string) string { return filepath.Join(dir, format, name) }
		info.Scripts = nfpm.Scripts{PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm")}
	}
	return info
}

func (p program) scripts(format string) map[string]string {
	if format == RPM {
		return p.rpm
	}
	return p.deb
}

// text is the description: the summary line and then the long text.
func (p program) text() string { return p.summary + "\n" + p.description }

// writeWhole puts a file in place in one step, so that no half-written package
// is ever found there.
func writeWhole(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
