// Command lab raises and takes down the hosts that tests run on, so that a
// person can look at them. It decides nothing that package lab does not.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/meshctl/mesh/test/lab"
	"golang.org/x/sync/errgroup"
)

const usage = `usage:
  lab roots [all | FLAVOUR...]   build the roots that are missing (the usual four)
  lab up [N | FLAVOUR | NAME=FLAVOUR]...
                                 boot hosts that stay: the usual four, N of
                                 bookworm-apt, or those named
  lab list                       list the hosts
  lab sh NAME [-- COMMAND...]    run a command on a host, or a shell
  lab cut NAME, lab join NAME    unplug a host's cable, plug it in again
  lab kill NAME, lab boot NAME   take a host's power away, boot it again
  lab down                       end and remove everything of the lab

It needs root. Roots are kept in $MESH_LAB_CACHE, else /var/cache/mesh-lab.
$MESH_LAB_INSTANCE names a lab of its own beside the usual one.
Exit status: 0 done, 1 not done, 2 wrong usage; lab sh passes on the command's.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	os.Exit(code)
}

// errUsage marks a command line that makes no sense.
var errUsage = errors.New("see the usage")

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2, nil
	}
	code, err := 0, error(nil)
	switch verb, rest := args[0], args[1:]; verb {
	case "roots":
		err = roots(ctx, rest)
	case "up":
		err = up(ctx, rest)
	case "list":
		err = list(os.Stdout)
	case "down":
		err = lab.TakeDown(ctx, os.Stderr)
	case "sh":
		code, err = sh(ctx, rest)
	case "cut", "join", "kill", "boot":
		err = onHost(ctx, verb, rest)
	default:
		err = fmt.Errorf("no command %q: %w", verb, errUsage)
	}
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
		return 2, err
	}
	if err != nil && code == 0 {
		code = 1
	}
	return code, err
}

// roots builds what is missing in the cache.
func roots(ctx context.Context, names []string) error {
	if err := lab.EnsureTools(ctx, os.Stderr); err != nil {
		return err
	}
	var list []lab.Flavour
	for _, f := range lab.Flavours() {
		if len(names) == 0 && f.Usual || len(names) == 1 && names[0] == "all" {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		for _, name := range names {
			f, err := lab.FlavourNamed(name)
			if err != nil {
				return err
			}
			list = append(list, f)
		}
	}
	return lab.EnsureRoots(ctx, os.Stderr, list...)
}

// up boots the hosts that are asked for and not there, all at once.
func up(ctx context.Context, args []string) error {
	wanted, err := parseHosts(args)
	if err != nil {
		return err
	}
	l, err := lab.Keep(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer l.Release()
	var g errgroup.Group
	for _, w := range wanted {
		g.Go(func() error {
			h, err := l.Ensure(ctx, w.name, w.flavour)
			if err == nil && h.State() == lab.Off {
				err = h.BootAgain(ctx)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return list(os.Stdout)
}

// A want is one host that the command line asks for.
type want struct{ name, flavour string }

// parseHosts reads the arguments of up.
func parseHosts(args []string) ([]want, error) {
	var wanted []want
	if len(args) == 0 {
		for _, f := range lab.Flavours() {
			if f.Usual {
				wanted = append(wanted, want{f.Suite, f.Name})
			}
		}
	}
	for _, arg := range args {
		if n, err := strconv.Atoi(arg); err == nil {
			for i := range n {
				wanted = append(wanted, want{fmt.Sprintf("web-%d", i+1), "bookworm-apt"})
			}
			continue
		}
		name, flavour, named := strings.Cut(arg, "=")
		if !named {
			f, err := lab.FlavourNamed(arg)
			if err != nil {
				return nil, err
			}
			name, flavour = f.Suite, f.Name
		}
		wanted = append(wanted, want{name, flavour})
	}
	return wanted, nil
}

// list prints a line for each host.
func list(out io.Writer) error {
	l, err := lab.Attach(os.Stderr)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tFLAVOUR\tADDRESS\tSTATE\tPID1\tROOT")
	for _, h := range l.Hosts() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", h.Name(), h.Flavour().Name, h.Addr(), h.State(), h.Leader(), h.Root())
	}
	return w.Flush()
}

// sh runs a command on a host with this process's input and output.
func sh(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 2, fmt.Errorf("which host: %w", errUsage)
	}
	h, err := hostNamed(args[0])
	if err != nil {
		return 1, err
	}
	argv := args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		argv = []string{"sh"}
	}
	return h.Stream(ctx, os.Stdin, os.Stdout, os.Stderr, argv...)
}

// onHost does one thing to one host of a kept lab.
func onHost(ctx context.Context, verb string, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes the name of one host: %w", verb, errUsage)
	}
	h, err := hostNamed(args[0])
	if err != nil {
		return err
	}
	switch verb {
	case "cut":
		return h.CutOff(ctx)
	case "join":
		return h.Reconnect(ctx)
	case "kill":
		return h.PowerLoss(ctx)
	}
	return h.BootAgain(ctx)
}

// hostNamed finds a host of a lab that another process raised.
func hostNamed(name string) (*lab.Host, error) {
	l, err := lab.Attach(os.Stderr)
	if err != nil {
		return nil, err
	}
	h := l.Host(name)
	if h == nil {
		return nil, fmt.Errorf("the lab has no host %q; lab list shows those there are", name)
	}
	return h, nil
}
