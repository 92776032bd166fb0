package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
)

const (
	defaultConfigFile = "/etc/mesh/control.yaml"
	// maxConfig bounds the configuration, in bytes.
	maxConfig = 64 << 10
	// maxAddresses bounds what a token carries.
	maxAddresses = 8
)

// config is the configuration of a control plane.
type config struct {
	stateDir         string
	linkListen       string
	repositoryListen string
	socket           string
	// addresses are put into tokens. Empty: the machine's own.
	addresses []string
	// repositoryURL is what machines are told. Empty: the first address.
	repositoryURL string
	// readers says who may read the repository.
	readers   readers
	origin    string
	heartbeat time.Duration
	logLevel  slog.Level
	// certificate and certificateKey are files. Empty: the repository is served
	// without TLS, which its signatures do not need.
	certificate, certificateKey string
	// keep is how many versions of a package retention leaves. Zero: all.
	keep int
	// validFor is how long apt believes a signature. Zero: for ever.
	validFor time.Duration
	// maxPackage is the largest package in bytes.
	maxPackage int64
	// kept says what is kept of what only grows. Zero: all of it.
	kept control.Keep
}

// readers says who may read the repository.
type readers string

const (
	readersAnyone readers = "anyone"
	readersNodes  readers = "nodes"
)

// key is one setting.
type key struct {
	name string
	// value is the default as it would be written; empty: none is written.
	value string
	// about is what the setting is for.
	about string
	set   func(c *config, value *yaml.Node) error
}

// keys lists every setting there is, in the order in which it is shown.
var keys = []key{
	{"state_dir", "/var/lib/mesh-control", "directory that holds everything worth a backup", text(func(c *config, v string) error {
		c.stateDir = v
		return absolute(v)
	})},
	{"link_listen", ":7022", "address on which the links of the nodes arrive", text(func(c *config, v string) error {
		c.linkListen = v
		return listenAddress(v)
	})},
	{"repository_listen", ":7080", "address on which the package repository is served over HTTP", text(func(c *config, v string) error {
		c.repositoryListen = v
		return listenAddress(v)
	})},
	{"socket", api.DefaultSocket, "unix socket on which operators are answered", text(func(c *config, v string) error {
		c.socket = v
		return absolute(v)
	})},
	{"addresses", "", "list of host:port, put into tokens; default: this machine's global addresses, the one towards the default route first, with the port of link_listen", list(func(c *config, v []string) error {
		c.addresses = v
		if len(v) > maxAddresses {
			return fmt.Errorf("%d addresses; a token carries at most %d", len(v), maxAddresses)
		}
		for _, a := range v {
			if err := hostPort(a); err != nil {
				return err
			}
		}
		return nil
	})},
	{"repository_url", "", "URL at which machines find the package repository; default: http on the first of the addresses, with the port of repository_listen", text(func(c *config, v string) error {
		c.repositoryURL = strings.TrimRight(v, "/")
		u, err := url.Parse(v)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%q is not an http or https URL", v)
		}
		return nil
	})},
	{"repository_tls_certificate", "", "file with the certificate chain with which the repository is served over TLS; default: plain HTTP, since everything in it is signed", text(func(c *config, v string) error {
		c.certificate = v
		return absolute(v)
	})},
	{"repository_tls_key", "", "file with the private key of that certificate", text(func(c *config, v string) error {
		c.certificateKey = v
		return absolute(v)
	})},
	{"repository_keep", "0", "how many versions of a package stay in a suite; older ones go, but for those that a declaration names or a node has; 0: all stay", text(func(c *config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 10000 {
			return fmt.Errorf("%q is not a whole number from 0 to 10000", v)
		}
		c.keep = n
		return nil
	})},
	{"repository_valid_days", "0", "for how many days apt believes the repository without a new signature; it is renewed in half that time while the control plane runs; 0: for ever", text(func(c *config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 3650 {
			return fmt.Errorf("%q is not a whole number from 0 to 3650", v)
		}
		c.validFor = time.Duration(n) * 24 * time.Hour
		return nil
	})},
	{"repository_max_package_mib", "2048", "the largest package that is taken, in MiB", text(func(c *config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1<<20 {
			return fmt.Errorf("%q is not a whole number from 1 to %d", v, 1<<20)
		}
		c.maxPackage = int64(n) << 20
		return nil
	})},
	{"repository_readers", string(readersAnyone), "who may read the package repository: anyone, or only the nodes, each with a credential of its own that it is given by declaration", text(func(c *config, v string) error {
		c.readers = readers(v)
		if c.readers != readersAnyone && c.readers != readersNodes {
			return fmt.Errorf("%q is neither %s nor %s", v, readersAnyone, readersNodes)
		}
		return nil
	})},
	{"revisions_keep", "200", "how many revisions of a declaration stay; of one that was removed they go after 90 days; 0: all stay", text(func(c *config, v string) error {
		n, err := whole(v, 0, 1_000_000)
		c.kept.Revisions = n
		return err
	})},
	{"audit_days", "730", "for how many days the audit log is kept; 0: for ever", text(func(c *config, v string) error {
		n, err := whole(v, 0, maxDays)
		c.kept.Audit = days(n)
		return err
	})},
	{"left_node_days", "365", "for how many days it is kept what a node that retired or was revoked had reported and owned; that it left, and its keys, which stay refused, are kept for ever; 0: all is", text(func(c *config, v string) error {
		n, err := whole(v, 0, maxDays)
		c.kept.Left = days(n)
		return err
	})},
	{"origin", "mesh", "name of this mesh, in the repository's metadata and its key; decided before the first start", text(func(c *config, v string) error {
		c.origin = v
		if v == "" || len(v) > 64 || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune("<>()", r) }) {
			return fmt.Errorf("%q cannot be the name of a mesh: 1 to 64 printable characters, none of <>()", v)
		}
		return nil
	})},
	{"heartbeat_seconds", strconv.Itoa(int(mesh.HeartbeatInterval / time.Second)), "how often a node sends a heartbeat; a link that is silent for three of them is dead", text(func(c *config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 3600 {
			return fmt.Errorf("%q is not a whole number from 1 to 3600", v)
		}
		c.heartbeat = time.Duration(n) * time.Second
		return nil
	})},
	{"log_level", "info", "least level that is logged: debug, info, warn or error", text(func(c *config, v string) error {
		if err := c.logLevel.UnmarshalText([]byte(v)); err != nil {
			return fmt.Errorf("%q is none of debug, info, warn and error", v)
		}
		return nil
	})},
}

