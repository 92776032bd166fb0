package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/systemd"
)

// keepWatchdog tells the service manager that the program works, each time
// after it was proved: the program's own socket answered with something that it
// had to read from the store. It returns nil when ctx ended.
func keepWatchdog(ctx context.Context, n systemd.Notifier, socket string, log *slog.Logger) error {
	limit := n.Watchdog()
	if limit == 0 {
		<-ctx.Done()
		return nil
	}
	client := api.NewClient(socket)
	defer client.Close()
	ticker := time.NewTicker(limit / 4)
	defer ticker.Stop()
	for {
		if err := prove(ctx, client, limit/4); err == nil {
			if err := n.Ping(); err != nil {
				log.Error("watchdog not told", "error", err)
			}
		} else if ctx.Err() == nil {
			log.Error("own socket does not answer, watchdog not told", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func prove(ctx context.Context, client *api.Client, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := client.Health(ctx)
	return err
}
