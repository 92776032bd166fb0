// Command apply compares what a pass over things that are all right costs: in
// this host, in plain Go that stats and hashes the same files, and in other
// programs for the same purpose, in one run on one machine. It prints a table,
// and writes docs/bench-apply.md and out/bench-apply.json.
//
// It needs root and the programs that it compares with; make bench-apply
// installs them. It says nothing about how long a change takes to arrive.
//
// Usage: apply [-files 1000] [-packages 100]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// result is one line of the table. A limit of zero is none.
type result struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Limit is the greatest value that meets the goal.
	Limit float64 `json:"limit,omitempty"`
	// Peer is what the value is compared with, Ratio how many times as much it
	// takes.
	Peer  string  `json:"peer,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	Goal  string  `json:"goal,omitempty"`
	Met   bool    `json:"met"`
	wall  time.Duration
	note  string
}

func main() {
	files := flag.Int("files", 1000, "how many files")
	packages := flag.Int("packages", 100, "how many packages")
	flag.Parse()
	results, err := compare(context.Background(), *files, *packages)
	if err == nil {
		err = write(results, *files, *packages)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-apply:", err)
		os.Exit(1)
	}
	for _, r := range results {
		if r.Goal != "" && !r.Met {
			fmt.Fprintf(os.Stderr, "bench-apply: %s: the goal (%s) is not met\n", r.Name, r.Goal)
			os.Exit(1)
		}
	}
}

func compare(ctx context.Context, files, packages int) (results []result, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("run it as root: files are given to root")
	}
	if err := os.MkdirAll("out", 0o755); err != nil {
		return nil, err
	}
	top, err := os.MkdirTemp("out", "bench-apply-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(top)) }()
	if top, err = filepath.Abs(top); err != nil {
		return nil, err
	}
	ours, err := ourFiles(ctx, top, files)
	if err != nil {
		return nil, fmt.Errorf("this host over files: %w", err)
	}
	results = append(results, ours...)
	for _, p := range peers {
		target := filepath.Join(top, strings.Fields(p.name)[0], "target")
		if err := os.MkdirAll(target, 0o755); err != nil {
			return nil, err
		}
		c, err := p.measure(ctx, filepath.Dir(target), names(target, files), nil)
		results = append(results, against(p.name, "files", c, err, ours[1]))
	}
	installed, err := someInstalled(ctx, packages)
	if err != nil {
		return nil, err
	}
	mine, err := ourPackages(ctx, installed)
	if err != nil {
		return nil, fmt.Errorf("this host over packages: %w", err)
	}
	results = append(results, mine...)
	for _, p := range peers {
		dir := filepath.Join(top, strings.Fields(p.name)[0], "packages")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		c, err := p.measure(ctx, dir, nil, installed)
		results = append(results, against(p.name, "packages", c, err, mine[0]))
	}
	return results, nil
}

// against is the line of a peer: how many times what ours takes.
func against(name, what string, c cost, err error, ours result) result {
	r := result{Name: name + ", " + what, Value: ms(c.cpu), Unit: "ms CPU", Peer: ours.Name, Met: err == nil, wall: c.wall}
	if err != nil {
		r.note = "not measured: " + err.Error()
		return r
	}
	r.Ratio = r.Value / ours.Value
	return r
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// rounds is how often each of ours is measured; the median counts.
const rounds = 9

func median(f func() error) (cost, error) {
	var all []cost
	for range rounds {
		c, err := spent(f)
		if err != nil {
			return cost{}, err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b cost) int { return int(a.cpu - b.cpu) })
	return all[rounds/2], nil
}

// ourFiles measures plain Go, a pass that remembers, and the first pass of a
// daemon, which reads everything.
func ourFiles(ctx context.Context, top string, n int) ([]result, error) {
	target := filepath.Join(top, "ours")
	if err := writeAll(target, n); err != nil {
		return nil, err
	}
	files := names(target, n)
	state := filepath.Join(top, "state")
	h, err := newHost(ctx, state, files, content)
	if err != nil {
		return nil, err
	}
	if err := h.pass(ctx, mesh.StatusOK); err != nil {
		return nil, err
	}
	if err := h.finds(ctx, files[n/2], n); err != nil {
		return nil, err
	}
	// Files that were written a moment ago are read each time.
	settle := time.NewTimer(3 * time.Second)
	select {
	case <-settle.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for range 2 {
		if err := h.pass(ctx, mesh.StatusOK); err != nil {
			return nil, err
		}
	}
	base, err := median(func() error { return plain(files) })
	if err != nil {
		return nil, err
	}
	steady, err := median(func() error { return h.pass(ctx, mesh.StatusOK) })
	if err != nil {
		return nil, err
	}
	fresh, err := median(func() error {
		h.forget()
		return h.pass(ctx, mesh.StatusOK)
	})
	if err != nil {
		return nil, err
	}
	if err := h.store.Close(); err != nil {
		return nil, err
	}
	plainResult := result{Name: "stat and hash in plain Go, files", Value: ms(base.cpu), Unit: "ms CPU", Met: true, wall: base.wall}
	line := func(name string, c cost) result {
		return result{
			Name: name, Value: ms(c.cpu), Unit: "ms CPU", Limit: 2 * plainResult.Value, Peer: plainResult.Name,
			Ratio: ms(c.cpu) / plainResult.Value, Goal: "at most twice plain Go", Met: ms(c.cpu) <= 2*plainResult.Value, wall: c.wall,
		}
	}
	first := line("mesh-host, the first pass after a start, files", fresh)
	first.Goal, first.Limit, first.Met = "", 0, true
	return []result{plainResult, line("mesh-host, files", steady), first}, nil
}

// someInstalled returns names of packages that an admin installed.
func someInstalled(ctx context.Context, n int) ([]string, error) {
	// What is declared is wanted for itself, and not as somebody's dependency.
	out, err := exec.CommandContext(ctx, "apt-mark", "showmanual").Output()
	if err != nil {
		return nil, fmt.Errorf("list installed packages: %w", err)
	}
	all := strings.Fields(string(out))
	if len(all) < n {
		return nil, fmt.Errorf("only %d packages are installed", len(all))
	}
	return all[:n], nil
}

// ourPackages measures the looks of a pass over packages, and one query of the
// database by its own tool.
func ourPackages(ctx context.Context, installed []string) ([]result, error) {
	p := pkg.New(pkg.Config{Manager: apt.New(apt.Config{}), Logger: slog.New(slog.DiscardHandler)})
	declared := make([]mesh.Resource, len(installed))
	for i, name := range installed {
		declared[i] = mesh.Resource{Kind: mesh.KindPackage, Name: name, Package: &mesh.PackageSpec{}}
	}
	look := func() error {
		p.StartPass(ctx, declared)
		for i, name := range installed {
			want := declared[i]
			if d, err := p.Check(ctx, want); err != nil || !d.Zero() {
				return fmt.Errorf("%s: %s: %w", name, d, err)
			}
		}
		return nil
	}
	c, err := withChildren(look)
	if err != nil {
		return nil, err
	}
	query, output, status, err := run(ctx, []string{"dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture} ${db:Status-Status}\n"})
	if err != nil || status != 0 {
		return nil, errors.Join(err, errors.New(tail(output)))
	}
	base := result{Name: "dpkg-query, all packages once", Value: ms(query.cpu), Unit: "ms CPU", Met: true, wall: query.wall}
	return []result{{
		Name: "mesh-host, packages", Value: ms(c.cpu), Unit: "ms CPU", Peer: base.Name, Ratio: ms(c.cpu) / base.Value, Met: true, wall: c.wall,
	}, base}, nil
}

func write(results []result, files, packages int) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile("out/bench-apply.json", append(data, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("<!-- Generated by make bench-apply. -->\n\n# What a pass costs when all is right\n\n")
	fmt.Fprintf(&b, "%d files of about 4 KB with owner, group and mode, and %d installed packages, declared alike for each program. All are as declared, and what is measured is one more run. Before that, each program has found and put right a file whose content had been changed to another of the same length. CPU is user and system time with all children, on one machine in one run; of ours and of plain Go it is the median of %d.\n\n", files, packages, rounds)
	b.WriteString("A pass of `mesh-host` is one of a daemon that runs; what it includes is reading the declaration and the ledger, all looks, and storing the end. The others are started for each run, which is how they are used.\n\n")
	b.WriteString("| | CPU | elapsed | compared with | times as much | goal |\n|---|---|---|---|---|---|\n")
	for _, r := range results {
		if r.note != "" {
			fmt.Fprintf(&b, "| %s | | | | | %s |\n", r.Name, strings.ReplaceAll(strings.ReplaceAll(r.note, "\n", " "), "|", "/"))
			continue
		}
		goal, ratio := r.Goal, ""
		if goal != "" {
			goal += map[bool]string{true: ": met", false: ": not met"}[r.Met]
		}
		if r.Peer != "" {
			ratio = fmt.Sprintf("%.1f", r.Ratio)
		}
		fmt.Fprintf(&b, "| %s | %.1f ms | %.1f ms | %s | %s | %s |\n", r.Name, r.Value, ms(r.wall), r.Peer, ratio, goal)
	}
	fmt.Print(b.String())
	return os.WriteFile("docs/bench-apply.md", []byte(b.String()), 0o644)
}