// defaults is the configuration of a control plane that nobody configured.
func defaults() config {
	var c config
	for _, k := range keys {
		if k.value == "" {
			continue
		}
		if err := k.set(&c, scalar(k.value)); err != nil {
			panic(fmt.Sprintf("default of %s: %v", k.name, err)) // a fault of the table above
		}
	}
	return c
}

func scalar(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// loadConfig reads the configuration. An empty file name means the default
// file, which need not be there; one that was named must be. What is wrong with
// the text comes back as mesh.Problems, all of it at once.
func loadConfig(file string) (config, error) {
	named := file != ""
	if !named {
		file = defaultConfigFile
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return defaults(), nil
	}
	if err != nil {
		return config{}, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, problems := parseConfig(data)
	for i := range problems {
		problems[i].File = file
	}
	return c, problems.Err()
}

func parseConfig(data []byte) (config, mesh.Problems) {
	c := defaults()
	var ps mesh.Problems
	if len(data) > maxConfig {
		ps.Add("", fmt.Sprintf("longer than the %d bytes that a configuration may have", maxConfig))
		return c, ps
	}
	var root yaml.Node
	d := yaml.NewDecoder(strings.NewReader(string(data)))
	switch err := d.Decode(&root); {
	case errors.Is(err, io.EOF):
		return c, nil // nothing but comments
	case err != nil:
		ps.Add("", strings.TrimPrefix(err.Error(), "yaml: "))
		return c, ps
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		ps.Add("", "a configuration is one YAML document, and this goes on after its end")
	}
	top := root.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return c, ps
	}
	if top.Kind != yaml.MappingNode {
		return c, append(ps, at(top, "", "a configuration is a list of `key: value`"))
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		name, value := top.Content[i], top.Content[i+1]
		if first, twice := seen[name.Value]; twice {
			ps = append(ps, at(name, name.Value, fmt.Sprintf("is there already, in line %d", first)))
			continue
		}
		seen[name.Value] = name.Line
		k, known := find(name.Value)
		if !known {
			ps = append(ps, at(name, name.Value, "is no setting of mesh-control; there are "+keyNames()))
			continue
		}
		if err := k.set(&c, value); err != nil {
			ps = append(ps, at(value, name.Value, err.Error()))
		}
	}
	return c, ps
}

func at(n *yaml.Node, path, message string) mesh.Problem {
	return mesh.Problem{Line: n.Line, Column: n.Column, Path: path, Message: message}
}

func find(name string) (key, bool) {
	for _, k := range keys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

func keyNames() string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}

// text reads a single value.
func text(set func(*config, string) error) func(*config, *yaml.Node) error {
	return func(c *config, n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return errors.New("needs one value")
		}
		return set(c, n.Value)
	}
}

// list reads a list of values.
func list(set func(*config, []string) error) func(*config, *yaml.Node) error {
	return func(c *config, n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return errors.New("needs a list, as in [a, b]")
		}
		var values []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return errors.New("needs a list of plain values, as in [a, b]")
			}
			values = append(values, item.Value)
		}
		return set(c, values)
	}
}

// maxDays bounds what is kept for a time.
const maxDays = 36500

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

func whole(v string, least, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is not a whole number from %d to %d", v, least, most)
	}
	return n, nil
}

func absolute(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%q is not a clean absolute path", path)
	}
	return nil
}

func listenAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil || !(port == "0" || validPort(port)) {
		return fmt.Errorf("%q is not an address to listen on, as in \":7022\" or \"10.0.0.1:7022\"", address)
	}
	return nil
}

// hostPort refuses what a token cannot carry as an address of the link.
func hostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || !validPort(port) || strings.ContainsAny(address, ", ") {
		return fmt.Errorf("%q is not host:port", address)
	}
	return nil
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
