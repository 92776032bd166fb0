package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/cli"
)

func newConfigCommand(d deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration",
	}
	cmd.AddCommand(newConfigCheckCommand(d))
	return cmd
}

func newConfigCheckCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the configuration and show what holds",
		Long: `Reads the configuration, lists everything that is wrong with it, and otherwise
shows every setting as it holds. The settings are:

` + settingsHelp(),
		Example: `  mesh-control config check
  mesh-control config check ./control.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := cmd.Flag("config").Value.String()
			if len(args) == 1 {
				if file != "" {
					return cli.Usagef(cmd, "the configuration is named twice, as %s and as %s", file, args[0])
				}
				file = args[0]
			}
			c, err := loadConfig(file)
			if err != nil {
				return badConfig(err)
			}
			_, err = fmt.Fprint(d.stdout, c.yaml())
			return err
		},
	}
}

func settingsHelp() string {
	var b strings.Builder
	for _, k := range keys {
		value := k.value
		if value != "" {
			value = " (" + value + ")"
		}
		fmt.Fprintf(&b, "  %s%s\n      %s\n", k.name, value, k.about)
	}
	return strings.TrimRight(b.String(), "\n")
}

// badConfig speaks to the operator about a configuration that cannot be used.
func badConfig(err error) error {
	var problems mesh.Problems
	if errors.As(err, &problems) {
		return &mesh.Error{Code: mesh.CodeInvalid, Message: "the configuration cannot be used:", Details: problems}
	}
	return err
}

// yaml writes the settings as they hold. What has no value of its own is
// written as a comment.
func (c config) yaml() string {
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, value) }
	line("state_dir", quote(c.stateDir))
	line("link_listen", quote(c.linkListen))
	line("repository_listen", quote(c.repositoryListen))
	line("socket", quote(c.socket))
	if len(c.addresses) == 0 {
		b.WriteString("# addresses: this machine's own\n")
	} else {
		quoted := make([]string, len(c.addresses))
		for i, a := range c.addresses {
			quoted[i] = quote(a)
		}
		line("addresses", "["+strings.Join(quoted, ", ")+"]")
	}
	if c.repositoryURL == "" {
		b.WriteString("# repository_url: on the first of the addresses\n")
	} else {
		line("repository_url", quote(c.repositoryURL))
	}
	if c.certificate == "" {
		b.WriteString("# repository_tls_certificate: none, plain HTTP\n# repository_tls_key: none\n")
	} else {
		line("repository_tls_certificate", quote(c.certificate))
		line("repository_tls_key", quote(c.certificateKey))
	}
	line("repository_keep", fmt.Sprint(c.keep))
	line("repository_valid_days", fmt.Sprint(int(c.validFor/(24*time.Hour))))
	line("repository_max_package_mib", fmt.Sprint(c.maxPackage>>20))
	line("repository_readers", string(c.readers))
	line("revisions_keep", fmt.Sprint(c.kept.Revisions))
	line("audit_days", fmt.Sprint(int(c.kept.Audit/(24*time.Hour))))
	line("left_node_days", fmt.Sprint(int(c.kept.Left/(24*time.Hour))))
	line("origin", quote(c.origin))
	line("heartbeat_seconds", fmt.Sprint(int(c.heartbeat.Seconds())))
	line("log_level", strings.ToLower(c.logLevel.String()))
	return b.String()
}

// quote writes text so that YAML reads it as text, whatever it is.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
