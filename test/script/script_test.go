package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/host/link"
	"github.com/meshctl/mesh/internal/sshkey"
	"github.com/meshctl/mesh/repo/openpgp"
)

// built is where TestMain put the programs, and one set of keys so that not
// every story waits for its own.
var built struct{ bin, keys, work string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mesh-script")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// A story may run a program as somebody else, who has to get at it.
	built.bin, built.keys, built.work = filepath.Join(dir, "bin"), filepath.Join(dir, "keys"), filepath.Join(dir, "w")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(built.work, 0o755)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out, err := exec.Command("go", "build", "-o", built.bin+"/", "../../cmd/meshctl", "../../cmd/mesh-control").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		return 1
	}
	if _, err := openpgp.Open(built.keys, openpgp.Options{Identity: "mesh repository"}); err != nil {
		fmt.Fprintf(os.Stderr, "make keys: %v\n", err)
		return 1
	}
	return m.Run()
}

func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		WorkdirRoot:         built.work,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setUp,
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("there is no condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"control":       controlCommand,
			"exits":         exitsCommand,
			"secret-absent": secretAbsentCommand,
			"machine":       machineCommand,
			"gone":          goneCommand,
			"key":           keyCommand,
		},
	})
}

const configuration = `state_dir: %[1]s/state
socket: %[1]s/api.sock
link_listen: 127.0.0.1:0
repository_listen: 127.0.0.1:0
`

func setUp(env *testscript.Env) error {
	env.Setenv("PATH", built.bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
	env.Setenv("MESH_SOCKET", filepath.Join(env.WorkDir, "api.sock"))
	env.Values[planeKey{}] = &plane{}
	config := fmt.Sprintf(configuration, env.WorkDir)
	if err := os.WriteFile(filepath.Join(env.WorkDir, "control.yaml"), []byte(config), 0o644); err != nil {
		return err
	}
	keys := filepath.Join(env.WorkDir, "state", "keys")
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return err
	}
	return copyFiles(keys, built.keys)
}

func copyFiles(to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// plane is the control plane of a story.
type plane struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan error
}

type planeKey struct{}

// controlCommand is "control start" (with the settings of a FILE, when one is
// named), "control stop" (as the service manager
// does, and it has to end well) and "control kill" (as a power cut does).
func controlCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 || len(args) == 2 && args[0] != "start" {
		ts.Fatalf("usage: control start [FILE]|stop|kill")
	}
	if len(args) == 2 {
		config := ts.ReadFile("control.yaml") + ts.ReadFile(args[1])
		ts.Check(os.WriteFile(ts.MkAbs("control.yaml"), []byte(config), 0o644))
	}
	p := ts.Value(planeKey{}).(*plane)
	switch args[0] {
	case "start":
		p.start(ts)
	case "stop":
		ts.Check(p.end(syscall.SIGTERM))
	case "kill":
		if err := p.end(syscall.SIGKILL); err == nil {
			ts.Fatalf("a control plane that was killed ended well")
		}
	default:
		ts.Fatalf("control %s: there are start, stop and kill", args[0])
	}
}

func (p *plane) start(ts *testscript.TestScript) {
	if p.cmd != nil {
		ts.Fatalf("the control plane runs already")
	}
	p.log.Reset()
	p.cmd = exec.Command(filepath.Join(built.bin, "mesh-control"), "serve", "--config", ts.MkAbs("control.yaml"))
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	ts.Check(p.cmd.Start())
	p.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }(p.cmd, p.ended)
	ts.Defer(func() {
		if p.cmd != nil {
			ts.Check(p.end(syscall.SIGTERM))
		}
	})
	client := api.NewClient(ts.MkAbs("api.sock"))
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		_, err := client.Health(ctx)
		if err == nil {
			return
		}
		select {
		case end := <-p.ended:
			p.cmd = nil
			ts.Fatalf("the control plane ended while it started: %v\n%s", end, p.log.String())
		case <-ctx.Done():
			ts.Fatalf("the control plane did not answer in time: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *plane) end(signal syscall.Signal) error {
	if p.cmd == nil {
		return errors.New("the control plane does not run")
	}
	if err := p.cmd.Process.Signal(signal); err != nil {
		return err
	}
	err := <-p.ended
	p.cmd = nil
	if err != nil {
		return fmt.Errorf("the control plane ended with %w\n%s", err, p.log.String())
	}
	return nil
}

// exitsCommand is "exits CODE COMMAND ARG...": the exit code is exactly this.
// The output is looked at with stdout and stderr, as after exec.
func exitsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("%s ended with exit code %d, want %s", strings.Join(args[1:], " "), code, args[0])
	}
}

