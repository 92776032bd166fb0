package upgrade

import (
	"slices"
	"testing"
)

// Shows: M13, M15
func TestAnUpgradeMovesOnlyAlongItsTable(t *testing.T) {
	allowed := map[[2]Phase]bool{
		{PhaseSettled, PhaseIntended}: true, {PhaseSettled, PhaseTrying}: true,
		{PhaseIntended, PhaseIntended}: true, {PhaseIntended, PhaseHandedOver}: true, {PhaseIntended, PhaseTrying}: true,
		{PhaseIntended, PhasePuttingBack}: true, {PhaseIntended, PhaseSettled}: true,
		{PhaseHandedOver, PhaseTrying}: true, {PhaseHandedOver, PhasePuttingBack}: true, {PhaseHandedOver, PhaseSettled}: true,
		{PhaseTrying, PhaseTrying}: true, {PhaseTrying, PhasePuttingBack}: true, {PhaseTrying, PhaseSettled}: true,
		{PhasePuttingBack, PhasePuttingBack}: true, {PhasePuttingBack, PhaseSettled}: true,
	}
	for _, from := range append(Phases(), "unheard-of") {
		for _, to := range append(Phases(), "unheard-of") {
			got, err := from.Step(to)
			want := from
			if allowed[[2]Phase{from, to}] {
				want = to
			}
			if (err == nil) != allowed[[2]Phase{from, to}] || got != want {
				t.Errorf("from %q to %q: it is then %q, %v", from, to, got, err)
			}
		}
	}
	if !slices.Contains(Phases(), PhaseSettled) || len(Phases()) != len(phaseSteps) {
		t.Errorf("the phases are %v, and the table has %d", Phases(), len(phaseSteps))
	}
}
