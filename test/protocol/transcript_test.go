package protocol

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	mesh "github.com/meshctl/mesh"
	controllink "github.com/meshctl/mesh/control/link"
	hostlink "github.com/meshctl/mesh/host/link"
)

// line is one line of a transcript.
type line struct {
	number int
	// mark is ">", "<", "!" or "=".
	mark string
	// frame is set for a line that holds one; raw is its text.
	frame mesh.Frame
	raw   []byte
	// word is what stands there instead: "close", an error, a count.
	word string
}

func (l line) closes() bool { return l.word == "close" }

type transcript struct {
	ends  string
	lines []line
}

func readTranscript(path string) (transcript, error) {
	var script transcript
	data, err := os.ReadFile(path)
	if err != nil {
		return script, err
	}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 1<<20)
	for number := 1; scanner.Scan(); number++ {
		mark, rest, _ := strings.Cut(scanner.Text(), " ")
		l := line{number: number, mark: mark}
		switch mark {
		case "", "#":
			continue
		case "@":
			script.ends = rest
			continue
		case "!", "=":
			l.word = rest
		case ">", "<":
			if rest == "close" {
				l.word = rest
				break
			}
			l.raw = []byte(rest)
			if err := json.Unmarshal(l.raw, &l.frame); err != nil {
				return script, fmt.Errorf("%s:%d: %w", path, number, err)
			}
		default:
			return script, fmt.Errorf("%s:%d: a line begins with #, @, >, <, ! or =", path, number)
		}
		script.lines = append(script.lines, l)
	}
	switch script.ends {
	case "control", "host", "both":
	default:
		return script, fmt.Errorf("%s: a line \"@ control\", \"@ host\" or \"@ both\" says which end is under test", path)
	}
	return script, scanner.Err()
}

// enrols reports whether the transcript is one of an enrolment.
func (s transcript) enrols() bool { return s.lines[0].frame.Type == mesh.FrameEnrol }

// Shows: M1, M3, M25
func TestEveryTranscriptOfEveryReleaseStillHolds(t *testing.T) {
	paths, err := filepath.Glob("testdata/v*/*.txt")
	if err != nil || len(paths) < 20 {
		t.Fatalf("found %d transcripts (%v); they are the promise to other releases and have to be here", len(paths), err)
	}
	for _, path := range paths {
		script, err := readTranscript(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if script.ends != "host" {
			t.Run(name+"/control", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { replayAgainstControl(t, script) })
			})
		}
		if script.ends != "control" {
			t.Run(name+"/host", func(t *testing.T) {
				if script.enrols() {
					replayEnrolmentAgainstHost(t, script)
					return
				}
				synctest.Test(t, func(t *testing.T) { replayAgainstHost(t, script) })
			})
		}
	}
}

func replayAgainstControl(t *testing.T, script transcript) {
	n, p, key := newNetwork(), newPolicy(), newKey(t)
	p.know(key, "web-1")
	server := startControl(t, n, p, newKey(t))
	var (
		link   *raw
		nonce  json.RawMessage
		proofs []chan error
	)
	defer func() {
		if link != nil {
			link.close()
		}
	}()
	for i, l := range script.lines {
		switch {
		case l.mark == "!":
			p.look(func(p *policy) { p.handle = mesh.Errorf(mesh.Code(l.word), "as the transcript says") })
		case l.mark == "=" && !strings.HasPrefix(l.word, "recorded "): // for the other end
		case l.mark == "=":
			synctest.Wait()
			p.look(func(p *policy) {
				if want := count(t, l); len(p.recorded) != want {
					t.Fatalf("line %d: %d messages are recorded, want %d: %v", l.number, len(p.recorded), want, p.recorded)
				}
			})
		case l.mark == ">" && l.closes():
			synctest.Wait()
			link.close()
			synctest.Wait()
			link = nil
		case l.mark == ">":
			if link == nil {
				link = connect(t, n, p, key, script.lines[i:])
			}
			raw := l.raw
			if l.frame.Type == mesh.FrameProof {
				raw = fmt.Appendf(nil, `{"type":"proof","body":%s}`, nonce)
			}
			link.sayRaw(t, raw)
			synctest.Wait()
		case l.closes():
			if f, err := link.frames.Read(); err == nil {
				t.Fatalf("line %d: the control plane says %s, and has to close", l.number, show(f))
			}
			link.close()
			link = nil
		default:
			switch l.frame.Type {
			case mesh.FrameDeclare:
				var d mesh.Declaration
				decode(t, l, &d)
				p.declare(d)
			case mesh.FrameProve:
				proof := make(chan error, 1)
				proofs = append(proofs, proof)
				go func() { proof <- server.Prove(t.Context(), "web-1") }()
			case mesh.FrameRevoked:
				var r mesh.Refused
				decode(t, l, &r)
				p.close("web-1", r.Message)
			case mesh.FrameRefused:
				if i > 1 && !script.enrols() {
					var r mesh.Refused
					decode(t, l, &r)
					p.close("web-1", r.Message)
				}
			}
			f := expect(t, l, link)
			if f.Type == mesh.FrameProve {
				nonce = f.Body
			}
		}
	}
	for _, proof := range proofs {
		if err := <-proof; err != nil {
			t.Errorf("a proof came, and Prove returned %v", err)
		}
	}
}

