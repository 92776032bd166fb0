package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

func newNodeLabelCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "label NAME KEY=VALUE... KEY-...",
		Short: "Set and drop labels of a node",
		Long: `Sets labels (KEY=VALUE) and drops labels (KEY-) of a node in one step, and prints
those that it has then. What the node gets is decided anew at once: declarations
that select by a label may come or go. When they would contradict each other on
this node, no label is changed.`,
		Example: `  meshctl node label web-1 role=db
  meshctl node label web-1 zone=b canary-`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var set, drop []string
			for _, arg := range args[1:] {
				if key, dropped := strings.CutSuffix(arg, "-"); dropped && key != "" && !strings.Contains(arg, "=") {
					drop = append(drop, key)
					continue
				}
				if !strings.Contains(arg, "=") {
					return cli.Usagef(cmd, "%q is neither KEY=VALUE nor KEY-", arg)
				}
				set = append(set, arg)
			}
			labels, err := parseLabels(cmd, set)
			if err != nil {
				return err
			}
			now, err := d.client(cmd).Label(cmd.Context(), args[0], labels, drop)
			if err != nil {
				return err
			}
			fmt.Fprintf(d.stdout, "%s: %s\n", cli.Clean(args[0]), orDash(cli.Clean(labelText(now))))
			return nil
		},
	}
}
