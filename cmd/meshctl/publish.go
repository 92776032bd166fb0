package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

const (
	// quietBelow is the size in bytes of an upload that ends before anyone wonders.
	quietBelow = 32 << 20
	// progressEvery is how often a long upload says how far it is.
	progressEvery = 2 * time.Second
)

func newPublishCommand(d deps) *cobra.Command {
	var suite string
	cmd := &cobra.Command{
		Use:   "publish FILE...",
		Short: "Put deb and rpm packages into the mesh's repository",
		Long: `Uploads packages and publishes all of them in one step, or none. When it ends
with success, hosts can install them.

Name, version and architecture are read out of the package; the name of the file
does not matter. A package that is there already with the same content changes
nothing and is a success, so that a pipeline may run twice. The same name,
version and architecture with other content is refused: give the package a new
version.`,
		Example: `  meshctl publish hello_1.0_amd64.deb hello-1.0-1.x86_64.rpm
  meshctl publish --suite testing *.deb`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringVar(&suite, "suite", api.DefaultSuite, "the `SUITE` to publish to")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		published, err := d.publish(cmd.Context(), d.client(cmd), suite, files)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return printJSON(d.stdout, published)
		}
		d.printPublished(published)
		return nil
	}
	return cmd
}

func (d deps) printPublished(published api.Publication) {
	for _, p := range published.Files {
		what := "published"
		if p.Outcome == api.PublishPresent {
			what = "there already, the same"
		}
		fmt.Fprintf(d.stdout, "%s %s %s (%s): %s\n", cli.Clean(p.Name), cli.Clean(p.Version), cli.Clean(p.Arch), cli.Clean(p.Format), what)
		if p.Warning != "" {
			fmt.Fprintf(d.stderr, "warning: %s\n", cli.Clean(p.Warning))
		}
	}
}

func (d deps) publish(ctx context.Context, client *api.Client, suite string, files []string) (api.Publication, error) {
	var problems mesh.Problems
	var total int64
	uploads := make([]api.Upload, 0, len(files))
	meter := &meter{d: d}
	for _, name := range files {
		f, size, err := openPackage(name)
		if err != nil {
			problems = append(problems, mesh.Problem{File: name, Message: err.Error()})
			continue
		}
		defer f.Close()
		total += size
		uploads = append(uploads, api.Upload{Name: name, Size: size, Body: io.TeeReader(f, meter)})
	}
	if len(problems) > 0 {
		return api.Publication{}, &mesh.Error{Code: mesh.CodeInvalid, Message: "nothing was published:", Details: problems}
	}
	meter.total = total
	return client.Publish(ctx, suite, uploads)
}

func openPackage(name string) (*os.File, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		if inner := new(fs.PathError); errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, 0, errors.Join(err, f.Close())
	case !info.Mode().IsRegular():
		return nil, 0, errors.Join(errors.New("not a regular file"), f.Close())
	}
	return f, info.Size(), nil
}

// meter says now and then how much of a long upload is done.
type meter struct {
	d     deps
	total int64
	sent  int64
	said  time.Time
}

// Write counts; it never errs.
func (m *meter) Write(p []byte) (int, error) {
	m.sent += int64(len(p))
	if m.total < quietBelow {
		return len(p), nil
	}
	now := m.d.now()
	if m.said.IsZero() {
		m.said = now
	}
	if now.Sub(m.said) >= progressEvery || m.sent == m.total {
		m.said = now
		fmt.Fprintf(m.d.stderr, "uploaded %s of %s\n", size(m.sent), size(m.total))
	}
	return len(p), nil
}

// size writes a number of bytes in a unit that people read.
func size(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/step, 0
	for value >= step && unit < 3 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %s", value, []string{"KiB", "MiB", "GiB", "TiB"}[unit])
}
