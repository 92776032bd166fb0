// Command host stands in for mesh-host in tests of its package, its unit and the
// rollback: a daemon that says that it is ready, pings the watchdog and ends on
// SIGTERM, or that fails in the way that was linked into it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
	"github.com/meshctl/mesh/systemd"
)

// behaviour is "good", "crash" (before READY), "exit" (status 0 before READY),
// "later" (ready, then a crash after a second), "after30" and "after40" (the
// same after so many seconds), "hang" (never READY), "silent"
// (READY, and no sign of life), "stubborn" (ignores SIGTERM) or "unfit" (its
// check fails).
var behaviour = "good"

func main() {
	root := &cobra.Command{Use: "mesh-host", Short: "stand in for mesh-host", SilenceUsage: true}
	root.AddCommand(&cobra.Command{Use: "daemon", Short: "run", RunE: func(*cobra.Command, []string) error { return daemon() }})
	check := &cobra.Command{Use: "check", Short: "look", RunE: func(*cobra.Command, []string) error { return check() }}
	check.Flags().String("copy", "", "")
	check.Flags().String("settings", "", "")
	root.AddCommand(check)
	cli.AddManCommand(root)
	if root.Execute() != nil {
		os.Exit(1)
	}
}

func check() error {
	if behaviour == "unfit" {
		return errors.New("this version cannot run on this machine")
	}
	fmt.Println("check: this version can run here")
	return nil
}

func daemon() error {
	n, err := systemd.TakeNotifier()
	if err != nil {
		return err
	}
	fmt.Println("version", version.Version, "is", behaviour)
	switch behaviour {
	case "crash":
		panic("this version cannot start")
	case "exit":
		return nil
	case "hang":
		select {}
	}
	if err := n.Ready(); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	began, lives := time.Now(), map[string]time.Duration{"later": time.Second / 2, "after30": 30 * time.Second, "after40": 40 * time.Second}
	tick := time.NewTicker(time.Second)
	for {
		select {
		case <-ended:
			if behaviour == "stubborn" {
				continue
			}
			return n.Stopping()
		case <-tick.C:
			if most, ends := lives[behaviour]; ends && time.Since(began) > most {
				panic("this version cannot run")
			}
			if behaviour == "silent" {
				continue
			}
			if err := n.Ping(); err != nil {
				return err
			}
		}
	}
}
