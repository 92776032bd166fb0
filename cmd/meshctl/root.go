package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

// deps is what the commands reach the world through.
type deps struct {
	// stdout gets data, stderr everything that is said about it.
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time
	// load reads a declaration from a file.
	load loader
	// poll is how often declare looks while it waits. Zero: four times a second.
	poll time.Duration
}

const rootLong = `meshctl asks the control plane of a mesh and shows the answer: it hands out
tokens, writes declarations, publishes packages and lists nodes.

Data goes to standard output; everything that is said about it goes to standard
error.

` + doorHelp + `

` + cli.ExitHelp

func newRootCommand(d deps) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshctl",
		Short: "ask the control plane of a mesh",
		Long:  rootLong,
		Example: `  meshctl token issue --label role=web
  meshctl declare web.yaml
  meshctl nodes`,
	}
	root.SetOut(d.stdout)
	root.SetErr(d.stderr)
	addDoorFlags(root)
	root.AddCommand(
		newTokenCommand(d),
		newDeclareCommand(d),
		newDeclarationCommand(d),
		newPublishCommand(d),
		newBuildCommand(d),
		newPackagesCommand(d),
		newRepoCommand(d),
		newNodesCommand(d),
		newMetricsCommand(d),
		newNodeCommand(d),
		newEventsCommand(d),
		newOperatorCommand(d),
		newAuditCommand(d),
		newVersionCommand(d),
	)
	cli.AddManCommand(root)
	return root
}
