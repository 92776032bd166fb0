package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/meshctl/mesh/systemd"
)

func TestAStartWaitsForRoomOnAFullDiskAndForNothingElse(t *testing.T) {
	quiet, other := slog.New(slog.DiscardHandler), errors.New("no such table")
	for name, c := range map[string]struct {
		fails []error
		want  error
	}{
		"room comes":      {[]error{fmt.Errorf("report: %w", syscall.ENOSPC), syscall.EDQUOT}, nil},
		"it never worked": {[]error{syscall.ENOSPC, other}, other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				err := onceThereIsRoom(t.Context(), systemd.Notifier{}, quiet, func() error {
					tries++
					if tries <= len(c.fails) {
						return c.fails[tries-1]
					}
					return nil
				})
				if !errors.Is(err, c.want) {
					t.Errorf("after %d tries the start ends with %v, not %v", tries, err, c.want)
				}
			})
		})
	}
	gone, stop := context.WithCancel(t.Context())
	stop()
	if err := onceThereIsRoom(gone, systemd.Notifier{}, quiet, func() error { return syscall.ENOSPC }); !errors.Is(err, context.Canceled) {
		t.Errorf("a start that is asked to stop ends with %v", err)
	}
}
