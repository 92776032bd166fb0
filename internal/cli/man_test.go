package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	root := &cobra.Command{Use: "sample", Short: "do sample work", Long: "Does sample work.\n\n.starts with a dot and holds a \\ backslash."}
	root.PersistentFlags().String("socket", "/run/sample", "where the `PATH` of the socket is")
	sub := &cobra.Command{Use: "issue NAME", Short: "issue one", Example: "  sample issue web-1", RunE: func(*cobra.Command, []string) error { return nil }}
	sub.Flags().Duration("ttl", 0, "how long it lasts")
	hidden := &cobra.Command{Use: "secret", Hidden: true, RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(sub, hidden)
	AddManCommand(root)
	return root
}

func TestTheManCommandWritesAPageWithEveryShownCommandAndOption(t *testing.T) {
	dir := t.TempDir()
	root := program()
	root.SetArgs([]string{"man", dir, "--section", "8"})
	if err := root.Execute(); err != nil {
		t.Fatalf("man: %v", err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "sample.8"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`.TH "SAMPLE" 8`, `\fB\-\-socket\fR \fIPATH\fR`, `.SS sample issue NAME`, `\fB\-\-ttl\fR`, `sample issue web\-1`, `\&.starts`, `\e backslash`} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for _, unwanted := range []string{"secret", "completion", "man DIR"} {
		if bytes.Contains(page, []byte(unwanted)) {
			t.Errorf("the page shows the hidden %q:\n%s", unwanted, page)
		}
	}
}

func TestThePageIsAcceptedByGroffWithoutAWarning(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed, so nothing here can judge the page: apt-get install groff-base")
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
	cmd.Stdin = bytes.NewReader(ManPage(program(), 1))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