// connect makes the connection that the lines begin with, with a policy that
// answers as they say.
func connect(t *testing.T, n *network, p *policy, key ssh.Signer, lines []line) *raw {
	t.Helper()
	user, channel, secret := mesh.UserNode, mesh.ChannelLink, ""
	for _, l := range lines {
		if l.mark == "<" {
			switch l.frame.Type {
			case mesh.FrameWelcome:
				p.look(func(p *policy) { decode(t, l, &p.welcome) })
			case mesh.FrameRecover:
				p.look(func(p *policy) { p.recovery = new(mesh.Recover); decode(t, l, p.recovery) })
			}
		}
		if l.closes() {
			break
		}
	}
	if lines[0].frame.Type == mesh.FrameEnrol {
		user, channel = mesh.UserEnrol, mesh.ChannelEnrol
		secret = mesh.Token{}.SecretText()
		p.look(func(p *policy) {
			p.secrets[mesh.SecretHash(secret)] = nil
			answer := lines[1]
			if answer.frame.Type == mesh.FrameEnrolled {
				decode(t, answer, &p.enrolled)
				return
			}
			var r mesh.Refused
			decode(t, answer, &r)
			p.refuse = mesh.Errorf(r.Code, "%s", r.Message)
		})
	}
	link, err := dialRaw(n, user, key, secret, channel)
	if err != nil {
		t.Fatalf("line %d: connect: %v", lines[0].number, err)
	}
	return link
}

func replayAgainstHost(t *testing.T, script transcript) {
	n := newNetwork()
	control := startRawControl(t, n)
	h, o := newHost("web-1"), newOutbox()
	for i := len(script.lines) - 1; i >= 0; i-- {
		l := script.lines[i]
		if l.mark != ">" || l.closes() {
			continue
		}
		switch l.frame.Type {
		case mesh.FrameHello:
			h.hello = mesh.Hello{}
			decode(t, l, &h.hello)
		case mesh.FrameHeartbeat:
			h.heartbeat = mesh.Heartbeat{}
			decode(t, l, &h.heartbeat)
		case mesh.FrameReceived:
			var r mesh.Received
			decode(t, l, &r)
			h.answers[r.Generation] = r
		case mesh.FrameProfile, mesh.FrameInventory, mesh.FrameBriefing:
			h.bodies[string(l.frame.Type)] = l.frame.Body
		}
	}
	startHost(t, n, h, o, newKey(t), control.key.PublicKey())
	var (
		link *raw
		last uint64
	)
	for _, l := range script.lines {
		switch {
		case l.mark == "=" && !strings.HasPrefix(l.word, "forgotten "): // for the other end
		case l.mark == "=":
			synctest.Wait()
			if want := uint64(count(t, l)); o.forgotten() != want {
				t.Fatalf("line %d: everything up to message %d is forgotten, want %d", l.number, o.forgotten(), want)
			}
		case l.mark == "<" && l.closes():
			link.close()
			link = nil
		case l.mark == "<":
			link.sayRaw(t, l.raw)
			synctest.Wait()
		case l.closes():
			if f, err := link.frames.Read(); err == nil {
				t.Fatalf("line %d: the host says %s, and has to close", l.number, show(f))
			}
			link.close()
			link = nil
		default:
			if link == nil {
				link = <-control.accepted
			}
			if l.frame.Type == mesh.FrameHeartbeat {
				h.look(func(h *fakeHost) { decode(t, l, &h.heartbeat) })
			}
			if l.frame.Seq > last {
				last = l.frame.Seq
				o.add(l.frame)
			}
			expect(t, l, link)
		}
	}
}

