package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/packaging"
	"github.com/meshctl/mesh/test/fleet"
	"github.com/meshctl/mesh/test/lab"
)

const (
	greeting = "/etc/demo-greeting"
	adminOwn = "/etc/admin-own"
)

// firstNode raises the control plane from the bundle.
func (s *show) firstNode(bundle string) func() error {
	return func() error {
		s.step("The first node: install mesh-host from the bundle's file, apply the bundle, enrol with a token")
		var err error
		if s.fleet, err = fleet.Raise(s.ctx, s.lab, s.host("ctl-1"), bundle, nil); err != nil {
			return err
		}
		row, err := s.fleet.AwaitNode(s.ctx, "ctl-1", "to have applied what the bundle declares", fleet.Applied)
		if err != nil {
			return err
		}
		s.holds("ctl-1 runs the control plane that it was declared to run, and is its first node (%s applied)", row.Applied)
		return nil
	}
}

// adopt makes the two others nodes.
func (s *show) adopt() error {
	s.step("Publish the mesh's packages, then adopt the others with the commands that \"meshctl token issue\" prints")
	if err := s.fleet.PublishBundle(s.ctx); err != nil {
		return err
	}
	s.holds("the mesh's own repository serves the packages, signed, for apt and for dnf")
	adopted := make(chan error, 2)
	for _, name := range []string{"web-1", "db-1"} {
		go func() { adopted <- s.fleet.Adopt(s.ctx, s.host(name), "--label", "role=demo") }()
	}
	if err := errors.Join(<-adopted, <-adopted); err != nil {
		return err
	}
	for _, name := range []string{"web-1", "db-1"} {
		version, err := fleet.Installed(s.ctx, s.host(name), "mesh-host")
		if err != nil {
			return err
		}
		if version != fleet.Version+"-"+packaging.Release {
			return fmt.Errorf("%s has mesh-host %q", name, version)
		}
		_, err = s.fleet.AwaitNode(s.ctx, name, "to be enrolled", func(n control.NodeView) bool { return n.State == mesh.NodeEnrolled && n.Eligible })
		if err != nil {
			return err
		}
		s.holds("%s installed mesh-host %s from the repository, signatures checked, and is enrolled", name, version)
	}
	return nil
}

func helloPackage(version string) packaging.SimplePackage {
	return packaging.SimplePackage{
		Name: "demo-hello", Version: version,
		Files: []packaging.SimpleFile{{Path: "/usr/share/demo-hello/version", Content: []byte(version + "\n")}},
	}
}

// slowPackage takes a while to configure itself, long enough to be interrupted.
func slowPackage() packaging.SimplePackage {
	return packaging.SimplePackage{
		Name: "demo-slow", Version: "1.0",
		Files:   []packaging.SimpleFile{{Path: "/usr/share/demo-slow/here", Content: []byte("here\n")}},
		Scripts: packaging.SimpleScripts{PostInstall: "#!/bin/sh\nset -e\nsleep 6\nexit 0\n"},
	}
}

// declaration of the demo: a greeting, and whatever else a chapter adds.
func declaration(text string, more ...string) string {
	return "declaration: demo\nresources:\n" +
		"  - file: " + greeting + "\n    content: \"" + text + "\\n\"\n    mode: \"0644\"\n" +
		strings.Join(more, "")
}

const hello = "  - package: demo-hello\n    version: 1.0-1\n"

// allApplied publishes a package and writes one declaration.
func (s *show) allApplied() error {
	s.step("Publish a package and write one declaration: a file and the package, for every node")
	if err := s.fleet.Publish(s.ctx, helloPackage("1.0")); err != nil {
		return err
	}
	out, err := s.fleet.Declare(s.ctx, declaration("one", hello), "--wait", "20s")
	if err != nil {
		return err
	}
	s.quote("meshctl declare demo.yaml", out)
	for _, h := range hosts {
		if _, err := s.fleet.AwaitNode(s.ctx, h.name, "to have applied the declaration", fleet.Applied); err != nil {
			return err
		}
		if err := s.file(h.name, greeting, "one\n"); err != nil {
			return err
		}
		if err := s.installed(h.name, "demo-hello", "1.0-1"); err != nil {
			return err
		}
	}
	s.holds("on all three the file holds \"one\" and demo-hello 1.0-1 is installed: looked at on the machines themselves")
	return nil
}

