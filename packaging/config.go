package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
)

// ConfigOptions say how packages are built from a configuration of nfpm.
type ConfigOptions struct {
	// File is the configuration, in the form that nfpm documents. Relative paths
	// in it are relative to the working directory, as nfpm has it.
	File string
	// Version replaces the one in the file; "" leaves it.
	Version string
	// Arch replaces the one in the file; "" leaves it.
	Arch string
	// Formats are [Deb] and [RPM]; empty is both.
	Formats []string
	// OutDir gets the package files. It is made when it does not exist.
	OutDir string
	// Getenv answers ${NAME} in the file.
	Getenv func(string) string
}

// BuildConfig builds the packages that a configuration of nfpm describes and
// returns the paths of their files, under their conventional names. It stops
// between two packages when ctx ends. A file is there whole or not at all.
func BuildConfig(ctx context.Context, o ConfigOptions) ([]string, error) {
	config, err := nfpm.ParseFileWithEnvMapping(o.File, o.Getenv)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.File, err)
	}
	if len(o.Formats) == 0 {
		o.Formats = []string{Deb, RPM}
	}
	if err := os.MkdirAll(o.OutDir, 0o755); err != nil {
		return nil, fmt.Errorf("make output directory: %w", err)
	}
	var made []string
	for _, format := range o.Formats {
		if err := ctx.Err(); err != nil {
			return made, err
		}
		path, err := buildConfigured(config, format, o)
		if err != nil {
			return made, err
		}
		made = append(made, path)
	}
	return made, nil
}

func buildConfigured(config nfpm.Config, format string, o ConfigOptions) (_ string, err error) {
	info, err := config.Get(format)
	if err != nil {
		return "", fmt.Errorf("read configuration for %s: %w", format, err)
	}
	if o.Version != "" {
		// The version is meant as it stands: no meaning is read into its parts.
		info.Version, info.VersionSchema, info.Prerelease, info.VersionMetadata = o.Version, "none", "", ""
	}
	if o.Arch != "" {
		info.Arch = o.Arch
	}
	if err := CheckVersion(info.Version); err != nil {
		return "", err
	}
	if info.Release == "" {
		info.Release = Release
	}
	if info.RPM.BuildHost == "" {
		info.RPM.BuildHost = buildHost
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.Validate(info); err != nil {
		return "", fmt.Errorf("check configuration for %s: %w", format, err)
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", fmt.Errorf("format %s: %w", format, err)
	}
	name := packager.ConventionalFileName(info)
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%q cannot be the name of a package file", name)
	}
	f, err := os.CreateTemp(o.OutDir, ".building-*")
	if err != nil {
		return "", fmt.Errorf("make package file: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	info.Target = filepath.Join(o.OutDir, name)
	if err := packager.Package(info, f); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(f.Name(), info.Target); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	return info.Target, nil
}
