package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newRepoCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "repo",
		Short: "Look after the mesh's package repository itself",
	}
	cmd.AddCommand(newRepoKeyCommand(d), newRepoDeclarationCommand(d))
	return cmd
}

func newRepoKeyCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "The key that signs the repository, and how it is changed",
		Long: `The key that signs the repository. It is changed in three steps, and no machine
is left behind:

  1. rotate: a second key is made, and both sign. Every declaration with a file
     that holds the public key is written anew with both.
  2. show: says which nodes have verified a file with both keys.
  3. finish: when all have, the packages are signed again with the new key, and
     the old private key is removed.`,
	}
	cmd.AddCommand(newRepoKeyShowCommand(d), newRepoKeyRotateCommand(d), newRepoKeyFinishCommand(d), newRepoKeyExportCommand(d), newRepoKeyImportCommand(d))
	return cmd
}

func (d deps) printKeys(f cli.Format, keys api.Keys) error {
	if f == cli.FormatJSON {
		return printJSON(d.stdout, keys)
	}
	rows := make([][]string, len(keys.Keys))
	for i, k := range keys.Keys {
		use := "signs everything"
		if len(keys.Keys) > 1 {
			use = []string{"signs, and goes when the rotation is finished", "signs, and stays"}[i]
		}
		until := "never"
		if !k.Expires.IsZero() {
			until = k.Expires.UTC().Format(time.DateOnly)
		}
		rows[i] = []string{k.Fingerprint, fmt.Sprintf("rsa%d", k.Bits), k.Created.UTC().Format(time.DateOnly), until, use}
	}
	if err := table(d.stdout, "KEY|KIND|CREATED|EXPIRES|USE", rows); err != nil {
		return err
	}
	for _, name := range keys.Declarations {
		fmt.Fprintf(d.stdout, "declaration %s was written anew with the public key\n", cli.Clean(name))
	}
	if len(keys.Keys) < 2 {
		return nil
	}
	if len(keys.Lacking) == 0 {
		fmt.Fprintln(d.stderr, "a rotation is under way; `meshctl repo key finish` ends it when every node has verified the new public key")
		return nil
	}
	fmt.Fprintf(d.stdout, "%s not verified a file with both keys yet: %s\n", nodesHave(len(keys.Lacking)), cli.Clean(strings.Join(keys.Lacking, ", ")))
	return nil
}

func nodesHave(n int) string {
	if n == 1 {
		return "1 node has"
	}
	return fmt.Sprintf("%d nodes have", n)
}

func newRepoKeyShowCommand(d deps) *cobra.Command {
	var public bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show which key signs, and how far a rotation is",
		Long: `Shows the keys that sign the repository, when they expire, and during a rotation
which nodes have not yet verified a file with both public keys.`,
		Example: "  meshctl repo key show\n  meshctl repo key show --public > mesh.asc",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&public, "public", false, "print the public part, armored, and nothing else")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		keys, err := d.client(cmd).Keys(cmd.Context())
		if err != nil {
			return err
		}
		if public {
			_, err := io.WriteString(d.stdout, keys.Public)
			return err
		}
		return d.printKeys(f, keys)
	}
	return cmd
}

func newRepoKeyRotateCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make a second key, with which everything is signed too",
		Long: `Makes a second key. From then on both sign, and machines that have either one go
on as before. Every declaration with a file that holds the public key is written
anew with both; finish the rotation when the nodes have applied it.`,
		Example: "  meshctl repo key rotate",
		Args:    cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		keys, err := d.client(cmd).RotateKey(cmd.Context(), api.RotateRequest{})
		if err != nil {
			return err
		}
		return d.printKeys(f, keys)
	}
	return cmd
}

func newRepoKeyImportCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Begin a rotation to a key of your own",
		Long: `Begins a rotation, as rotate does, to the private key in FILE: armored, without a
passphrase, RSA of 3072 bits or more. "-" reads standard input. Only root may.`,
		Example: "  meshctl repo key import backup.key",
		Args:    cobra.ExactArgs(1),
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		from := io.Reader(os.Stdin)
		if args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return mesh.Errorf(mesh.CodeInvalid, "the key cannot be read: %w; nothing was changed", err)
			}
			defer file.Close()
			from = file
		}
		data, err := io.ReadAll(io.LimitReader(from, maxKey+1))
		if err != nil || len(data) == 0 || len(data) > maxKey {
			return mesh.Errorf(mesh.CodeInvalid, "%s does not hold a key; nothing was changed", args[0])
		}
		keys, err := d.client(cmd).RotateKey(cmd.Context(), api.RotateRequest{Private: string(data)})
		if err != nil {
			return err
		}
		return d.printKeys(f, keys)
	}
	return cmd
}

