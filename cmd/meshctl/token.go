package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newTokenCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Hand out tokens, with which machines join, list and revoke them",
	}
	cmd.AddCommand(newTokenIssueCommand(d), newTokenListCommand(d), newTokenRevokeCommand(d))
	return cmd
}

func newTokenIssueCommand(d deps) *cobra.Command {
	var (
		req    control.TokenRequest
		labels []string
	)
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Make a token and show the commands that adopt a machine with it",
		Long: `Makes a token and prints, once, the token and the exact commands for a machine
with apt and for a machine with dnf.

A token is used once and ends after a while. It names the control plane and pins
its key; the control plane keeps only a hash of it, so that it cannot be shown
again.

With --replaces the machine takes the place of a node that is there: its old
identity is revoked in the same step in which the new one is stored.`,
		Example: `  meshctl token issue
  meshctl token issue --name web-1 --label role=web --ttl 24h
  meshctl token issue --replaces web-1`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "the `NAME` that the node gets; without it the machine's host name")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "a label of the node, `KEY=VALUE`; may be repeated")
	cmd.Flags().DurationVar(&req.TTL, "ttl", time.Hour, "how long the token can be used, a `DURATION` such as 30m or 24h")
	cmd.Flags().StringVar(&req.Replaces, "replaces", "", "the `NODE` whose place the machine takes")
	cmd.Flags().StringArrayVar(&req.Addresses, "address", nil, "a `HOST:PORT` at which the machine reaches the control plane; may be repeated; without it the control plane's own")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if req.TTL <= 0 {
			return cli.Usagef(cmd, "--ttl %s is not longer than nothing", req.TTL)
		}
		if req.Labels, err = parseLabels(cmd, labels); err != nil {
			return err
		}
		answer, err := d.client(cmd).IssueToken(cmd.Context(), req)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, answer)
		}
		return printToken(d.stdout, d.stderr, answer)
	}
	return cmd
}

func newTokenListCommand(d deps) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tokens with which a machine can still join",
		Long: `Lists the tokens that nobody has used and that have not expired, newest first.
The secret of a token is not known any more; its id names it here and for
meshctl token revoke, and opens nothing.

With --all those are listed too that were used, with the node that joined, and
those that expired, as far as they are kept.`,
		Example: `  meshctl token list
  meshctl token list --all`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&all, "all", false, "list also what was used or has expired")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		tokens, err := d.client(cmd).Tokens(cmd.Context(), all)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, tokens)
		}
		if len(tokens) == 0 {
			_, err := fmt.Fprintln(d.stdout, "0 tokens")
			return err
		}
		rows := make([][]string, len(tokens))
		for i, t := range tokens {
			rows[i] = []string{t.ID, tokenState(t), tokenFor(t), orDash(labelText(t.Labels)), stamp(t.Issued), stamp(t.Expires)}
		}
		return table(d.stdout, "ID|STATE|FOR|LABELS|ISSUED|EXPIRES", rows)
	}
	return cmd
}

func tokenState(t control.TokenView) string {
	if t.State == control.TokenUsed {
		return "used by " + t.Node
	}
	return string(t.State)
}

func tokenFor(t control.TokenView) string {
	switch {
	case t.Replaces != "":
		return "the place of " + t.Replaces
	case t.Name != "":
		return t.Name
	}
	return "any host name"
}

func newTokenRevokeCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID|TOKEN",
		Short: "End a token that nobody has used",
		Long: `Ends a token: no machine can join with it from then on. It is named by its id,
which meshctl token issue and meshctl token list show, or by the token itself,
whose secret is not sent.

A token that was used ended with that. Its node is ended by meshctl node revoke.`,
		Example: `  meshctl token revoke 1f0a55c2d9e3`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if token, err := mesh.ParseToken(id); err == nil {
				id = control.TokenRecord{Hash: mesh.SecretHash(token.SecretText())}.ID()
			}
			if err := d.client(cmd).RevokeToken(cmd.Context(), id); err != nil {
				return err
			}
			fmt.Fprintf(d.stdout, "no machine can join with the token %s any more\n", cli.Clean(id))
			return nil
		},
	}
}

