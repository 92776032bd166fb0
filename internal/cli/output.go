package cli

import "github.com/spf13/cobra"

// Format is how an answer is written.
type Format string

// The formats.
const (
	FormatText Format = "text"
	FormatJSON Format = "json"
)

// OutputFlag adds -o to cmd, and returns how to read it after parsing. A command
// reads it before it asks for anything.
func OutputFlag(cmd *cobra.Command) func() (Format, error) {
	text := cmd.Flags().StringP("output", "o", string(FormatText), "`FORMAT` of the answer: text or json")
	return func() (Format, error) {
		switch f := Format(*text); f {
		case FormatText, FormatJSON:
			return f, nil
		default:
			return "", Usagef(cmd, "--output %q is neither text nor json", *text)
		}
	}
}
