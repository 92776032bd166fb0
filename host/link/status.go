package link

import (
	"errors"
	"fmt"
	"time"

	mesh "github.com/meshctl/mesh"
)

// State says what the link is doing.
type State string

// The states of the link.
const (
	StateConnecting State = "connecting" // dialling, or waiting for the welcome
	StateConnected  State = "connected"
	StateWaiting    State = "waiting" // until the next attempt
)

// Status is how the link is, for whoever asks on the machine.
type Status struct {
	State State
	// Since is when the link was made, or lost.
	Since time.Time
	// Address is that of the control plane when connected.
	Address string
	// LastError is one sentence about the latest attempt or the end of the
	// latest link. Empty: there was no error yet.
	LastError string
	// Next is when the next attempt is made; zero unless waiting.
	Next time.Time
	// Skew is the control plane's clock less this machine's, as the last
	// welcome showed it.
	Skew time.Duration
	// Notice is what the control plane told on this link for the admin of this
	// machine. Empty: nothing.
	Notice string
	// Final: the control plane answered, and the answer was no.
	Final bool
}

// Sentence tells a person how the link is and what happens next.
func (s Status) Sentence(now time.Time) string {
	switch s.State {
	case StateConnected:
		sentence := fmt.Sprintf("connected to %s since %s", s.Address, s.Since.Format(time.RFC3339))
		if s.Notice != "" {
			sentence += "; the control plane says: " + s.Notice
		}
		return sentence
	case StateWaiting:
		return fmt.Sprintf("%s; this node keeps the declaration that it has and dials again in %s", s.LastError, max(s.Next.Sub(now), 0).Round(time.Second))
	default:
		if s.LastError == "" {
			return "connecting to the control plane; this node keeps the declaration that it has meanwhile"
		}
		return s.LastError + "; dialling again now"
	}
}

// Status returns how the link is.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Client) set(change func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.status)
}

func (c *Client) connected(address string, skew time.Duration) {
	now := c.cfg.Now()
	c.set(func(s *Status) {
		*s = Status{State: StateConnected, Since: now, Address: address, LastError: s.LastError, Skew: skew}
	})
	c.cfg.Log.Info("connected to the control plane", "address", address)
}

// noticed records what the control plane told, for the admin of this machine.
func (c *Client) noticed(message string) {
	c.set(func(s *Status) { s.Notice = message })
	c.cfg.Log.Warn("the control plane tells this machine something", "message", message)
}

// disconnected records why there is no link, and logs it when it is news.
func (c *Client) disconnected(err error, delay time.Duration) {
	now := c.cfg.Now()
	sentence := "the link ended"
	var known *mesh.Error
	if errors.As(err, &known) {
		sentence = known.Error()
	} else if err != nil {
		sentence = err.Error()
	}
	news := false
	c.set(func(s *Status) {
		news = s.LastError != sentence || s.Address != ""
		if s.Address != "" {
			s.Since = now
		}
		s.State, s.Address, s.LastError = StateWaiting, "", sentence
		s.Next, s.Final = now.Add(delay), final(err)
	})
	if news {
		c.cfg.Log.Warn("not connected to the control plane; the declaration held is kept and the next attempt follows", "error", sentence, "delay", delay)
		return
	}
	c.cfg.Log.Debug("still not connected to the control plane", "error", sentence, "delay", delay)
}