// maxKey bounds a key file, in bytes.
const maxKey = 48 << 10

func newRepoKeyFinishCommand(d deps) *cobra.Command {
	var anyway bool
	cmd := &cobra.Command{
		Use:   "finish",
		Short: "End a rotation: sign with the new key alone",
		Long: `Signs every package again with the new key, then everything with it alone, and
removes the old private key. Refused while a node has not verified a file with
the new public key.`,
		Example: "  meshctl repo key finish",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&anyway, "even-if-lacking", false, "finish although nodes lack the new key; they can install nothing until they get it")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		req := api.FinishRequest{}
		if anyway {
			req.Lacking = api.UseIgnore
		}
		keys, err := d.client(cmd).FinishKey(cmd.Context(), req)
		if err != nil {
			return err
		}
		return d.printKeys(f, keys)
	}
	return cmd
}

func newRepoKeyExportCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "export FILE",
		Short: "Write the private key to a file, for safe keeping",
		Long: `Writes the private key that signs the repository to a new FILE that only its
owner can read. Whoever has it can sign packages that your machines install.
Only root may.`,
		Example: "  meshctl repo key export /root/mesh-repository.key",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := d.client(cmd).PrivateKey(cmd.Context())
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return mesh.Errorf(mesh.CodeInvalid, "the key was not written: %w", err)
			}
			_, err = f.Write(key)
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				return mesh.Errorf(mesh.CodeInvalid, "the key was not written whole: %w", errors.Join(err, os.Remove(args[0])))
			}
			fmt.Fprintf(d.stderr, "the private key is in %s; keep it where the repository's machines cannot be reached from\n", cli.Clean(args[0]))
			return nil
		},
	}
}

func newRepoDeclarationCommand(d deps) *cobra.Command {
	var suite string
	cmd := &cobra.Command{
		Use:   "declaration",
		Short: "Print a declaration that has every node use the repository",
		Long: `Prints a declaration with the files that make a node install from the mesh's
repository: the public key and the configuration of its package manager. Declare
it, and a rotation of the key reaches every node by itself.`,
		Example: "  meshctl repo declaration > repository.yaml\n  meshctl declare repository.yaml",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "the `SUITE` that nodes install from")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := d.client(cmd)
		r, err := client.Repository(cmd.Context(), suite)
		if err != nil {
			return err
		}
		keys, err := client.Keys(cmd.Context())
		if err != nil {
			return err
		}
		_, err = io.WriteString(d.stdout, repositoryDeclaration(r, keys.Public))
		return err
	}
	return cmd
}

// forEachNode is the configuration of dnf with which each node reads under its
// own name. dnf fetches a document and its signature over two connections; by
// the name the repository keeps them together, also for nodes that share an
// address.
func forEachNode(r api.Repository) string {
	return strings.ReplaceAll(r.DnfSource, "baseurl="+r.URL+"/rpm/", "baseurl="+r.URL+"/for/${node.name}/rpm/")
}

// repositoryDeclaration writes the document.
func repositoryDeclaration(r api.Repository, key string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Has every node install from the mesh's own repository, suite %s.\ndeclaration: mesh-repository\nselect: \"true\"\nresources:\n", r.Suite)
	resource := func(path, family, requires string) {
		fmt.Fprintf(&b, "  - file: %s\n    when: os.family == %q\n", path, family)
		if requires != "" {
			fmt.Fprintf(&b, "    requires: [\"file:%s\"]\n", requires)
		}
	}
	file := func(path, family, content, requires string) {
		resource(path, family, requires)
		b.WriteString("    content: |\n")
		for line := range strings.Lines(content) {
			if line != "\n" {
				b.WriteString("      ")
			}
			b.WriteString(line)
		}
	}
	for _, m := range []struct{ family, key, place, source string }{
		{"debian", r.AptKeyFile, "/etc/apt/sources.list.d/mesh.sources", r.AptSource},
		{"rpm", r.DnfKeyFile, "/etc/yum.repos.d/mesh.repo", forEachNode(r)},
	} {
		resource(path.Dir(m.key), m.family, "")
		b.WriteString("    type: directory\n")
		file(m.key, m.family, key, path.Dir(m.key))
		file(m.place, m.family, m.source, m.key)
		if m.family == "rpm" {
			b.WriteString("    template: true\n")
		}
	}
	return b.String()
}
