package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/test/bench/service"
)

// both is the format of a contender that publishes a deb and an rpm in one step.
const both = "both"

// measured is what a measured process of ours says.
type measured struct {
	Seconds []float64 `json:"seconds"`
	RSS     int64     `json:"rss"`
}

// self runs this program as the process that is measured.
func (b *bench) self(ctx context.Context, what string, files []string, args ...string) (measured, error) {
	var m measured
	exe, err := os.Executable()
	if err != nil {
		return m, err
	}
	cmd := exec.CommandContext(ctx, exe, append([]string{"-child", what}, args...)...)
	if cmd.Env, err = service.Environment(); err != nil {
		return m, err
	}
	cmd.Stdin = strings.NewReader(strings.Join(files, "\n"))
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("%s: %w\n%s", what, err, problems.String())
	}
	return m, json.Unmarshal(out, &m)
}

// ours is the repository, as the control plane opens it. The key is as large as
// the other tools' and made before; each rpm is signed too, which none of the
// others does.
func (b *bench) ours(name, format string) contender {
	files := func(pool []string) []string {
		if format != both {
			return pool
		}
		// The pool is of debs; beside each stands its rpm.
		var out []string
		for _, f := range pool {
			name := strings.TrimSuffix(filepath.Base(f), "_1.0-1_amd64.deb")
			out = append(out, f, filepath.Join(filepath.Dir(filepath.Dir(f)), packaging.RPM, name+"-1.0-1.x86_64.rpm"))
		}
		return out
	}
	perStep := 1
	pool := format
	if format == both {
		perStep, pool = 2, packaging.Deb
	}
	keys := filepath.Join(b.dir, "keys")
	return contender{name: name, format: pool, ours: true,
		build: func(ctx context.Context, dir string, pool []string) (took, error) {
			if _, err := openpgp.Open(keys, openpgp.Options{}); err != nil {
				return took{}, err
			}
			m, err := b.self(ctx, "build", files(pool), dir, keys, strconv.Itoa(perStep))
			if err != nil || len(m.Seconds) != 1 {
				return took{}, errors.Join(err, fmt.Errorf("measured %v", m.Seconds))
			}
			return took{seconds(m.Seconds[0]), m.RSS}, nil
		},
		add: func(ctx context.Context, dir string, pool []string) ([]took, error) {
			m, err := b.self(ctx, "add", files(pool), dir, keys, strconv.Itoa(perStep))
			if err != nil {
				return nil, err
			}
			var all []took
			for _, s := range m.Seconds {
				all = append(all, took{seconds(s), m.RSS})
			}
			return all, nil
		},
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// runChild does what is measured and says what it took. "build" publishes all
// files that are named on standard input in one step. "add" opens the
// repository, which is not counted since a control plane has it open, and
// publishes a few files at a time.
func runChild(ctx context.Context, what string, args []string) error {
	if what == "serve" {
		return serveUploads(ctx, args[0])
	}
	dir, keys := args[0], args[1]
	perStep, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	list, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	files := strings.Split(string(list), "\n")
	signer, err := openpgp.OpenKeys(keys, openpgp.Options{})
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := repo.Open(ctx, repo.Config{Dir: dir}, signer, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer r.Close()
	var m measured
	switch what {
	case "build":
		if err := publishFiles(ctx, r, files); err != nil {
			return err
		}
		m.Seconds = []float64{time.Since(began).Seconds()}
	case "add":
		// The first of them is the first after a start, which builds the indexes
		// whole, and it is counted as well.
		for i := 0; i < len(files); i += perStep {
			began := time.Now()
			if err := publishFiles(ctx, r, files[i:i+perStep]); err != nil {
				return err
			}
			m.Seconds = append(m.Seconds, time.Since(began).Seconds())
		}
	default:
		return fmt.Errorf("there is no child %q", what)
	}
	if m.RSS, err = peakRSS(os.Getpid()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

func publishFiles(ctx context.Context, r *repo.Repo, files []string) error {
	in := make([]repo.Incoming, len(files))
	for i, f := range files {
		in[i] = repo.Incoming{Name: f, Body: &lazyFile{path: f}}
	}
	_, err := r.Publish(ctx, "stable", in)
	return err
}

// lazyFile opens its file when it is first read and closes it at its end, so
// that thousands of them need no thousands of descriptors.
type lazyFile struct {
	path string
	f    *os.File
}

func (l *lazyFile) Read(p []byte) (int, error) {
	if l.f == nil {
		f, err := os.Open(l.path)
		if err != nil {
			return 0, err
		}
		l.f = f
	}
	n, err := l.f.Read(p)
	if err != nil {
		l.f.Close()
	}
	return n, err
}

// peakRSS is the most memory that a process had, in bytes.
func peakRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("the kernel does not say how much memory the process had")
}

const uploadSize = 1 << 30

// uploadRSS sends a package of 1 GiB through the operator's API to a process
// with a repository, and returns the most memory that this process had.
func (b *bench) uploadRSS(ctx context.Context) (int64, error) {
	dir := filepath.Join(b.dir, "upload")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	deb := filepath.Join(b.dir, "large.deb")
	if err := writeLargeDeb(deb); err != nil {
		return 0, err
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, exe, "-child", "serve", dir)
	if cmd.Env, err = service.Environment(); err != nil {
		return 0, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	client := api.NewClient(filepath.Join(dir, "api.sock"))
	defer client.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err = client.Health(ctx); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return 0, err
		}
	}
	f, err := os.Open(deb)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	done, err := client.Publish(ctx, "stable", []api.Upload{{Name: deb, Body: f}})
	if err != nil {
		return 0, err
	}
	if len(done.Files) != 1 || done.Files[0].Size < uploadSize {
		return 0, fmt.Errorf("published %+v", done.Files)
	}
	return peakRSS(cmd.Process.Pid)
}

// serveUploads answers the operator's API over a new repository until it is killed.
func serveUploads(ctx context.Context, dir string) error {
	signer, err := openpgp.OpenKeys(filepath.Join(dir, "keys"), openpgp.Options{Bits: openpgp.MinBits})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	r, err := repo.Open(ctx, repo.Config{Dir: dir}, signer, log)
	if err != nil {
		return err
	}
	l, err := api.Listen(filepath.Join(dir, "api.sock"), -1)
	if err != nil {
		return err
	}
	spool := filepath.Join(dir, "uploads")
	if err := os.Mkdir(spool, 0o700); err != nil {
		return err
	}
	publisher := plainPublisher{r, &apitest.Publisher{}}
	return api.New(api.Config{
		Operator: &apitest.Operator{}, Publisher: publisher, Librarian: &apitest.Librarian{},
		SpoolDir: spool, Admission: api.Admission{Self: os.Getuid(), AdminGID: -1}, Log: log,
	}).Serve(ctx, l)
}

// plainPublisher publishes into a real repository.
type plainPublisher struct {
	repo *repo.Repo
	*apitest.Publisher
}

func (p plainPublisher) Publish(ctx context.Context, suite string, files []api.Upload) ([]api.Published, error) {
	var in []repo.Incoming
	for _, f := range files {
		in = append(in, repo.Incoming{Name: f.Name, Body: f.Body})
	}
	done, err := p.repo.Publish(ctx, suite, in)
	if err != nil {
		return nil, err
	}
	var out []api.Published
	for _, f := range done.Files {
		out = append(out, api.Published{File: f.Name, Outcome: api.PublishAdded, Package: api.Package{Name: f.Package.Name, Size: f.Package.Size}})
	}
	return out, nil
}
