package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/cli"
)

// maxKeyFile bounds the file of a public key, in bytes.
const maxKeyFile = 64 << 10

func newOperatorCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Say who may operate the mesh from elsewhere, and how far",
	}
	cmd.AddCommand(newOperatorAddCommand(d), newOperatorListCommand(d), newOperatorRemoveCommand(d))
	return cmd
}

func newOperatorAddCommand(d deps) *cobra.Command {
	var (
		req  control.OperatorRequest
		role string
		key  string
	)
	cmd := &cobra.Command{
		Use:   "add NAME --key FILE --role ROLE",
		Short: "Register an operator with an SSH key and a role",
		Long: `Registers an SSH key under a name. Whoever holds it may ask this control plane
from elsewhere, with meshctl --control, as far as the role goes:

  reader     looks at everything that is not secret
  publisher  also writes declarations and publishes packages
  admin      everything: tokens, revoking, other operators

A publisher can be limited to named declarations and to packages by patterns of
their names. With one limit of either kind, nothing that is not named may be
written: a publisher with only --package writes no declaration.

It prints the settings that the operator puts into ~/.config/mesh/meshctl.yaml,
with the fingerprint of the control plane's key. Run again with the same values
it changes nothing and prints them again.`,
		Example: `  meshctl operator add anna --key anna.pub --role admin
  meshctl operator add ci-web --key ci.pub --role publisher --declaration web --package 'web-*'`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&key, "key", "", "the operator's public SSH key, a `FILE` as a rule ending in .pub; - for standard input")
	cmd.Flags().StringVar(&role, "role", "", "the `ROLE`: reader, publisher or admin")
	cmd.Flags().StringArrayVar(&req.Declarations, "declaration", nil, "the `NAME` of a declaration that a publisher may write; may be repeated")
	cmd.Flags().StringArrayVar(&req.Packages, "package", nil, "a `PATTERN` of names of packages that a publisher may publish, with * and ?; may be repeated")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		switch {
		case err != nil:
			return err
		case key == "":
			return cli.Usagef(cmd, "--key is missing: the file with the operator's public key")
		case role == "":
			return cli.Usagef(cmd, "--role is missing: reader, publisher or admin")
		}
		req.Name, req.Role = args[0], control.Role(role)
		if req.Key, err = readKey(cmd.InOrStdin(), key); err != nil {
			return err
		}
		added, err := d.client(cmd).AddOperator(cmd.Context(), req)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, added)
		}
		return d.printOperator(added)
	}
	return cmd
}

func (d deps) printOperator(a control.OperatorAdded) error {
	if a.Changed {
		fmt.Fprintf(d.stderr, "%s is registered as %s with the key %s.\n", cli.Clean(a.Name), a.Role, cli.Clean(a.Key))
	} else {
		fmt.Fprintf(d.stderr, "%s is registered as %s with the key %s already; nothing was changed.\n", cli.Clean(a.Name), a.Role, cli.Clean(a.Key))
	}
	fmt.Fprintln(d.stderr, "These settings are for ~/.config/mesh/meshctl.yaml of the operator:")
	address := "HOST:PORT"
	if len(a.Addresses) > 0 {
		address = a.Addresses[0]
	}
	_, err := fmt.Fprintf(d.stdout, "control: %q\nfingerprint: %s\n# identity: the private key; without it the keys of ssh-agent\n", cli.Clean(address), cli.Clean(a.Fingerprint))
	return err
}

func readKey(stdin io.Reader, path string) (string, error) {
	from := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", mesh.Errorf(mesh.CodeInvalid, "the key cannot be read: %w; nobody was registered", err)
		}
		defer f.Close()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, maxKeyFile+1))
	if err != nil {
		return "", mesh.Errorf(mesh.CodeInvalid, "the key cannot be read: %w; nobody was registered", err)
	}
	text := string(data)
	switch {
	case len(data) > maxKeyFile:
		return "", mesh.Errorf(mesh.CodeInvalid, "%s is too long to be a public key; nobody was registered", path)
	case strings.Contains(text, "PRIVATE KEY"):
		// It must not leave this machine, not even to be refused.
		return "", mesh.Errorf(mesh.CodeInvalid, "%s is a private key, which stays with its owner; give the public one, as a rule %s.pub. Nothing was sent", path, path)
	}
	return strings.TrimSpace(text), nil
}

func newOperatorListCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List who may operate the mesh from elsewhere",
		Long: `Lists the registered operators with their role, their limits and the fingerprint
of their key. Root and the group mesh-admin on the control plane's own machine
are not listed: they come through the socket.`,
		Example: "  meshctl operator list",
		Args:    cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		operators, err := d.client(cmd).Operators(cmd.Context())
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, operators)
		}
		if len(operators) == 0 {
			fmt.Fprintln(d.stdout, "0 operators")
			fmt.Fprintln(d.stderr, "only root and the group mesh-admin on the control plane's machine may ask; `meshctl operator add` registers others")
			return nil
		}
		rows := make([][]string, len(operators))
		for i, o := range operators {
			rows[i] = []string{o.Name, string(o.Role), limitsText(o.Limits), o.Key, stamp(o.Added), o.By}
		}
		return table(d.stdout, "OPERATOR|ROLE|LIMITED TO|KEY|ADDED|BY", rows)
	}
	return cmd
}

func limitsText(l control.Limits) string {
	var parts []string
	if len(l.Declarations) > 0 {
		parts = append(parts, "declarations "+strings.Join(l.Declarations, ","))
	}
	if len(l.Packages) > 0 {
		parts = append(parts, "packages "+strings.Join(l.Packages, ","))
	}
	return orDash(strings.Join(parts, "; "))
}

func newOperatorRemoveCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Refuse an operator from now on",
		Long: `Removes an operator. The key is refused from then on, and connections that are
open with it are closed at once. What the operator wrote stays, and stays in the
audit log under the name.`,
		Example: "  meshctl operator remove anna",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := d.client(cmd).RemoveOperator(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(d.stdout, "%s is an operator no more\n", cli.Clean(args[0]))
			return nil
		},
	}
}
