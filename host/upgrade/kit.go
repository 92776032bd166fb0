package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshctl/mesh/internal/fault"
)

// Names in the kit. The rollback script reads the same ones.
const (
	kitConfirmed = "confirmed"
	kitScript    = "rollback"
	kitSums      = "SHA256SUMS"
)

// roomFactor is how many times the size of the package must be free for putting
// it back.
const roomFactor = 6

// kit is what puts the confirmed version back. It always belongs to the
// confirmed version, so that another one cannot break its own undo.
type kit struct {
	dir    string
	family Family
}

func (k kit) packageFile() string { return filepath.Join(k.dir, "package."+string(k.family)) }

// confirmed returns the confirmed version; empty: none is.
func (k kit) confirmed() string {
	data, err := os.ReadFile(filepath.Join(k.dir, kitConfirmed))
	if err != nil || len(data) > 4096 {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

// check says why the kit cannot put the confirmed version back; nil: it can.
func (k kit) check(ctx context.Context) error {
	version := k.confirmed()
	if version == "" {
		return errors.New("no version is confirmed on this machine yet")
	}
	if _, err := os.Stat(k.packageFile()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the package of version %s could not be obtained yet; it is tried again", version)
	}
	sums, err := os.ReadFile(filepath.Join(k.dir, kitSums))
	if err != nil {
		return fmt.Errorf("the kit is damaged: %w", err)
	}
	listed := make(map[string]bool)
	lines := bufio.NewScanner(bytes.NewReader(sums))
	for lines.Scan() {
		want, file, found := strings.Cut(lines.Text(), "  ")
		if !found || file != filepath.Base(file) {
			return fmt.Errorf("the kit is damaged: %s has the line %q", kitSums, lines.Text())
		}
		have, err := fileSum(filepath.Join(k.dir, file))
		if err != nil {
			return fmt.Errorf("the kit is damaged: %w", err)
		}
		if have != want {
			return fmt.Errorf("the kit is damaged: %s is not what was kept", file)
		}
		listed[file] = true
	}
	if !listed[filepath.Base(k.packageFile())] || !listed[kitScript] {
		return fmt.Errorf("the kit is damaged: %s does not list the package and the script", kitSums)
	}
	inFile, err := k.family.versionOf(ctx, k.packageFile())
	if err != nil {
		return fmt.Errorf("the kit is damaged: %w", err)
	}
	if inFile != version {
		return fmt.Errorf("the kit is damaged: it holds version %s, and %s is confirmed", inFile, version)
	}
	return k.room()
}

// room says whether there is space for putting the package back.
func (k kit) room() error {
	info, err := os.Stat(k.packageFile())
	if err != nil {
		return err
	}
	for _, dir := range []string{k.dir, "/usr"} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return fmt.Errorf("look at the space below %s: %w", dir, err)
		}
		free := int64(st.Bavail) * st.Bsize
		if need := info.Size() * roomFactor; free < need {
			return fmt.Errorf("there are %d MiB free below %s, and putting the package back may need %d", free>>20, dir, need>>20)
		}
	}
	return nil
}

// make replaces the kit by that of version, whole or not at all. An empty
// package makes a kit that names the version and cannot put it back.
func (k kit) make(version, pack string, script []byte) error {
	aside := k.dir + ".new"
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("clear half a kit: %w", err)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return fmt.Errorf("make the kit: %w", err)
	}
	var sums strings.Builder
	if pack != "" {
		to := filepath.Join(aside, filepath.Base(k.packageFile()))
		if err := copySynced(pack, to); err != nil {
			return fmt.Errorf("put the package into the kit: %w", err)
		}
		if err := writeWhole(filepath.Join(aside, kitScript), script, 0o700); err != nil {
			return fmt.Errorf("put the script into the kit: %w", err)
		}
		for _, file := range []string{filepath.Base(to), kitScript} {
			sum, err := fileSum(filepath.Join(aside, file))
			if err != nil {
				return fmt.Errorf("sum up the kit: %w", err)
			}
			fmt.Fprintf(&sums, "%s  %s\n", sum, file)
		}
		if err := writeWhole(filepath.Join(aside, kitSums), []byte(sums.String()), 0o600); err != nil {
			return fmt.Errorf("write the sums of the kit: %w", err)
		}
	}
	if err := writeWhole(filepath.Join(aside, kitConfirmed), []byte(version+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the confirmed version: %w", err)
	}
	fault.Point("upgrade.kit-before-exchange")
	if err := k.exchange(aside); err != nil {
		return fmt.Errorf("put the kit in place: %w", err)
	}
	fault.Point("upgrade.kit-after-exchange")
	return nil
}

// exchange puts aside in the place of the kit. The two change places in one
// step, so that there is no moment without a kit.
func (k kit) exchange(aside string) error {
	err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, k.dir, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOENT):
		err = os.Rename(aside, k.dir)
	default:
		// A file system that cannot do that. When the power goes in between, the
		// version that runs makes its kit anew.
		old := k.dir + ".old"
		err = os.RemoveAll(old)
		if err == nil {
			err = os.Rename(k.dir, old)
		}
		if err == nil {
			err = os.Rename(aside, k.dir)
		}
		if err == nil {
			err = os.RemoveAll(old)
		}
	}
	if err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(k.dir)); err != nil {
		return err
	}
	return os.RemoveAll(aside)
}

func copySynced(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