// replayEnrolmentAgainstHost runs on a real network: an enrolment has no timers
// that a test would want to be rid of.
func replayEnrolmentAgainstHost(t *testing.T, script transcript) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	control := &rawControl{key: newKey(t), accepted: make(chan *raw, 1), secrets: make(chan string, 1)}
	go control.serve(listener)
	request, answer := script.lines[0], script.lines[1]
	var e mesh.Enrol
	decode(t, request, &e)
	token := mesh.Token{Addresses: []string{listener.Addr().String()}, Fingerprint: controllink.Fingerprint(control.key.PublicKey()), Secret: [mesh.SecretSize]byte{1, 2, 3}}
	type outcome struct {
		enrolled mesh.Enrolled
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		enrolled, err := hostlink.Enrol(t.Context(), token, newKey(t), e)
		done <- outcome{enrolled, err}
	}()
	link := <-control.accepted
	defer link.close()
	if secret := <-control.secrets; secret != token.SecretText() {
		t.Fatalf("the host proved itself with %q, and the token's secret is %q", secret, token.SecretText())
	}
	expect(t, request, link)
	link.sayRaw(t, answer.raw)
	got := <-done
	if answer.frame.Type == mesh.FrameRefused {
		var r mesh.Refused
		decode(t, answer, &r)
		if codeOf(got.err) != r.Code || !strings.Contains(got.err.Error(), r.Message) {
			t.Fatalf("Enrol returned %v, and was refused with %s: %s", got.err, r.Code, r.Message)
		}
		return
	}
	var want mesh.Enrolled
	decode(t, answer, &want)
	if got.err != nil || !reflect.DeepEqual(got.enrolled, want) {
		t.Fatalf("Enrol returned %+v, %v; the answer was %+v", got.enrolled, got.err, want)
	}
}

func (o *outbox) forgotten() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.acked
}

// sayRaw sends the JSON of a frame as it stands.
func (r *raw) sayRaw(t *testing.T, data []byte) {
	t.Helper()
	if _, err := r.channel.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data)))); err != nil {
		t.Fatalf("say %s: %v", data, err)
	}
	if _, err := r.channel.Write(data); err != nil {
		t.Fatalf("say %s: %v", data, err)
	}
}

// expect reads the next frame, which has to say what l says.
func expect(t *testing.T, l line, link *raw) mesh.Frame {
	t.Helper()
	began := time.Now()
	f, err := link.frames.Read()
	if err != nil {
		t.Fatalf("line %d: %s has to come, and after %s there is %v", l.number, l.raw, time.Since(began), err)
	}
	var want, got any
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(l.raw, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if where := differs("", want, got); where != "" {
		t.Fatalf("line %d: %s\nwant %s\ngot  %s", l.number, where, l.raw, data)
	}
	return f
}

// differs returns where got lacks something that want names; empty when it
// does not.
func differs(path string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		object, _ := got.(map[string]any)
		for name, value := range want {
			if where := differs(path+"."+name, value, object[name]); where != "" {
				return where
			}
		}
		return ""
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return fmt.Sprintf("%s has %d elements, want %d", path, len(list), len(want))
		}
		for i := range want {
			if where := differs(path+"["+strconv.Itoa(i)+"]", want[i], list[i]); where != "" {
				return where
			}
		}
		return ""
	case string:
		if want == "*" {
			return ""
		}
	}
	if reflect.DeepEqual(want, got) || got == nil && (want == "" || want == 0.0 || want == false) {
		return ""
	}
	return fmt.Sprintf("%s is %v, want %v", path, got, want)
}

func decode(t *testing.T, l line, v any) {
	t.Helper()
	if err := json.Unmarshal(l.frame.Body, v); err != nil {
		t.Fatalf("line %d: %v", l.number, err)
	}
}

func count(t *testing.T, l line) int {
	t.Helper()
	_, number, _ := strings.Cut(l.word, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("line %d: %q is not a number", l.number, number)
	}
	return n
}

func show(f mesh.Frame) string { return fmt.Sprintf("%s %s", f.Type, f.Body) }
