package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	yaml "go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/remote"
	"github.com/meshctl/mesh/internal/cli"
)

// maxSettings bounds the settings file, in bytes.
const maxSettings = 64 << 10

// settings say where the control plane is and as whom it is asked. An empty
// field says nothing.
type settings struct {
	// Socket is the path of a unix socket on this machine.
	Socket string `yaml:"socket"`
	// Control is host:port of the control plane's SSH server.
	Control string `yaml:"control"`
	// Identity is the operator's key file. Empty: the keys of ssh-agent.
	Identity string `yaml:"identity"`
	// Fingerprint is that of the control plane's key, as SHA256:...
	Fingerprint string `yaml:"fingerprint"`
}

const doorHelp = `On the machine of the control plane it is asked through a unix socket, which
root and members of the group mesh-admin may use. From elsewhere it is asked over
SSH, by whoever was registered with ` + "`meshctl operator add`" + `:

  --control HOST:PORT   where it is
  --fingerprint SHA256  its key; any other is refused, and none is trusted at
                        first sight
  --identity FILE       the operator's key; without it the keys of ssh-agent

The same can stand in the variables MESH_CONTROL, MESH_FINGERPRINT and
MESH_IDENTITY (or MESH_SOCKET), and in the file ~/.config/mesh/meshctl.yaml:

  control: mesh.example.org:7022
  fingerprint: SHA256:...
  identity: ~/.ssh/id_ed25519

A flag counts before a variable, and a variable before the file.`

func addDoorFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.String("socket", "", "ask through the socket at `PATH` on this machine (without any setting "+api.DefaultSocket+")")
	flags.String("control", "", "ask the control plane at `HOST:PORT` over SSH")
	flags.String("identity", "", "the key `FILE` that proves who asks over SSH; without it the keys of ssh-agent")
	flags.String("fingerprint", "", "the `FINGERPRINT` of the control plane's key, as SHA256:...; no other is talked to")
	flags.String("config", "", "the settings, a `FILE`; without it ~/.config/mesh/meshctl.yaml, if it is there")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		s := flagSettings(cmd)
		switch {
		case s.Socket != "" && s.Control+s.Identity+s.Fingerprint != "":
			return cli.Usagef(cmd, "--socket asks on this machine, and --control, --identity and --fingerprint from elsewhere: give one or the other")
		case s.Control != "":
			if err := checkAddress(s.Control); err != nil {
				return cli.Usagef(cmd, "--control %s", err)
			}
		}
		if s.Fingerprint != "" {
			if _, err := mesh.ParseFingerprint(s.Fingerprint); err != nil {
				return cli.Usagef(cmd, "--fingerprint %s", err)
			}
		}
		return nil
	}
}

func flagSettings(cmd *cobra.Command) settings {
	value := func(name string) string {
		if flag := cmd.Flag(name); flag != nil {
			return flag.Value.String()
		}
		return ""
	}
	return settings{Socket: value("socket"), Control: value("control"), Identity: value("identity"), Fingerprint: value("fingerprint")}
}

func checkAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is not HOST:PORT, as in mesh.example.org:7022", a)
	}
	return nil
}

// client makes the client for the door that flags, environment and settings
// name, in this order. What is wrong with the settings is said when the client
// is first used.
func (d deps) client(cmd *cobra.Command) *api.Client {
	s, err := d.settings(cmd)
	if err != nil {
		return api.NewClientOver(broken{err}, "")
	}
	if s.Control == "" {
		return api.NewClient(s.Socket)
	}
	return api.NewClientOver(&overSSH{settings: s, agent: d.getenv("SSH_AUTH_SOCK")}, s.Control)
}

// settings merges what was said at the three places. Exactly one of Socket and
// Control is set in what it returns.
func (d deps) settings(cmd *cobra.Command) (settings, error) {
	levels := []settings{
		flagSettings(cmd),
		{Socket: d.getenv("MESH_SOCKET"), Control: d.getenv("MESH_CONTROL"), Identity: d.getenv("MESH_IDENTITY"), Fingerprint: d.getenv("MESH_FINGERPRINT")},
	}
	onThisMachine := levels[0].Socket != "" || levels[0].Control == "" && levels[1].Socket != ""
	if !onThisMachine {
		file, err := d.settingsFile(cmd)
		if err != nil {
			return settings{}, err
		}
		levels = append(levels, file)
	}
	return merge(levels)
}

