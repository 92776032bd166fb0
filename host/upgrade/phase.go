package upgrade

import (
	"fmt"
	"slices"
)

// Phase says how far an upgrade of the host has come. It is written on disk.
type Phase string

// The phases.
const (
	// PhaseSettled: no upgrade goes on.
	PhaseSettled Phase = "settled"
	// PhaseIntended: the intent is written and the guard stands; the package
	// manager may be at work, and what it left may be being checked.
	PhaseIntended Phase = "intended"
	// PhaseHandedOver: the new version was found sound, and the old one ends.
	PhaseHandedOver Phase = "handed-over"
	// PhaseTrying: the new version was started and is not confirmed.
	PhaseTrying Phase = "trying"
	// PhasePuttingBack: the confirmed version is being installed again.
	PhasePuttingBack Phase = "putting-back"
)

// Phases lists every phase.
func Phases() []Phase {
	return []Phase{PhaseSettled, PhaseIntended, PhaseHandedOver, PhaseTrying, PhasePuttingBack}
}

var phaseSteps = map[Phase][]Phase{
	// A version that nobody announced finds itself on trial.
	PhaseSettled: {PhaseIntended, PhaseTrying},
	// Power may be lost in any phase, and then the other version may start. An
	// intent that was cut off is taken up again.
	PhaseIntended:    {PhaseIntended, PhaseHandedOver, PhaseTrying, PhasePuttingBack, PhaseSettled},
	PhaseHandedOver:  {PhaseTrying, PhasePuttingBack, PhaseSettled},
	PhaseTrying:      {PhaseTrying, PhasePuttingBack, PhaseSettled},
	PhasePuttingBack: {PhasePuttingBack, PhaseSettled},
}

// Step moves an upgrade to another phase, or refuses.
func (p Phase) Step(to Phase) (Phase, error) {
	if !slices.Contains(phaseSteps[p], to) {
		return p, fmt.Errorf("an upgrade of the host cannot go from %q to %q", p, to)
	}
	return to, nil
}
