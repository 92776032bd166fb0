package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	mesh "github.com/meshctl/mesh"
)

const (
	// roomNeeded is the least free space in the state directory, in bytes.
	roomNeeded = 64 << 20
	// clockBound is how far the clock may be off.
	clockBound = 5 * time.Minute
	// repositoryTimeout bounds the question to the repository.
	repositoryTimeout = 5 * time.Second
)

// Files below the root in which a machine names the mesh's repository.
const (
	aptSource = "etc/apt/sources.list.d/mesh.sources"
	dnfSource = "etc/yum.repos.d/mesh.repo"
)

// otherAgents are the services of agents that would manage the same machine.
var otherAgents = []string{"puppet", "chef-client", "salt-minion", "cfengine3", "cf-execd", "rudder-agent"}

// Briefing implements host.Describer.
func (c *Collector) Briefing(ctx context.Context) (mesh.Briefing, error) {
	var b mesh.Briefing
	add := func(check string, outcome mesh.Outcome, format string, args ...any) {
		b.Lines = append(b.Lines, mesh.Line{Check: check, Outcome: outcome, Detail: fmt.Sprintf(format, args...)})
	}
	if comm := firstLine("/proc/1/comm"); comm == "systemd" {
		add("init", mesh.OutcomePass, "systemd is PID 1")
	} else {
		add("init", mesh.OutcomeFail, "PID 1 is %q; this host needs systemd", comm)
	}
	if err := c.cfg.Bus(ctx); err == nil {
		add("dbus", mesh.OutcomePass, "systemd answers on D-Bus")
	} else {
		add("dbus", mesh.OutcomeFail, "systemd does not answer on D-Bus: %v", err)
	}
	c.packageLines(ctx, add)
	c.repositoryLines(ctx, add)
	c.diskLines(add)
	if found := c.agents(); len(found) > 0 {
		add("other-agents", mesh.OutcomeWarn, "%s is enabled here and may undo what the mesh does; see to it that they manage different things", strings.Join(found, ", "))
	} else {
		add("other-agents", mesh.OutcomePass, "no other configuration agent is enabled")
	}
	if c.cfg.Watchdog > 0 {
		add("watchdog", mesh.OutcomePass, "systemd expects a sign of life every %s", c.cfg.Watchdog)
	} else {
		add("watchdog", mesh.OutcomeWarn, "systemd expects no sign of life; a host that hangs would not be restarted")
	}
	if _, err := machineIDHash(); err != nil {
		add("machine-id", mesh.OutcomeFail, "%v", err)
	} else {
		add("machine-id", mesh.OutcomePass, "this machine has an id")
	}
	return b, nil
}

type addLine func(check string, outcome mesh.Outcome, format string, args ...any)

func (c *Collector) packageLines(ctx context.Context, add addLine) {
	if c.cfg.Manager == "" || c.cfg.Packages == nil {
		add("package-manager", mesh.OutcomeFail, "neither apt nor dnf is here; packages cannot be managed")
		return
	}
	if packages, err := c.cfg.Packages(ctx); err != nil {
		add("package-manager", mesh.OutcomeFail, "the package database of %s cannot be read: %v", c.cfg.Manager, err)
	} else {
		add("package-manager", mesh.OutcomePass, "%s, %d packages installed", c.cfg.Manager, len(packages))
	}
	if c.cfg.Manager != ManagerApt {
		return
	}
	left, err := filepath.Glob(filepath.Join("/", c.cfg.Root, "var/lib/dpkg/updates/[0-9]*"))
	if err == nil && len(left) > 0 {
		add("package-transaction", mesh.OutcomeWarn, "an earlier dpkg run was interrupted; it is completed before the next change")
		return
	}
	add("package-transaction", mesh.OutcomePass, "no interrupted transaction")
}