func parseLabels(cmd *cobra.Command, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(list))
	for _, item := range list {
		key, value, found := strings.Cut(item, "=")
		if !found || key == "" {
			return nil, cli.Usagef(cmd, "--label %q is not KEY=VALUE", item)
		}
		if _, twice := labels[key]; twice {
			return nil, cli.Usagef(cmd, "--label %s is given twice", key)
		}
		labels[key] = value
	}
	return labels, nil
}

func printToken(stdout, stderr io.Writer, t api.TokenAnswer) error {
	fmt.Fprintf(stderr, "This token is shown once, can be used once, and ends at %s, or before with `meshctl token revoke %s`.\n", stamp(t.Expires), cli.Clean(t.ID))
	if _, err := fmt.Fprintf(stdout, "%s\n", cli.Clean(t.Token)); err != nil {
		return fmt.Errorf("print the token: %w", err)
	}
	if t.Repository == nil {
		return mesh.Errorf(mesh.CodeInternal, "the token is good, but how a machine installs mesh-host is not known: %s", t.RepositoryFault)
	}
	r := *t.Repository
	for _, w := range []struct{ title, commands string }{
		{"On a machine with apt, as root:", aptCommands(r, t)},
		{"On a machine with dnf, as root:", dnfCommands(r, t)},
	} {
		if _, err := fmt.Fprintf(stdout, "\n# %s\n%s", w.title, w.commands); err != nil {
			return fmt.Errorf("print the commands: %w", err)
		}
	}
	return nil
}

// aptCommands needs nothing on the machine but apt: its own helper fetches the
// key and refuses any other.
func aptCommands(r api.Repository, t api.TokenAnswer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "install -d -m 0755 %s\n", dir(r.AptKeyFile))
	fmt.Fprintf(&b, "/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file %s %s SHA256:%s\n", r.KeyURL, r.AptKeyFile, r.KeySHA256)
	b.WriteString(hereDocument("/etc/apt/sources.list.d/mesh.sources", r.AptSource))
	b.WriteString(credentialCommands(t.Reading["apt"]))
	b.WriteString("apt-get update\napt-get install -y mesh-host\n")
	fmt.Fprintf(&b, "mesh-host enrol %s\n", t.Token)
	return b.String()
}

func dnfCommands(r api.Repository, t api.TokenAnswer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "install -d -m 0755 %s\n", dir(r.DnfKeyFile))
	fmt.Fprintf(&b, "curl -fsS -o %s %s\n", r.DnfKeyFile, r.KeyURL)
	// A key that is another one must not stay: dnf takes the file that is there.
	fmt.Fprintf(&b, "echo '%s  %s' | sha256sum --check || rm -f %s\n", r.KeySHA256, r.DnfKeyFile, r.DnfKeyFile)
	b.WriteString(hereDocument("/etc/yum.repos.d/mesh.repo", r.DnfSource))
	b.WriteString(credentialCommands(t.Reading["dnf"]))
	b.WriteString("dnf install -y mesh-host\n")
	fmt.Fprintf(&b, "mesh-host enrol %s\n", t.Token)
	return b.String()
}

// credentialCommands writes the files with which a machine reads the repository
// until it is a node, so that no other user of it can.
func credentialCommands(files []control.ReadingFile) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "install -d -m 0755 %s\ninstall -m 0600 /dev/null %s\n%s", dir(f.Path), f.Path, hereDocument(f.Path, f.Content))
	}
	return b.String()
}

func hereDocument(path, text string) string {
	return fmt.Sprintf("cat > %s <<'END'\n%s\nEND\n", path, strings.TrimRight(text, "\n"))
}

func dir(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}
