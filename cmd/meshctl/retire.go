package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newNodeRetireCommand(d deps) *cobra.Command {
	var (
		wait time.Duration
		undo bool
	)
	cmd := &cobra.Command{
		Use:   "retire NAME",
		Short: "Have a node leave: everything the mesh owns there goes or is put back first",
		Long: `Gives a node its final declaration: nothing is declared, and everything that the
mesh owns there is released. The node removes it or puts back what was there
before, reads each back, reports, and says goodbye. When that is recorded here it
is retired: its key is refused, and the machine forgets its identity and which
mesh it belonged to. The package mesh-host stays installed.

A node that is switched off retires when it is back. One on which something
cannot be removed, as when somebody changed it, stays a node and shows what
failed; it tries again by itself when that is mended. Until it has left, --undo
takes the retirement back.

For a machine that is lost there is "meshctl node revoke".`,
		Example: `  meshctl node retire web-1
  meshctl node retire web-1 --undo`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().DurationVar(&wait, "wait", 3*time.Second, "how long to look after the write, a `DURATION`; 0: not at all")
	cmd.Flags().BoolVar(&undo, "undo", false, "take the retirement back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if wait < 0 {
			return cli.Usagef(cmd, "--wait %s is less than nothing", wait)
		}
		client := d.client(cmd)
		if undo {
			answer, err := client.Keep(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(d.stdout, "%s stays, and gets %s\n", cli.Clean(answer.Node), answer.Generation)
			return nil
		}
		answer, err := client.Retire(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if answer.Changed {
			fmt.Fprintf(d.stdout, "%s leaves with %s, %s to remove or put back\n", cli.Clean(answer.Node), answer.Generation, count(answer.Resources, "resource", "resources"))
		} else {
			fmt.Fprintf(d.stdout, "%s is leaving already, with %s\n", cli.Clean(answer.Node), answer.Generation)
		}
		if wait == 0 {
			return nil
		}
		return d.watchRetirement(cmd.Context(), client, args[0], wait)
	}
	return cmd
}

// watchRetirement looks until the node has left or the time is up, and prints
// what it saw. What was written stays written.
func (d deps) watchRetirement(ctx context.Context, client *api.Client, name string, wait time.Duration) error {
	end := d.now().Add(wait)
	for {
		began := d.now()
		node, err := client.Node(ctx, name)
		if err != nil {
			d.leavesUnseen(ctx, name, err)
			return nil
		}
		if node.State == mesh.NodeRetired {
			fmt.Fprintf(d.stdout, "%s retired\n", cli.Clean(name))
			return nil
		}
		if !d.now().Before(end) {
			d.printRetiring(node)
			return nil
		}
		if err := d.pause(ctx, d.now().Sub(began)); err != nil {
			d.leavesUnseen(ctx, name, err)
			return nil
		}
	}
}

// leavesUnseen says that a node goes on leaving although nobody could see how far
// it is.
func (d deps) leavesUnseen(ctx context.Context, name string, err error) {
	if ctx.Err() != nil {
		fmt.Fprintf(d.stderr, "no longer looking; that %s leaves is written, and it goes on by itself: see `meshctl node show %s`\n", cli.Clean(name), cli.Clean(name))
		return
	}
	fmt.Fprintf(d.stderr, "that %s leaves is written, but how far it is could not be read: %s; see `meshctl node show %s`\n", cli.Clean(name), cli.CleanLines(err.Error()), cli.Clean(name))
}

func (d deps) printRetiring(node control.NodeDetail) {
	fmt.Fprintf(d.stdout, "outstanding %s · failed %d\n", outstanding(node.Outstanding), len(node.Failed))
	for _, f := range node.Failed {
		fmt.Fprintf(d.stdout, "%-8s %s: %s\n", cli.Clean(string(f.Status)), cli.Clean(string(f.Resource)), cli.Clean(why(f)))
	}
	fmt.Fprintf(d.stderr, "%s is a node until it has left; it goes on by itself: see `meshctl node show %s`\n", cli.Clean(node.Node), cli.Clean(node.Node))
}
