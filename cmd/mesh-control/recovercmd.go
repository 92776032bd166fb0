package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newRecoverCommand(d deps) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "recover [NODE...]",
		Short: "Confirm nodes that hold more than this control plane knows",
		Long: `After a control plane was restored from a backup, a node may hold a generation that
the backup does not know. Nothing is pushed to such a node until somebody confirms
that what is declared here now is what it should get.

Without a name this lists these nodes, and those that were not heard of since. With
names, or --all, it confirms: each node gets what its declarations say, numbered
above what it holds; what it owns and is not declared is removed or put back. So
write again first what was declared after the backup. A node that no declaration
selects keeps what it has.`,
		Example: `  mesh-control recover
  mesh-control recover web-1 web-2
  mesh-control recover --all`,
	}
	cmd.Flags().BoolVar(&all, "all", false, "every node that holds more than is known")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if all && len(names) > 0 {
			return cli.Usagef(cmd, "--all means every node; leave the names out")
		}
		c, err := loadConfig(cmd.Flag("config").Value.String())
		if err != nil {
			return badConfig(err)
		}
		client := api.NewClient(c.socket)
		defer client.Close()
		nodes, err := client.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		unsure := 0
		for _, n := range nodes {
			switch {
			case n.Ahead && all:
				names = append(names, n.Node)
			case !all && len(names) == 0 && (n.Ahead || n.Unheard):
				unsure++
				fmt.Fprintf(d.stdout, "%s  %s\n", n.Node, n.Note)
			}
		}
		if len(names) == 0 && unsure == 0 {
			fmt.Fprintln(d.stdout, "0 nodes hold more than is known here")
			return nil
		}
		for _, name := range names {
			r, err := client.Recover(cmd.Context(), name)
			if err != nil {
				return err
			}
			if r.Generation == 0 {
				fmt.Fprintf(d.stdout, "%s keeps %s, since no declaration selects it\n", r.Node, r.Held)
				continue
			}
			fmt.Fprintf(d.stdout, "%s held %s and gets %s: %d resources, %d to remove or put back\n", r.Node, r.Held, r.Generation, r.Resources, len(r.Released))
		}
		return nil
	}
	return cmd
}
