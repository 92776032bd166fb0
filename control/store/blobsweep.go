package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/fault"
)

// ErrLocked: another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")

// lockPause is how long is waited before a lock is tried again.
const lockPause = 50 * time.Millisecond

// Lock is held from LockContent to Close.
type Lock struct{ file *os.File }

// Close gives the lock back.
func (l *Lock) Close() error { return l.file.Close() }

// LockContent takes the lock of a directory of blobs. As long as it is shared
// nothing is removed there, which is what a backup needs; who holds it alone may
// remove. It returns ErrLocked when somebody else holds it.
func LockContent(dir string, shared bool) (*Lock, error) {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the blobs: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("lock the blobs: %w", err), f.Close())
	}
	return &Lock{f}, nil
}

// AwaitContent is LockContent, shared, that waits until the lock is free.
func AwaitContent(ctx context.Context, dir string) (*Lock, error) {
	again := time.NewTicker(lockPause)
	defer again.Stop()
	for {
		lock, err := LockContent(dir, true)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Sweep removes content that nobody put or asked about for age and that named,
// which is asked right before, does not name. It returns control.ErrBusy, and
// goes no further, while a backup is made.
func (b *Blobs) Sweep(ctx context.Context, age time.Duration, named func(context.Context, []string) (map[string]bool, error)) (control.SweptBlobs, error) {
	var swept control.SweptBlobs
	b.forgetWanted(age)
	dirs, err := b.names(".")
	if err != nil {
		return swept, err
	}
	for _, dir := range dirs {
		if len(dir) != 2 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return swept, err
		}
		if err := b.sweepDir(ctx, dir, age, named, &swept); err != nil {
			return swept, err
		}
	}
	return swept, nil
}

// sweepDir sweeps one directory. The lock is held only for it, so that a backup
// that begins waits for no more.
func (b *Blobs) sweepDir(ctx context.Context, dir string, age time.Duration, named func(context.Context, []string) (map[string]bool, error), swept *control.SweptBlobs) (err error) {
	names, err := b.names(dir)
	if err != nil {
		return err
	}
	var idle []string
	for _, sum := range names {
		if !mesh.ValidDigest(sum) {
			continue
		}
		b.mu.Lock()
		_, out, err := b.idle(sum, age)
		b.mu.Unlock()
		if err != nil {
			return err
		}
		if out {
			idle = append(idle, sum)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	lock, err := LockContent(b.dir, false)
	if errors.Is(err, ErrLocked) {
		return control.ErrBusy
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	needed, err := named(ctx, idle)
	if err != nil {
		return fmt.Errorf("ask who names a blob: %w", err)
	}
	for _, sum := range idle {
		if needed[sum] {
			continue
		}
		if err := b.remove(sum, age, swept); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a blob unless somebody has put it or asked about it meanwhile:
// what names it may come after that.
func (b *Blobs) remove(sum string, age time.Duration, swept *control.SweptBlobs) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	size, out, err := b.idle(sum, age)
	if err != nil || !out {
		return err
	}
	fault.Point("sweep.before-blob")
	if err := b.root.Remove(place(sum)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove blob: %w", err)
	}
	fault.Point("sweep.after-blob")
	delete(b.whole, sum)
	swept.Count++
	swept.Bytes += size
	return nil
}

// idle tells whether a blob is there that nobody put or asked about for age. A
// time of the file that is still to come is that of a clock that went wrong, and
// counts as now. The caller holds mu.
func (b *Blobs) idle(sum string, age time.Duration) (size int64, out bool, err error) {
	if _, wanted := b.wanted[sum]; wanted {
		return 0, false, nil
	}
	info, err := b.root.Lstat(place(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look at blob: %w", err)
	}
	return info.Size(), info.Mode().IsRegular() && time.Since(info.ModTime()) >= age, nil
}

// forgetWanted forgets who was wanted longer ago than age. The time is measured
// without the machine's clock, which may be set.
func (b *Blobs) forgetWanted(age time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for sum, at := range b.wanted {
		if time.Since(at) >= age {
			delete(b.wanted, sum)
		}
	}
}

func (b *Blobs) names(dir string) ([]string, error) {
	d, err := b.root.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", err)
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, fmt.Errorf("list blobs: %w", err)
	}
	return names, nil
}
