package link

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

func TestBackoffStaysBetweenNothingAndItsCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chance := rapid.Float64Range(0, 0.999999).Draw(t, "chance")
		attempts := rapid.IntRange(0, 1<<40).Draw(t, "attempts")

		wait := backoff(func() float64 { return chance }, time.Second, time.Minute, attempts)

		if wait < 0 || wait > time.Minute {
			t.Fatalf("after %d attempts the wait is %s", attempts, wait)
		}
	})
}

func TestBackoffUsesTheWholeRangeSoThatAFleetDoesNotComeBackInStep(t *testing.T) {
	least := backoff(func() float64 { return 0 }, time.Second, time.Minute, 9)
	middle := backoff(func() float64 { return 0.5 }, time.Second, time.Minute, 9)

	if least != 0 || middle != 30*time.Second {
		t.Errorf("chance 0 waits %s and chance 0.5 waits %s, want 0 s and 30 s", least, middle)
	}
}

func TestTheSentenceSaysWhatHappensNext(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for want, status := range map[string]Status{
		"connected to c:7022 since 2026-11-30T12:00:00Z":                                    {State: StateConnected, Since: now, Address: "c:7022"},
		"cannot reach c; this node keeps the declaration that it has and dials again in 8s": {State: StateWaiting, LastError: "cannot reach c", Next: now.Add(8 * time.Second)},
		"cannot reach c; dialling again now":                                                {State: StateConnecting, LastError: "cannot reach c"},
		"connecting to the control plane; this node keeps the declaration that it has meanwhile": {
			State: StateConnecting,
		},
	} {
		if got := status.Sentence(now); got != want {
			t.Errorf("the sentence is %q, want %q", got, want)
		}
	}
}

func TestAMessageOfAnotherMachineCannotSteerATerminal(t *testing.T) {
	got := refusal("c:7022", mesh.Refused{Code: mesh.CodeDenied, Message: "no\x1b[2J\x07\u202e way\n" + strings.Repeat("x", 1<<20)}).Error()

	if strings.ContainsAny(got, "\x1b\x07\u202e") || len(got) > 4096 {
		t.Errorf("%d bytes of %.60q come to the terminal", len(got), got)
	}
}
