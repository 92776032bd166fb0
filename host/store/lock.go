package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "lock"

// InUseError: another process works on the same state.
type InUseError struct {
	Dir string
	// PID of the other process. Empty: it did not say.
	PID string
}

// Error says who has it.
func (e *InUseError) Error() string {
	who := "another mesh-host"
	if e.PID != "" {
		who += " (process " + e.PID + ")"
	}
	return fmt.Sprintf("%s works on %s already; this one ends and has changed nothing", who, e.Dir)
}

// lock keeps every other process out of dir until the file is closed, in
// whatever way this process ends.
func lock(dir string) (held *os.File, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		said, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, &InUseError{Dir: dir, PID: strings.TrimSpace(string(said))}
	case err != nil:
		return nil, fmt.Errorf("take the lock: %w", err)
	}
	// Whose it is, is only told to people; a full disk is no reason to fail.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}
