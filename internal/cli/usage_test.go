package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func tree(out *bytes.Buffer, ran *string) *cobra.Command {
	root := &cobra.Command{Use: "prog", Short: "do things"}
	root.SetOut(out)
	root.SetErr(out)
	group := &cobra.Command{Use: "token", Short: "Tokens"}
	issue := &cobra.Command{Use: "issue", Short: "Make one", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		*ran = cmd.CommandPath()
		return nil
	}}
	issue.Flags().Int("count", 1, "how many")
	fail := &cobra.Command{Use: "fail", Short: "Never work", RunE: func(*cobra.Command, []string) error { return errors.New("did not work") }}
	group.AddCommand(issue)
	root.AddCommand(group, fail)
	AddManCommand(root)
	return root
}

func TestExitCodesTellAWrongCommandLineFromWorkThatWasNotDone(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"token issue", ExitOK, ""},
		{"token issue --count 3", ExitOK, ""},
		{"--help", ExitOK, ""},
		{"token --help", ExitOK, ""},
		{"help token issue", ExitOK, ""},
		{"completion bash", ExitOK, ""},
		{"fail", ExitRefused, "did not work"},
		{"", ExitUsage, "needs a command after it: fail, token"},
		{"token", ExitUsage, `"prog token" needs a command after it: issue`},
		{"tokn", ExitUsage, "did you mean token"},
		{"token isue", ExitUsage, "did you mean issue"},
		{"token issue now", ExitUsage, `unknown command "now"`},
		{"token issue now", ExitUsage, "it is written as `prog token issue`"},
		{"token issue --count many", ExitUsage, "--count"},
		{"token issue --nope", ExitUsage, "--nope"},
		{"help nope", ExitUsage, `no command "nope"`},
	} {
		var out bytes.Buffer
		var ran string
		root := tree(&out, &ran)
		root.SetArgs(strings.Fields(c.args))
		err := Execute(t.Context(), root)
		if got := ExitCode(err); got != c.code {
			t.Errorf("%q: exit code %d (%v), want %d", c.args, got, err, c.code)
			continue
		}
		if err != nil && (!strings.Contains(err.Error(), c.says) || out.Len() > 0) {
			t.Errorf("%q: error %q and output %q; want an error with %q and no output", c.args, err, out.String(), c.says)
		}
		if err == nil && ran == "" && out.Len() == 0 {
			t.Errorf("%q: success, and nothing ran and nothing was shown", c.args)
		}
	}
}
