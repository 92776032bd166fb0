package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

func newDeclarationCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "declaration",
		Short: "List, show, compare, revert and remove what is declared",
	}
	cmd.AddCommand(newDeclarationListCommand(d), newDeclarationShowCommand(d), newDeclarationHistoryCommand(d), newDeclarationDiffCommand(d), newDeclarationRevertCommand(d), newDeclarationRemoveCommand(d))
	return cmd
}

func newDeclarationListCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the named declarations",
		Long: `Lists the named declarations with their newest revision. One that was removed is
listed as such: its revisions are kept and can be shown.`,
		Example: "  meshctl declaration list",
		Args:    cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		views, err := d.client(cmd).Declarations(cmd.Context())
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, views)
		}
		if len(views) == 0 {
			fmt.Fprintln(d.stdout, "0 declarations")
			fmt.Fprintln(d.stderr, "nothing is declared yet; `meshctl declare FILE` writes a declaration")
			return nil
		}
		rows := make([][]string, len(views))
		for i, v := range views {
			resources := strconv.Itoa(v.Resources)
			if v.Removed {
				resources = "removed"
			}
			rows[i] = []string{v.Name, strconv.FormatInt(v.Revision, 10), resources, v.By, stamp(v.Written)}
		}
		return table(d.stdout, "DECLARATION|REVISION|RESOURCES|BY|WRITTEN", rows)
	}
	return cmd
}

func newDeclarationShowCommand(d deps) *cobra.Command {
	var revision int64
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a declaration in the form in which it is written",
		Long: `Shows the newest revision of a declaration, or the one that --revision names, in
the form in which declarations are written. The content of a sensitive file is
left out, and so is content that is too long to be kept in the declaration; a
comment says so in its place.`,
		Example: `  meshctl declaration show web
  meshctl declaration show web --revision 6`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().Int64Var(&revision, "revision", 0, "which revision, a `NUMBER`; 0: the newest")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if revision < 0 {
			return cli.Usagef(cmd, "--revision %d is not the number of a revision", revision)
		}
		view, err := d.client(cmd).Declaration(cmd.Context(), args[0], revision)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, view)
		}
		return printDeclaration(d.stdout, view)
	}
	return cmd
}

func newDeclarationRemoveCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a declaration, and with it what it put on the nodes",
		Long: `Writes a revision that removes the declaration. Every node that it was for
removes what the mesh made there through it: a file that was there before is put
back, a package that was there before stays. The older revisions are kept.`,
		Example: "  meshctl declaration remove web",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := d.client(cmd).RemoveDeclaration(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if !answer.Changed {
				fmt.Fprintf(d.stdout, "%s was removed already by revision %d, nothing written\n", answer.Declaration, answer.Revision)
				return nil
			}
			fmt.Fprintf(d.stdout, "%s removed by revision %d, %s to change\n", answer.Declaration, answer.Revision, count(answer.Nodes, "node", "nodes"))
			return nil
		},
	}
}
