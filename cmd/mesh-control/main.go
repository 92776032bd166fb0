// Command mesh-control is the control plane: it keeps the identities, the
// declarations and the reports of a mesh, holds the links of its nodes, answers
// its operators, and serves its package repository.
//
// It reads the configuration, constructs the parts, runs them and stops them in
// order. What any of them decides is not its business.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshctl/mesh/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := cli.Execute(ctx, newRootCommand(deps{
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
	}))
	if err != nil {
		fmt.Fprintf(os.Stderr, "mesh-control: %v\n", err)
	}
	os.Exit(cli.ExitCode(err))
}
