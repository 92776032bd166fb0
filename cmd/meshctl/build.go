package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/packaging"
)

func newBuildCommand(d deps) *cobra.Command {
	var version, arch, out, suite string
	var formats []string
	var publish bool
	cmd := &cobra.Command{
		Use:   "build nfpm.yaml",
		Short: "Build deb and rpm packages from a configuration of nfpm",
		Long: `Builds the deb and the rpm that a configuration of nfpm describes, and with
--publish puts both into the mesh's repository in one step. Paths in the
configuration are relative to the working directory. ${NAME} in it is replaced
from the environment.

The version is taken as it stands, and has to mean the same to dpkg and to rpm:
it begins with a digit and holds letters, digits, ".", "+" and "~". Without a
release in the configuration it is followed by -1 in both formats.`,
		Example: `  meshctl build nfpm.yaml --version 1.2.0
  meshctl build nfpm.yaml --version 1.3.0~rc1 --publish --suite testing`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&version, "version", "", "the `VERSION` to build; without it the configuration's")
	cmd.Flags().StringVar(&arch, "arch", "", "the `ARCHITECTURE` to build for, as Go names it; without it the configuration's")
	cmd.Flags().StringVar(&out, "out", ".", "the `DIRECTORY` for the package files")
	cmd.Flags().StringSliceVar(&formats, "format", []string{packaging.Deb, packaging.RPM}, "what to build: deb, rpm or both")
	cmd.Flags().BoolVar(&publish, "publish", false, "publish what was built")
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "with --publish, the `SUITE` to publish to")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, f := range formats {
			if f != packaging.Deb && f != packaging.RPM {
				return cli.Usagef(cmd, "--format %q is neither deb nor rpm", f)
			}
		}
		files, err := packaging.BuildConfig(cmd.Context(), packaging.ConfigOptions{
			File: args[0], Version: version, Arch: arch, Formats: formats, OutDir: out, Getenv: d.getenv,
		})
		if err != nil {
			return mesh.Errorf(mesh.CodeInvalid, "not built: %w; nothing was published", err)
		}
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil {
				return fmt.Errorf("look at what was built: %w", err)
			}
			fmt.Fprintf(d.stdout, "%s: built, %s\n", cli.Clean(f), size(st.Size()))
		}
		if !publish {
			return nil
		}
		published, err := d.publish(cmd.Context(), d.client(cmd), suite, files)
		if err != nil {
			return err
		}
		d.printPublished(published)
		return nil
	}
	return cmd
}
