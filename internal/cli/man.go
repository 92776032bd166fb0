// Package cli holds what the command lines of the mesh's programs have in
// common: how a wrong command line is answered and which exit code follows, the
// formats of an answer, the form of the log, and the hidden command that writes a
// program's manual page.
//
// It does not know what the programs do.
package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/mesh/internal/version"
)

// AddManCommand adds the hidden command "man DIR" to a program. It writes
// DIR/NAME.SECTION, one manual page in roff that describes the program and all
// of its commands that are not hidden. Packages are built with it.
func AddManCommand(root *cobra.Command) {
	section := 1
	man := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write this program's manual page into a directory",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if section < 1 || section > 8 {
				return fmt.Errorf("section %d: want 1 to 8", section)
			}
			page := filepath.Join(args[0], fmt.Sprintf("%s.%d", cmd.Root().Name(), section))
			if err := os.WriteFile(page, ManPage(cmd.Root(), section), 0o644); err != nil {
				return fmt.Errorf("write manual page: %w", err)
			}
			return nil
		},
	}
	man.Flags().IntVar(&section, "section", section, "manual section: 1 for everyone's commands, 8 for the administrator's")
	root.AddCommand(man)
}

// ManPage renders the manual page of a program in the man macros of roff.
func ManPage(root *cobra.Command, section int) []byte {
	root.InitDefaultHelpFlag()
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s %d \"\" %s \"Mesh manual\"\n", quote(strings.ToUpper(root.Name())), section, quote(root.Name()+" "+version.Version))
	b.WriteString(".nh\n.ad l\n")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", text(root.Name()), text(strings.TrimRight(root.Short, ".")))
	b.WriteString(".SH SYNOPSIS\n")
	if root.Runnable() {
		fmt.Fprintf(&b, ".B %s\n.br\n", text(root.UseLine()))
	}
	if children := shown(root); len(children) > 0 {
		fmt.Fprintf(&b, ".B %s\n.I command\n[\\fIoptions\\fR]\n", text(root.Name()))
	}
	if long := strings.TrimSpace(root.Long); long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		paragraphs(&b, long)
	}
	flags(&b, ".SH OPTIONS", root.Flags(), root.PersistentFlags())
	if children := shown(root); len(children) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range children {
			command(&b, c)
		}
	}
	if root.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, root.Example)
	}
	return b.Bytes()
}

// command writes one command and, after it, the commands below it.
func command(b *bytes.Buffer, c *cobra.Command) {
	if c.Runnable() {
		fmt.Fprintf(b, ".SS %s\n", text(c.UseLine()))
		long := strings.TrimSpace(c.Long)
		if long == "" {
			long = c.Short
		}
		paragraphs(b, long)
		if len(c.Aliases) > 0 {
			paragraphs(b, "Also: "+strings.Join(c.Aliases, ", ")+".")
		}
		c.InitDefaultHelpFlag()
		flags(b, "", c.NonInheritedFlags())
		if c.Example != "" {
			b.WriteString(".PP\nFor example:\n")
			verbatim(b, c.Example)
		}
	}
	for _, sub := range shown(c) {
		command(b, sub)
	}
}

func shown(c *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			out = append(out, sub)
		}
	}
	return out
}

// flags writes the options of the sets, each option once. "help" is left out
// except in the page's own list, where title is not empty.
func flags(b *bytes.Buffer, title string, sets ...*pflag.FlagSet) {
	seen := map[string]bool{}
	first := true
	for _, set := range sets {
		set.VisitAll(func(f *pflag.Flag) {
			if seen[f.Name] || f.Hidden || f.Deprecated != "" || (f.Name == "help" && title == "") {
				return
			}
			seen[f.Name] = true
			if first && title != "" {
				b.WriteString(title + "\n")
			}
			first = false
			name, usage := pflag.UnquoteUsage(f)
			b.WriteString(".TP\n")
			if f.Shorthand != "" && f.ShorthandDeprecated == "" {
				fmt.Fprintf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
			}
			fmt.Fprintf(b, "\\fB\\-\\-%s\\fR", text(f.Name))
			if name != "" {
				fmt.Fprintf(b, " \\fI%s\\fR", text(name))
			}
			b.WriteByte('\n')
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
				usage += " (default " + f.DefValue + ")"
			}
			b.WriteString(text(usage) + "\n")
		})
	}
}

func paragraphs(b *bytes.Buffer, s string) {
	for _, p := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if strings.HasPrefix(p, "  ") || strings.HasPrefix(p, "\t") {
			verbatim(b, p)
			continue
		}
		b.WriteString(".PP\n")
		for _, line := range strings.Split(p, "\n") {
			// Lines that are indented or listed keep their line breaks.
			if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "- ") {
				b.WriteString(".br\n")
			}
			b.WriteString(text(strings.TrimSpace(line)) + "\n")
		}
	}
}

func verbatim(b *bytes.Buffer, s string) {
	b.WriteString(".PP\n.RS 4\n.nf\n")
	for _, line := range strings.Split(strings.Trim(s, "\n"), "\n") {
		b.WriteString(text(strings.TrimRight(strings.TrimPrefix(line, "  "), " \t")) + "\n")
	}
	b.WriteString(".fi\n.RE\n")
}

var escape = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ")

// text makes s safe to stand in roff: nothing in it is a request or an escape.
func text(s string) string {
	lines := strings.Split(escape.Replace(s), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func quote(s string) string {
	return `"` + strings.ReplaceAll(text(s), `"`, `\(dq`) + `"`
}
