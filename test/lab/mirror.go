package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// mirror returns the address of the Debian archive that this machine itself
// installs from. $MESH_LAB_MIRROR names another, for machines that are not
// Debian.
func mirror(ctx context.Context) (string, error) {
	if m := os.Getenv("MESH_LAB_MIRROR"); m != "" {
		return m, nil
	}
	site, err := debianSite(ctx)
	if err != nil || site != "" {
		return site, err
	}
	// Origin and label come from the Release files; a fresh machine may
	// have none yet.
	if err := aptGet(ctx, "update"); err != nil {
		return "", fmt.Errorf("read the package lists: %w", err)
	}
	site, err = debianSite(ctx)
	if err != nil || site != "" {
		return site, err
	}
	return "", errors.New("this machine's apt configuration names no Debian archive; set MESH_LAB_MIRROR to one")
}

// debianSite asks apt which archive it takes Debian's own packages from. It
// returns the empty string when apt names none.
func debianSite(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Origin: Debian", "Label: Debian").Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for its archives: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			return strings.TrimSuffix(line, "/"), nil
		}
	}
	return "", nil
}

// carriedSettings are the prefixes of the machine's apt settings without
// which its archive may be out of reach: proxies, certificates, address
// family, and how strictly dates are taken.
var carriedSettings = []string{
	"Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::socks",
	"Acquire::Retries", "Acquire::Check-", "Acquire::Force",
	"Acquire::Max-FutureTime", "Acquire::AllowInsecure", "Acquire::Queue-Mode",
}

// aptSettings returns the machine's own settings that a bootstrap has to
// use as well, each as one line of apt configuration.
func aptSettings(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty").Output()
	if err != nil {
		return nil, fmt.Errorf("read the machine's apt settings: %w", err)
	}
	var settings []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		for _, prefix := range carriedSettings {
			if strings.HasPrefix(strings.ToLower(line), strings.ToLower(prefix)) {
				settings = append(settings, line)
				break
			}
		}
	}
	return settings, nil
}
