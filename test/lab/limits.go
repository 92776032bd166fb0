package lab

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	// inotifyNeeded is room for some thirty hosts: the service manager of each
	// and what it runs hold a few instances, and all count for one user.
	inotifyNeeded = 1024
)

// raiseLimits lifts the kernel's limit on inotify instances a user where it is
// lower than a fleet needs; a service manager that gets none does not boot.
func raiseLimits(log io.Writer) error {
	data, err := os.ReadFile(inotifyFile)
	if err != nil {
		return fmt.Errorf("read the limit on inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read the limit on inotify instances: %w", err)
	}
	if limit >= inotifyNeeded {
		return nil
	}
	if err := os.WriteFile(inotifyFile, []byte(strconv.Itoa(inotifyNeeded)), 0o644); err != nil {
		return fmt.Errorf("raise the limit on inotify instances from %d to %d: %w", limit, inotifyNeeded, err)
	}
	fmt.Fprintf(log, "lab: raised fs.inotify.max_user_instances from %d to %d\n", limit, inotifyNeeded)
	return nil
}
