package main

// requirement is one thing that the system must do.
type requirement struct {
	number int
	title  string
}

// list holds every requirement, in order. Tests refer to them by number.
var list = []requirement{
	{1, "A declaration is pushed over the open link and applied on arrival; nothing polls for it"},
	{2, "The timer looks for drift, change that the mesh did not make, and does nothing else"},
	{3, "A heartbeat reports upward, so that silence means something"},
	{4, "No success without reading the resource back another way; \"cannot tell\" is its own answer"},
	{5, "Power may be lost at any instruction: each resource is recorded after it worked, the rest is applied later"},
	{6, "What is no longer declared is removed, and only what the mesh made; what was there before is put back or stays"},
	{7, "The latest declaration wins at the next resource boundary; an older generation is refused aloud"},
	{8, "Deploying is one write, which says what is written and which nodes have applied it, and waits for none"},
	{9, "Outstanding and failed are counted, listed and exported apart"},
	{10, "Last contact is a fact without a threshold"},
	{11, "The mesh serves its own signed apt and rpm repository, used by plain apt and dnf"},
	{12, "The host is delivered by a file and a package resource like anything else"},
	{13, "The host may apply the package that is itself: the package manager runs outside its control group, and no script restarts it"},
	{14, "Before it leaves for the restart, the host runs the new binary once"},
	{15, "It finishes its apply, exits cleanly, and the service manager starts the new binary"},
	{16, "A fleet-wide upgrade of the host is an ordinary declaration"},
	{17, "A host that cannot start is judged on the machine, by the service manager and an earned watchdog"},
	{18, "The rollback is a shell script that works offline with none of our binaries"},
	{19, "It rolls back once; a second failure is the machine's"},
	{20, "A version is confirmed when it has started and completed one reconcile, link or no link"},
	{21, "After a rollback the host says what happened, and does not try that version again unasked"},
	{22, "A machine is unmanaged, hosted, enrolled or disconnected; the last two are one node"},
	{23, "Adoption is two commands: install the host, enrol it"},
	{24, "A token is shown once, used once, expires, is stored as a hash, and pins the control plane's key"},
	{25, "Profile and inventory arrive before the control plane decides anything"},
	{26, "A briefing's outcome is computed from its lines; adoption completes, a failed line makes the node ineligible"},
	{27, "The first node reconciles from a bundle, raises the control plane, and enrols like any other"},
	{28, "Re-enrolment is decided when the token is issued, and revokes the old identity in one transaction"},
	{29, "The control plane keeps a copy of what each node owns, so that a lost store loses no removal"},
	{30, "Retiring gracefully is a final empty declaration, verified, after which everything is gone or put back"},
	{31, "A lost node keeps nothing that outlives revocation; the mesh never claims to have switched it off"},
	{32, "A disconnected node keeps reconciling its last declaration"},
	{33, "Decisions are records with a status, and nothing in force rests on one that is not"},
	{34, "Go, the given libraries and the given top level; the root package holds the shared nouns and no I/O"},
}