// cutOff writes a declaration while one host is unreachable.
func (s *show) cutOff() error {
	s.step("Pull web-1's cable, and write a second declaration meanwhile")
	web := s.host("web-1")
	if err := web.CutOff(s.ctx); err != nil {
		return err
	}
	if _, err := s.fleet.AwaitNode(s.ctx, "web-1", "to be seen as disconnected", func(n control.NodeView) bool { return n.State == mesh.NodeDisconnected }); err != nil {
		return err
	}
	out, err := s.fleet.Declare(s.ctx, declaration("two", hello), "--wait", "5s")
	if err != nil {
		return err
	}
	s.quote("meshctl declare demo.yaml", out)
	row, err := s.fleet.AwaitNode(s.ctx, "web-1", "to be outstanding", func(n control.NodeView) bool { return n.Outstanding.Undelivered > 0 })
	if err != nil {
		return err
	}
	if len(row.Failed) > 0 {
		return fmt.Errorf("web-1 is switched off and is said to have failed: %+v", row)
	}
	for _, name := range []string{"ctl-1", "db-1"} {
		if _, err := s.fleet.AwaitNode(s.ctx, name, "to go on without web-1", fleet.Applied); err != nil {
			return err
		}
	}
	if err := s.nodes(); err != nil {
		return err
	}
	s.holds("web-1 is outstanding (undelivered) and not failed; the others have applied it")
	if err := s.file("web-1", greeting, "one\n"); err != nil {
		return err
	}
	plugged := time.Now()
	if err := web.Reconnect(s.ctx); err != nil {
		return err
	}
	if _, err := s.fleet.AwaitNode(s.ctx, "web-1", "to catch up", fleet.Applied); err != nil {
		return err
	}
	if err := s.file("web-1", greeting, "two\n"); err != nil {
		return err
	}
	s.holds("plugged in again, web-1 caught up by itself within %s", time.Since(plugged).Round(100*time.Millisecond))
	return nil
}

// doesNotExist declares a package that no repository has.
func (s *show) doesNotExist() error {
	s.step("Declare a package that does not exist, beside a change that can be made")
	out, err := s.fleet.Declare(s.ctx, declaration("three", "  - package: demo-no-such-package\n", hello), "--wait", "20s")
	if err != nil {
		return err
	}
	s.quote("meshctl declare demo.yaml", out)
	for _, h := range hosts {
		row, err := s.fleet.AwaitNode(s.ctx, h.name, "to have failed", func(n control.NodeView) bool { return len(n.Failed) > 0 })
		if err != nil {
			return err
		}
		if len(row.Failed) != 1 || row.Failed[0].Resource != "package:demo-no-such-package" || row.Failed[0].Reason != mesh.ReasonNotAvailable {
			return fmt.Errorf("%s: one failure was expected, the package that does not exist: %+v", h.name, row.Failed)
		}
		if err := s.file(h.name, greeting, "three\n"); err != nil {
			return err
		}
	}
	s.holds("it shows as failed (%s) on every node, and did not stop the rest: the file holds \"three\"", mesh.ReasonNotAvailable)
	if _, err := s.fleet.Declare(s.ctx, declaration("three", hello), "--wait", "0"); err != nil {
		return err
	}
	for _, h := range hosts {
		if _, err := s.fleet.AwaitNode(s.ctx, h.name, "to be right again", fleet.Applied); err != nil {
			return err
		}
	}
	s.holds("declared without it, all three are right again")
	return nil
}

