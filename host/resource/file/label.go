package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// onto sets an attribute of an open file.
func onto(fd int) func(name string, value []byte) error {
	return func(name string, value []byte) error { return unix.Fsetxattr(fd, name, value, 0) }
}

// ontoLink sets an attribute of a link in a directory.
func (l *location) ontoLink(link string) func(name string, value []byte) error {
	return func(name string, value []byte) error {
		return unix.Lsetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", l.fd(), link), name, value, 0)
	}
}

// setLabel gives a file that is written now the label of the policy. A file
// system that keeps no labels of single files has one for all of them, and that
// is then right.
func (p *Provider) setLabel(ctx context.Context, path, class, old string, set func(name string, value []byte) error) error {
	label, err := p.label(ctx, path, class, old)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "security label left as it was or as the kernel chose it", slog.String("path", path), slog.Any("error", err))
		return nil
	}
	if label == "" || label == old {
		return nil
	}
	if err := set(attributeLabel, append([]byte(label), 0)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("set the security label: %w", err)
	}
	return nil
}

// policyLabel asks the policy that is loaded now; its rules may have changed
// since the last time. A label of a type that the policy lets people choose is
// kept.
func policyLabel(ctx context.Context, path, class, old string) (string, error) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		return "", nil
	}
	if old != "" {
		chosen, err := customizable(old)
		if err != nil || chosen {
			return "", err
		}
	}
	program, err := exec.LookPath("matchpathcon")
	if err != nil {
		return "", fmt.Errorf("find matchpathcon: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-n", "-m", class, path)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run matchpathcon: %w", err)
	}
	label := strings.TrimSpace(string(out))
	if label == "<<none>>" {
		return "", nil
	}
	return label, nil
}

// customizable reports whether the type of a label is one of those that
// relabelling leaves alone.
func customizable(label string) (bool, error) {
	fields := strings.Split(label, ":")
	if len(fields) < 3 {
		return false, nil
	}
	lists, err := filepath.Glob("/etc/selinux/*/contexts/customizable_types")
	if err != nil {
		return false, err
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read the types that may be chosen: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.TrimSpace(line) == fields[2] {
				return true, nil
			}
		}
	}
	return false, nil
}
