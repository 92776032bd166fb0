package file

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

// accounts turns names into numbers, once a pass: first from the files that
// every machine has, then from the machine's name service.
type accounts struct {
	getent func(ctx context.Context, database, name string) (uint32, bool, error)
	// known holds what was found in this pass, by database and name. Nil: nothing.
	known map[[2]string]uint32
}

func (a *accounts) forget() { a.known = nil }

func (a *accounts) user(ctx context.Context, name string) (uint32, error) {
	return a.find(ctx, "passwd", "user", name)
}

func (a *accounts) group(ctx context.Context, name string) (uint32, error) {
	return a.find(ctx, "group", "group", name)
}

func (a *accounts) find(ctx context.Context, database, noun, name string) (uint32, error) {
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(id), nil
	}
	key := [2]string{database, name}
	if id, ok := a.known[key]; ok {
		return id, nil
	}
	id, found, err := lookupFile("/etc/"+database, name)
	if err != nil {
		return 0, resource.Unknown(mesh.ReasonAccount, err, "the %s %s could not be looked up in /etc/%s", noun, name, database)
	}
	if !found {
		if id, found, err = a.getent(ctx, database, name); err != nil {
			return 0, resource.Unknown(mesh.ReasonAccount, err, "the machine's name service could not say whether there is a %s %s", noun, name)
		}
	}
	if !found {
		return 0, resource.Failed(mesh.ReasonAccount, nil, "there is no %s %s on this machine", noun, name)
	}
	if a.known == nil {
		a.known = make(map[[2]string]uint32)
	}
	a.known[key] = id
	return id, nil
}

func lookupFile(file, name string) (uint32, bool, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if id, ok := accountLine(lines.Text(), name); ok {
			return id, true, nil
		}
	}
	return 0, false, lines.Err()
}

// accountLine reads the number from a line of passwd or group. Lines that are
// not whole, and the old compatibility marks, do not count.
func accountLine(line, name string) (uint32, bool) {
	fields := strings.SplitN(line, ":", 4)
	if len(fields) < 4 || fields[0] != name {
		return 0, false
	}
	id, err := strconv.ParseUint(fields[2], 10, 32)
	return uint32(id), err == nil
}

// getentLimit bounds a name service that does not answer.
const getentLimit = 15 * time.Second

// getentNotFound is the status with which getent says that there is no such key.
const getentNotFound = 2

// getent asks the name service through its own program: this binary is linked
// statically and cannot load the machine's modules.
func getent(ctx context.Context, database, name string) (uint32, bool, error) {
	program, err := exec.LookPath("getent")
	if err != nil {
		return 0, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, getentLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, database, name)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == getentNotFound {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("run getent %s: %w", database, err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	// The name service may answer with the account's main name.
	first, _, _ := strings.Cut(string(line), ":")
	id, ok := accountLine(string(line), first)
	return id, ok, nil
}
