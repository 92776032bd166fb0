package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/internal/cli"
)

func newDeclareCommand(d deps) *cobra.Command {
	var o declareOptions
	cmd := &cobra.Command{
		Use:   "declare FILE...",
		Short: "Write declarations, and show how far the nodes have come",
		Long: `Reads named declarations from files and writes them. A declaration is written
whole or not at all: everything that is wrong with the files is listed, with file
and line, before anything is written.

Then it looks for a moment and prints how many nodes have applied the
declaration, how many are outstanding (it has not reached them, or they have not
finished), and where something failed. A node that is switched off is
outstanding for as long as it is off; that is not a failure, and nothing waits
for it. The declaration is written either way, and every node applies it as soon
as it can.

A declaration that is the same already is not written. With --anew it is: a new
revision and generation for each of its nodes, which then see to all of it once
more and try again what they do not try again by themselves, such as a version
of mesh-host that was undone there.

Exit code 0 says that it was written, 1 that it was refused. How many nodes
failed changes that only with --fail-on-failed.`,
		Example: `  meshctl declare web.yaml
  meshctl declare --wait 0 *.yaml
  meshctl declare --follow --fail-on-failed web.yaml`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().DurationVar(&o.wait, "wait", 3*time.Second, "how long to look after the write, a `DURATION`; 0: not at all")
	cmd.Flags().BoolVar(&o.follow, "follow", false, "go on looking until nothing is outstanding")
	cmd.Flags().BoolVar(&o.anew, "anew", false, "write it also when it is the same already, so that its nodes see to it once more")
	cmd.Flags().BoolVar(&o.failOnFailed, "fail-on-failed", false, "exit with 1 when a node is seen to have failed")
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		switch {
		case o.wait < 0:
			return cli.Usagef(cmd, "--wait %s is less than nothing", o.wait)
		case o.wait == 0 && !o.follow && o.failOnFailed:
			return cli.Usagef(cmd, "--fail-on-failed has to look at the nodes, and --wait 0 does not look")
		case o.follow && cmd.Flags().Changed("wait"):
			return cli.Usagef(cmd, "--follow looks until nothing is outstanding, and --wait until a time: give one of them")
		}
		return d.declare(cmd.Context(), d.client(cmd), o, files)
	}
	return cmd
}

type declareOptions struct {
	wait time.Duration
	// follow looks without end; wait is then not used.
	follow       bool
	failOnFailed bool
	// anew writes what is the same already.
	anew bool
}

func (d deps) declare(ctx context.Context, client *api.Client, o declareOptions, files []string) error {
	documents, err := d.readAll(files)
	if err != nil {
		return err
	}
	written := make([]control.Declared, 0, len(documents))
	for _, doc := range documents {
		answer, err := writeOne(ctx, client, doc, o.anew)
		if err != nil {
			return refused(err, doc, written)
		}
		if answer.Changed {
			fmt.Fprintf(d.stdout, "%s revision %d written, %s to change\n", answer.Declaration, answer.Revision, count(answer.Nodes, "node", "nodes"))
		} else {
			fmt.Fprintf(d.stdout, "%s revision %d is the same already, nothing written\n", answer.Declaration, answer.Revision)
			fmt.Fprintln(d.stderr, "--anew writes it all the same, so that its nodes see to it once more")
		}
		written = append(written, answer)
	}
	if o.wait == 0 && !o.follow {
		return nil
	}
	return d.watch(ctx, client, o, written)
}

// readAll reads every file before anything is written, and lists what is wrong
// with all of them.
func (d deps) readAll(files []string) ([]loaded, error) {
	var (
		documents []loaded
		problems  mesh.Problems
		from      = map[string]string{}
	)
	for _, file := range files {
		doc, err := d.load(file)
		var found mesh.Problems
		switch {
		case errors.As(err, &found):
			problems = append(problems, found...)
			continue
		case err != nil:
			problems = append(problems, mesh.Problem{File: file, Message: err.Error()})
			continue
		}
		name := doc.Doc.Declaration
		if other, twice := from[name]; twice {
			problems = append(problems, mesh.Problem{File: file, Path: "declaration", Message: fmt.Sprintf("%s is declared in %s already", name, other)})
			continue
		}
		from[name] = file
		documents = append(documents, doc)
	}
	if len(problems) > 0 {
		return nil, &mesh.Error{Code: mesh.CodeInvalid, Message: fmt.Sprintf("%s; nothing was written:", count(len(problems), "finding", "findings")), Details: problems}
	}
	return documents, nil
}

func writeOne(ctx context.Context, client *api.Client, doc loaded, anew bool) (control.Declared, error) {
	if len(doc.Blobs) > 0 {
		sums := make([]string, 0, len(doc.Blobs))
		for sum := range doc.Blobs {
			sums = append(sums, sum)
		}
		slices.Sort(sums)
		missing, err := client.MissingBlobs(ctx, sums)
		if err != nil {
			return control.Declared{}, err
		}
		for _, sum := range missing {
			if err := client.PutBlob(ctx, sum, bytes.NewReader(doc.Blobs[sum])); err != nil {
				return control.Declared{}, err
			}
		}
	}
	if anew {
		return client.DeclareAnew(ctx, doc.Doc)
	}
	return client.Declare(ctx, doc.Doc)
}

