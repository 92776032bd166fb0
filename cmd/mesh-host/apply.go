package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/local"
	"github.com/meshctl/mesh/internal/cli"
)

func newApplyCommand(p *places) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply BUNDLE",
		Short: "Bring this machine to what a bundle declares, without a control plane",
		Long: `Bring this machine to what a bundle declares. A bundle is a directory or a tar
with declaration.yaml and the package files that it names. This is how the
first node of a mesh raises the control plane; it is refused on a machine that
is enrolled. The command waits for the end of the pass, and is done (exit 0)
only when every resource was read back as declared.`,
		Example: "  mesh-host apply ./mesh-bundle",
		Args:    cobra.ExactArgs(1),
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := form()
		if err != nil {
			return err
		}
		path, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		s, err := local.NewClient(p.socket).Apply(cmd.Context(), path)
		if err != nil {
			return err
		}
		return afterPass(cmd, s, format)
	}
	return cmd
}

func newReconcileCommand(p *places) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Look at every resource now and put right what differs",
		Long: `Look at every declared resource now, without waiting for the drift timer, put
right what differs, and show what was found. Exit 0 only when everything was
read back as declared.`,
		Args: cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := form()
		if err != nil {
			return err
		}
		s, err := local.NewClient(p.socket).Look(cmd.Context())
		if err != nil {
			return err
		}
		return afterPass(cmd, s, format)
	}
	return cmd
}

// afterPass shows how the host is, and is an error unless all is applied.
func afterPass(cmd *cobra.Command, s host.Status, format cli.Format) error {
	if err := show(cmd, s, format); err != nil {
		return err
	}
	if s.Held != 0 && s.Last != mesh.GenerationApplied {
		return mesh.Errorf(mesh.CodeUnavailable, "%s is %s on this machine; the resources that are not as declared are listed above and are tried again by themselves", s.Held, s.Last)
	}
	return nil
}