// handEdit changes a managed file behind the mesh's back.
func (s *show) handEdit() error {
	s.step("Edit the file on db-1 by hand")
	db := s.host("db-1")
	if _, err := db.Sh(s.ctx, "echo 'edited by hand' > "+greeting); err != nil {
		return err
	}
	var event control.EventView
	err := s.fleet.Await(s.ctx, "the edit to show as drift", func(ctx context.Context) (bool, string, error) {
		d, err := s.fleet.Node(ctx, "db-1")
		if err != nil {
			return false, err.Error(), nil
		}
		for _, e := range d.Events {
			if e.Kind == mesh.EventDrift && e.Resource == "file:"+greeting {
				event = e
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%d events", len(d.Events)), nil
	})
	if err != nil {
		return err
	}
	s.holds("the control plane heard: drift of %s: %s", event.Resource, event.Detail)
	if err := s.file("db-1", greeting, "three\n"); err != nil {
		return err
	}
	s.holds("and the file holds \"three\" again")
	return nil
}

// killed takes the host's life in the middle of a package transaction.
func (s *show) killed() error {
	s.step("kill -9 the host on web-1 in the middle of a package transaction")
	web := s.host("web-1")
	if err := s.fleet.Publish(s.ctx, slowPackage()); err != nil {
		return err
	}
	after := "  - package: demo-slow\n" +
		"  - file: /etc/demo-after\n    content: \"after\\n\"\n    requires: [package:demo-slow]\n"
	if _, err := s.fleet.Declare(s.ctx, declaration("four", hello, after), "--wait", "0"); err != nil {
		return err
	}
	var pid string
	err := s.fleet.Await(s.ctx, "the slow package's script to run on web-1", func(ctx context.Context) (bool, string, error) {
		out, err := web.Sh(ctx, "pgrep -x sleep >/dev/null && systemctl is-active --quiet mesh-host-packages.service || systemctl show -p SubState mesh-host-packages.service | grep -q start && pgrep -x sleep >/dev/null; systemctl show -p MainPID --value mesh-host.service")
		pid = strings.TrimSpace(out.Stdout)
		return err == nil && pid != "" && pid != "0", out.Stdout + out.Stderr, nil
	})
	if err != nil {
		return err
	}
	if _, err := web.Run(s.ctx, "kill", "-9", pid); err != nil {
		return err
	}
	s.holds("process %s is dead; the package manager, in a unit of its own, goes on", pid)
	if _, err := s.fleet.AwaitNode(s.ctx, "web-1", "to finish what it was at", fleet.Applied); err != nil {
		return err
	}
	if err := s.installed("web-1", "demo-slow", "1.0-1"); err != nil {
		return err
	}
	if err := s.file("web-1", "/etc/demo-after", "after\n"); err != nil {
		return err
	}
	out, err := web.Run(s.ctx, "systemctl", "show", "-p", "MainPID", "--value", "mesh-host.service")
	if err != nil {
		return err
	}
	if now := strings.TrimSpace(out.Stdout); now == pid || now == "0" {
		return fmt.Errorf("mesh-host has process %s, and %s was killed", now, pid)
	}
	s.holds("started again, it finished the apply: demo-slow is installed and what required it is there")
	return nil
}

// undeclared removes what is no longer declared, and nothing else.
func (s *show) undeclared() error {
	s.step("Undeclare everything; the admin's own file and package stay")
	own := packaging.SimplePackage{Name: "admin-tool", Version: "7.0", Files: []packaging.SimpleFile{{Path: "/usr/share/admin-tool/here", Content: []byte("x")}}}
	for _, h := range hosts {
		if err := s.host(h.name).WriteFile(s.ctx, adminOwn, []byte("mine\n"), 0o600); err != nil {
			return err
		}
		if err := fleet.InstallByHand(s.ctx, s.host(h.name), own); err != nil {
			return err
		}
	}
	if _, err := s.fleet.Meshctl(s.ctx, "declaration", "remove", "demo"); err != nil {
		return err
	}
	for _, h := range hosts {
		if _, err := s.fleet.AwaitNode(s.ctx, h.name, "to have removed it", fleet.Applied); err != nil {
			return err
		}
		for _, file := range []string{greeting, "/etc/demo-after", "/usr/share/demo-hello/version"} {
			if _, err := s.host(h.name).ReadFile(s.ctx, file); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s: %s should be gone: %v", h.name, file, err)
			}
		}
		for _, name := range []string{"demo-hello", "demo-slow"} {
			if err := s.installed(h.name, name, ""); err != nil {
				return err
			}
		}
		if err := s.file(h.name, adminOwn, "mine\n"); err != nil {
			return err
		}
		if err := s.installed(h.name, "admin-tool", "7.0-1"); err != nil {
			return err
		}
	}
	s.holds("file and packages are gone from all three; %s and admin-tool are where the admin put them", adminOwn)
	return nil
}

func (s *show) finish() error {
	s.step("How the mesh stands")
	return s.nodes()
}

func (s *show) nodes() error {
	out, err := s.fleet.Meshctl(s.ctx, "nodes")
	if err != nil {
		return err
	}
	s.quote("meshctl nodes", out)
	return nil
}

// file checks, on the machine itself, what a file holds.
func (s *show) file(host, path, want string) error {
	data, err := s.host(host).ReadFile(s.ctx, path)
	if err != nil {
		return fmt.Errorf("%s: read %s: %w", host, path, err)
	}
	if string(data) != want {
		return fmt.Errorf("%s: %s holds %q, not %q", host, path, data, want)
	}
	return nil
}

// installed checks, in the machine's own database, which version is there.
func (s *show) installed(host, name, want string) error {
	got, err := fleet.Installed(s.ctx, s.host(host), name)
	if err != nil {
		var exit *lab.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("%s: ask for %s: %w\n%s", host, name, err, exit.Output.Stderr)
		}
		return err
	}
	if got != want {
		return fmt.Errorf("%s: %s has version %q installed, not %q", host, name, got, want)
	}
	return nil
}