func merge(levels []settings) (settings, error) {
	var s settings
	for _, l := range levels {
		if l.Socket != "" && l.Control != "" {
			return settings{}, mesh.Errorf(mesh.CodeInvalid, "both a socket (%s) and a control plane elsewhere (%s) are set at one place; set one of them", l.Socket, l.Control)
		}
		if l.Socket+l.Control != "" {
			s.Socket, s.Control = l.Socket, l.Control
			break
		}
	}
	if s.Control == "" {
		if s.Socket == "" {
			s.Socket = api.DefaultSocket
		}
		return s, nil
	}
	if err := checkAddress(s.Control); err != nil {
		return settings{}, mesh.Errorf(mesh.CodeInvalid, "the control plane's address %w", err)
	}
	for _, l := range levels {
		if s.Identity == "" {
			s.Identity = l.Identity
		}
		// A fingerprint belongs to the control plane that it stands beside.
		if s.Fingerprint == "" && (l.Control == "" || l.Control == s.Control) {
			s.Fingerprint = l.Fingerprint
		}
	}
	if s.Fingerprint == "" {
		return settings{}, mesh.Errorf(mesh.CodeInvalid, "the fingerprint of the control plane at %s is not known, and no key is trusted at first sight; give it with --fingerprint. Whoever registered you has it: `meshctl operator add` prints it, also when it is run again", s.Control)
	}
	return s, nil
}

// settingsFile reads the settings. The default file need not be there.
func (d deps) settingsFile(cmd *cobra.Command) (settings, error) {
	path := ""
	if flag := cmd.Flag("config"); flag != nil {
		path = flag.Value.String()
	}
	named := path != ""
	if !named {
		dir := d.getenv("XDG_CONFIG_HOME")
		if home := d.getenv("HOME"); dir == "" && home != "" {
			dir = filepath.Join(home, ".config")
		}
		if dir == "" {
			return settings{}, nil
		}
		path = filepath.Join(dir, "mesh", "meshctl.yaml")
	}
	f, err := os.Open(path)
	if !named && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		return settings{}, nil
	}
	if err != nil {
		return settings{}, mesh.Errorf(mesh.CodeInvalid, "the settings cannot be read: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return settings{}, mesh.Errorf(mesh.CodeInvalid, "the settings cannot be read: %w", err)
	}
	s, err := parseSettings(data)
	if err != nil {
		return settings{}, mesh.Errorf(mesh.CodeInvalid, "%s cannot be used: %w", path, err)
	}
	if rest, found := strings.CutPrefix(s.Identity, "~/"); found {
		s.Identity = filepath.Join(d.getenv("HOME"), rest)
	} else if s.Identity != "" && !filepath.IsAbs(s.Identity) {
		s.Identity = filepath.Join(filepath.Dir(path), s.Identity)
	}
	return s, nil
}

func parseSettings(data []byte) (settings, error) {
	if len(data) > maxSettings {
		return settings{}, fmt.Errorf("longer than %d bytes", maxSettings)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var s settings
	if err := decoder.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return settings{}, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if s.Fingerprint != "" {
		if _, err := mesh.ParseFingerprint(s.Fingerprint); err != nil {
			return settings{}, err
		}
	}
	return s, nil
}

// broken is the door of settings that cannot be used.
type broken struct{ err error }

func (b broken) DialContext(context.Context) (net.Conn, error) { return nil, b.err }
func (b broken) Close() error                                  { return nil }

// overSSH is the door from elsewhere. The key is looked for when it is needed.
type overSSH struct {
	settings settings
	// agent is the socket of ssh-agent. Empty: there is none.
	agent string

	mu     sync.Mutex
	dialer *remote.Dialer // under mu; nil until it is first needed
	keys   remote.Agent   // under mu
}

func (o *overSSH) DialContext(ctx context.Context) (net.Conn, error) {
	dialer, err := o.open()
	if err != nil {
		return nil, err
	}
	return dialer.DialContext(ctx)
}

func (o *overSSH) open() (*remote.Dialer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dialer != nil {
		return o.dialer, nil
	}
	fingerprint, err := mesh.ParseFingerprint(o.settings.Fingerprint)
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeInvalid, "%w", err)
	}
	keys, agentErr := remote.OpenAgent(o.agent)
	signers, err := remote.Signers(o.settings.Identity, keys)
	if err != nil {
		if agentErr != nil {
			err = mesh.Errorf(mesh.CodeInvalid, "%w (%w)", err, agentErr)
		}
		return nil, errors.Join(err, keys.Close())
	}
	o.keys = keys
	o.dialer = remote.New(remote.Config{Address: o.settings.Control, Fingerprint: fingerprint, Signers: signers})
	return o.dialer, nil
}

func (o *overSSH) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dialer == nil {
		return nil
	}
	return errors.Join(o.dialer.Close(), o.keys.Close())
}
