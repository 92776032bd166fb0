package mesh

import (
	"encoding/json"
	"time"
)

// Names on the SSH connection between a host and its control plane.
const (
	// UserNode is the SSH user of a node, with the node's key.
	UserNode = "node"
	// UserEnrol is the SSH user of a machine that enrols: its new key first,
	// then the token's secret as password.
	UserEnrol = "enrol"
	// ChannelLink carries frames, one channel a connection, opened by the host.
	ChannelLink = "link@mesh"
	// ChannelEnrol carries the frames of an enrolment, opened by the host.
	ChannelEnrol = "enrol@mesh"
	// ChannelBlob carries one blob to the host, which opens it with the 64
	// hexadecimal digits of its SHA-256 as extra data. The bytes are streamed
	// and the channel is closed; a blob that is not known is a refused channel.
	ChannelBlob = "blob@mesh"
	// ChannelAPI carries HTTP of the operator API. Operators open it; their SSH
	// user is any but those above.
	ChannelAPI = "api@mesh"
	// FrameLimit is the greatest length of a frame's JSON, in bytes.
	FrameLimit = 16 << 20
	// HeartbeatInterval is how often a host sends a heartbeat by default. A link
	// on which nothing came for three of them is dead.
	HeartbeatInterval = 30 * time.Second
)

// Protocol numbers that this code speaks, both ends included. A host says its
// range in hello; the control plane picks the greatest that both speak.
const (
	ProtocolMin = 1
	ProtocolMax = 1
)

// FrameType names what a frame carries.
type FrameType string

// Frames from the host.
const (
	FrameEnrol     FrameType = "enrol"
	FrameHello     FrameType = "hello"
	FrameProfile   FrameType = "profile"
	FrameInventory FrameType = "inventory"
	FrameBriefing  FrameType = "briefing"
	FrameReceived  FrameType = "received"
	FrameReport    FrameType = "report"
	FrameOwned     FrameType = "owned"
	FrameHeartbeat FrameType = "heartbeat"
	FrameEvent     FrameType = "event"
	FrameProof     FrameType = "proof"
	FrameGoodbye   FrameType = "goodbye"
)

// Frames from the control plane.
const (
	FrameEnrolled FrameType = "enrolled"
	FrameRefused  FrameType = "refused"
	FrameWelcome  FrameType = "welcome"
	FrameDeclare  FrameType = "declare"
	FrameRecover  FrameType = "recover"
	FrameProve    FrameType = "prove"
	FrameAck      FrameType = "ack"
	FrameRevoked  FrameType = "revoked"
	FrameNotice   FrameType = "notice"
)

