package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/cli"
)

func newDeclarationHistoryCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "List the revisions of a declaration, newest first",
		Long: `Lists every revision of a declaration, newest first, with who wrote it and when.
Nothing of it is ever changed or dropped: a removal and a revert are revisions
too.`,
		Example: "  meshctl declaration history web",
		Args:    cobra.ExactArgs(1),
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		views, err := d.client(cmd).History(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, views)
		}
		rows := make([][]string, len(views))
		for i, v := range views {
			resources := strconv.Itoa(v.Resources)
			if v.Removed {
				resources = "removed"
			}
			rows[i] = []string{strconv.FormatInt(v.Revision, 10), resources, v.By, stamp(v.Written)}
		}
		return table(d.stdout, "REVISION|RESOURCES|BY|WRITTEN", rows)
	}
	return cmd
}

func newDeclarationDiffCommand(d deps) *cobra.Command {
	var from, to int64
	cmd := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what differs between two revisions of a declaration",
		Long: `Shows what differs between two revisions, in the form in which declarations are
written: lines that went with -, lines that came with +. Without options these
are the newest revision and the one before it.

The content of a file that is sensitive in either revision is not shown. That it
differs is said.`,
		Example: `  meshctl declaration diff web
  meshctl declaration diff web --from 3
  meshctl declaration diff web --from 3 --to 5`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().Int64Var(&from, "from", 0, "the earlier revision, a `NUMBER`; 0: the one before the other")
	cmd.Flags().Int64Var(&to, "to", 0, "the later revision, a `NUMBER`; 0: the newest")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if from < 0 || to < 0 {
			return cli.Usagef(cmd, "a revision is a number from 1 on")
		}
		c, err := d.client(cmd).Compare(cmd.Context(), args[0], from, to)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, c)
		}
		return printComparison(d.stdout, c)
	}
	return cmd
}

func printComparison(w io.Writer, c control.Comparison) error {
	before, err := documentText(c.From)
	if err != nil {
		return err
	}
	after, err := documentText(c.To)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", revisionText(c.From), revisionText(c.To))
	changes := diff(lines(before), lines(after))
	for _, line := range changes {
		b.WriteString(line + "\n")
	}
	for _, id := range c.Hidden {
		fmt.Fprintf(&b, "! %s: its content differs and is sensitive, so it is not shown\n", cli.Clean(string(id)))
	}
	if len(changes) == 0 && len(c.Hidden) == 0 {
		b.WriteString("they are the same\n")
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func revisionText(v control.DeclarationView) string {
	text := fmt.Sprintf("%s revision %d, written %s by %s", cli.Clean(v.Name), v.Revision, stamp(v.Written), cli.Clean(v.By))
	if v.Removed {
		text += " (removed)"
	}
	return text
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range all {
		all[i] = cli.Clean(all[i])
	}
	return all
}

func newDeclarationRevertCommand(d deps) *cobra.Command {
	var to int64
	o := declareOptions{}
	cmd := &cobra.Command{
		Use:   "revert NAME",
		Short: "Write an earlier revision of a declaration again",
		Long: `Writes an earlier revision again, without an option the one before the newest. It
becomes a new revision, and is checked, compiled and pushed like any other write;
what was between the two stays in the history. Reverting to a revision that
removed the declaration removes it.`,
		Example: `  meshctl declaration revert web
  meshctl declaration revert web --to 3`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().Int64Var(&to, "to", 0, "the revision to write again, a `NUMBER`; 0: the one before the newest")
	cmd.Flags().DurationVar(&o.wait, "wait", 3*time.Second, "how long to look after the write, a `DURATION`; 0: not at all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if to < 0 || o.wait < 0 {
			return cli.Usagef(cmd, "a revision is a number from 1 on, and --wait is not less than nothing")
		}
		client := d.client(cmd)
		answer, err := client.Revert(cmd.Context(), args[0], to)
		if err != nil {
			return err
		}
		if !answer.Changed {
			fmt.Fprintf(d.stdout, "%s revision %d is the same already, nothing written\n", answer.Declaration, answer.Revision)
			return nil
		}
		fmt.Fprintf(d.stdout, "%s revision %d written, %s to change\n", answer.Declaration, answer.Revision, count(answer.Nodes, "node", "nodes"))
		if o.wait == 0 {
			return nil
		}
		return d.watch(cmd.Context(), client, o, []control.Declared{answer})
	}
	return cmd
}
