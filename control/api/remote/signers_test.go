package remote_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/meshctl/mesh/control/api/remote"
	"github.com/meshctl/mesh/internal/sshkey"
)

// keys is a directory with one key in every form in which it may lie about.
type keys struct {
	private                              ed25519.PrivateKey
	plain, locked, public, open, foreign string
	authorized                           string
}

func newKeys(t *testing.T) keys {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("sesame"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, data []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	k := keys{private: private, authorized: sshkey.Authorized(signer.PublicKey())}
	k.plain = write("plain", pem.EncodeToMemory(plain), 0o600)
	k.locked = write("locked", pem.EncodeToMemory(locked), 0o600)
	k.public = write("key.pub", []byte(k.authorized+" me@here\n"), 0o644)
	k.open = write("open", pem.EncodeToMemory(plain), 0o644)
	k.foreign = write("foreign", []byte("not a key\n"), 0o600)
	return k
}

// agentWith is an ssh-agent that holds keys.
func agentWith(t *testing.T, private ...ed25519.PrivateKey) remote.Agent {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range private {
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = agent.ServeAgent(ring, c) // ends with the connection
	}()
	a, err := remote.OpenAgent(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		l.Close()
		<-served
	})
	return a
}

func TestTheKeyIsFoundInTheFileOrInTheAgent(t *testing.T) {
	k := newKeys(t)
	with, without := agentWith(t, newKeys(t).private, k.private), remote.Agent{}
	for name, c := range map[string]struct {
		identity string
		agent    remote.Agent
	}{
		"a plain key":                        {k.plain, without},
		"a locked key that the agent holds":  {k.locked, with},
		"a public key that the agent holds":  {k.public, with},
		"no key, and one that only it holds": {"", agentWith(t, k.private)},
	} {
		signers, err := remote.Signers(c.identity, c.agent)
		if err != nil || len(signers) != 1 || sshkey.Authorized(signers[0].PublicKey()) != k.authorized {
			t.Errorf("%s: %d signers, %v; want the one of the key", name, len(signers), err)
		}
	}
}

func TestAKeyThatCannotBeUsedSaysWhatToDo(t *testing.T) {
	k := newKeys(t)
	var many []ed25519.PrivateKey
	for range 7 {
		many = append(many, newKeys(t).private)
	}
	for name, c := range map[string]struct {
		identity string
		agent    remote.Agent
		says     string
	}{
		"no key and no agent":               {"", remote.Agent{}, "--identity"},
		"an agent without keys":             {"", agentWith(t), "ssh-add"},
		"an agent with too many":            {"", agentWith(t, many...), "--identity"},
		"a locked key":                      {k.locked, remote.Agent{}, "ssh-add"},
		"a locked key that nobody holds":    {k.locked, agentWith(t, many[0]), "ssh-add"},
		"a public key that nobody holds":    {k.public, agentWith(t, many[0]), "public key"},
		"a key that others may read":        {k.open, remote.Agent{}, "chmod"},
		"a file that is no key":             {k.foreign, remote.Agent{}, "no SSH key"},
		"a file that is not there":          {k.plain + "-not", remote.Agent{}, "no such file"},
		"a directory in place of the file ": {filepath.Dir(k.plain), remote.Agent{}, "cannot be read"},
	} {
		if signers, err := remote.Signers(c.identity, c.agent); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s gives %d signers and %v, want an error that says %q", name, len(signers), err, c.says)
		}
	}
}
