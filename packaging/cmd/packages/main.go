// Command packages compiles the three programs of the mesh and builds their deb
// and rpm files.
//
// It does not sign or publish anything, and takes no part in a running mesh.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/mesh/internal/version"
	"github.com/meshctl/mesh/packaging"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

// settings are the values of the flags.
type settings struct {
	version, out string
	arch         []string
	only         []string
	formats      []string
	source       string
}

func newRootCommand() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:   "packages",
		Short: "Compile the programs and build their deb and rpm files",
		Long: `Compiles mesh-host, mesh-control and meshctl as static binaries and builds a deb
and an rpm of each. The binaries go to OUT/../bin/ARCH, the packages to OUT.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return build(cmd.Context(), s)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.version, "version", "", "version to build; the default comes from git, or is that of a development build")
	flags.StringSliceVar(&s.arch, "arch", []string{runtime.GOARCH}, "architectures: amd64, arm64")
	flags.StringVar(&s.out, "out", "out/packages", "directory that gets the packages")
	flags.StringSliceVar(&s.only, "only", nil, "build only these packages ("+strings.Join(packaging.Names(), ", ")+")")
	flags.StringSliceVar(&s.formats, "format", nil, "formats: deb, rpm (default both)")
	flags.StringVar(&s.source, "source", ".", "the project's directory")
	root.AddCommand(newStageCommand(&s))
	return root
}

// newStageCommand is what a release build calls before it packs by itself.
func newStageCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "stage DIR",
		Short: "Write everything that the packages hold beside their binaries into a directory",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := options(cmd.Context(), *s)
			if err != nil {
				return err
			}
			native, err := compile(cmd.Context(), *s, o.Version, runtime.GOARCH)
			if err != nil {
				return err
			}
			o.NativeDir = native
			return packaging.Stage(cmd.Context(), args[0], o)
		},
	}
}

func build(ctx context.Context, s settings) error {
	o, err := options(ctx, s)
	if err != nil {
		return err
	}
	native, err := compile(ctx, s, o.Version, runtime.GOARCH)
	if err != nil {
		return err
	}
	for _, arch := range s.arch {
		o.Arch, o.NativeDir, o.BinDir = arch, native, native
		if arch != runtime.GOARCH {
			if o.BinDir, err = compile(ctx, s, o.Version, arch); err != nil {
				return err
			}
		}
		built, err := packaging.Build(ctx, o)
		for _, path := range built {
			fmt.Println(path)
		}
		if err != nil {
			return err
		}
		if len(s.only) > 0 || len(s.formats) == 1 {
			continue // a bundle holds all packages in both formats
		}
		bundle := filepath.Join(filepath.Dir(filepath.Clean(s.out)), "bundle", o.Arch)
		if err := packaging.WriteBundle(bundle, o.Version, built); err != nil {
			return err
		}
		fmt.Println(bundle)
	}
	return nil
}

// options fills in what the flags leave open.
func options(ctx context.Context, s settings) (packaging.Options, error) {
	o := packaging.Options{
		Version: s.version, OutDir: s.out, Formats: s.formats, Only: s.only,
		LicenseFile: filepath.Join(s.source, "LICENSE"),
	}
	for _, name := range s.only {
		if !slices.Contains(packaging.Names(), name) {
			return o, fmt.Errorf("no package is called %q; there are %s", name, strings.Join(packaging.Names(), ", "))
		}
	}
	if o.Version == "" {
		described, err := git(ctx, s.source, "describe", "--tags", "--always", "--dirty", "--match", "v[0-9]*")
		if err != nil {
			described = version.Version
		}
		o.Version = packageVersion(described)
	}
	if err := packaging.CheckVersion(o.Version); err != nil {
		return o, err
	}
	if os.Getenv("SOURCE_DATE_EPOCH") == "" {
		if text, err := git(ctx, s.source, "log", "-1", "--format=%cI"); err == nil {
			if t, err := time.Parse(time.RFC3339, text); err == nil {
				o.Time = t.UTC()
			}
		}
	}
	return o, nil
}

// packageVersion turns what git describe says into a version that sorts the same
// for dpkg and rpm: v1.2.0 is 1.2.0, three commits later it is 1.2.0+3.gabc, and
// without a tag it is 0.0.0~dev+gabc.
func packageVersion(described string) string {
	v, dirty := strings.CutSuffix(described, "-dirty")
	if tagged, ok := strings.CutPrefix(v, "v"); ok && strings.Contains(tagged, ".") {
		parts := strings.Split(tagged, "-")
		v = parts[0]
		rest := parts[1:]
		if len(rest) > 0 && !strings.HasPrefix(rest[len(rest)-1], "g") {
			v, rest = v+"~"+strings.Join(rest, "."), nil // a release candidate
		} else if len(rest) > 2 {
			v, rest = v+"~"+strings.Join(rest[:len(rest)-2], "."), rest[len(rest)-2:]
		}
		if len(rest) == 2 {
			v += "+" + rest[0] + "." + rest[1]
		}
	} else if strings.Contains(v, ".") {
		v = strings.ReplaceAll(v, "-", "~")
	} else {
		v = "0.0.0~dev+g" + v
	}
	if dirty {
		if strings.Contains(v, "+") {
			v += ".dirty"
		} else {
			v += "+dirty"
		}
	}
	return v
}
