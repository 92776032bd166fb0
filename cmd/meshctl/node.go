package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/cli"
)

func newNodeCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Show one node, change its labels, have it leave, or end its identity",
	}
	cmd.AddCommand(newNodeShowCommand(d), newNodeLabelCommand(d), newNodeRetireCommand(d), newNodeRevokeCommand(d))
	return cmd
}

func newNodeShowCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show everything that is known of a node",
		Long: `Shows what a node is, what its briefing found, what became of each resource that
is declared for it, what the mesh owns there, and what happened lately. Beside a
resource stands why it is not as declared, or what is to be known of how it came
to be so; below one that is not, the last lines of the tool's output.`,
		Example: `  meshctl node show web-1
  meshctl node show web-1 -o json`,
		Args: cobra.ExactArgs(1),
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		node, err := d.client(cmd).Node(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, node)
		}
		return d.printNode(node)
	}
	return cmd
}

func newNodeRevokeCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "End the identity of a node that is lost",
		Long: `Ends the identity of a node for good: its key is refused from now on and a link
that is open is closed. What was known of the node stays readable.

The machine is not switched off and nothing is removed from it. It may go on
running its last declaration.`,
		Example: "  meshctl node revoke web-2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := d.client(cmd).Revoke(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(d.stdout, "%s revoked\n", cli.Clean(args[0]))
			fmt.Fprintln(d.stderr, "its key is refused from now on; the machine may still be running its last declaration")
			return nil
		},
	}
}

func (d deps) printNode(n control.NodeDetail) error {
	now := d.now()
	w := &sections{w: d.stdout}
	w.facts([][2]string{
		{"node", n.Node},
		{"state", stateText(n.NodeView)},
		{"labels", orDash(labelText(n.Labels))},
		{"declared", n.Declared.String()},
		{"held", n.Held.String()},
		{"applied", n.Applied.String()},
		{"outstanding", outstanding(n.Outstanding)},
		{"failed", failedCount(len(n.Failed))},
		{"last contact", stampAgo(n.LastContact, now)},
		{"enrolled", stamp(n.Enrolled)},
		{"key", n.Key},
		{"host version", orDash(n.HostVersion)},
		{"way back", wayBack(n.Host)},
		{"last upgrade", lastUpgrade(n.Host)},
		{"drift", fmt.Sprintf("%d since the host started", n.Drift)},
		{"ledger", ledgerText(n)},
		{"system", systemText(n.Profile)},
		{"packages by", orDash(strings.TrimSpace(n.Profile.PackageManager + " " + n.Profile.PackageManagerVersion))},
	})
	w.head(fmt.Sprintf("briefing: %s%s", n.Briefing.Outcome(), eligibility(n)))
	var lines [][]string
	for _, l := range n.Briefing.Lines {
		lines = append(lines, []string{string(l.Outcome), l.Check, l.Detail})
	}
	w.rows(lines)
	if len(n.Results) > 0 {
		w.head("resources")
		w.results(n.Results)
	}
	w.list("owned by the mesh", n.Owned)
	w.list("kept, though no longer declared", n.Kept)
	if len(n.Events) > 0 {
		w.head("events")
		var rows [][]string
		for _, e := range n.Events {
			rows = append(rows, []string{stamp(e.Received), string(e.Kind), orDash(string(e.Resource)), e.Detail})
		}
		w.rows(rows)
	}
	return w.err
}

func stateText(n control.NodeView) string {
	if n.Note == "" {
		return string(n.State)
	}
	return fmt.Sprintf("%s (%s)", n.State, n.Note)
}

func labelText(labels map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return strings.Join(parts, ", ")
}

func ledgerText(n control.NodeDetail) string {
	if n.LedgerAgrees {
		return "the node's and this one agree"
	}
	return "the node's differs from the results here; a report is on its way, or no heartbeat came yet"
}

// wayBack says whether a release of the host that does not run would be undone.
func wayBack(h *mesh.HostUpgrade) string {
	switch {
	case h == nil:
		return "-"
	case h.CanRollBack:
		return "yes, to " + h.Confirmed
	}
	return "no: " + h.Why
}

func lastUpgrade(h *mesh.HostUpgrade) string {
	if h == nil || h.Last == nil {
		return "-"
	}
	l := h.Last
	text := fmt.Sprintf("%s, from %s to %s, %s", l.Ending, orDash(l.From), orDash(l.To), stamp(l.At))
	if l.Why != "" {
		text += ": " + l.Why
	}
	return text
}

func systemText(p mesh.Profile) string {
	name := p.OS.Name
	if name == "" {
		name = strings.TrimSpace(p.OS.ID + " " + p.OS.Version)
	}
	var parts []string
	for _, s := range []string{name, p.Arch} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if p.Kernel != "" {
		parts = append(parts, "kernel "+p.Kernel)
	}
	if p.Systemd > 0 {
		parts = append(parts, fmt.Sprintf("systemd %d", p.Systemd))
	}
	if p.Virtualization != "" && p.Virtualization != "none" {
		parts = append(parts, p.Virtualization)
	}
	return orDash(strings.Join(parts, ", "))
}

func eligibility(n control.NodeDetail) string {
	if n.Eligible {
		return ""
	}
	return ", so that the node gets no declarations"
}

// sections prints the parts of a page and remembers the first error.
type sections struct {
	w   io.Writer
	err error
}

func (s *sections) print(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

func (s *sections) head(title string) { s.print("\n" + cli.Clean(title) + "\n") }

func (s *sections) facts(facts [][2]string) {
	for _, f := range facts {
		s.print(fmt.Sprintf("%-13s %s\n", f[0], cli.Clean(f[1])))
	}
}

func (s *sections) rows(rows [][]string) {
	tw := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = cli.Clean(row[i])
		}
		fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
	}
	if err := tw.Flush(); s.err == nil {
		s.err = err
	}
}

func (s *sections) list(title string, ids []mesh.ResourceID) {
	if len(ids) == 0 {
		return
	}
	s.head(title)
	for _, id := range ids {
		s.print("  " + cli.Clean(string(id)) + "\n")
	}
}

// results prints one line for each resource, with the reason's word and the
// sentence that the host says of it, and below a line that is not good what the
// tool said.
func (s *sections) results(results []mesh.Result) {
	width := 0
	for _, r := range results {
		width = max(width, len(r.Resource))
	}
	for _, r := range results {
		line := fmt.Sprintf("  %-8s  %-*s  %s", r.Status, width, r.Resource, r.Generation)
		said := slices.DeleteFunc([]string{string(r.Reason), r.Detail}, func(s string) bool { return s == "" })
		line += "  " + strings.Join(said, ": ")
		s.print(strings.TrimRight(cli.Clean(line), " ") + "\n")
		if r.Output != "" && !r.Status.Good() {
			for _, out := range strings.Split(cli.CleanLines(r.Output), "\n") {
				s.print("            | " + out + "\n")
			}
		}
	}
}
