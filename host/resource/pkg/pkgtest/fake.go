// Package pkgtest is the contract of pkg.Manager as tests, a Manager in memory
// that passes it, and the ways in which a Manager can lie.
//
// It is for tests. It starts no tool but those that a test names.
package pkgtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// Lie is a way in which Commit does other than it says.
type Lie string

// The lies.
const (
	// LieNone: it tells the truth.
	LieNone Lie = ""
	// LieNothing: it says success and did nothing.
	LieNothing Lie = "says success and did nothing"
	// LieFailed: it says failure and did everything.
	LieFailed Lie = "says failure and did everything"
	// LieMore: it says success, did everything, and removed a bystander.
	LieMore Lie = "removed a bystander as well"
	// LieLost: how it ended is not known, and it did everything.
	LieLost Lie = "its end is not known and it did everything"
	// LieLostNothing: how it ended is not known, and it did nothing.
	LieLostNothing Lie = "its end is not known and it did nothing"
)

// Offer is one version of a package in the repository.
type Offer struct {
	Version string
	// Depends and Conflicts list names.
	Depends, Conflicts []string
	// Breaks: its installation fails after it was unpacked.
	Breaks bool
}

// Fake is a pkg.Manager in memory. The zero Fake has an empty repository and an
// empty database; add a package before use.
type Fake struct {
	Entries []pkg.Installed
	// Repository is what it really offers; Known what was fetched of it.
	Repository map[string][]Offer
	Known      map[string][]Offer
	// Unreachable: Refresh fails.
	Unreachable bool
	// Locked: somebody else holds the lock.
	Locked bool
	// Unreadable: the database cannot be read.
	Unreadable bool
	// Unrepairable names the packages that Repair does not mend.
	Unrepairable []string
	// Adoptions is how many commits find an earlier command at work.
	Adoptions int
	Lie       Lie
	// Calls lists what changed something, or could have, in order.
	Calls []string
}

var (
	_ pkg.Manager = (*Fake)(nil)
	_ pkg.Marker  = (*Fake)(nil)
)

// NewFake makes a fake with one package installed and a repository that is
// fetched.
func NewFake(repository map[string][]Offer) *Fake {
	f := &Fake{Repository: repository}
	f.Put("base", "1")
	f.Known = repository
	return f
}

// Put installs a package as an admin would.
func (f *Fake) Put(name, version string) *pkg.Installed {
	f.drop(name)
	f.Entries = append(f.Entries, pkg.Installed{Name: name, Version: version, Arch: f.Architecture(), Mark: pkg.MarkManual})
	return &f.Entries[len(f.Entries)-1]
}

func (f *Fake) drop(name string) {
	f.Entries = slices.DeleteFunc(f.Entries, func(e pkg.Installed) bool { return e.Name == name })
}

// Entry returns the entry of a package, nil when it is not installed.
func (f *Fake) Entry(name string) *pkg.Installed {
	i := slices.IndexFunc(f.Entries, func(e pkg.Installed) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Entries[i]
}

// Tool returns "fake".
func (f *Fake) Tool() string { return "fake" }

// Architecture returns "here".
func (f *Fake) Architecture() string { return "here" }

// Compare orders versions as numbers with dots and dashes.
func (f *Fake) Compare(a, b string) int {
	split := func(r rune) bool { return r == '.' || r == '-' }
	as, bs := strings.FieldsFunc(a, split), strings.FieldsFunc(b, split)
	return slices.CompareFunc(as, bs, func(x, y string) int {
		nx, errX := strconv.Atoi(x)
		ny, errY := strconv.Atoi(y)
		if errX != nil || errY != nil {
			return strings.Compare(x, y)
		}
		return cmp.Compare(nx, ny)
	})
}

// Installed returns the entries.
func (f *Fake) Installed(context.Context) ([]pkg.Installed, error) {
	if f.Unreadable {
		return nil, resource.Unknown(mesh.ReasonDatabase, nil, "the database is unreadable")
	}
	return slices.Clone(f.Entries), nil
}

// Repair mends what is interrupted.
func (f *Fake) Repair(context.Context) error {
	broken := false
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.State == "" {
			continue
		}
		broken = true
		if o, ok := f.offer(e.Name, e.Version); !slices.Contains(f.Unrepairable, e.Name) && !(ok && o.Breaks) {
			e.State = ""
		}
	}
	if !broken {
		return nil
	}
	f.Calls = append(f.Calls, "repair")
	for _, e := range f.Entries {
		if e.State != "" {
			return resource.Failed(mesh.ReasonInterrupted, nil, "%s is still %s", e.Name, e.State)
		}
	}
	return nil
}

// Refresh fetches the repository.
func (f *Fake) Refresh(context.Context) error {
	f.Calls = append(f.Calls, "refresh")
	if f.Unreachable {
		return resource.Failed(mesh.ReasonRepository, nil, "the repository does not answer")
	}
	f.Known = f.Repository
	return nil
}

// Mark sets marks.
func (f *Fake) Mark(_ context.Context, names []string, mark pkg.Mark) error {
	f.Calls = append(f.Calls, "mark "+string(mark)+" "+strings.Join(names, " "))
	for _, name := range names {
		if e := f.Entry(name); e != nil {
			e.Mark = mark
		}
	}
	return nil
}

