package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
)

// deps is what the commands reach the world through.
type deps struct {
	stdout, stderr io.Writer
	getenv         func(string) string
}

const rootLong = `mesh-control is the control plane of a mesh. It keeps identities, declarations
and reports, holds the links of the nodes, answers operators on a unix socket
(see meshctl), and serves the mesh's signed package repository over HTTP.

It is run by the service manager as mesh-control.service, as a user of its own.
It starts with no file edited: every setting has a default that works.

` + cli.ExitHelp

func newRootCommand(d deps) *cobra.Command {
	root := &cobra.Command{
		Use:   "mesh-control",
		Short: "the control plane of a mesh",
		Long:  rootLong,
		Example: `  mesh-control serve
  mesh-control config check`,
	}
	root.SetOut(d.stdout)
	root.SetErr(d.stderr)
	root.PersistentFlags().String("config", "", "the configuration, a `FILE`; without it "+defaultConfigFile+", if it is there")
	root.AddCommand(newServeCommand(d), newBackupCommand(d), newRestoreCommand(d), newRecoverCommand(d), newConfigCommand(d), newVersionCommand(d))
	cli.AddManCommand(root)
	return root
}

func newVersionCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of mesh-control",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(d.stdout, "mesh-control %s\n", version.Version)
			return err
		},
	}
}
