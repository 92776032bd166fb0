package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

func newEventsCommand(d deps) *cobra.Command {
	var (
		node  string
		limit int
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List what happened on the nodes, newest first",
		Long: `Lists what nodes reported as having happened (drift that was put right, a store
that was lost, a declaration that was refused) and what happened to them (joined,
replaced, retired, revoked), newest first. The two hundred newest of each node are
kept; what operators did is in "meshctl audit".`,
		Example: `  meshctl events
  meshctl events --node web-1 --limit 20`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&node, "node", "", "only those of this node, a `NAME`")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this `NUMBER` of events")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if limit < 1 {
			return cli.Usagef(cmd, "--limit %d lists nothing", limit)
		}
		events, err := d.client(cmd).Events(cmd.Context(), node, limit)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, events)
		}
		if len(events) == 0 {
			fmt.Fprintln(d.stdout, "0 events")
			return nil
		}
		rows := make([][]string, len(events))
		for i, e := range events {
			rows[i] = []string{stamp(e.Received), e.Node, string(e.Kind), orDash(string(e.Resource)), e.Detail}
		}
		return table(d.stdout, "RECEIVED|NODE|EVENT|RESOURCE|DETAIL", rows)
	}
	return cmd
}
