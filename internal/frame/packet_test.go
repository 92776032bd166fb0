package frame_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
)

// countingConn counts what is written to the network.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// channelOver opens a channel over an SSH connection that agreed on the cipher.
// It returns the client's end and the server's.
func channelOver(t *testing.T, cipher string, writes *atomic.Int64) (client, server ssh.Channel) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan ssh.Channel, 1)
	go func() {
		defer close(accepted)
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		config := &ssh.ServerConfig{Config: ssh.Config{Ciphers: []string{cipher}}, NoClientAuth: true}
		config.AddHostKey(key)
		_, channels, requests, err := ssh.NewServerConn(raw, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		channel, own, err := (<-channels).Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(own)
		accepted <- channel
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	conn, _, requests, err := ssh.NewClientConn(countingConn{raw, writes}, "", &ssh.ClientConfig{
		Config: ssh.Config{Ciphers: []string{cipher}}, HostKeyCallback: ssh.FixedHostKey(key.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	client, own, err := conn.OpenChannel("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(own)
	server, open := <-accepted
	if !open {
		t.Fatal("the channel was not accepted")
	}
	return client, server
}

func TestEachPacketOfALongFrameIsOneWriteToTheNetwork(t *testing.T) {
	for _, cipher := range []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305} {
		t.Run(cipher, func(t *testing.T) {
			var writes atomic.Int64
			client, server := channelOver(t, cipher, &writes)
			body, err := json.Marshal(strings.Repeat("x", 60<<10))
			if err != nil {
				t.Fatal(err)
			}
			before := writes.Load()

			if err := frame.Write(client, mesh.Frame{Type: mesh.FrameDeclare, Body: body}); err != nil {
				t.Fatal(err)
			}

			// A packet of 4 KiB and a little more would be two.
			if made := writes.Load() - before; made > 16 {
				t.Errorf("a frame of %d bytes came to %d writes, want at most 16", len(body), made)
			}
			got, err := frame.NewReader(server).Read()
			if err != nil || !bytes.Equal(got.Body, body) {
				t.Errorf("it arrived as %d bytes, %v", len(got.Body), err)
			}
		})
	}
}

func TestABodyInPartsIsWrittenAsOne(t *testing.T) {
	long := bytes.Repeat([]byte("a"), 10_000)
	for _, parts := range [][][]byte{
		nil,
		{[]byte(`{"a":1}`)},
		{[]byte(`{"a":`), []byte(`[1,2]`), []byte(`}`)},
		{[]byte(`"`), long, nil, long, []byte(`"`)},
	} {
		var whole, inParts bytes.Buffer
		if err := frame.Write(&whole, mesh.Frame{Type: mesh.FrameDeclare, Seq: 7, Body: bytes.Join(parts, nil)}); err != nil {
			t.Fatal(err)
		}
		if err := frame.WriteParts(&inParts, mesh.FrameDeclare, 7, parts...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole.Bytes(), inParts.Bytes()) {
			t.Errorf("a body in %d parts is written as %.100q, want %.100q", len(parts), inParts.Bytes(), whole.Bytes())
		}
		if f, err := frame.NewReader(&inParts).Read(); err != nil || f.Seq != 7 || !bytes.Equal(f.Body, bytes.Join(parts, nil)) {
			t.Errorf("a body in %d parts is read as %.100q, %v", len(parts), f.Body, err)
		}
	}
}
