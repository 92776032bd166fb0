// Package fleet raises a whole mesh on hosts of the lab, the way an operator
// does it: the first node from a bundle, the others by token, with the very
// commands that the programs print. The demonstration and the lab tests use it.
//
// It judges nothing itself; it gives answers that a caller can judge.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/lab"
)

// Version of the packages that a fleet is made of.
const Version = "0.1.0"

// Heartbeat and Drift are short, so that what takes minutes in a real mesh is
// seen in seconds.
const (
	heartbeatSeconds = 2
	driftInterval    = "10s"
)

// Fleet is one mesh in a lab.
type Fleet struct {
	Lab *lab.Lab
	// Control is the first node, which runs the control plane.
	Control *lab.Host
	// Bundle is the directory on this machine with the packages.
	Bundle string
	log    io.Writer
}

// projectDir is the directory of go.mod above the working directory.
func projectDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory; run this inside the project")
		}
		dir = parent
	}
}

// BuildBundle compiles the programs for this machine, packs them, and returns
// the directory of the bundle.
func BuildBundle(ctx context.Context, log io.Writer) (string, error) {
	return BuildRelease(ctx, Version, log)
}

// BuildRelease is BuildBundle for another version.
func BuildRelease(ctx context.Context, version string, log io.Writer) (string, error) {
	project, err := projectDir()
	if err != nil {
		return "", err
	}
	fleet := filepath.Join(project, "out", "fleet")
	if version != Version {
		fleet = filepath.Join(fleet, version)
	}
	out := filepath.Join(fleet, "packages")
	if err := os.RemoveAll(out); err != nil {
		return "", fmt.Errorf("clear the packages of an earlier run: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "run", "./packaging/cmd/packages", "--arch", runtime.GOARCH, "--out", out, "--version", version)
	cmd.Dir = project
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the packages: %w", err)
	}
	return filepath.Join(fleet, "bundle", runtime.GOARCH), nil
}

// Raise makes host the first node: it installs mesh-host from the bundle's
// file, applies the bundle, which raises the control plane, and enrols the host
// against it with a token.
func Raise(ctx context.Context, l *lab.Lab, host *lab.Host, bundle string, log io.Writer) (*Fleet, error) {
	f := &Fleet{Lab: l, Control: host, Bundle: bundle, log: log}
	if err := prepare(ctx, host); err != nil {
		return nil, err
	}
	settings := fmt.Sprintf("heartbeat_seconds: %d\n", heartbeatSeconds)
	if err := host.WriteFile(ctx, "/etc/mesh/control.yaml", []byte(settings), 0o644); err != nil {
		return nil, fmt.Errorf("write the settings of the control plane: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(bundle, "*"))
	if err != nil {
		return nil, err
	}
	own := ""
	for _, file := range files {
		remote := "/root/mesh-bundle/" + filepath.Base(file)
		if err := host.CopyIn(ctx, file, remote); err != nil {
			return nil, fmt.Errorf("carry the bundle to %s: %w", host.Name(), err)
		}
		if strings.HasPrefix(filepath.Base(file), "mesh-host") && strings.HasSuffix(file, extension(host)) {
			own = remote
		}
	}
	install := "apt-get install -y " + own
	if host.Flavour().RPM() {
		install = "dnf install -y --nogpgcheck " + own
	}
	if out, err := host.Sh(ctx, install); err != nil {
		return nil, fmt.Errorf("install the host from the bundle: %w\n%s", err, out.Stderr)
	}
	if _, err := host.Run(ctx, "mesh-host", "apply", "/root/mesh-bundle"); err != nil {
		return nil, fmt.Errorf("apply the bundle: %w", err)
	}
	if err := f.Await(ctx, "the control plane to answer", func(ctx context.Context) (bool, string, error) {
		out, err := host.Run(ctx, "meshctl", "nodes")
		return err == nil, out.Stderr, nil
	}); err != nil {
		return nil, err
	}
	token, _, err := f.Token(ctx, "--name", host.Name())
	if err != nil {
		return nil, err
	}
	if _, err := host.Run(ctx, "mesh-host", "enrol", token); err != nil {
		return nil, fmt.Errorf("enrol the first node: %w", err)
	}
	return f, nil
}

func extension(h *lab.Host) string {
	if h.Flavour().RPM() {
		return ".rpm"
	}
	return ".deb"
}

// prepare writes what an admin may set before the host is installed.
func prepare(ctx context.Context, h *lab.Host) error {
	if err := h.WriteFile(ctx, "/etc/mesh/host.yaml", []byte("drift_interval: "+driftInterval+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the settings of the host: %w", err)
	}
	return nil
}

// PublishBundle puts the mesh's own packages into its repository, and has the
// first node, which was raised without one, use it as the others do: with the
// printed commands, as far as they come before the installation.
func (f *Fleet) PublishBundle(ctx context.Context) error {
	out, err := f.Control.Sh(ctx, "meshctl publish /root/mesh-bundle/*.deb /root/mesh-bundle/*.rpm")
	if err != nil {
		return fmt.Errorf("publish the mesh's own packages: %w\n%s", err, out.Stderr)
	}
	_, text, err := f.Token(ctx)
	if err != nil {
		return err
	}
	script, err := Commands(text, f.Control.Flavour().RPM())
	if err != nil {
		return err
	}
	var configure []string
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "apt-get install") || strings.HasPrefix(line, "dnf install") || strings.HasPrefix(line, "mesh-host") {
			continue
		}
		configure = append(configure, line)
	}
	if out, err := f.Control.Sh(ctx, strings.Join(configure, "")); err != nil {
		return fmt.Errorf("have the first node use the repository: %w\n%s", err, out.Stderr)
	}
	return nil
}

// Token issues a token and returns it with the whole text that was printed.
func (f *Fleet) Token(ctx context.Context, flags ...string) (token, text string, err error) {
	out, err := f.Meshctl(ctx, append([]string{"token", "issue"}, flags...)...)
	if err != nil {
		return "", "", err
	}
	token, _, _ = strings.Cut(out, "\n")
	return strings.TrimSpace(token), out, nil
}

// Adopt makes host a node with the commands that "meshctl token issue" prints
// for its kind of machine, run as they stand.
func (f *Fleet) Adopt(ctx context.Context, host *lab.Host, flags ...string) error {
	if err := prepare(ctx, host); err != nil {
		return err
	}
	_, text, err := f.Token(ctx, append([]string{"--name", host.Name()}, flags...)...)
	if err != nil {
		return err
	}
	script, err := Commands(text, host.Flavour().RPM())
	if err != nil {
		return err
	}
	if out, err := host.Sh(ctx, script); err != nil {
		return fmt.Errorf("adopt %s: %w\n%s\n%s", host.Name(), err, out.Stdout, out.Stderr)
	}
	return nil
}

// Commands cuts the commands for one kind of machine out of what "meshctl token
// issue" prints.
func Commands(text string, rpm bool) (string, error) {
	title := "# On a machine with apt"
	if rpm {
		title = "# On a machine with dnf"
	}
	_, after, found := strings.Cut(text, title)
	if !found {
		return "", fmt.Errorf("there are no commands for this kind of machine in:\n%s", text)
	}
	_, after, _ = strings.Cut(after, "\n")
	script, _, _ := strings.Cut(after, "\n# On a machine with")
	return script, nil
}

// Meshctl runs meshctl on the first node and returns its standard output. The
// error of a command that ended with another status than 0 is a *lab.ExitError.
func (f *Fleet) Meshctl(ctx context.Context, args ...string) (string, error) {
	out, err := f.Control.Run(ctx, append([]string{"meshctl"}, args...)...)
	return out.Stdout, err
}

// Declare writes a document and returns what was printed.
func (f *Fleet) Declare(ctx context.Context, document string, flags ...string) (string, error) {
	file := fmt.Sprintf("/root/declare-%d.yaml", time.Now().UnixNano())
	if err := f.Control.WriteFile(ctx, file, []byte(document), 0o644); err != nil {
		return "", err
	}
	return f.Meshctl(ctx, append(append([]string{"declare"}, flags...), file)...)
}

// Publish puts a package into the repository in both formats.
func (f *Fleet) Publish(ctx context.Context, p packaging.SimplePackage) error {
	var files []string
	for _, format := range []string{packaging.Deb, packaging.RPM} {
		data, err := packaging.BuildSimple(p, format)
		if err != nil {
			return err
		}
		file := fmt.Sprintf("/root/%s-%s.%s", p.Name, p.Version, format)
		if err := f.Control.WriteFile(ctx, file, data, 0o644); err != nil {
			return err
		}
		files = append(files, file)
	}
	_, err := f.Meshctl(ctx, append([]string{"publish"}, files...)...)
	return err
}

// Nodes is "meshctl nodes -o json".
func (f *Fleet) Nodes(ctx context.Context) (map[string]control.NodeView, error) {
	out, err := f.Meshctl(ctx, "nodes", "-o", "json")
	if err != nil {
		return nil, err
	}
	rows, err := decodeNodes([]byte(out))
	if err != nil {
		return nil, fmt.Errorf("read the list of nodes: %w\n%s", err, out)
	}
	nodes := make(map[string]control.NodeView, len(rows))
	for _, n := range rows {
		nodes[n.Node] = n
	}
	return nodes, nil
}

func decodeNodes(data []byte) ([]control.NodeView, error) {
	var list []control.NodeView
	if err := json.Unmarshal(data, &list); err == nil {
		return list, nil
	}
	var wrapped struct {
		Nodes []control.NodeView `json:"nodes"`
	}
	if err := json.Unmarshal(data, &wrapped); err != nil {
		return nil, err
	}
	return wrapped.Nodes, nil
}

// Node is "meshctl node show NAME -o json".
func (f *Fleet) Node(ctx context.Context, name string) (control.NodeDetail, error) {
	var d control.NodeDetail
	out, err := f.Meshctl(ctx, "node", "show", name, "-o", "json")
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal([]byte(out), &d)
}

// Await waits until cond holds, for at most ninety seconds.
func (f *Fleet) Await(ctx context.Context, what string, cond func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return lab.WaitFor(ctx, what, cond)
}

// AwaitNode waits until the row of a node is as judge wants it.
func (f *Fleet) AwaitNode(ctx context.Context, name, what string, judge func(control.NodeView) bool) (control.NodeView, error) {
	var row control.NodeView
	err := f.Await(ctx, name+" "+what, func(ctx context.Context) (bool, string, error) {
		nodes, err := f.Nodes(ctx)
		if err != nil {
			return false, err.Error(), nil
		}
		n, known := nodes[name]
		if !known {
			return false, "the node is not listed", nil
		}
		row = n
		return judge(n), fmt.Sprintf("%+v", n), nil
	})
	return row, err
}

// Applied is the judgement that everything declared is applied.
func Applied(n control.NodeView) bool {
	return n.State == mesh.NodeEnrolled && n.Declared > 0 && n.Applied == n.Declared && len(n.Failed) == 0 &&
		n.Outstanding.Delivered == 0 && n.Outstanding.Undelivered == 0
}

// Installed returns the version of a package that the host's own database
// names; empty when it is not installed.
func Installed(ctx context.Context, h *lab.Host, name string) (string, error) {
	if h.Flavour().RPM() {
		out, err := h.Run(ctx, "rpm", "-q", "--qf", "%{EVR}", name)
		if out.Code == 1 {
			return "", nil
		}
		return strings.TrimPrefix(out.Stdout, "(none):"), err
	}
	out, err := h.Run(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name)
	if out.Code == 1 {
		return "", nil
	}
	status, version, _ := strings.Cut(out.Stdout, " ")
	if status != "installed" {
		return "", err
	}
	return version, err
}

// InstallByHand installs a package as an admin does who knows no mesh.
func InstallByHand(ctx context.Context, h *lab.Host, p packaging.SimplePackage) error {
	format, command := packaging.Deb, "dpkg -i"
	if h.Flavour().RPM() {
		format, command = packaging.RPM, "rpm -i --nosignature"
	}
	data, err := packaging.BuildSimple(p, format)
	if err != nil {
		return err
	}
	file := "/root/by-hand-" + p.Name + "." + format
	if err := h.WriteFile(ctx, file, data, 0o644); err != nil {
		return err
	}
	_, err = h.Sh(ctx, command+" "+file)
	return err
}
