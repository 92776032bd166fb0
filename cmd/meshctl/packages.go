package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newPackagesCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "packages",
		Short: "Look at the mesh's package repository and change it",
	}
	cmd.AddCommand(newPackagesListCommand(d), newPackagesShowCommand(d), newPackagesRemoveCommand(d),
		newPackagesPromoteCommand(d), newPackagesSuitesCommand(d))
	return cmd
}

func newPackagesListCommand(d deps) *cobra.Command {
	var suite string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the packages of a suite",
		Long:    `Lists every package that hosts can install from a suite of the mesh's repository.`,
		Example: "  meshctl packages list",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "the `SUITE` to list")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		packages, err := d.client(cmd).Packages(cmd.Context(), suite)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, packages)
		}
		if len(packages) == 0 {
			fmt.Fprintln(d.stdout, "0 packages")
			fmt.Fprintf(d.stderr, "suite %s is empty; `meshctl publish FILE...` puts packages into it\n", cli.Clean(suite))
			return nil
		}
		rows := make([][]string, len(packages))
		for i, p := range packages {
			rows[i] = []string{p.Name, p.Version, p.Arch, p.Format, size(p.Size)}
		}
		return table(d.stdout, "PACKAGE|VERSION|ARCH|FORMAT|SIZE", rows)
	}
	return cmd
}

// packageRefs reads NAME=VERSION arguments.
func packageRefs(cmd *cobra.Command, args []string, format, arch string) ([]api.PackageRef, error) {
	switch format {
	case "", "deb", "rpm":
	default:
		return nil, cli.Usagef(cmd, "--format %q is neither deb nor rpm", format)
	}
	refs := make([]api.PackageRef, len(args))
	for i, arg := range args {
		name, version, ok := strings.Cut(arg, "=")
		if !ok || name == "" || version == "" {
			return nil, cli.Usagef(cmd, "%q is not NAME=VERSION", arg)
		}
		refs[i] = api.PackageRef{Format: format, Name: name, Version: version, Arch: arch}
	}
	return refs, nil
}

func newPackagesShowCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show every version of a package, and who needs it",
		Long: `Shows every version of a package in every suite, and which declarations name it
and which nodes have it. A version that somebody needs is not removed.`,
		Example: "  meshctl packages show hello",
		Args:    cobra.ExactArgs(1),
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		versions, err := d.client(cmd).PackageVersions(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, versions)
		}
		rows := make([][]string, len(versions))
		for i, v := range versions {
			rows[i] = []string{v.Suite, v.Version, v.Arch, v.Format, size(v.Size), stamp(v.Published), v.SHA256, orDash(strings.Join(v.Uses, "; "))}
		}
		return table(d.stdout, "SUITE|VERSION|ARCH|FORMAT|SIZE|PUBLISHED|SHA256|NEEDED BY", rows)
	}
	return cmd
}

func newPackagesRemoveCommand(d deps) *cobra.Command {
	var suite, format, arch string
	var anyway bool
	cmd := &cobra.Command{
		Use:   "remove NAME=VERSION...",
		Short: "Take packages out of a suite",
		Long: `Takes packages out of a suite, all or none. A version that a declaration names or
a node has is refused. Name and version are never given to other content
afterwards; the same file can be published again.`,
		Example: `  meshctl packages remove hello=1.0-1
  meshctl packages remove --suite testing --format rpm hello=1.0-1 hello=1.1-1`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "the `SUITE` to take them out of")
	cmd.Flags().StringVar(&format, "format", "", "deb or rpm; without it both")
	cmd.Flags().StringVar(&arch, "arch", "", "only this `ARCHITECTURE`, as the package names it")
	cmd.Flags().BoolVar(&anyway, "even-if-used", false, "remove also what a declaration names or a node has")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		refs, err := packageRefs(cmd, args, format, arch)
		if err != nil {
			return err
		}
		req := api.RemoveRequest{Suite: suite, Packages: refs}
		if anyway {
			req.Use = api.UseIgnore
		}
		gone, err := d.client(cmd).RemovePackages(cmd.Context(), req)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, gone)
		}
		for _, p := range gone {
			fmt.Fprintf(d.stdout, "%s %s %s (%s): removed from %s\n", cli.Clean(p.Name), cli.Clean(p.Version), cli.Clean(p.Arch), cli.Clean(p.Format), cli.Clean(suite))
		}
		return nil
	}
	return cmd
}

func newPackagesPromoteCommand(d deps) *cobra.Command {
	var from, to, format, arch string
	cmd := &cobra.Command{
		Use:   "promote NAME=VERSION... --to SUITE",
		Short: "Make packages of one suite members of another too",
		Long: `Makes packages of one suite members of another too, all or none. No file is
copied, and the suite that they come from keeps them. A suite that is not there
is made. Promoting again changes nothing.`,
		Example: "  meshctl packages promote hello=1.1-1 --from testing --to stable",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringVar(&from, "from", api.DefaultSuite, "the `SUITE` that has them")
	cmd.Flags().StringVar(&to, "to", "", "the `SUITE` that gets them")
	cmd.Flags().StringVar(&format, "format", "", "deb or rpm; without it both")
	cmd.Flags().StringVar(&arch, "arch", "", "only this `ARCHITECTURE`, as the package names it")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if to == "" {
			return cli.Usagef(cmd, "--to names the suite to promote to")
		}
		refs, err := packageRefs(cmd, args, format, arch)
		if err != nil {
			return err
		}
		done, err := d.client(cmd).PromotePackages(cmd.Context(), api.PromoteRequest{From: from, To: to, Packages: refs})
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, done)
		}
		for _, p := range done.Files {
			what := "is now in " + cli.Clean(to) + " too"
			if p.Outcome == api.PublishPresent {
				what = "was in " + cli.Clean(to) + " already"
			}
			fmt.Fprintf(d.stdout, "%s %s %s (%s): %s\n", cli.Clean(p.Name), cli.Clean(p.Version), cli.Clean(p.Arch), cli.Clean(p.Format), what)
		}
		return nil
	}
	return cmd
}

func newPackagesSuitesCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "suites",
		Short:   "List the suites",
		Long:    `Lists the suites of the repository. Publishing or promoting to a new one makes it.`,
		Example: "  meshctl packages suites",
		Args:    cobra.NoArgs,
	}
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		suites, err := d.client(cmd).Suites(cmd.Context())
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, suites)
		}
		for _, s := range suites {
			fmt.Fprintln(d.stdout, cli.Clean(s))
		}
		return nil
	}
	return cmd
}
