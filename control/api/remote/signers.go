package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	mesh "github.com/meshctl/mesh"
)

const (
	// identityLimit bounds a key file, in bytes.
	identityLimit = 64 << 10
	// agentKeys is how many keys of an agent are offered when none is named: a
	// control plane looks at no more.
	agentKeys = 6
)

// Agent is a connection to an ssh-agent. The zero value is no agent.
type Agent struct {
	keys agent.ExtendedAgent
	conn net.Conn
}

// OpenAgent connects to the agent at a socket. An empty path is no agent.
func OpenAgent(socket string) (Agent, error) {
	if socket == "" {
		return Agent{}, nil
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return Agent{}, fmt.Errorf("reach ssh-agent: %w", err)
	}
	return Agent{keys: agent.NewClient(conn), conn: conn}, nil
}

// Close ends the connection.
func (a Agent) Close() error {
	if a.conn == nil {
		return nil
	}
	return a.conn.Close()
}

// Signers returns the keys to offer: that of the identity file, or without one
// (empty) those of the agent. An identity that is a public key, or that is
// protected by a passphrase, is looked for in the agent. Every error is a
// *mesh.Error that says what to do.
func Signers(identity string, a Agent) ([]ssh.Signer, error) {
	if identity == "" {
		return a.all()
	}
	data, err := readIdentity(identity)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err == nil {
		return []ssh.Signer{signer}, nil
	}
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		public := locked.PublicKey
		if public == nil {
			public = publicBeside(identity)
		}
		if public != nil {
			if signer := a.find(public); signer != nil {
				return []ssh.Signer{signer}, nil
			}
		}
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s is protected by a passphrase and no ssh-agent holds it; run ssh-add %s, then this again", identity, identity)
	}
	if public, _, _, _, parseErr := ssh.ParseAuthorizedKey(data); parseErr == nil {
		if signer := a.find(public); signer != nil {
			return []ssh.Signer{signer}, nil
		}
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s is a public key, and no ssh-agent holds the private one", identity)
	}
	return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s is no SSH key that can be read: %w", identity, err)
}

func readIdentity(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if inner := new(fs.PathError); errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s cannot be read: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s cannot be read: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, identityLimit+1))
	switch {
	case err != nil:
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s cannot be read: %w", path, err)
	case len(data) > identityLimit:
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s is too long to be a key", path)
	case bytes.Contains(data, []byte("PRIVATE KEY")) && info.Mode().Perm()&0o077 != 0:
		return nil, mesh.Errorf(mesh.CodeInvalid, "the identity %s can be read by others than its owner; chmod it to 0600, and consider whether somebody has read it", path)
	}
	return data, nil
}

// publicBeside reads the public key beside an old private one that does not
// hold it in the clear; nil when there is none.
func publicBeside(identity string) ssh.PublicKey {
	data, err := os.ReadFile(identity + ".pub")
	if err != nil || len(data) > identityLimit {
		return nil
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(data)
	if err != nil {
		return nil
	}
	return public
}

func (a Agent) all() ([]ssh.Signer, error) {
	if a.keys == nil {
		return nil, mesh.Errorf(mesh.CodeInvalid, "no key to prove who you are: name one with --identity, or run an ssh-agent that holds it")
	}
	signers, err := a.keys.Signers()
	if err != nil {
		return nil, mesh.Errorf(mesh.CodeInvalid, "the ssh-agent does not list its keys: %w; name a key with --identity", err)
	}
	switch {
	case len(signers) == 0:
		return nil, mesh.Errorf(mesh.CodeInvalid, "the ssh-agent holds no key; add one with ssh-add, or name one with --identity")
	case len(signers) > agentKeys:
		return nil, mesh.Errorf(mesh.CodeInvalid, "the ssh-agent holds %d keys, more than a control plane looks at; name the right one with --identity, its public file is enough", len(signers))
	}
	return signers, nil
}

// find returns the signer of a public key; nil when the agent lacks it.
func (a Agent) find(public ssh.PublicKey) ssh.Signer {
	if a.keys == nil {
		return nil
	}
	signers, err := a.keys.Signers()
	if err != nil {
		return nil
	}
	for _, s := range signers {
		if bytes.Equal(s.PublicKey().Marshal(), public.Marshal()) {
			return s
		}
	}
	return nil
}
