package main

import (
	"fmt"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/local"
)

func newEnrolCommand(p *places) *cobra.Command {
	return &cobra.Command{
		Use:     "enrol TOKEN",
		Aliases: []string{"enroll"},
		Short:   "Make this machine a node of the mesh that issued the token",
		Long: `Make this machine a node of a mesh. The token comes from "meshctl token issue"
on the control plane; it holds the control plane's address and the fingerprint
of its key, and nothing is sent to any other key. When the answer is lost, run
the same command again: it is the same success.`,
		Example: "  mesh-host enrol mesh1-...",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := mesh.ParseToken(args[0]); err != nil {
				return err
			}
			e, err := local.NewClient(p.socket).Enrol(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if e.Eligible {
				_, err = fmt.Fprintf(out, "enrolled as %s; what is declared for it arrives by itself\n", e.Node)
				return err
			}
			if _, err := fmt.Fprintf(out, "enrolled as %s, and nothing is assigned to it until these lines of its briefing pass:\n", e.Node); err != nil {
				return err
			}
			for _, why := range e.Why {
				if _, err := fmt.Fprintln(out, "  "+why); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
