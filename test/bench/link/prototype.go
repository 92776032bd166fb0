package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// A prototype is what is left of a link when it does nothing but carry bytes:
// a stream to each client, on which a push is a length and as many bytes, and
// the answer is one byte. It shows what the transport alone costs.

// transport is how a prototype makes streams.
type transport struct {
	name string
	// server gives the function that turns an accepted connection into a stream.
	server func() (func(net.Conn) (io.ReadWriter, error), error)
	// client turns a dialled connection into a stream.
	client func(net.Conn) (io.ReadWriter, error)
}

var transports = []transport{
	{"TCP", plainServer, func(c net.Conn) (io.ReadWriter, error) { return c, nil }},
	{"TLS 1.3", tlsServer, tlsClient},
	{"SSH prototype", sshServer, sshClient},
}

func transportOf(name string) (transport, error) {
	for _, t := range transports {
		if t.name == name {
			return t, nil
		}
	}
	return transport{}, fmt.Errorf("there is no transport %q", name)
}

func plainServer() (func(net.Conn) (io.ReadWriter, error), error) {
	return func(c net.Conn) (io.ReadWriter, error) { return c, nil }, nil
}

func tlsServer() (func(net.Conn) (io.ReadWriter, error), error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
	}
	return func(c net.Conn) (io.ReadWriter, error) {
		s := tls.Server(c, config)
		return s, s.Handshake()
	}, nil
}

// tlsClientCertificate is one for all: what is measured is its use.
var tlsClientCertificate = sync.OnceValues(func() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, public, private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, err
})

func tlsClient(c net.Conn) (io.ReadWriter, error) {
	certificate, err := tlsClientCertificate()
	if err != nil {
		return nil, err
	}
	// The prototype's certificate is made for this run and known to nobody.
	s := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}})
	return s, s.Handshake()
}

// prototypeChannel is the type of the one channel of the SSH prototype.
const prototypeChannel = "prototype@mesh"

// sshAlgorithms are those that the links of the mesh agree on here.
var sshAlgorithms = ssh.Config{Ciphers: []string{"aes128-gcm@openssh.com"}}

func sshServer() (func(net.Conn) (io.ReadWriter, error), error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{
		Config: sshAlgorithms,
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return nil, nil
		},
	}
	config.AddHostKey(signer)
	return func(c net.Conn) (io.ReadWriter, error) {
		_, channels, requests, err := ssh.NewServerConn(c, config)
		if err != nil {
			return nil, err
		}
		go ssh.DiscardRequests(requests)
		next, open := <-channels
		if !open {
			return nil, errors.New("the client opened no channel")
		}
		channel, own, err := next.Accept()
		if err != nil {
			return nil, err
		}
		go ssh.DiscardRequests(own)
		go func() {
			for other := range channels {
				_ = other.Reject(ssh.Prohibited, "one is enough")
			}
		}()
		return channel, nil
	}, nil
}

// sshClientKey is one for all: what is measured is its use.
var sshClientKey = sync.OnceValues(func() (ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(private)
})

func sshClient(c net.Conn) (io.ReadWriter, error) {
	key, err := sshClientKey()
	if err != nil {
		return nil, err
	}
	// The prototype's key is made for this run and known to nobody.
	conn, channels, requests, err := ssh.NewClientConn(c, c.RemoteAddr().String(), &ssh.ClientConfig{
		Config: sshAlgorithms, User: "prototype", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return nil, err
	}
	go ssh.DiscardRequests(requests)
	go func() {
		for other := range channels {
			_ = other.Reject(ssh.Prohibited, "none is wanted")
		}
	}()
	channel, own, err := conn.OpenChannel(prototypeChannel, nil)
	if err != nil {
		return nil, err
	}
	go ssh.DiscardRequests(own)
	return channel, nil
}

// handshakes is how many handshakes a prototype makes at a time, which is what
// a control plane does.
const handshakes = 64

// servePrototype is the program of the child process: it prints its address,
// then answers "push BYTES" once every client has answered, and "settle" once
// what can be given back to the system was given back.
func servePrototype(name string) error {
	t, err := transportOf(name)
	if err != nil {
		return err
	}
	accept, err := t.server()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var streams []io.ReadWriter // under mu
	slots := make(chan struct{}, handshakes)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				slots <- struct{}{}
				stream, err := accept(conn)
				<-slots
				if err != nil {
					fmt.Fprintln(os.Stderr, "prototype:", err)
					_ = conn.Close()
					return
				}
				// It is told that it is in, as a welcome does.
				var hello [1]byte
				if _, err := io.ReadFull(stream, hello[:]); err != nil {
					return
				}
				mu.Lock()
				streams = append(streams, stream)
				mu.Unlock()
				_, _ = stream.Write(hello[:])
			}()
		}
	}()
	fmt.Println(listener.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		word, rest, _ := strings.Cut(in.Text(), " ")
		switch word {
		case "push":
			n, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			mu.Lock()
			all := streams
			mu.Unlock()
			if err := push(all, n); err != nil {
				return err
			}
		case "settle":
			debug.FreeOSMemory()
		default:
			return fmt.Errorf("what is %q", word)
		}
		fmt.Println("done")
	}
	return nil
}

// push sends n bytes to every stream and waits for every answer.
func push(streams []io.ReadWriter, n int) error {
	message := make([]byte, 4+n)
	binary.BigEndian.PutUint32(message, uint32(n))
	if _, err := rand.Read(message[4:]); err != nil {
		return err
	}
	var mu sync.Mutex
	var faults []error // under mu
	var running sync.WaitGroup
	for _, s := range streams {
		running.Go(func() {
			_, err := s.Write(message)
			if err == nil {
				_, err = io.ReadFull(s, make([]byte, 1))
			}
			if err != nil {
				mu.Lock()
				faults = append(faults, err)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return errors.Join(faults...)
}

// prototypeClients are the clients of a prototype.
type prototypeClients struct {
	conns []net.Conn
	// got is sent to whenever a client has answered a push.
	got chan struct{}
}

// dialPrototype connects n clients at once. It returns when each was, in order.
func dialPrototype(ctx context.Context, t transport, address string, n int) (*prototypeClients, []time.Duration, error) {
	c := &prototypeClients{got: make(chan struct{}, n)}
	var mu sync.Mutex
	var took []time.Duration // under mu, like what follows
	var faults []error
	began := time.Now()
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			conn, err := dialerFrom(i).DialContext(ctx, "tcp", address)
			var stream io.ReadWriter
			if err == nil {
				if stream, err = t.client(conn); err == nil {
					_, err = stream.Write([]byte{1})
				}
			}
			if err == nil {
				_, err = io.ReadFull(stream, make([]byte, 1))
			}
			after := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults = append(faults, err)
				return
			}
			took = append(took, after)
			c.conns = append(c.conns, conn)
			go c.answer(stream)
		})
	}
	running.Wait()
	if len(faults) > 0 {
		c.close()
		return nil, nil, fmt.Errorf("%d of %d clients did not connect, the first: %w", len(faults), n, faults[0])
	}
	return c, took, nil
}

func (c *prototypeClients) answer(stream io.ReadWriter) {
	var length [4]byte
	for {
		if _, err := io.ReadFull(stream, length[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, stream, int64(binary.BigEndian.Uint32(length[:]))); err != nil {
			return
		}
		if _, err := stream.Write([]byte{1}); err != nil {
			return
		}
		c.got <- struct{}{}
	}
}

func (c *prototypeClients) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// dialerFrom spreads clients over addresses of this machine, as a fleet is.
func dialerFrom(i int) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i))}}
}
