package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/control/api"
)

func newPackagesCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "packages",
		Short: "Look at the mesh's package repository",
	}
	cmd.AddCommand(newPackagesListCommand(d))
	return cmd
}

func newPackagesListCommand(d deps) *cobra.Command {
	var suite string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the packages of a suite",
		Long:    `Lists every package that hosts can install from a suite of the mesh's repository.`,
		Example: "  meshctl packages list",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "the `SUITE` to list")
	form := output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		packages, err := d.client(cmd).Packages(cmd.Context(), suite)
		if err != nil {
			return err
		}
		if f == formatJSON {
			return printJSON(d.stdout, packages)
		}
		if len(packages) == 0 {
			fmt.Fprintln(d.stdout, "0 packages")
			fmt.Fprintf(d.stderr, "suite %s is empty; `meshctl publish FILE...` puts packages into it\n", clean(suite))
			return nil
		}
		rows := make([][]string, len(packages))
		for i, p := range packages {
			rows[i] = []string{p.Name, p.Version, p.Arch, p.Format, size(p.Size)}
		}
		return table(d.stdout, "PACKAGE|VERSION|ARCH|FORMAT|SIZE", rows)
	}
	return cmd
}
