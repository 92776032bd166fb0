package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// ErrNotRoot says that the lab cannot run because the caller is not root.
var ErrNotRoot = errors.New("the lab boots real hosts and must run as root")

// tools names a file or command that the lab needs and the Debian package
// that brings it.
var tools = []struct{ command, pkg string }{
	{"systemd-nspawn", "systemd-container"},
	{"mmdebstrap", "mmdebstrap"},
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
	{"unshare", "util-linux"},
	{"mount", "mount"},
	{"gpgv", "gpgv"},
	{"tar", "tar"},
	{"/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"},
}

// EnsureTools installs what the lab needs on this machine, and only what is
// missing. It returns ErrNotRoot when the caller is not root. Progress goes
// to log in plain words.
func EnsureTools(ctx context.Context, log io.Writer) error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	var missing []string
	for _, t := range tools {
		if !haveTool(t.command) {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("the lab needs %s, and this machine has no apt-get to install it with", strings.Join(missing, ", "))
	}
	say(log, "installing what the lab needs: %s", strings.Join(missing, " "))
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	if err := aptGet(ctx, install...); err == nil {
		return nil
	}
	if err := aptGet(ctx, "update"); err != nil {
		return fmt.Errorf("read the package lists: %w", err)
	}
	if err := aptGet(ctx, install...); err != nil {
		return fmt.Errorf("install the lab's tools: %w", err)
	}
	return nil
}

// haveTool reports whether a command is on the path, or an absolute file is
// there.
func haveTool(name string) bool {
	if strings.HasPrefix(name, "/") {
		_, err := os.Stat(name)
		return err == nil
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// aptGet runs apt-get without a question.
func aptGet(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", argv...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return runQuiet(cmd)
}

// runQuiet runs a command of the machine and puts the end of what it printed
// into the error.
func runQuiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(string(out), 2000))
	}
	return nil
}

// tail returns the last n bytes of a text, trimmed.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// say writes one line of progress.
func say(log io.Writer, format string, args ...any) {
	if log != nil {
		fmt.Fprintf(log, "lab: "+format+"\n", args...)
	}
}
