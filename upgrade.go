package mesh

import "time"

// Ending says how an upgrade of the host itself ended.
type Ending string

// The endings. Each is also the kind of the event that reports it.
const (
	// EndingUpgraded: the declared version started, completed a reconcile and is
	// confirmed.
	EndingUpgraded Ending = "upgraded"
	// EndingPutBack: it was found wanting before the change of process, and the
	// version that runs was installed again.
	EndingPutBack Ending = "apply-failed-and-put-back"
	// EndingByServiceManager: it was started and did not live, and the service
	// manager had the confirmed version put back.
	EndingByServiceManager Ending = "rolled-back-by-service-manager"
	// EndingByGuard: as before, and the guard saw it.
	EndingByGuard Ending = "rolled-back-by-guard"
	// EndingRefused: it was undone here before, and no write has named it since.
	EndingRefused Ending = "refused"
	// EndingElsewhere: somebody else installed it; it lives and is confirmed.
	EndingElsewhere Ending = "upgraded-by-somebody-else"
	// EndingNoWayBack: it was not installed, because nothing could undo it.
	EndingNoWayBack Ending = "no-way-back"
)

// Endings lists every ending.
func Endings() []Ending {
	return []Ending{EndingUpgraded, EndingPutBack, EndingByServiceManager, EndingByGuard, EndingRefused, EndingElsewhere, EndingNoWayBack}
}

// HostUpgrade says how the host of a node stands with its own version.
type HostUpgrade struct {
	// Running is the version of the program that says this.
	Running string `json:"running"`
	// Confirmed is the version that a rollback would bring back. Empty: none.
	Confirmed string `json:"confirmed,omitempty"`
	// CanRollBack: a release that does not run here would be undone.
	CanRollBack bool `json:"can_roll_back"`
	// Why not. Empty when it can.
	Why string `json:"why,omitempty"`
	// Phase of an upgrade that goes on. "settled": none does.
	Phase string `json:"phase"`
	// Last is how the latest upgrade ended. Nil: there was none.
	Last *UpgradeRecord `json:"last,omitempty"`
}

// UpgradeRecord is one upgrade of the host that ended.
type UpgradeRecord struct {
	Ending Ending `json:"ending"`
	// From and To are the versions of the upgrade, also when it was undone.
	From string `json:"from"`
	To   string `json:"to"`
	// Step at which it ended, for what did not end well.
	Step string `json:"step,omitempty"`
	// Why in a sentence, with what the new version or the service manager said.
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
}
