package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/host"
	"github.com/meshctl/mesh/host/profile"
	"github.com/meshctl/mesh/host/store"
	"github.com/meshctl/mesh/host/upgrade"
	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
	"github.com/meshctl/mesh/systemd"
)

// newCheckCommand is what the version before runs before it ends.
func newCheckCommand(p *places) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "check --copy DIR",
		Short: "Look whether this version could run on this machine, and change nothing",
		Long: `Reads the settings, opens a copy of the store that was made in DIR and brings
it to this version's form, asks the service manager, and reads the package
database. Nothing but the copy is written.

The host runs this with a new version of itself before it ends for it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usagef(cmd, "--copy is needed: a directory with a copy of the store")
			}
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			fmt.Fprintln(out, "version", version.Package())
			settings, err := host.LoadSettings(p.settings)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, "settings read; enrolled:", settings.Enrolled())
			st, lost, err := store.Open(ctx, dir, true, time.Now)
			if err != nil {
				return fmt.Errorf("open the copy of the store: %w", err)
			}
			defer st.Close()
			if lost != nil {
				return fmt.Errorf("the copy of the store cannot be used: %s", lost.Detail)
			}
			sum, err := st.Summary(ctx)
			if err != nil {
				return fmt.Errorf("read the copy of the store: %w", err)
			}
			d, err := st.Declaration(ctx)
			if err != nil {
				return fmt.Errorf("read the declaration in the copy of the store: %w", err)
			}
			if _, err := st.State(ctx); err != nil {
				return fmt.Errorf("read the ledger in the copy of the store: %w", err)
			}
			if d != nil {
				if problems := d.Validate(); len(problems) > 0 {
					return fmt.Errorf("the declaration that is held is none to this version: %w", problems)
				}
			}
			fmt.Fprintf(out, "store read; held %s, %d results\n", sum.Held, len(sum.Ledger))
			client, err := systemd.Connect(ctx)
			if err != nil {
				return fmt.Errorf("reach systemd over D-Bus: %w", err)
			}
			defer client.Close()
			unit, err := client.Unit(ctx, systemd.HostUnit)
			if err != nil {
				return fmt.Errorf("ask systemd: %w", err)
			}
			fmt.Fprintln(out, "systemd answers;", systemd.HostUnit, "is", unit.LoadState)
			name := profile.DetectManager(ctx)
			manager, _ := newManager(name, nil, nil)
			if manager == nil {
				return errors.New("neither apt nor dnf is found on this machine")
			}
			packages, err := manager.Installed(ctx)
			if err != nil {
				return fmt.Errorf("read the package database: %w", err)
			}
			fmt.Fprintf(out, "package database of %s read; %d packages\n", name, len(packages))
			_, err = fmt.Fprintln(out, upgrade.CheckPassed())
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "copy", "", "directory with a copy of the store, to be written to")
	return cmd
}
