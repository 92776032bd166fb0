package packages_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2"
	nfpmdeb "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	nfpmrpm "github.com/goreleaser/nfpm/v2/rpm"
)

// pack is a package to be built, in either format.
type pack struct {
	name, version                    string
	epoch                            int
	arch                             string // Go's word or the format's own; empty: all
	depends, recommends, provides    []string
	conflicts, obsoletes             []string
	files, conffiles                 map[string]string
	preinst, postinst, prerm, postrm string // bodies of shell scripts
	debconf, templates               string // the config script's body, and its templates
	fields                           map[string]string
	sign                             func([]byte) ([]byte, error) // of an rpm
}

func fx(version string) pack { return pack{name: "fx", version: version} }

// evr is the version as a database writes it.
func (p pack) evr() string {
	v := p.version + "-1"
	if p.epoch > 0 {
		v = strconv.Itoa(p.epoch) + ":" + v
	}
	return v
}

// build writes the package file into dir and returns its path.
func (p pack) build(t *testing.T, dir string, rpm bool) string {
	t.Helper()
	stage := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(stage, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	script := func(name, body string) string {
		if body == "" {
			return ""
		}
		return put(name, "#!/bin/sh\n"+body+"\n")
	}
	arch := p.arch
	if arch == "" {
		arch = "all"
	}
	info := &nfpm.Info{
		Name: p.name, Version: p.version, Release: "1", VersionSchema: "none", Arch: arch, Platform: "linux",
		Priority: "optional", Section: "admin", Maintainer: "x <x@example.com>", Description: "x", License: "x",
		MTime: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), DisableGlobbing: true,
	}
	if p.epoch > 0 {
		info.Epoch = strconv.Itoa(p.epoch)
	}
	info.Depends, info.Recommends, info.Provides, info.Conflicts = p.depends, p.recommends, p.provides, p.conflicts
	if rpm {
		info.Replaces = p.obsoletes
	}
	n := 0
	add := func(path, content, kind string) {
		n++
		mode := os.FileMode(0o644)
		if strings.HasPrefix(path, "/usr/bin") || strings.HasPrefix(path, "/usr/lib/fx") {
			mode = 0o755
		}
		info.Contents = append(info.Contents, &files.Content{Source: put("file"+strconv.Itoa(n), content), Destination: path, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, Owner: "root", Group: "root", MTime: info.MTime}})
	}
	for path, content := range p.files {
		add(path, content, files.TypeFile)
	}
	for path, content := range p.conffiles {
		add(path, content, files.TypeConfigNoReplace)
	}
	info.Scripts.PreInstall = script("preinst", p.preinst)
	info.Scripts.PostInstall = script("postinst", p.postinst)
	info.Scripts.PreRemove = script("prerm", p.prerm)
	info.Scripts.PostRemove = script("postrm", p.postrm)
	info.Deb.Scripts.Config = script("config", p.debconf)
	if p.templates != "" {
		info.Deb.Scripts.Templates = put("templates", p.templates)
	}
	info.Deb.Fields = p.fields
	info.Deb.Compression = "gzip"
	info.RPM.BuildHost = "rows"
	var packager nfpm.Packager = nfpmdeb.Default
	ext := "deb"
	if rpm {
		packager, ext = nfpmrpm.DefaultRPM, "rpm"
		info.RPM.Compression = "gzip"
		if p.sign != nil {
			info.RPM.Signature.SignFn = func(r io.Reader) ([]byte, error) {
				data, err := io.ReadAll(r)
				if err != nil {
					return nil, err
				}
				return p.sign(data)
			}
		}
	}
	var out bytes.Buffer
	if err := packager.Package(nfpm.WithDefaults(info), &out); err != nil {
		t.Fatalf("build %s: %v", p.name, err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s_%d_%s_%s.%s", p.name, p.epoch, p.version, arch, ext))
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
