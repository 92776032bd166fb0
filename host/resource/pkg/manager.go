// Package pkg is the provider for resources of kind package. It is policy
// only, over a small Manager interface that it declares: what must change, in
// how few transactions, what a transaction may drag along, and what removing
// means.
//
// It knows no tool and no format: package apt and package dnf do. It holds no
// opinion about repositories, keys and pins beyond refusing what they refuse.
//
// The policies, in one place:
//   - A package without a version is right in any version. A version is exact,
//     as the package database writes it; "0:1-1" and "1-1" are the same.
//   - Everything that is missing goes into one transaction, which is simulated
//     first. One that would remove what is not declared absent, or lower what is
//     not declared lower, is refused.
//   - What cannot be done is found and left out, and the rest is done.
//   - A package that is held by the admin is left as it is.
//   - A package that was there before stays, in the version that it has by then;
//     its mark as automatically installed is put back.
//   - A package that was declared absent and was there comes back, in its old
//     version where that can be had, otherwise in the one that can.
//   - A package that the mesh installed goes, its configuration files stay as
//     the tool leaves them, what it had pulled in stays, and it stays itself when
//     anything else needs it.
package pkg

import (
	"context"
	"strings"
)

// Manager is a package manager with its database. Errors that it can name are
// *resource.Error; Deferred means that nothing was done. It is called from one
// goroutine.
type Manager interface {
	// Tool is the name of the tool, for people: "apt", "dnf".
	Tool() string
	// Architecture is the one that a package has when none is named.
	Architecture() string
	// Compare orders two versions: negative, zero or positive.
	Compare(a, b string) int
	// Installed reads the whole database, now. The error is Unknown with reason
	// database-unreadable; an empty database is such an error.
	Installed(ctx context.Context) ([]Installed, error)
	// Repair finishes a transaction that was interrupted. It starts no tool when
	// there is none. It waits for locks as Commit does.
	Repair(ctx context.Context) error
	// Refresh fetches what the repositories offer. Nil only when every one of
	// them answered and was verified; the error names those that did not.
	Refresh(ctx context.Context) error
	// Simulate says what Commit would do. It changes nothing. The error says why
	// the transaction as a whole cannot be done.
	Simulate(ctx context.Context, t Transaction) (Plan, error)
	// Commit does it, waiting a bounded time for locks. Nil means that the tool
	// said success, and no more than that. ErrAdopted: the tool was found at work
	// from before; what it did is for the caller to look at.
	Commit(ctx context.Context, t Transaction) error
}

// Marker is a Manager that keeps, for each package, whether somebody asked for
// it or another package needed it.
type Marker interface {
	// Mark sets the mark of packages.
	Mark(ctx context.Context, names []string, mark Mark) error
}

// Finisher is a Manager whose interrupted transactions can leave a package in
// two versions.
type Finisher interface {
	// Finish takes the other versions of the target away, as the transaction
	// would have done. The error is as that of Commit.
	Finish(ctx context.Context, t Target, others []string) error
}

// Noter is a Manager that has more to say of what it did than success and
// failure.
type Noter interface {
	// Notes returns what is worth telling since it was last asked.
	Notes() []Note
}

// Note is a sentence about what a transaction did.
type Note struct {
	// Package it is about. Empty: the transaction as a whole.
	Package string
	Text    string
}

// Explainer is a Manager that can say more about a package that is not to be
// had.
type Explainer interface {
	// Explain says why nothing of that name and version is to be had. It changes
	// nothing. Nil: no more than that is known.
	Explain(ctx context.Context, t Target) error
}

// Partial is a Manager that knows what a refresh that failed in part leaves
// certain.
type Partial interface {
	// Certain reports whether every repository that the last Refresh could not
	// ask had been fetched before, and offers no package of that name by the
	// index of then.
	Certain(ctx context.Context, name string) bool
}

// Services looks at the units of the machine, around a transaction.
type Services interface {
	// Watch reads them now. It changes nothing.
	Watch(ctx context.Context) (Watch, error)
}

// Watch is what the services of the machine are like at one moment.
type Watch struct {
	// Active lists the services that run.
	Active []string
	// Outdated lists those with processes that run from deleted files.
	Outdated []string
}

// Mark is why a package is installed.
type Mark string

// The marks.
const (
	MarkManual Mark = "manual"
	MarkAuto   Mark = "auto"
)

// Installed is one entry of the package database that is not merely a memory
// of a removed package.
type Installed struct {
	Name    string
	Arch    string
	Version string
	// State is what the database says when the package is not whole, such as
	// "half-configured". Empty: it is whole.
	State string
	// Broken: it is so little there that only another installation mends it.
	Broken bool
	// Held: the admin does not want it changed.
	Held bool
	// Protected: the system cannot do without it.
	Protected bool
	// Mark is empty when the manager keeps none.
	Mark Mark
	// Many: several versions of this package may stand side by side.
	Many bool
}

// Target is a package to be installed.
type Target struct {
	// Name may carry an architecture: "libc6:i386".
	Name string
	// Version is exact. Empty: the one that the tool chooses.
	Version string
	// Path is a package file to install from. Empty: from the repositories.
	Path string
}

// Transaction is one call of the tool.
type Transaction struct {
	Install []Target
	// Remove lists names.
	Remove []string
	// Again: a target is installed and broken, and is installed anew.
	Again bool
	// Lower: a target's version is below the installed one, and is meant.
	Lower bool
}

// Plan is what a transaction would do.
type Plan struct {
	// Install lists what would be installed or change its version.
	Install []Step
	Remove  []Step
}

// Step is one package of a plan.
type Step struct {
	Name string
	Arch string
	// Version after an installation, or of what is removed. Empty: not known.
	Version string
}

// Local finds package files that were brought along, as in a bundle.
type Local interface {
	// Path returns the file of a package; version empty: any.
	Path(name, version string) (string, bool)
}

// splitName takes the architecture off a name; empty: the machine's own.
func splitName(name string) (base, arch string) {
	base, arch, _ = strings.Cut(name, ":")
	return base, arch
}

// whole returns a name with its architecture, the machine's own when there is
// none or it is for all.
func whole(name, native string) string {
	base, arch := splitName(name)
	switch arch {
	case "", "all", "noarch":
		arch = native
	}
	return base + ":" + arch
}

// matches reports whether an entry is what a declared name means.
func matches(name, entryName, entryArch, native string) bool {
	base, arch := splitName(name)
	if base != entryName {
		return false
	}
	if arch == "" {
		arch = native
	}
	switch entryArch {
	case "", "all", "noarch", "(none)":
		return arch == native || arch == entryArch
	}
	return arch == entryArch
}

// sameArch reports whether a package of one architecture takes the place of one
// of the other: an update may come to be for all, or no longer.
func sameArch(a, b string) bool {
	forAll := func(arch string) bool { return arch == "all" || arch == "noarch" }
	return a == b || forAll(a) || forAll(b)
}

func withoutEpoch(version string) string {
	if _, rest, found := strings.Cut(version, ":"); found {
		return rest
	}
	return version
}

// sameVersion compares exact versions. A missing epoch is zero.
func sameVersion(a, b string) bool {
	return strings.TrimPrefix(a, "0:") == strings.TrimPrefix(b, "0:")
}
