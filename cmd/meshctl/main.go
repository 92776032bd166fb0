// Command meshctl is the operator's command line: it asks the control plane and
// shows the answer.
//
// It parses, asks and prints. Nothing is decided here: what a node gets, what
// counts as applied and who may ask is the control plane's business.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/meshctl/mesh/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := cli.Execute(ctx, newRootCommand(deps{
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
		now:    time.Now,
		load:   loadDocument,
	}))
	if err != nil {
		fmt.Fprintf(os.Stderr, "meshctl: %s\n", cli.CleanLines(err.Error()))
	}
	os.Exit(cli.ExitCode(err))
}
