package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of the mesh's programs.
const (
	ExitOK      = 0 // the answer was given, or the work was done
	ExitRefused = 1 // refused, or not done; the message says which
	ExitUsage   = 2 // the command line itself is wrong; nothing was asked
)

// ExitHelp is the paragraph on exit codes that a root command's help ends with.
const ExitHelp = `Exit codes: 0 the answer was given or the work was done, 1 refused or not
done (the message says which, and what to do next), 2 the command line itself is
wrong and nothing was asked.`

// UsageError is a command line that means nothing.
type UsageError struct {
	// Command is the full name of the command, for the hint at its help.
	Command string
	Message string
}

// Error says what is wrong and where the right form can be read.
func (e *UsageError) Error() string {
	return fmt.Sprintf("%s; see `%s --help`", e.Message, e.Command)
}

// Usagef makes a UsageError of cmd.
func Usagef(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{Command: cmd.CommandPath(), Message: fmt.Sprintf(format, args...)}
}

// ExitCode is the exit code for what a command returned. A main maps with it;
// nothing else decides on exit codes.
func ExitCode(err error) int {
	var usage *UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		return ExitUsage
	default:
		return ExitRefused
	}
}

// Execute runs the command that ctx and the arguments of root name. Every wrong
// flag, argument and command name comes back as a UsageError, and no error is
// printed. A command that only groups others is an error when it is called
// without one: a script whose variable was empty must not end in success.
func Execute(ctx context.Context, root *cobra.Command) error {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef(cmd, "%s", err)
	})
	checkArgs(root)
	root.Args = cobra.ArbitraryArgs // an unknown command is found out below

	// Cobra shows help and reports success when a command cannot be run. That is
	// right only where help was asked for.
	var bare error
	show := root.HelpFunc()
	asked := false
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if help := cmd.Flags().Lookup("help"); asked || cmd.Runnable() || (help != nil && help.Changed) {
			show(cmd, args)
			return
		}
		bare = incomplete(cmd, cmd.Flags().Args())
	})
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return incomplete(root, args)
			}
			asked = true
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	})
	if err := root.ExecuteContext(ctx); err != nil {
		return err
	}
	return bare
}

func checkArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Usagef(cmd, "%s; it is written as `%s`", err, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		checkArgs(sub)
	}
}

// incomplete is the error for a command that does nothing but hold others.
func incomplete(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return Usagef(cmd, "%q needs a command after it: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return Usagef(cmd, "%q has no command %q; did you mean %s", cmd.CommandPath(), args[0], strings.Join(near, " or "))
	}
	return Usagef(cmd, "%q has no command %q", cmd.CommandPath(), args[0])
}

func names(cmd *cobra.Command) []string {
	var out []string
	for _, sub := range shown(cmd) {
		out = append(out, sub.Name())
	}
	return out
}
