// Command mesh-host is the daemon on every machine of a mesh, and the commands
// with which an admin speaks to it on that machine.
//
// It only reads the command line, puts the daemon together and runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/host/local"
	"github.com/meshctl/mesh/internal/cli"
	"github.com/meshctl/mesh/internal/version"
)

// places are the files and directories that the program uses.
type places struct {
	settings string
	state    string
	socket   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := cli.Execute(ctx, newRootCommand())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mesh-host: "+err.Error())
	}
	os.Exit(cli.ExitCode(err))
}

func newRootCommand() *cobra.Command {
	p := &places{}
	root := &cobra.Command{
		Use:   "mesh-host",
		Short: "Apply and verify what the mesh declares for this machine",
		Long: `mesh-host runs on every machine of a mesh. The daemon keeps one link to the
control plane open, applies the declaration that comes over it, reads every
resource back, and reports. The other commands ask the daemon of this machine,
and need root.

` + cli.ExitHelp,
		Version: version.Version,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&p.settings, "settings", "/etc/mesh/host.yaml", "file with the settings of this host")
	flags.StringVar(&p.state, "state", "/var/lib/mesh-host", "directory in which the daemon keeps its state")
	flags.StringVar(&p.socket, "socket", local.Socket, "socket of the daemon")
	root.AddCommand(
		newDaemonCommand(p),
		newEnrolCommand(p),
		newApplyCommand(p),
		newReconcileCommand(p),
		newStatusCommand(p),
		newCheckCommand(p),
		newVersionCommand(),
	)
	cli.AddManCommand(root)
	return root
}