// Simulate resolves a transaction.
func (f *Fake) Simulate(_ context.Context, t pkg.Transaction) (pkg.Plan, error) {
	trial := &Fake{Entries: slices.Clone(f.Entries), Known: f.Known}
	return trial.do(t)
}

// Commit does it, or lies.
func (f *Fake) Commit(_ context.Context, t pkg.Transaction) error {
	if f.Locked {
		return resource.Deferred(mesh.ReasonLocked, nil, "somebody else holds the lock")
	}
	f.Calls = append(f.Calls, describe(t))
	if f.Adoptions > 0 {
		f.Adoptions--
		return pkg.ErrAdopted
	}
	lost := resource.Unknown(mesh.ReasonToolUnknown, nil, "how the tool ended is not known")
	switch f.Lie {
	case LieNothing:
		return nil
	case LieLostNothing:
		return lost
	}
	if _, err := f.Simulate(context.Background(), t); err != nil {
		return err
	}
	_, err := f.do(t)
	for i := range f.Entries {
		e := &f.Entries[i]
		if o, ok := f.offer(e.Name, e.Version); ok && o.Breaks {
			e.State = "half-configured"
			err = resource.Failed(mesh.ReasonTool, nil, "the installation of %s failed", e.Name)
		}
	}
	switch f.Lie {
	case LieFailed:
		return resource.Failed(mesh.ReasonTool, nil, "the tool ended with 1")
	case LieMore:
		f.drop("bystander")
	case LieLost:
		return lost
	}
	return err
}

func describe(t pkg.Transaction) string {
	words := []string{"commit"}
	for _, x := range t.Install {
		word := "+" + x.Name
		if x.Version != "" {
			word += "=" + x.Version
		}
		if x.Path != "" {
			word += "@" + x.Path
		}
		words = append(words, word)
	}
	for _, name := range t.Remove {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

func (f *Fake) offer(name, version string) (Offer, bool) {
	var best Offer
	found := false
	for _, o := range f.Known[name] {
		if version != "" && o.Version != version {
			continue
		}
		if !found || f.Compare(o.Version, best.Version) > 0 {
			best, found = o, true
		}
	}
	return best, found
}

// do resolves and carries out a transaction, and says what it did.
func (f *Fake) do(t pkg.Transaction) (pkg.Plan, error) {
	var plan pkg.Plan
	for _, name := range t.Remove {
		f.take(name, &plan)
	}
	for _, x := range t.Install {
		e := f.Entry(x.Name)
		if e != nil && (x.Version == "" || e.Version == x.Version) {
			e.State = ""
			continue
		}
		o, ok := f.offer(x.Name, x.Version)
		if x.Path != "" {
			o, ok = Offer{Version: x.Version}, true
		}
		if !ok {
			return pkg.Plan{}, resource.Failed(mesh.ReasonNotAvailable, nil, "%s is not in any repository of this node", strings.TrimSuffix(x.Name+" "+x.Version, " "))
		}
		if e != nil && e.Held {
			return pkg.Plan{}, resource.Failed(mesh.ReasonHeld, nil, "%s is held", x.Name)
		}
		if e != nil && f.Compare(o.Version, e.Version) < 0 && !t.Lower {
			return pkg.Plan{}, resource.Failed(mesh.ReasonTool, nil, "%s would be lowered", x.Name)
		}
		if err := f.add(x.Name, o, &plan); err != nil {
			return pkg.Plan{}, err
		}
	}
	return plan, nil
}

func (f *Fake) add(name string, o Offer, plan *pkg.Plan) error {
	for _, other := range o.Conflicts {
		f.take(other, plan)
	}
	mark := pkg.MarkManual
	f.Put(name, o.Version).Mark = mark
	plan.Install = append(plan.Install, pkg.Step{Name: name, Arch: f.Architecture(), Version: o.Version})
	for _, need := range o.Depends {
		if f.Entry(need) != nil {
			continue
		}
		dep, ok := f.offer(need, "")
		if !ok {
			return resource.Failed(mesh.ReasonUnmet, nil, "%s needs %s, which nobody offers", name, need)
		}
		if err := f.add(need, dep, plan); err != nil {
			return err
		}
		f.Entry(need).Mark = pkg.MarkAuto
	}
	return nil
}

// take removes a package and everything that needs it.
func (f *Fake) take(name string, plan *pkg.Plan) {
	e := f.Entry(name)
	if e == nil {
		return
	}
	plan.Remove = append(plan.Remove, pkg.Step{Name: name, Arch: e.Arch, Version: e.Version})
	f.drop(name)
	for _, other := range slices.Clone(f.Entries) {
		o, ok := f.offer(other.Name, other.Version)
		if ok && slices.Contains(o.Depends, name) {
			f.take(other.Name, plan)
		}
	}
}

// String describes the database, for comparison.
func (f *Fake) String() string {
	var lines []string
	for _, e := range f.Entries {
		lines = append(lines, fmt.Sprintf("%s %s %s %s held=%t", e.Name, e.Version, e.State, e.Mark, e.Held))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
