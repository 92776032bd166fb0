package mesh

// Reason says, from one enumerated list, why a result is not good. A detail in
// words stands beside it.
type Reason string

// The reasons.
const (
	// ReasonDependency: a resource that this one requires is not as wanted.
	ReasonDependency Reason = "requires-not-met"
	// ReasonCycle: the resource requires itself through others.
	ReasonCycle Reason = "requires-cycle"
	// ReasonReadBack: the tool or call said success, and the thing is not so.
	ReasonReadBack Reason = "read-back-differs"
	// ReasonTool: the tool ended with an error.
	ReasonTool Reason = "tool-failed"
	// ReasonScript: a script of a package failed.
	ReasonScript Reason = "script-failed"
	// ReasonToolUnknown: how the tool ended could not be learned.
	ReasonToolUnknown Reason = "tool-result-unknown"
	// ReasonNotAvailable: no repository of this node offers the package or version.
	ReasonNotAvailable Reason = "not-available"
	// ReasonUnmet: it depends on what no repository of this node offers, or on
	// versions that exclude each other.
	ReasonUnmet Reason = "unmet-dependency"
	// ReasonObsoleted: another package has taken the place of this one.
	ReasonObsoleted Reason = "obsoleted"
	// ReasonModule: it is in a module stream that is not enabled.
	ReasonModule Reason = "module-not-enabled"
	// ReasonArchitecture: this machine takes no packages of that architecture.
	ReasonArchitecture Reason = "unknown-architecture"
	// ReasonTwice: the same package, or the same place, is declared under two names.
	ReasonTwice Reason = "declared-twice"
	// ReasonRepository: a repository could not be reached or verified.
	ReasonRepository Reason = "repository-unreachable"
	// ReasonNotCurrent: an index is not valid yet, or no longer, by this
	// machine's clock.
	ReasonNotCurrent Reason = "repository-not-current"
	// ReasonRepositoryChanged: a repository says that it is another one than
	// before.
	ReasonRepositoryChanged Reason = "repository-changed"
	// ReasonSignature: a signature or checksum is wrong.
	ReasonSignature Reason = "signature-invalid"
	// ReasonLocked: somebody else holds the package manager's lock.
	ReasonLocked Reason = "locked"
	// ReasonInterrupted: an earlier transaction was interrupted and could not
	// be repaired.
	ReasonInterrupted Reason = "interrupted-transaction"
	// ReasonHeld: the package is held, pinned or version-locked by the admin.
	ReasonHeld Reason = "held"
	// ReasonWouldRemove: the transaction would remove what was not asked for.
	ReasonWouldRemove Reason = "would-remove-others"
	// ReasonHarm: the transaction removed or lowered what nobody asked it to, and
	// its plan did not say so.
	ReasonHarm Reason = "harmed-others"
	// ReasonFileConflict: another package owns one of its files.
	ReasonFileConflict Reason = "file-conflict"
	// ReasonProtected: the system, or this host, cannot do without it.
	ReasonProtected Reason = "protected"
	// ReasonNeeded: other packages need it.
	ReasonNeeded Reason = "needed-by-others"
	// ReasonDatabase: the package database could not be read.
	ReasonDatabase Reason = "database-unreadable"
	// ReasonInconsistent: the package database contradicts itself.
	ReasonInconsistent Reason = "database-inconsistent"
	// ReasonNoManager: this machine has no package manager that we know.
	ReasonNoManager Reason = "no-package-manager"
	// ReasonSymlink: the path itself is a symbolic link.
	ReasonSymlink Reason = "target-is-symlink"
	// ReasonSymlinkInPath: a directory on the way is a link that an
	// unprivileged user could have placed, or that leads in a circle.
	ReasonSymlinkInPath Reason = "symlink-in-path"
	// ReasonWrongType: something of another type, which is not the mesh's own,
	// stands at the path.
	ReasonWrongType Reason = "wrong-type"
	// ReasonMountPoint: a file system or file is mounted at the path itself.
	ReasonMountPoint Reason = "target-is-mountpoint"
	// ReasonParent: the directory that should hold the file is not there.
	ReasonParent Reason = "parent-missing"
	// ReasonNotEmpty: the directory holds what the mesh did not make, or what is
	// still declared.
	ReasonNotEmpty Reason = "directory-not-empty"
	// ReasonAccount: the user or group does not exist on this machine.
	ReasonAccount Reason = "unknown-account"
	// ReasonNoSpace: the file system or quota is full.
	ReasonNoSpace Reason = "no-space"
	// ReasonReadOnly: the file system is read-only.
	ReasonReadOnly Reason = "read-only"
	// ReasonImmutable: the file is marked immutable or append-only.
	ReasonImmutable Reason = "immutable"
	// ReasonPermission: the kernel refused.
	ReasonPermission Reason = "permission-denied"
	// ReasonIO: reading or writing went wrong in another way.
	ReasonIO Reason = "io-error"
	// ReasonContent: the content has not arrived whole.
	ReasonContent Reason = "content-missing"
	// ReasonTooLarge: what was there is too large to keep for putting it back.
	ReasonTooLarge Reason = "original-too-large"
	// ReasonModified: somebody changed it since the mesh wrote it.
	ReasonModified Reason = "modified-since"
	// ReasonSomebodyElse: something that the mesh did not make stands there.
	ReasonSomebodyElse Reason = "not-ours"
	// ReasonUnit: a unit did not come back after a reload or restart, or cannot
	// be reloaded or started.
	ReasonUnit Reason = "unit-failed"
	// ReasonUndo: what was there before could not be put back.
	ReasonUndo Reason = "undo-missing"
	// ReasonTimeout: it took longer than its limit.
	ReasonTimeout Reason = "timed-out"
	// ReasonNoWayBack: the host could not be rolled back, so it is not upgraded.
	ReasonNoWayBack Reason = "no-way-back"
	// ReasonPutBack: the new version of the host cannot run here, and the one
	// that runs was put back.
	ReasonPutBack Reason = "put-back"
	// ReasonNotJudged: the new version of the host is installed, and whether it
	// can run here could not be looked at yet.
	ReasonNotJudged Reason = "not-judged"
	// ReasonRefused: this version of the host was undone here, and no write has
	// named it since.
	ReasonRefused Reason = "version-refused"
	// ReasonInternal: a fault of ours; the host's journal has more.
	ReasonInternal Reason = "internal"
)
