package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "mesh-host "+version.Version)
			return err
		},
	}
}
