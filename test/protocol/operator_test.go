package protocol

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/control/api/apitest"
	"github.com/meshctl/mesh/control/api/remote"
	controllink "github.com/meshctl/mesh/control/link"
	"github.com/meshctl/mesh/control/store"
)

// realDoor is a control plane with its real policy, store and API behind its SSH
// server.
type realDoor struct {
	*control.Control
	t       *testing.T
	hostKey ssh.Signer
	address string
}

func startRealDoor(t *testing.T) *realDoor {
	t.Helper()
	dir, hostKey := t.TempDir(), newKey(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), filepath.Join(dir, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := store.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	ctl, err := control.New(t.Context(), control.Config{
		Store: st, Blobs: blobs, Log: testLog(t), Addresses: []string{address}, Fingerprint: controllink.Fingerprint(hostKey.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := controllink.New(controllink.Config{Policy: ctl, Operators: ctl, HostKey: hostKey, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	answers := api.New(api.Config{Operator: ctl, Publisher: &apitest.Publisher{}, SpoolDir: dir, Log: testLog(t)})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 2)
	go func() { served <- server.Serve(ctx, listener) }()
	go func() { served <- answers.Serve(ctx, server.Operators()) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-served, <-served, st.Close()); err != nil {
			t.Errorf("the control plane ended with %v", err)
		}
	})
	return &realDoor{Control: ctl, t: t, hostKey: hostKey, address: address}
}

// add registers an operator and returns their client.
func (d *realDoor) add(name string, key ssh.Signer, role control.Role, limits control.Limits) *api.Client {
	d.t.Helper()
	_, err := d.AddOperator(d.t.Context(), operator, control.OperatorRequest{
		Name: name, Key: controllink.AuthorizedKey(key.PublicKey()), Role: role, Limits: limits})
	if err != nil {
		d.t.Fatal(err)
	}
	return d.client(key)
}

// client dials with keys, whoever they belong to.
func (d *realDoor) client(keys ...ssh.Signer) *api.Client {
	client := api.NewClientOver(remote.New(remote.Config{
		Address: d.address, Fingerprint: controllink.Fingerprint(d.hostKey.PublicKey()), Signers: keys,
	}), d.address)
	d.t.Cleanup(client.Close)
	return client
}

func refused(t *testing.T, what string, err error, code mesh.Code, words ...string) {
	t.Helper()
	if mesh.CodeOf(err) != code {
		t.Errorf("%s gave %v with code %q, want %q", what, err, mesh.CodeOf(err), code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

func aDeclaration(name string) mesh.Document {
	f := mesh.FileSpec{}
	f.SetContent([]byte("hello\n"))
	return mesh.Document{Declaration: name, Resources: []mesh.DocumentResource{{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/etc/motd-" + name, File: &f}}}}
}

func TestAnOperatorFromElsewhereMayDoWhatTheRoleSaysAndEveryWriteSaysWho(t *testing.T) {
	d := startRealDoor(t)
	key := newKey(t)
	reader := d.add("rita", newKey(t), control.RoleReader, control.Limits{})
	ci := d.add("ci", key, control.RolePublisher, control.Limits{Declarations: []string{"web"}, Packages: []string{"web-*"}})
	admin := d.add("anna", newKey(t), control.RoleAdmin, control.Limits{})
	ctx := t.Context()

	if _, err := reader.Nodes(ctx); err != nil {
		t.Errorf("a reader cannot list the nodes: %v", err)
	}
	_, err := reader.Declare(ctx, aDeclaration("web"))
	refused(t, "a reader who declares", err, mesh.CodeDenied, "rita", "publisher")
	_, err = ci.Declare(ctx, aDeclaration("db"))
	refused(t, "a publisher who declares what is not named", err, mesh.CodeDenied, "db", "only web")
	_, err = ci.RemoveDeclaration(ctx, "db")
	refused(t, "a publisher who removes what is not named", err, mesh.CodeDenied, "only web")
	_, err = ci.IssueToken(ctx, control.TokenRequest{})
	refused(t, "a publisher who asks for a token", err, mesh.CodeDenied, "admin")
	_, err = ci.Publish(ctx, "stable", []api.Upload{{Name: "web-app", Body: strings.NewReader("1")}, {Name: "db-app", Body: strings.NewReader("1")}})
	refused(t, "a publisher who publishes what is not named", err, mesh.CodeDenied, "db-app", "web-*")
	if list, err := ci.Packages(ctx, "stable"); err != nil || len(list) != 0 {
		t.Errorf("after a refused publication there are %v (%v), want none", list, err)
	}

	if _, err := ci.Declare(ctx, aDeclaration("web")); err != nil {
		t.Errorf("a publisher cannot declare what is named: %v", err)
	}
	if _, err := ci.Publish(ctx, "stable", []api.Upload{{Name: "web-app", Body: bytes.NewReader(make([]byte, 4<<20))}}); err != nil {
		t.Errorf("a publisher cannot publish what is named: %v", err)
	}
	if _, err := admin.IssueToken(ctx, control.TokenRequest{Name: "n"}); err != nil {
		t.Errorf("an admin gets no token: %v", err)
	}
	log, err := admin.Audit(ctx, 3)
	if err != nil || len(log) != 3 {
		t.Fatalf("audit: %+v, %v", log, err)
	}
	fingerprint := mesh.FingerprintText(controllink.Fingerprint(key.PublicKey()))
	for i, want := range []string{"anna token issued", "ci packages published", "ci declaration written"} {
		e := log[i]
		if e.Who+" "+e.What != want || e.Door != control.DoorSSH || !strings.HasPrefix(e.Key, "SHA256:") || (e.Who == "ci") != (e.Key == fingerprint) {
			t.Errorf("audit entry %d is %+v, want %q through ssh with the key", i, e, want)
		}
	}
}

func TestAKeyThatNobodyRegisteredOpensNothingWhateverTheUserIsCalled(t *testing.T) {
	d := startRealDoor(t)
	stranger, node := newKey(t), newKey(t)
	d.add("anna", newKey(t), control.RoleAdmin, control.Limits{})

	_, err := d.client(stranger).Nodes(t.Context())
	refused(t, "a stranger", err, mesh.CodeDenied, "no operator is registered", mesh.FingerprintText(controllink.Fingerprint(stranger.PublicKey())))

	// The key of a node is no operator's, and the other way round.
	c := realControl{Control: d.Control, hostKey: d.hostKey, address: d.address}
	c.enrol(t, node, "web-1")
	_, err = d.client(node).Nodes(t.Context())
	refused(t, "a node that asks as an operator", err, mesh.CodeDenied, "no operator is registered")
	_, err = d.AddOperator(t.Context(), operator, control.OperatorRequest{Name: "web", Key: controllink.AuthorizedKey(node.PublicKey()), Role: control.RoleAdmin})
	refused(t, "registering the key of a node", err, mesh.CodeConflict, "web-1")
}

// The attack: a channel of the API on the connection of a node or of a machine
// that enrols, which prove other things than an operator does.
func TestANodeCannotOpenTheOperatorsChannelOnItsOwnConnection(t *testing.T) {
	d := startRealDoor(t)
	key := newKey(t)
	c := realControl{Control: d.Control, hostKey: d.hostKey, address: d.address}
	c.enrol(t, key, "web-1")
	client, err := ssh.Dial("tcp", d.address, &ssh.ClientConfig{User: mesh.UserNode, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(d.hostKey.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	_, _, err = client.OpenChannel(mesh.ChannelAPI, nil)

	var open *ssh.OpenChannelError
	if !errors.As(err, &open) {
		t.Errorf("the operators' channel on a node's connection gave %v, want that it is refused", err)
	}
}

func TestAnOperatorCannotOpenTheChannelsOfMachines(t *testing.T) {
	d := startRealDoor(t)
	key := newKey(t)
	d.add("anna", key, control.RoleAdmin, control.Limits{})
	client, err := ssh.Dial("tcp", d.address, &ssh.ClientConfig{User: "anna", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(d.hostKey.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, kind := range []string{mesh.ChannelLink, mesh.ChannelEnrol, mesh.ChannelBlob, "session", "direct-tcpip"} {
		if _, _, err := client.OpenChannel(kind, nil); err == nil {
			t.Errorf("an operator was given a channel %s", kind)
		}
	}
	if ok, _, err := client.SendRequest("tcpip-forward", true, nil); ok || err != nil {
		t.Errorf("a request to forward was answered with %v, %v; want no", ok, err)
	}
}

func TestAControlPlaneWithAnotherKeyIsToldNothing(t *testing.T) {
	d := startRealDoor(t)
	key := newKey(t)
	d.add("anna", key, control.RoleAdmin, control.Limits{})
	dialer := remote.New(remote.Config{Address: d.address, Fingerprint: controllink.Fingerprint(newKey(t).PublicKey()), Signers: []ssh.Signer{key}})
	client := api.NewClientOver(dialer, d.address)
	defer client.Close()

	_, err := client.Nodes(t.Context())

	refused(t, "another key", err, mesh.CodeDenied, "is pinned", "nothing was sent", mesh.FingerprintText(controllink.Fingerprint(d.hostKey.PublicKey())))
}

func TestARemovedOperatorsOpenConnectionIsClosedAtOnce(t *testing.T) {
	d := startRealDoor(t)
	key := newKey(t)
	client := d.add("anna", key, control.RoleAdmin, control.Limits{})
	if _, err := client.Nodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := ssh.Dial("tcp", d.address, &ssh.ClientConfig{User: "anna", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(d.hostKey.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- raw.Wait() }()

	if err := d.RemoveOperator(t.Context(), operator, "anna"); err != nil {
		t.Fatal(err)
	}

	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("the connection of an operator who was removed stays open")
	}
	_, err = client.Nodes(t.Context())
	refused(t, "an operator who was removed", err, mesh.CodeDenied, "no operator is registered")
}

func TestKeysOfAnyGoodTypeProveAnOperatorAndTheRightOneIsFoundAmongOthers(t *testing.T) {
	d := startRealDoor(t)
	for name, make := range map[string]func() (any, error){
		"rsa":   func() (any, error) { return rsa.GenerateKey(rand.Reader, 2048) },
		"ecdsa": func() (any, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) },
	} {
		private, err := make()
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(private)
		if err != nil {
			t.Fatal(err)
		}
		d.add(name, signer, control.RoleReader, control.Limits{})
		if _, err := d.client(newKey(t), newKey(t), signer).Nodes(t.Context()); err != nil {
			t.Errorf("an operator with a key of type %s, offered as the third, gets %v", name, err)
		}
	}
}

// serveAgent is an ssh-agent that holds keys.
func serveAgent(t *testing.T, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if err := agent.ServeAgent(ring, c); err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("the agent ended with %v", err)
				}
			}()
		}
	}()
	return path
}

func TestTheKeysOfAnAgentProveAnOperator(t *testing.T) {
	d := startRealDoor(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	d.add("anna", signer, control.RoleReader, control.Limits{})
	keys, err := remote.OpenAgent(serveAgent(t, private))
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	signers, err := remote.Signers("", keys)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := d.client(signers...).Nodes(t.Context()); err != nil {
		t.Errorf("an operator whose key is in the agent gets %v", err)
	}
}

func TestOneSourceCannotTakeThePlacesOfAllOthers(t *testing.T) {
	d := newPolicy()
	address := serveTCP(t, controllink.Config{Policy: d, HostKey: newKey(t), MaxUnauthenticated: 20, MaxPerSource: 5})
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			_ = c.Close()
		}
	}()
	dial := func(from string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
		return c
	}
	for range 5 {
		dial("127.0.0.2")
	}

	sixth := dial("127.0.0.2")
	if err := sixth.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := sixth.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the sixth silent connection of one source gave %v, want that it is closed", err)
	}
	other := dial("127.0.0.3")
	if _, err := other.Write([]byte("SSH-2.0-test\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := other.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	greeting := make([]byte, 8)
	if _, err := io.ReadFull(other, greeting); err != nil || string(greeting) != "SSH-2.0-" {
		t.Errorf("another source is greeted with %q, %v", greeting, err)
	}
}

// The attack: a machine of the network that tries one token after the other.
func TestGuessingTokensIsSlowedDownForTheGuesserAlone(t *testing.T) {
	hostKey := newKey(t)
	var (
		mu  sync.Mutex
		now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	)
	p := &noTokens{policy: newPolicy()}
	address := serveTCP(t, controllink.Config{Policy: p, HostKey: hostKey, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}})
	try := func(from string) string {
		tcp, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		var banner string
		_, _, _, err = ssh.NewClientConn(tcp, address, &ssh.ClientConfig{
			User: mesh.UserEnrol, HostKeyCallback: ssh.FixedHostKey(hostKey.PublicKey()),
			Auth:           []ssh.AuthMethod{ssh.PublicKeys(newKey(t)), ssh.Password(strings.Repeat("ab", mesh.SecretSize))},
			BannerCallback: func(message string) error { banner = message; return nil },
		})
		if err == nil {
			t.Fatal("a token that nobody issued was taken")
		}
		return banner
	}
	for i := range 10 {
		if told := try("127.0.0.2"); strings.Contains(told, "too many") {
			t.Fatalf("guess %d is answered with %s", i+1, told)
		}
	}

	if told := try("127.0.0.2"); !strings.Contains(told, "too many wrong tokens") || !strings.Contains(told, string(mesh.CodeUnavailable)) {
		t.Errorf("the eleventh guess is answered with %s", told)
	}
	if told := try("127.0.0.3"); strings.Contains(told, "too many") {
		t.Errorf("another source is answered with %s", told)
	}
	if looked := p.looked.Load(); looked != 11 {
		t.Errorf("%d guesses were looked at, want 10 and that of the other source", looked)
	}
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	if told := try("127.0.0.2"); strings.Contains(told, "too many") {
		t.Errorf("a minute later the guesser is answered with %s", told)
	}
}

// noTokens issued no token, and counts who asked.
type noTokens struct {
	*policy
	looked atomic.Int64
}

func (p *noTokens) CheckToken(context.Context, string) error {
	p.looked.Add(1)
	return mesh.Errorf(mesh.CodeDenied, "this control plane issued no such token")
}