// goneCommand is "gone TEXT COMMAND ARG...": within a while, the output of the
// command does not hold the text any more.
func goneCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: gone TEXT COMMAND ARG...")
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if !strings.Contains(ts.ReadFile("stdout"), args[0]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after half a minute %q is still in the output of %s", args[0], strings.Join(args[1:], " "))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// secretAbsentCommand is "secret-absent FILE DIR": the secret of the token on
// the first line of FILE stands in no file below DIR, in no form.
func secretAbsentCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: secret-absent FILE DIR")
	}
	line, _, _ := strings.Cut(ts.ReadFile(args[0]), "\n")
	token, err := mesh.ParseToken(line)
	ts.Check(err)
	looked := 0
	ts.Check(filepath.WalkDir(ts.MkAbs(args[1]), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		looked++
		if bytes.Contains(data, token.Secret[:]) || bytes.Contains(data, []byte(token.SecretText())) || bytes.Contains(data, []byte(line)) {
			return fmt.Errorf("%s holds the secret of the token", path)
		}
		return nil
	}))
	if looked == 0 {
		ts.Fatalf("no file below %s was looked at", args[1])
	}
}

// keyCommand is "key NAME": an SSH key as ssh-keygen makes it, in NAME and
// NAME.pub.
func keyCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: key NAME")
	}
	path := ts.MkAbs(args[0])
	signer, err := sshkey.LoadOrCreate(sshkey.Kept{Dir: filepath.Dir(path), File: filepath.Base(path), Comment: args[0], Lost: "make another"})
	ts.Check(err)
	ts.Check(os.WriteFile(path+".pub", []byte(sshkey.Authorized(signer.PublicKey())+" "+args[0]+"\n"), 0o644))
}

// machineCommand is "machine NAME FILE [OUTCOME]": a machine of that name says
// what it is and enrols with the token on the first line of FILE, through the
// host's own end of the link. Then it is silent, as one that was switched off.
// OUTCOME is what its briefing found: pass (default), warn or fail. The key is
// kept in the directory machine-NAME, which a story may move. With "!" the enrolment has to be refused; the refusal is on standard error.
func machineCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: machine NAME FILE [OUTCOME]")
	}
	line, _, _ := strings.Cut(ts.ReadFile(args[1]), "\n")
	token, err := mesh.ParseToken(line)
	ts.Check(err)
	key, err := link.LoadOrCreateKey(ts.MkAbs("machine-" + args[0]))
	ts.Check(err)
	outcome := mesh.OutcomePass
	if len(args) == 3 {
		outcome = mesh.Outcome(args[2])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	enrolled, err := link.Enrol(ctx, token, key, mesh.Enrol{
		ProtocolMin: mesh.ProtocolMin, ProtocolMax: mesh.ProtocolMax, HostVersion: "1.0-1", Hostname: args[0],
		Profile: mesh.Profile{
			OS: mesh.OS{ID: "debian", Version: "12", Family: "debian", Name: "Debian GNU/Linux 12"}, Arch: "amd64",
			Systemd: 252, PackageManager: "apt", DBus: true, MachineIDHash: mesh.SecretHash(args[0])},
		Briefing: mesh.Briefing{Lines: []mesh.Line{{Check: "root file system", Outcome: outcome, Detail: "looked at by a story"}}},
	})
	switch {
	case neg && err == nil:
		ts.Fatalf("%s is enrolled as %s, and should have been refused", args[0], enrolled.Node)
	case neg:
		fmt.Fprintln(ts.Stderr(), err)
	case err != nil:
		ts.Fatalf("%s is not enrolled: %v", args[0], err)
	default:
		fmt.Fprintln(ts.Stdout(), enrolled.Node)
	}
}
