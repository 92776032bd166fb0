package protocol

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	controllink "github.com/meshctl/mesh/control/link"
	hostlink "github.com/meshctl/mesh/host/link"
)

// enrolment is a control plane that takes one token.
type enrolment struct {
	policy *policy
	token  mesh.Token
}

func startEnrolment(t *testing.T) *enrolment {
	t.Helper()
	p, hostKey := newPolicy(), newKey(t)
	p.enrolled = mesh.Enrolled{Node: "web-1", Eligible: true}
	address := serveTCP(t, controllink.Config{Policy: p, HostKey: hostKey})
	token := mesh.Token{Addresses: []string{address}, Fingerprint: controllink.Fingerprint(hostKey.PublicKey()), Secret: [mesh.SecretSize]byte{7}}
	p.secrets[mesh.SecretHash(token.SecretText())] = nil
	return &enrolment{policy: p, token: token}
}

// Shows: M24, M25
func TestAMachineEnrolsWithItsTokenAndSaysFirstWhatItIs(t *testing.T) {
	e := startEnrolment(t)

	enrolled, err := hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{Hostname: "web-1", Profile: mesh.Profile{Arch: "arm64"}})

	if err != nil || enrolled.Node != "web-1" {
		t.Fatalf("Enrol returned %+v, %v", enrolled, err)
	}
	e.policy.look(func(p *policy) {
		if len(p.enrols) != 1 || p.enrols[0].Profile.Arch != "arm64" {
			t.Errorf("the control plane decided over %+v, want the profile that the machine sent", p.enrols)
		}
	})
}

// Shows: M24
func TestATokenIsNotSentToAControlPlaneWithAnotherKey(t *testing.T) {
	e := startEnrolment(t)
	e.token.Fingerprint[0]++

	_, err := hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{})

	if codeOf(err) != mesh.CodeDenied || !strings.Contains(err.Error(), "the token pins SHA256:") || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("Enrol returned %v, want a refusal that shows both fingerprints", err)
	}
	e.policy.look(func(p *policy) {
		if p.tokens != 0 {
			t.Errorf("a secret was shown %d times to a control plane with another key", p.tokens)
		}
	})
}

// Shows: M24
func TestAWrongTokenIsRefusedInTheControlPlanesWords(t *testing.T) {
	e := startEnrolment(t)
	e.token.Secret[0]++

	_, err := hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{})

	if codeOf(err) != mesh.CodeDenied || !strings.Contains(err.Error(), "never issued here") {
		t.Errorf("Enrol returned %v, want the policy's sentence", err)
	}
	e.policy.look(func(p *policy) {
		if len(p.enrols) != 0 {
			t.Error("a machine without a good token was heard")
		}
	})
}

func TestATokenAloneDoesNotEnrol(t *testing.T) {
	e := startEnrolment(t)
	tcp, err := net.Dial("tcp", e.token.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}

	link, err := shakeRaw(tcp, mesh.UserEnrol, nil, e.token.SecretText(), mesh.ChannelEnrol)

	if err == nil {
		link.close()
		t.Error("a machine enrolled with a password and no key")
	}
}

func TestAKeyAloneDoesNotEnrol(t *testing.T) {
	e := startEnrolment(t)
	tcp, err := net.Dial("tcp", e.token.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}

	link, err := shakeRaw(tcp, mesh.UserEnrol, newKey(t), "", mesh.ChannelEnrol)

	if err == nil {
		link.close()
		t.Error("a machine enrolled with a key and no token")
	}
}