// refused gives the control plane's findings their place in the file, and says
// what was written before.
func refused(err error, doc loaded, written []control.Declared) error {
	var e *mesh.Error
	if !errors.As(err, &e) {
		return err
	}
	told := *e
	if doc.Locate != nil {
		told.Details = doc.Locate(e.Details)
	}
	if len(written) > 0 {
		var names []string
		for _, w := range written {
			if w.Changed {
				names = append(names, w.Declaration)
			}
		}
		if len(names) > 0 {
			told.Message = fmt.Sprintf("%s: %s (written before it, and staying: %s)", doc.Doc.Declaration, told.Message, strings.Join(names, ", "))
		}
	}
	return &told
}

// watch looks at what was written until nothing is outstanding or the time is
// up, and prints what it saw.
func (d deps) watch(ctx context.Context, client *api.Client, o declareOptions, written []control.Declared) error {
	end := d.now().Add(o.wait)
	var last []control.Progress
	for {
		began := d.now()
		seen, err := look(ctx, client, written)
		if err != nil {
			return d.lookedInVain(ctx, o, err, last)
		}
		if o.follow && !slices.EqualFunc(last, seen, sameCounts) {
			d.printCounts(seen)
		}
		last = seen
		if settled(seen) || (!o.follow && !d.now().Before(end)) {
			break
		}
		if err := d.pause(ctx, d.now().Sub(began)); err != nil {
			return d.lookedInVain(ctx, o, err, last)
		}
	}
	if !o.follow {
		d.printCounts(last)
	}
	d.printFailures(last)
	return verdict(o, last)
}

// lookedInVain ends a watch that could not see to the end. What was written
// stays written.
func (d deps) lookedInVain(ctx context.Context, o declareOptions, err error, last []control.Progress) error {
	if ctx.Err() != nil {
		fmt.Fprintln(d.stderr, "no longer looking; the declaration is written and the nodes go on by themselves: see `meshctl nodes`")
	} else {
		fmt.Fprintf(d.stderr, "the declaration is written, but how far the nodes are could not be read: %s; see `meshctl nodes`\n", cli.CleanLines(err.Error()))
	}
	if !o.failOnFailed {
		return nil
	}
	if err := verdict(o, last); err != nil {
		return err
	}
	return mesh.Errorf(mesh.CodeUnavailable, "whether a node failed is not known, and --fail-on-failed asks for it")
}

// pause waits between two looks, of which the one before took so long. The error
// is that of ctx.
func (d deps) pause(ctx context.Context, took time.Duration) error {
	poll := d.poll
	if poll == 0 {
		poll = 250 * time.Millisecond
	}
	timer := time.NewTimer(pauseAfter(poll, took))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// pauseAfter is how long to wait after a look that took so long: what takes the
// control plane of a large mesh long is asked less often.
func pauseAfter(poll, took time.Duration) time.Duration { return max(poll, 4*took) }

func look(ctx context.Context, client *api.Client, written []control.Declared) ([]control.Progress, error) {
	seen := make([]control.Progress, len(written))
	for i, w := range written {
		p, err := client.Progress(ctx, w.Declaration, w.Revision)
		if err != nil {
			return nil, err
		}
		seen[i] = p
	}
	return seen, nil
}

func settled(seen []control.Progress) bool {
	return !slices.ContainsFunc(seen, func(p control.Progress) bool { return p.Outstanding > 0 })
}

func sameCounts(a, b control.Progress) bool {
	return a.Nodes == b.Nodes && a.Applied == b.Applied && a.Outstanding == b.Outstanding && a.Undelivered == b.Undelivered && a.Failed == b.Failed
}

func (d deps) printCounts(seen []control.Progress) {
	for _, p := range seen {
		if len(seen) > 1 {
			fmt.Fprintf(d.stdout, "%s: ", cli.Clean(p.Declaration))
		}
		outstanding := fmt.Sprintf("outstanding %d", p.Outstanding)
		if p.Undelivered > 0 {
			outstanding += fmt.Sprintf(" (%d undelivered)", p.Undelivered)
		}
		fmt.Fprintf(d.stdout, "applied %d · %s · failed %d\n", p.Applied, outstanding, p.Failed)
	}
}

func (d deps) printFailures(seen []control.Progress) {
	var failures []control.FailedView
	for _, p := range seen {
		failures = append(failures, p.Failures...)
	}
	slices.SortStableFunc(failures, func(a, b control.FailedView) int { return strings.Compare(a.Node, b.Node) })
	width := 0
	for _, f := range failures {
		width = max(width, len(f.Node))
	}
	for _, f := range failures {
		fmt.Fprintf(d.stdout, "%-8s %-*s   %s: %s\n", cli.Clean(string(f.Status)), width, cli.Clean(f.Node), cli.Clean(string(f.Resource)), cli.Clean(why(f)))
	}
}

// why says in words why a resource is not as declared.
func why(f control.FailedView) string {
	if f.Detail != "" {
		return f.Detail
	}
	return string(f.Reason)
}

func verdict(o declareOptions, seen []control.Progress) error {
	failed := 0
	for _, p := range seen {
		failed += p.Failed
	}
	if !o.failOnFailed || failed == 0 {
		return nil
	}
	return mesh.Errorf(mesh.CodeConflict, "failed on %s; the declaration is written and stays: see `meshctl node show NODE`", count(failed, "node", "nodes"))
}
