package systemd

import (
	"context"
	"fmt"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// Keep moves processes of a transient unit into a scope of their own, where they
// outlive it. It returns when the service manager has taken them. An error means
// that they may still be where they were.
func (c *Client) Keep(ctx context.Context, scope, description string, pids []int) error {
	l, err := c.connection(ctx)
	if err != nil {
		return fmt.Errorf("keep processes in %s: %w", scope, err)
	}
	numbers := make([]uint32, len(pids))
	for i, pid := range pids {
		numbers[i] = uint32(pid)
	}
	done := make(chan string, 1)
	_, err = l.StartTransientUnitContext(ctx, scope, "fail", []sd.Property{property("Description", description), property("PIDs", numbers)}, done)
	if err != nil {
		return fmt.Errorf("keep processes in %s: %w", scope, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("keep processes in %s: the job ended with %q", scope, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("keep processes in %s: %w: %w", scope, ErrUnknown, ctx.Err())
	}
}
