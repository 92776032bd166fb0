package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/cli"
)

// stream is the name of a file that means standard input or output.
const stream = "-"

// serviceUser owns the state directory where the packages made it.
const serviceUser = "mesh-control"

func newBackupCommand(d deps) *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write everything that the control plane must not forget into one file",
		Long: `Writes a tar archive with the database as it is at one moment, the keys, the
content of large files, and the packages of the repository. The control plane may
be running. With - the archive goes to standard output.

Whoever has the file has the keys of the mesh: it is made readable to root only,
and belongs where secrets are kept.

See "mesh-control restore" for what a backup can give back and what it cannot.`,
		Example: `  mesh-control backup /root/mesh.tar
  mesh-control backup - | ssh elsewhere 'cat > mesh.tar'`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&bare, "without-packages", false, "leave the repository out; its packages have to be published again after a restore")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd.Flag("config").Value.String())
		if err != nil {
			return badConfig(err)
		}
		parts := slices.Concat(keptAlways, keptPackages)
		if bare {
			parts = keptAlways
		}
		write := func(ctx context.Context, out io.Writer) error { return writeBackup(ctx, c.stateDir, parts, out) }
		if owner, other := otherOwner(c.stateDir); other {
			// Nothing that root makes in the state directory must stay there.
			flags := []string{"backup", stream, "--config", cmd.Flag("config").Value.String()}
			if bare {
				flags = append(flags, "--without-packages")
			}
			write = func(ctx context.Context, out io.Writer) error { return as(ctx, owner, nil, out, d.stderr, flags...) }
		}
		if args[0] == stream {
			return write(cmd.Context(), d.stdout)
		}
		if err := toFile(cmd.Context(), args[0], write); err != nil {
			return err
		}
		fmt.Fprintf(d.stdout, "%s written\n", args[0])
		fmt.Fprintln(d.stderr, "it holds the keys of the mesh: keep it where secrets are kept")
		return nil
	}
	return cmd
}

func newRestoreCommand(d deps) *cobra.Command {
	var aside bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a control plane back from a backup",
		Long: `Puts a backup into the state directory. The control plane must not be running, and
there must be none in the directory yet; with --aside one that is there is moved
aside, never deleted. With - the archive is read from standard input.

What happened after the backup is not in it:
  - A node that got a declaration since holds a generation that is not known.
    Nothing is pushed to it until "mesh-control recover" confirms it; until then
    it goes on with what it has. For a node that has not called yet nothing is
    written either.
  - A machine that joined since is not known. Issue a token for it.
  - A node that was revoked or retired since is enrolled again. Revoke it again.
  - Tokens that nobody had used are not good any more. Issue others.
  - Declarations and packages that were written since have to be written again.`,
		Example: `  systemctl stop mesh-control
  mesh-control restore --aside /root/mesh.tar
  systemctl start mesh-control
  mesh-control recover`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&aside, "aside", false, "move a control plane that is there aside")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd.Flag("config").Value.String())
		if err != nil {
			return badConfig(err)
		}
		var in io.Reader = os.Stdin
		if args[0] != stream {
			f, err := os.Open(args[0])
			if err != nil {
				return mesh.Errorf(mesh.CodeNotFound, "the backup cannot be read: %w; nothing was done", err)
			}
			defer f.Close()
			in = f
		}
		if err := makeState(c.stateDir); err != nil {
			return err
		}
		if owner, other := otherOwner(c.stateDir); other {
			flags := []string{"restore", stream, "--config", cmd.Flag("config").Value.String()}
			if aside {
				flags = append(flags, "--aside")
			}
			return as(cmd.Context(), owner, in, d.stdout, d.stderr, flags...)
		}
		moved, err := readBackup(cmd.Context(), c.stateDir, aside, in)
		if err != nil {
			return err
		}
		if moved != "" {
			fmt.Fprintf(d.stdout, "what was there is in %s\n", moved)
		}
		fmt.Fprintf(d.stdout, "restored into %s\n", c.stateDir)
		fmt.Fprintln(d.stderr, "start it with `systemctl start mesh-control`; then `mesh-control recover` lists the nodes that hold more than the backup knows")
		return nil
	}
	return cmd
}

// toFile has a file written whole, readable to its owner only, or not at all.
func toFile(ctx context.Context, file string, write func(context.Context, io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("make the file of the backup: %w", err)
	}
	err = write(ctx, f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(file))
}

// otherOwner returns who owns the directory, when this process is root and the
// owner is somebody else.
func otherOwner(dir string) (*syscall.Credential, bool) {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return nil, false
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}, true
}

// makeState makes the state directory, for the user of the service when there is
// one.
func makeState(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	owner, err := user.Lookup(serviceUser)
	if err != nil || os.Geteuid() != 0 {
		return nil // a control plane that somebody runs by hand
	}
	uid, uidErr := strconv.Atoi(owner.Uid)
	gid, gidErr := strconv.Atoi(owner.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return fmt.Errorf("read the ids of %s: %w", serviceUser, err)
	}
	return os.Chown(dir, uid, gid)
}

// as runs this program again as another user. Its refusal is already told.
func as(ctx context.Context, who *syscall.Credential, in io.Reader, out, talk io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, talk
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == cli.ExitRefused {
		return mesh.Errorf(mesh.CodeConflict, "nothing was done; see above")
	}
	if err != nil {
		return fmt.Errorf("run as the owner of the state directory: %w", err)
	}
	return nil
}