func TestAnEnrolmentOpensNoLinkAndALinkEnrolsNobody(t *testing.T) {
	e := startEnrolment(t)
	key := newKey(t)
	e.policy.know(key, "web-1")
	for user, channel := range map[string]string{mesh.UserEnrol: mesh.ChannelLink, mesh.UserNode: mesh.ChannelEnrol} {
		tcp, err := net.Dial("tcp", e.token.Addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		secret := ""
		if user == mesh.UserEnrol {
			secret = e.token.SecretText()
		}

		link, err := shakeRaw(tcp, user, key, secret, channel)

		if err == nil {
			link.close()
			t.Errorf("the user %s opened %s", user, channel)
		}
	}
}

func TestAnEnrolmentWhoseAnswerWasLostSaysThatItMayBeRepeated(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	control := &rawControl{key: newKey(t), accepted: make(chan *raw, 1), secrets: make(chan string, 1)}
	go control.serve(listener)
	go func() {
		link := <-control.accepted
		_, _ = link.frames.Read()
		link.close()
	}()
	token := mesh.Token{Addresses: []string{listener.Addr().String()}, Fingerprint: controllink.Fingerprint(control.key.PublicKey())}

	_, err = hostlink.Enrol(t.Context(), token, newKey(t), mesh.Enrol{})

	if codeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), "run the same command again with the same token") {
		t.Errorf("Enrol returned %v, want what to do next", err)
	}
}

func TestEnrolTriesTheNextAddressAndSaysOfEachWhyNot(t *testing.T) {
	e := startEnrolment(t)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := gone.Addr().String()
	_ = gone.Close()
	good := e.token.Addresses[0]
	e.token.Addresses = []string{nowhere, good}
	if _, err := hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{}); err != nil {
		t.Fatalf("Enrol returned %v with a good second address", err)
	}

	e.token.Fingerprint[0]++
	_, err = hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{})

	if codeOf(err) != mesh.CodeUnavailable || !strings.Contains(err.Error(), nowhere) || !strings.Contains(err.Error(), good) {
		t.Errorf("Enrol returned %v, want a reason for each of %s and %s", err, nowhere, good)
	}
}

// Shows: M25, M29
func TestWhatDoesNotFitIntoAnEnrolmentIsLeftForTheLink(t *testing.T) {
	long := mesh.Inventory{Units: []string{strings.Repeat("u", 7<<20)}}
	var owned []mesh.Owned
	for i := range 3 {
		owned = append(owned, mesh.Owned{Resource: mesh.ResourceID(fmt.Sprintf("file:/%d", i)), Undo: json.RawMessage(`"` + strings.Repeat("x", 4<<20) + `"`)})
	}
	large := &mesh.Document{Declaration: "bundle", Resources: []mesh.DocumentResource{{Resource: mesh.Resource{Kind: mesh.KindFile, Name: "/a", File: &mesh.FileSpec{Content: make([]byte, 9<<20)}}}}}
	for name, c := range map[string]struct {
		e    mesh.Enrol
		left string
	}{
		"all of it fits":           {mesh.Enrol{Inventory: long, Owned: owned[:2]}, "inventory owned"},
		"all but the copy fits":    {mesh.Enrol{Inventory: long, Owned: owned}, "inventory"},
		"the bundle alone fits":    {mesh.Enrol{Inventory: long, Owned: owned, Bundle: large}, "bundle"},
		"the bundle and copy fits": {mesh.Enrol{Owned: owned[:1], Bundle: large}, "bundle"},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEnrolment(t)

			_, err := hostlink.Enrol(t.Context(), e.token, newKey(t), c.e)

			if err != nil {
				t.Fatal(err)
			}
			e.policy.look(func(p *policy) {
				var came []string
				if got := p.enrols[0]; len(got.Inventory.Units) > 0 {
					came = append(came, "inventory")
				}
				if len(p.enrols[0].Owned) > 0 {
					came = append(came, "owned")
				}
				if p.enrols[0].Bundle != nil {
					came = append(came, "bundle")
				}
				if got := strings.Join(came, " "); got != c.left {
					t.Errorf("%q came, want %q", got, c.left)
				}
			})
		})
	}

	e := startEnrolment(t)
	large.Resources[0].File.Content = make([]byte, 14<<20)
	_, err := hostlink.Enrol(t.Context(), e.token, newKey(t), mesh.Enrol{Bundle: large})
	if codeOf(err) != mesh.CodeInvalid || !strings.Contains(err.Error(), "bundle") || e.policy.tokens != 0 {
		t.Errorf("a bundle that is too long gave %v after the token was shown %d times, want that it says so and that nothing was sent", err, e.policy.tokens)
	}
}
