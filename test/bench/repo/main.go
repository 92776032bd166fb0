// Command repo measures the repository beside the tools that are in use for
// the same purpose, on the same packages, in one run on one machine: building
// an archive from nothing, adding one package, and what either takes in memory.
//
// It measures and compares. It changes nothing outside its temporary directory
// but the page and the file that it writes, and it installs nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/mesh/packaging"
)

func main() {
	sizes := flag.String("sizes", "1000,5000", "numbers of packages, ascending")
	rounds := flag.Int("rounds", 3, "how often each archive is built from nothing")
	adds := flag.Int("adds", 7, "how many packages are added, one by one, to each archive")
	child := flag.String("child", "", "what this process does when it is measured itself")
	page := flag.String("page", "docs/bench-repo.md", "the page that is written")
	values := flag.String("json", "out/bench-repo.json", "the file of values that is written")
	flag.Parse()
	if *child != "" {
		if err := runChild(context.Background(), *child, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	b := &bench{rounds: *rounds, adds: *adds}
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "--sizes: %q is no number of packages\n", s)
			os.Exit(2)
		}
		b.sizes = append(b.sizes, n)
	}
	if err := b.run(context.Background(), *page, *values); err != nil {
		fmt.Fprintln(os.Stderr, "bench-repo:", err)
		os.Exit(1)
	}
}

type bench struct {
	sizes        []int
	rounds, adds int
	dir          string
	gnupg        string
	rows         []row
	load         string // when it began
}

// row is what one contender took for one number of packages.
type row struct {
	name, format string
	n            int
	build, add   []time.Duration
	// buildRSS and addRSS are the largest process's peak, bytes.
	buildRSS, addRSS int64
	ours             bool
}

// contender builds an archive of packages in dir and then adds to it.
type contender struct {
	name, format string
	ours         bool
	build        func(ctx context.Context, dir string, pool []string) (took, error)
	// add returns one measurement for each of the files.
	add func(ctx context.Context, dir string, files []string) ([]took, error)
}

type took struct {
	wall time.Duration
	rss  int64
}

func (b *bench) run(ctx context.Context, page, values string) error {
	for _, tool := range []string{"reprepro", "aptly", "apt-ftparchive", "createrepo_c", "gpg", "time"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not on this machine; make bench-repo installs it", tool)
		}
	}
	dir, err := os.MkdirTemp("", "bench-repo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.load = loadAverage()
	b.dir, b.gnupg = dir, filepath.Join(dir, "gnupg")
	if err := b.makeKey(ctx); err != nil {
		return err
	}
	largest := slices.Max(b.sizes)
	fmt.Printf("building %d packages of each format\n", largest+b.adds)
	pools, err := makePackages(ctx, filepath.Join(dir, "packages"), largest+b.adds)
	if err != nil {
		return err
	}
	for _, n := range b.sizes {
		for _, c := range b.contenders() {
			r, err := b.measure(ctx, c, n, pools[c.format])
			if err != nil {
				return fmt.Errorf("%s with %d packages: %w", c.name, n, err)
			}
			b.rows = append(b.rows, r)
			fmt.Printf("%-34s %-4s %5d  build %8.3f s  add one %.4f s\n", r.name, r.format, r.n, median(r.build).Seconds(), median(r.add).Seconds())
		}
	}
	upload, err := b.uploadRSS(ctx)
	if err != nil {
		return fmt.Errorf("upload of 1 GiB: %w", err)
	}
	return b.report(page, values, upload)
}

func (b *bench) measure(ctx context.Context, c contender, n int, pool []string) (row, error) {
	r := row{name: c.name, format: c.format, n: n, ours: c.ours}
	dir := ""
	for i := range b.rounds {
		dir = filepath.Join(b.dir, fmt.Sprintf("run-%d", i))
		if err := os.RemoveAll(dir); err != nil {
			return r, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return r, err
		}
		t, err := c.build(ctx, dir, pool[:n])
		if err != nil {
			return r, err
		}
		r.build, r.buildRSS = append(r.build, t.wall), max(r.buildRSS, t.rss)
		if i < b.rounds-1 {
			if err := os.RemoveAll(dir); err != nil {
				return r, err
			}
		}
	}
	added, err := c.add(ctx, dir, pool[len(pool)-b.adds:])
	if err != nil {
		return r, err
	}
	for _, t := range added {
		r.add, r.addRSS = append(r.add, t.wall), max(r.addRSS, t.rss)
	}
	return r, os.RemoveAll(dir)
}

// makePackages builds n packages of each format and returns their files.
func makePackages(ctx context.Context, dir string, n int) (map[string][]string, error) {
	pools := map[string][]string{packaging.Deb: make([]string, n), packaging.RPM: make([]string, n)}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for format, files := range pools {
		if err := os.MkdirAll(filepath.Join(dir, format), 0o755); err != nil {
			return nil, err
		}
		for i := range n {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				// Names are spread over the alphabet: a new package falls into the middle.
				name := fmt.Sprintf("%c%c-package-%05d", 'a'+byte(i*7%26), 'a'+byte(i*11%26), i)
				p := packaging.SimplePackage{Name: name, Version: "1.0", Arch: "amd64"}
				body := []byte(strings.Repeat(name+"\n", 300))
				for _, path := range []string{"/usr/bin/" + name, "/etc/" + name + ".conf", "/usr/lib/systemd/system/" + name + ".service", "/usr/share/doc/" + name + "/README"} {
					p.Files = append(p.Files, packaging.SimpleFile{Path: path, Content: body, Config: strings.HasPrefix(path, "/etc/")})
				}
				data, err := packaging.BuildSimple(p, format)
				if err != nil {
					return err
				}
				ext := map[string]string{packaging.Deb: "_1.0-1_amd64.deb", packaging.RPM: "-1.0-1.x86_64.rpm"}[format]
				files[i] = filepath.Join(dir, format, name+ext)
				return os.WriteFile(files[i], data, 0o644)
			})
		}
	}
	return pools, g.Wait()
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}
