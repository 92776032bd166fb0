package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// peer is another program that brings a machine to what is declared.
type peer struct {
	name string
	// write writes what it is to apply below dir, and returns the command.
	write func(dir string, files []string, packages []string) ([]string, error)
	// nothing reports whether a run says that there was nothing to do.
	nothing func(output string, status int) bool
}

var peers = []peer{
	{"puppet apply", puppet, func(_ string, status int) bool { return status == 0 }},
	{"ansible-playbook", ansible, func(output string, status int) bool {
		return status == 0 && strings.Contains(output, "changed=0")
	}},
	{"cf-agent", cfengine, func(output string, status int) bool {
		return status == 0 && !strings.Contains(output, "R: changed")
	}},
}

func puppet(dir string, files, packages []string) ([]string, error) {
	var b bytes.Buffer
	for i, path := range files {
		fmt.Fprintf(&b, "file { '%s': ensure => file, owner => root, group => root, mode => '0644', content => '%s' }\n", path, content(i))
	}
	for _, name := range packages {
		fmt.Fprintf(&b, "package { '%s': ensure => present }\n", name)
	}
	manifest := filepath.Join(dir, "site.pp")
	if err := os.WriteFile(manifest, b.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return []string{"puppet", "apply", "--detailed-exitcodes", "--vardir", filepath.Join(dir, "puppet"), "--confdir", filepath.Join(dir, "conf"), manifest}, nil
}

func ansible(dir string, files, packages []string) ([]string, error) {
	var b bytes.Buffer
	b.WriteString("- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n")
	if len(files) > 0 {
		source := filepath.Join(dir, "source")
		if err := writeAll(source, len(files)); err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "  - copy: {src: %s/, dest: %s/, owner: root, group: root, mode: '0644', directory_mode: '0755'}\n", source, filepath.Dir(files[0]))
	}
	if len(packages) > 0 {
		fmt.Fprintf(&b, "  - apt: {name: [%s], state: present}\n", strings.Join(packages, ", "))
	}
	book := filepath.Join(dir, "site.yml")
	if err := os.WriteFile(book, b.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return []string{"ansible-playbook", "-i", "localhost,", book}, nil
}

func cfengine(dir string, files, packages []string) ([]string, error) {
	if len(packages) > 0 {
		return nil, errNoPackages
	}
	source := filepath.Join(dir, "source")
	if err := writeAll(source, len(files)); err != nil {
		return nil, err
	}
	policy := fmt.Sprintf(`body common control { bundlesequence => { "main" }; }
bundle agent main {
  files:
    "%s/."
      copy_from => all_of("%s"), depth_search => everything, perms => as_root,
      classes => said;
  reports:
    repaired:: "changed";
}
body copy_from all_of(from) { source => "$(from)"; compare => "digest"; copy_backup => "false"; }
body depth_search everything { depth => "1"; }
body perms as_root { mode => "0644"; owners => { "root" }; groups => { "root" }; rxdirs => "true"; }
body classes said { promise_repaired => { "repaired" }; }
`, filepath.Dir(files[0]), source)
	file := filepath.Join(dir, "site.cf")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return nil, err
	}
	return []string{"cf-agent", "-K", "-f", file}, nil
}

var errNoPackages = errors.New("its package promises need the modules of a policy server, which the package does not set up")

func writeAll(dir string, n int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, path := range names(dir, n) {
		if err := os.WriteFile(path, content(i), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command and returns what it took, with its children.
func run(ctx context.Context, argv []string) (c cost, output string, status int, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "ANSIBLE_RETRY_FILES_ENABLED=0", "ANSIBLE_NOCOLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return cost{}, "", 0, fmt.Errorf("run %s: %w", argv[0], err)
	}
	s := cmd.ProcessState
	return cost{cpu: s.UserTime() + s.SystemTime(), wall: time.Since(began)}, string(out), s.ExitCode(), nil
}

// measure proves that a peer looks, and returns what a run takes when there is
// nothing to do.
func (p peer) measure(ctx context.Context, dir string, files, packages []string) (cost, error) {
	argv, err := p.write(dir, files, packages)
	if err != nil {
		return cost{}, err
	}
	if len(files) > 0 {
		if err := writeAll(filepath.Dir(files[0]), len(files)); err != nil {
			return cost{}, err
		}
		// The same length, so that only who reads the content finds it.
		damaged := files[len(files)/2]
		wrong := bytes.ToUpper(content(len(files) / 2))
		if err := os.WriteFile(damaged, wrong, 0o644); err != nil {
			return cost{}, err
		}
		if _, output, _, err := run(ctx, argv); err != nil {
			return cost{}, errors.Join(err, errors.New(tail(output)))
		}
		if now, err := os.ReadFile(damaged); err != nil || !bytes.Equal(now, content(len(files)/2)) {
			return cost{}, errors.Join(err, errors.New("it left a damaged file as it was"))
		}
	}
	c, output, status, err := run(ctx, argv)
	if err == nil && !p.nothing(output, status) {
		err = fmt.Errorf("a run with nothing to do ended with %d: %s", status, tail(output))
	}
	return c, err
}

func tail(s string) string {
	const limit = 800
	return s[max(0, len(s)-limit):]
}
