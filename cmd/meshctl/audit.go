package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

func newAuditCommand(d deps) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List who changed what, newest first",
		Long: `Lists every write with who asked for it, through which door and when, newest
first. What was only read is not listed.`,
		Example: "  meshctl audit --limit 20",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this `NUMBER` of entries")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if limit < 1 {
			return cli.Usagef(cmd, "--limit %d lists nothing", limit)
		}
		entries, err := d.client(cmd).Audit(cmd.Context(), limit)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, entries)
		}
		if len(entries) == 0 {
			fmt.Fprintln(d.stdout, "0 entries")
			return nil
		}
		rows := make([][]string, len(entries))
		for i, e := range entries {
			rows[i] = []string{stamp(e.At), e.Who, e.Door, orDash(e.Key), e.What, e.Detail}
		}
		return table(d.stdout, "AT|WHO|DOOR|KEY|WHAT|DETAIL", rows)
	}
	return cmd
}
