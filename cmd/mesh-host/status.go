package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/local"
	"github.com/meshctl/mesh/internal/cli"
)

func newStatusCommand(p *places) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how this machine stands with its mesh",
		Args:  cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := form()
		if err != nil {
			return err
		}
		s, err := local.NewClient(p.socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		return show(cmd, s, format)
	}
	return cmd
}

func show(cmd *cobra.Command, s host.Status, format cli.Format) error {
	if format == cli.FormatJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	return showText(cmd.OutOrStdout(), s)
}

func showText(out io.Writer, s host.Status) error {
	var b strings.Builder
	fmt.Fprintf(&b, "state:    %s\n", s.State)
	if s.Node != "" {
		fmt.Fprintf(&b, "node:     %s\n", s.Node)
	}
	fmt.Fprintf(&b, "version:  %s\n", s.Version)
	if s.Upgrade != nil {
		fmt.Fprintf(&b, "way back: %s\n", wayBack(*s.Upgrade))
		if l := s.Upgrade.Last; l != nil {
			fmt.Fprintf(&b, "upgrade:  %s, from %s to %s, at %s\n", l.Ending, dash(l.From), dash(l.To), l.At.UTC().Format("2006-01-02 15:04:05Z"))
		}
	}
	fmt.Fprintf(&b, "link:     %s\n", s.Link)
	fmt.Fprintf(&b, "held:     %s\n", s.Held)
	fmt.Fprintf(&b, "applied:  %s\n", s.Applied)
	if s.LastAt != "" {
		fmt.Fprintf(&b, "last pass: %s, %s, ended %s\n", s.Trigger, s.Last, s.LastAt)
	}
	if s.Working != "" {
		fmt.Fprintf(&b, "working:  %s\n", s.Working)
	}
	if s.Pending > 0 {
		fmt.Fprintf(&b, "waiting:  %d messages for the control plane\n", s.Pending)
	}
	if s.Drift > 0 {
		fmt.Fprintf(&b, "drift:    %d found and put right since the start\n", s.Drift)
	}
	if len(s.Results) > 0 {
		b.WriteString("\n")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "STATUS\tRESOURCE\tREASON\tDETAIL")
		for _, r := range s.Results {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Status, cli.Clean(string(r.Resource)), dash(string(r.Reason)), cli.Clean(r.Detail))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, r := range s.Results {
		if r.Output == "" || r.Status.Good() {
			continue
		}
		fmt.Fprintf(&b, "\nthe last output of the tool for %s:\n", cli.Clean(string(r.Resource)))
		for line := range strings.SplitSeq(cli.CleanLines(r.Output), "\n") {
			fmt.Fprintf(&b, "  | %s\n", line)
		}
	}
	for _, id := range s.Kept {
		fmt.Fprintf(&b, "kept: %s is not declared any more and waits for the control plane to release it\n", id)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// wayBack says whether a release that does not run here would be undone.
func wayBack(u mesh.HostUpgrade) string {
	if u.CanRollBack {
		return "yes, to version " + u.Confirmed
	}
	return "no: " + u.Why
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