// Frame is one message on the link: four bytes of big-endian length, then this
// as JSON. Fields that a reader does not know are ignored.
type Frame struct {
	Type FrameType `json:"type"`
	// Seq is set on messages that must not be lost (report, owned, event,
	// goodbye). It grows by at least one from message to message of one host
	// store, and the control plane answers each with an ack after its own commit.
	Seq  uint64          `json:"seq,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
}

// NewFrame makes a frame of a body that can be marshalled; nil: no body.
func NewFrame(t FrameType, seq uint64, body any) (Frame, error) {
	f := Frame{Type: t, Seq: seq}
	if body == nil {
		return f, nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		return Frame{}, err
	}
	f.Body = data
	return f, nil
}

// Enrol is what a machine says of itself before the control plane decides.
type Enrol struct {
	ProtocolMin int       `json:"protocol_min"`
	ProtocolMax int       `json:"protocol_max"`
	HostVersion string    `json:"host_version"`
	Hostname    string    `json:"hostname"`
	Profile     Profile   `json:"profile"`
	Inventory   Inventory `json:"inventory"`
	Briefing    Briefing  `json:"briefing"`
	// Bundle is the declaration that this host applied from a bundle before it
	// knew a mesh. Nil: none.
	Bundle *Document `json:"bundle,omitempty"`
	// Held is the generation that the host holds, from the bundle or from an
	// earlier life. Generations for this node go on above it.
	Held Generation `json:"held,omitempty"`
	// Owned is the recovery copy of a host that owns things already.
	Owned []Owned `json:"owned,omitempty"`
}

// Enrolled answers an enrolment that was decided and stored.
type Enrolled struct {
	Node string `json:"node"`
	// Eligible is false when a line of the briefing failed; Why lists them.
	Eligible bool     `json:"eligible"`
	Why      []string `json:"why,omitempty"`
}

// Refused answers an enrolment or a hello that was not taken.
type Refused struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Hello opens a link.
type Hello struct {
	ProtocolMin   int    `json:"protocol_min"`
	ProtocolMax   int    `json:"protocol_max"`
	Node          string `json:"node"`
	HostVersion   string `json:"host_version"`
	BootID        string `json:"boot_id"`
	MachineIDHash string `json:"machine_id_hash"`
	// StoreID is random, made with the host's store: a new one means that the
	// store was lost. Sequence numbers belong to it.
	StoreID string `json:"store_id"`
	// Sequence is the greatest number that this store has given to a message. A
	// store that was put back to an earlier moment numbers from there again. Zero:
	// it has given none, or the host does not say.
	Sequence uint64     `json:"sequence,omitempty"`
	Held     Generation `json:"held"`
	Applied  Generation `json:"applied"`
	Ledger   string     `json:"ledger"`
	// OwnedDigest is the digest of what the host owns. See OwnedDigest.
	OwnedDigest     string `json:"owned"`
	ProfileDigest   string `json:"profile"`
	InventoryDigest string `json:"inventory"`
}

// Welcome answers a hello.
type Welcome struct {
	Protocol int `json:"protocol"`
	// HeartbeatSeconds is how often the host sends a heartbeat. Zero: default.
	HeartbeatSeconds int `json:"heartbeat_seconds,omitempty"`
	// Want lists what the control plane lacks or holds differently: "profile",
	// "inventory", "briefing", "report" (a full one), "owned" (a full one).
	Want []string `json:"want,omitempty"`
	// Now is the control plane's time; the host reports skew, and orders
	// nothing by it.
	Now time.Time `json:"now"`
}

// Values of Welcome.Want.
const (
	WantProfile   = "profile"
	WantInventory = "inventory"
	WantBriefing  = "briefing"
	WantReport    = "report"
	WantOwned     = "owned"
)

// Received says that a declaration is stored on the host's disk.
type Received struct {
	Generation Generation `json:"generation"`
	// Refused is set when the declaration was not taken: an older generation
	// than the one held, or faults. Empty: it was taken.
	Refused string     `json:"refused,omitempty"`
	Held    Generation `json:"held"`
}

// OwnedChange is a part of the recovery copy.
type OwnedChange struct {
	// Full: Owned is everything; what is not in it is not owned.
	Full  bool         `json:"full,omitempty"`
	Owned []Owned      `json:"owned,omitempty"`
	Gone  []ResourceID `json:"gone,omitempty"`
}

// OwnedDigest identifies what a host owns, whatever the order.
func OwnedDigest(owned []Owned) string {
	byID := make(map[ResourceID]string, len(owned))
	for _, o := range owned {
		byID[o.Resource] = string(o.Made) + "\x00" + digestJSON(o.Wrote)
	}
	return digestJSON(byID)
}

// Recover hands the recovery copy to a host whose store is new. A copy that is
// too long for one frame comes in several, all before any declaration.
type Recover struct {
	Owned []Owned `json:"owned"`
	// More: another part of the copy follows.
	More bool `json:"more,omitempty"`
}

// Goodbye is what a host says after it has applied its final declaration and
// owns nothing any more. The control plane commits that the node has retired,
// and then refuses it with CodeRetired: only that answer makes the host forget
// its mesh.
type Goodbye struct {
	// Generation is that of the final declaration.
	Generation Generation `json:"generation"`
}

// Notice tells a host something that its admin should know. The link stays.
type Notice struct {
	Message string `json:"message"`
}

// Heartbeat makes silence mean something.
type Heartbeat struct {
	Sequence uint64     `json:"sequence"`
	Held     Generation `json:"held"`
	Applied  Generation `json:"applied"`
	Ledger   string     `json:"ledger"`
	// Drift is how many resources were found changed since the host started.
	Drift uint64 `json:"drift"`
	// Pending is how many messages wait for an ack.
	Pending int `json:"pending"`
}

// Prove asks the host to answer now with a proof that carries the same nonce.
type Prove struct {
	Nonce string `json:"nonce"`
}

// Ack says that everything up to and including Seq is committed.
type Ack struct {
	Seq uint64 `json:"seq"`
}