// repositoryLines asks the mesh's repository for its index, and compares the clock
// with the time that it answers.
func (c *Collector) repositoryLines(ctx context.Context, add addLine) {
	date := c.repositoryLine(ctx, add)
	then, err := http.ParseTime(date)
	if err != nil {
		add("clock", mesh.OutcomeWarn, "not compared: there is no repository that says the time")
		return
	}
	skew := c.cfg.Now().Sub(then).Round(time.Second)
	if skew.Abs() > clockBound {
		add("clock", mesh.OutcomeWarn, "the clock is off by %s; signatures may look expired or not yet valid", skew)
	} else {
		add("clock", mesh.OutcomePass, "within %s of the control plane's", clockBound)
	}
}

// repositoryLine returns the date of the answer; empty: there was none. That the
// index's signature is valid is checked by apt and dnf each time they read it, and
// not here.
func (c *Collector) repositoryLine(ctx context.Context, add addLine) (date string) {
	index, err := repositoryIndex(c.cfg.Root)
	if err != nil {
		add("repository", mesh.OutcomeWarn, "%v; packages of the mesh cannot be installed until it is", err)
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, repositoryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, index, nil)
	if err != nil {
		add("repository", mesh.OutcomeFail, "the address of the mesh's repository is wrong: %v", err)
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		add("repository", mesh.OutcomeWarn, "the mesh's repository does not answer: %v", err)
		return ""
	}
	if err := resp.Body.Close(); err != nil {
		add("repository", mesh.OutcomeWarn, "the answer of the mesh's repository broke off: %v", err)
		return ""
	}
	if resp.StatusCode == http.StatusOK {
		add("repository", mesh.OutcomePass, "%s answers; its signature is checked by %s at each use", index, c.cfg.Manager)
	} else {
		add("repository", mesh.OutcomeWarn, "the mesh's repository answers %s for %s", resp.Status, index)
	}
	return resp.Header.Get("Date")
}

// repositoryIndex returns the address of the signed index that the machine's
// own configuration names.
func repositoryIndex(root string) (string, error) {
	if data, err := os.ReadFile(filepath.Join("/", root, aptSource)); err == nil {
		uri, suite := field(string(data), "URIs", ":"), field(string(data), "Suites", ":")
		if uri != "" && suite != "" {
			return url.JoinPath(uri, "dists", suite, "InRelease")
		}
	}
	if data, err := os.ReadFile(filepath.Join("/", root, dnfSource)); err == nil {
		if uri := field(string(data), "baseurl", "="); uri != "" {
			return url.JoinPath(uri, "repodata", "repomd.xml")
		}
	}
	return "", errors.New("the mesh's repository is not configured on this machine")
}

// field returns the first word of the value of a key; empty when there is none.
func field(text, key, separator string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, separator)
		if words := strings.Fields(value); ok && strings.TrimSpace(name) == key && len(words) > 0 {
			return words[0]
		}
	}
	return ""
}

func (c *Collector) diskLines(add addLine) {
	if err := probe(c.cfg.StateDir); err != nil {
		add("state-directory", mesh.OutcomeFail, "%s cannot be written: %v", c.cfg.StateDir, err)
	} else {
		var fs unix.Statfs_t
		if err := unix.Statfs(c.cfg.StateDir, &fs); err != nil {
			add("state-directory", mesh.OutcomeFail, "%s cannot be measured: %v", c.cfg.StateDir, err)
		} else if free := int64(fs.Bavail) * fs.Bsize; free < roomNeeded {
			add("state-directory", mesh.OutcomeFail, "%s has %d MiB free and needs %d", c.cfg.StateDir, free>>20, roomNeeded>>20)
		} else {
			add("state-directory", mesh.OutcomePass, "writable, %d MiB free", free>>20)
		}
	}
	if err := unix.Access("/etc", unix.W_OK); err != nil {
		add("root-file-system", mesh.OutcomeFail, "/etc cannot be written: %v", err)
	} else {
		add("root-file-system", mesh.OutcomePass, "writable")
	}
}

// probe writes, syncs and removes a file.
func probe(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, "probe")
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

func (c *Collector) agents() []string {
	var found []string
	enabled := enabledUnits(filepath.Join("/", c.cfg.Root, "etc/systemd/system"))
	for _, name := range otherAgents {
		for _, unit := range enabled {
			if unit == name+".service" {
				found = append(found, name)
			}
		}
	}
	return found
}
