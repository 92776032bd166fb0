package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeDisk gives a host its own file system over a cached root: a layer
// where overlayfs works, else a copy. It leaves the root at disk/root.
func makeDisk(ctx context.Context, log io.Writer, disk, base string) error {
	if err := removeDisk(disk); err != nil {
		return err
	}
	for _, sub := range []string{"root", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(disk, sub), 0o755); err != nil {
			return fmt.Errorf("make disk: %w", err)
		}
	}
	root := filepath.Join(disk, "root")
	// redirect_dir lets a directory of the base be renamed, as on any file
	// system.
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on,index=off",
		base, filepath.Join(disk, "upper"), filepath.Join(disk, "work"))
	err := unix.Mount("overlay", root, "overlay", 0, options)
	if err == nil {
		return nil
	}
	say(log, "no overlay here (%v): copying the root instead", err)
	if err := os.Remove(root); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := runQuiet(exec.CommandContext(ctx, "cp", "-a", "--reflink=auto", base, root)); err != nil {
		return fmt.Errorf("copy the root: %w", err)
	}
	return nil
}

// removeDisk unmounts and deletes a host's file system. It refuses to delete
// through a mount that it cannot take away.
func removeDisk(disk string) error {
	root := filepath.Join(disk, "root")
	for {
		err := unix.Unmount(root, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(root, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not a mount any more
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", root, err)
		}
	}
	if err := os.RemoveAll(disk); err != nil {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}

// personalise makes a copy of a root into this one host: its name, address
// and machine id.
func personalise(root string, r Record) error {
	var id [16]byte
	rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	for _, f := range []rootFile{
		{"/etc/hostname", r.Name + "\n", 0o644},
		{"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n" + r.Addr + " " + r.Name + "\n" + Gateway + " lab\n", 0o644},
		{"/etc/machine-id", hex.EncodeToString(id[:]) + "\n", 0o444},
		{"/etc/mesh-lab/address", r.Addr + "\n", 0o644},
	} {
		if err := f.write(root); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	return nil
}
