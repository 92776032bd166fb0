package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the rpm packager
)

// writeBaseRPM builds mesh-lab-base into dir and returns its path. The
// package is empty: it only promises, in the rpm database, what a
// distribution's own packages would. systemdVersion is the version of the
// systemd that is in the root.
func writeBaseRPM(dir, systemdVersion string) (path string, err error) {
	packager, err := nfpm.Get("rpm")
	if err != nil {
		return "", fmt.Errorf("find the rpm packager: %w", err)
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name:        "mesh-lab-base",
		Arch:        "all",
		Platform:    "linux",
		Version:     "1.0.0",
		Release:     "1",
		Maintainer:  "The mesh lab <lab@invalid>",
		Description: "What rpms require from a distribution, promised on a lab host",
		License:     "none",
		MTime:       time.Unix(0, 0).UTC(),
		Overridables: nfpm.Overridables{
			Provides: append([]string{"systemd = " + systemdVersion}, baseProvides...),
		},
	})
	if err := nfpm.PrepareForPackager(info, "rpm"); err != nil {
		return "", fmt.Errorf("prepare mesh-lab-base: %w", err)
	}
	path = filepath.Join(dir, "mesh-lab-base.rpm")
	f, err := os.Create(path)
	if err != nil {
		return "", fmt.Errorf("create mesh-lab-base: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil && e != nil {
			err = fmt.Errorf("close mesh-lab-base: %w", e)
		}
	}()
	if err := packager.Package(info, f); err != nil {
		return "", fmt.Errorf("build mesh-lab-base: %w", err)
	}
	return path, nil
}
