package arch

import "strings"

// Rule says what the packages of some rooms may import of ours. Standard
// library and other modules are not its business.
//
// A pattern is a room ("host"), a room and everything below it ("host/**"),
// the package at the root ("."), or everything ("**").
type Rule struct {
	// Room is the pattern of the rooms that the rule is for. Of several rules
	// that match, the first in the list holds.
	Room string
	// May lists what they import. Empty means nothing of ours.
	May []string
	// TestsMay lists what their test files import besides.
	TestsMay []string
	// Why is the sentence that a violation ends with.
	Why string
}

// adapterOf returns the rule of a room that joins one technology to the
// interfaces of its side: it sees those interfaces, the nouns and the leaves,
// and never another adapter.
func adapterOf(room string, interfaces ...string) Rule {
	side, _, _ := strings.Cut(room, "/")
	may := append([]string{".", room + "/**", "internal/**"}, interfaces...)
	return Rule{
		Room:     room + "/**",
		May:      may,
		TestsMay: []string{side + "/**", "systemd/**", "repo/**"},
		Why:      "an adapter imports its parent's interfaces and mesh, never another adapter",
	}
}

// kindOfResource returns the rule of a room that provides one kind of resource
// and may have packages of its own below it.
func kindOfResource(room string, own ...string) Rule {
	return Rule{
		Room:     room + "/**",
		May:      append([]string{".", "host/resource", "internal/**"}, own...),
		TestsMay: []string{"host/**"},
		Why:      "a kind of resource knows the contract and no other kind",
	}
}

// Rules is the layering. It is the table of the architecture page in a form
// that can fail.
var Rules = []Rule{
	{Room: ".", TestsMay: []string{"internal/**"},
		Why: "the nouns that both sides share import nothing of ours"},

	{Room: "host", May: []string{".", "host/resource", "host/reconcile", "internal/**"},
		TestsMay: []string{"host/**", "systemd/**"},
		Why:      "the host is put together by constructor: it knows interfaces, cmd knows the adapters"},
	{Room: "host/resource", May: []string{".", "internal/**"}, TestsMay: []string{"host/resource/**"},
		Why: "the contract of a resource depends on no kind of resource"},
	kindOfResource("host/resource/file", "host/resource/file/**"),
	kindOfResource("host/resource/pkg", "host/resource/pkg/**"),
	kindOfResource("host/resource"),
	{Room: "host/reconcile/**", May: []string{".", "host/resource", "host/reconcile/**", "internal/**"}, TestsMay: []string{"host/**"},
		Why: "the reconciler is logic over Store and Provider and knows no implementation of either"},
	adapterOf("host/apt", "host/resource", "host/resource/pkg/**"),
	adapterOf("host/dnf", "host/resource", "host/resource/pkg/**"),
	adapterOf("host/store", "host", "host/resource", "host/reconcile"),
	adapterOf("host/link", "host"),
	adapterOf("host/profile", "host"),
	adapterOf("host/local", "host"),
	adapterOf("host/bundle", "host"),
	adapterOf("host/transient", "host", "host/resource", "host/resource/pkg", "host/reconcile", "systemd"),
	adapterOf("host/upgrade", "host", "host/resource", "host/resource/pkg/**", "host/reconcile", "systemd", "rollback"),

	{Room: "control", May: []string{".", "control/assign", "internal/**"}, TestsMay: []string{"control/**", "repo/**"},
		Why: "the control plane's policy knows interfaces, cmd knows the adapters"},
	{Room: "control/assign/**", May: []string{".", "control/assign/**", "internal/**"}, TestsMay: []string{"control/**"},
		Why: "what each node gets is a function of declarations and profiles alone"},
	adapterOf("control/store", "control", "control/assign"),
	adapterOf("control/link", "control"),
	adapterOf("control/api", "control", "control/assign"),
	adapterOf("control/grant", "control"),

	{Room: "repo/**", May: []string{"repo/**", "internal/**"},
		Why: "the repository is usable without a mesh and imports nothing of ours but the leaves"},
	{Room: "systemd/**", May: []string{".", "systemd/**", "internal/**"},
		Why: "an adapter imports its parent's interfaces and mesh, never another adapter"},
	{Room: "rollback/**", May: []string{"rollback/**"},
		Why: "what puts the host back stands on nothing of the host"},
	{Room: "packaging/**", May: []string{".", "packaging/**", "systemd/**", "rollback/**", "internal/**"}, TestsMay: []string{"repo/**"},
		Why: "packages are made of units, scripts and binaries, not of the programs' code"},

	{Room: "adr", Why: "the checker of the records reads files and knows no code"},
	{Room: "internal/tool/**", May: []string{"adr", "internal/**"},
		Why: "what the build runs depends on no part of the product"},
	{Room: "internal/**", May: []string{".", "internal/**"},
		Why: "a leaf that both sides need depends on neither"},

	{Room: "cmd/**", May: []string{"**"}},
	{Room: "test/**", May: []string{"**"}},
}

// Closed lists the rooms that nothing imports from outside. A program is run,
// and a test or a tool of the build is never part of the product.
var Closed = []string{"cmd", "test", "internal/tool"}

// Planned lists rooms that the rules name and nobody has built yet. A room
// that exists must leave this list, so that its rules are known to bind.
var Planned = []string{}

// Pure lists the rooms that do no input or output of their own.
var Pure = []string{".", "host/reconcile/**", "host/resource/pkg", "control/assign/**"}

// effects are the packages of the standard library through which a program
// touches the world. A pattern ends in /** as in a Rule.
var effects = []string{
	"os/**", "net", "net/http/**", "net/smtp", "net/rpc/**", "net/textproto", "io/fs", "io/ioutil",
	"path/filepath", "database/sql/**", "syscall/**", "plugin", "log", "log/syslog", "testing/**",
}

// match reports whether pattern covers room.
func match(pattern, room string) bool {
	if pattern == "**" {
		return true
	}
	if base, deep := strings.CutSuffix(pattern, "/**"); deep {
		return room == base || strings.HasPrefix(room, base+"/")
	}
	return room == pattern
}

func matchAny(patterns []string, room string) bool {
	for _, pattern := range patterns {
		if match(pattern, room) {
			return true
		}
	}
	return false
}
