package packaging

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the deb format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the rpm format
)

// The package formats.
const (
	Deb = "deb"
	RPM = "rpm"
)

// Maintainer stands in every package that is built here.
const Maintainer = "Mesh maintainers <meshctl@users.noreply.github.com>"

// buildHost stands in rpm headers in place of the machine's own name, which
// would make the bytes differ from machine to machine.
const buildHost = "meshctl"

// SimplePackage is a small package made of content in memory, for tests, the lab
// and the demonstration.
type SimplePackage struct {
	Name    string
	Version string // the upstream version, for example "1.2"
	Release string // "" is "1"; deb and rpm both show VERSION-RELEASE
	Arch    string // amd64, arm64 or all; "" is all
	Files   []SimpleFile
	Scripts SimpleScripts
	Depends []string  // in the format's own syntax
	Time    time.Time // of all files; zero is the fixed time of [DefaultTime]
}

// SimpleFile is one file of a [SimplePackage].
type SimpleFile struct {
	Path    string // absolute
	Content []byte
	Mode    os.FileMode // permission bits; zero is 0644
	Config  bool        // a file that the machine's admin may edit (a conffile)
}

// SimpleScripts are whole scripts, the first line included; "" is none.
type SimpleScripts struct {
	PreInstall, PostInstall, PreRemove, PostRemove string
}

// DefaultTime is the time that packages carry when nothing else was asked for.
var DefaultTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// BuildSimple returns the bytes of a package file in the format [Deb] or [RPM].
func BuildSimple(p SimplePackage, format string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "mesh-package-")
	if err != nil {
		return nil, fmt.Errorf("make stage: %w", err)
	}
	defer os.RemoveAll(dir)
	put := func(name string, content []byte) (string, error) {
		path := filepath.Join(dir, name)
		return path, os.WriteFile(path, content, 0o644)
	}
	if p.Release == "" {
		p.Release = "1"
	}
	if p.Arch == "" {
		p.Arch = "all"
	}
	if p.Time.IsZero() {
		p.Time = DefaultTime
	}
	info := &nfpm.Info{
		Name: p.Name, Version: p.Version, Release: p.Release, VersionSchema: "none", Arch: p.Arch,
		Platform: "linux", Section: "admin", Priority: "optional", Maintainer: Maintainer,
		Description: p.Name + " test package", License: "Apache-2.0", Homepage: homepage,
		MTime: p.Time, DisableGlobbing: true,
	}
	info.Depends = p.Depends
	for i, f := range p.Files {
		src, err := put("file-"+strconv.Itoa(i), f.Content)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", f.Path, err)
		}
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		kind := files.TypeFile
		if f.Config {
			kind = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, &files.Content{
			Source: src, Destination: f.Path, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: f.Mode, Owner: "root", Group: "root", MTime: p.Time},
		})
	}
	for _, s := range []struct {
		name, text string
		path       *string
	}{
		{"preinstall", p.Scripts.PreInstall, &info.Scripts.PreInstall},
		{"postinstall", p.Scripts.PostInstall, &info.Scripts.PostInstall},
		{"preremove", p.Scripts.PreRemove, &info.Scripts.PreRemove},
		{"postremove", p.Scripts.PostRemove, &info.Scripts.PostRemove},
	} {
		if s.text == "" {
			continue
		}
		if *s.path, err = put(s.name, []byte(s.text)); err != nil {
			return nil, fmt.Errorf("stage script: %w", err)
		}
	}
	return pack(info, format)
}

// pack runs nfpm over one description.
func pack(info *nfpm.Info, format string) ([]byte, error) {
	packager, err := nfpm.Get(format)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", info.Name, err)
	}
	if err := CheckVersion(info.Version); err != nil {
		return nil, fmt.Errorf("package %s: %w", info.Name, err)
	}
	if info.RPM.BuildHost == "" {
		info.RPM.BuildHost = buildHost
	}
	info = nfpm.WithDefaults(info)
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return nil, fmt.Errorf("package %s as %s: %w", info.Name, format, err)
	}
	return b.Bytes(), nil
}
