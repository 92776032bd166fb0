package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
)

// versionPatience is how long version waits for the control plane.
const versionPatience = 2 * time.Second

func newVersionCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of meshctl and of the control plane",
		Long: `Shows the version of meshctl, and that of the control plane when it answers. Not
reaching the control plane is said, and is no error here.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintf(d.stdout, "meshctl %s\n", version.Version)
			ctx, cancel := context.WithTimeout(cmd.Context(), versionPatience)
			defer cancel()
			health, err := d.client(cmd).Health(ctx)
			if err != nil {
				fmt.Fprintf(d.stderr, "mesh-control: %s\n", cli.CleanLines(err.Error()))
				return nil
			}
			fmt.Fprintf(d.stdout, "mesh-control %s\n", cli.Clean(health.Version))
			return nil
		},
	}
}
