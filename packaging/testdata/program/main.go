// Command program stands in for a program of the mesh in the tests of packages:
// it has a manual page and completions and does nothing else.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/cli"
)

var name = "program"

func main() {
	root := &cobra.Command{Use: name, Short: "stand in for " + name, Long: "Stands in for a program in tests."}
	root.AddCommand(&cobra.Command{Use: "status", Short: "print nothing", RunE: func(*cobra.Command, []string) error { return nil }})
	cli.AddManCommand(root)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
