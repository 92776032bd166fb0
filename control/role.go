package control

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	mesh "github.com/meshctl/mesh"
)

// Role says what an operator may ask for. Each includes the ones before it.
type Role string

// The roles.
const (
	// RoleReader may look at everything that is not secret.
	RoleReader Role = "reader"
	// RolePublisher may also write declarations and publish packages.
	RolePublisher Role = "publisher"
	// RoleAdmin may do everything.
	RoleAdmin Role = "admin"
)

// Roles lists the roles, the least first.
func Roles() []Role { return []Role{RoleReader, RolePublisher, RoleAdmin} }

// Includes reports whether whoever has r may do what needs other. A word that
// is no role includes nothing and is included in nothing.
func (r Role) Includes(other Role) bool {
	mine, needed := slices.Index(Roles(), r), slices.Index(Roles(), other)
	return needed >= 0 && mine >= needed
}

// Limits bound what a publisher writes. Without any limit it may write every
// declaration and publish every package; with one of either kind it may write
// only what is named, so that a limit to packages is not the right to declare.
type Limits struct {
	// Declarations are exact names.
	Declarations []string `json:"declarations,omitempty"`
	// Packages are patterns of package names, in which * stands for any text
	// and ? for one character.
	Packages []string `json:"packages,omitempty"`
}

// None reports whether there is no limit.
func (l Limits) None() bool { return len(l.Declarations)+len(l.Packages) == 0 }

// May returns nil when the caller may ask for what needs the role, and a
// *mesh.Error with mesh.CodeDenied otherwise.
func (c Caller) May(needed Role) error {
	if c.Role.Includes(needed) {
		return nil
	}
	role := string(c.Role)
	if role == "" {
		role = "no role"
	}
	return mesh.Errorf(mesh.CodeDenied, "%s has the role %s, and this needs %s; nothing was done. `meshctl operator list` shows who has it", c.Name, role, needed)
}

// MayDeclare returns nil when the caller may write the declaration of that name.
func (c Caller) MayDeclare(name string) error {
	if err := c.May(RolePublisher); err != nil {
		return err
	}
	if c.Limits.None() || slices.Contains(c.Limits.Declarations, name) {
		return nil
	}
	return mesh.Errorf(mesh.CodeDenied, "%s may not write the declaration %s, only %s; nothing was written", c.Name, bounded(name, 80), named(c.Limits.Declarations))
}

// MayUpload returns nil when the caller may upload content for declarations.
func (c Caller) MayUpload() error {
	if err := c.May(RolePublisher); err != nil {
		return err
	}
	if c.Limits.None() || len(c.Limits.Declarations) > 0 {
		return nil
	}
	return mesh.Errorf(mesh.CodeDenied, "%s may write no declaration, and uploads no content for one; nothing was stored", c.Name)
}

// MayPublish returns nil when the caller may change the packages of that name.
func (c Caller) MayPublish(name string) error {
	if err := c.May(RolePublisher); err != nil {
		return err
	}
	if c.Limits.None() {
		return nil
	}
	for _, pattern := range c.Limits.Packages {
		if matched, err := path.Match(pattern, name); err == nil && matched {
			return nil
		}
	}
	return mesh.Errorf(mesh.CodeDenied, "%s may not publish the package %s, only %s; nothing was published", c.Name, bounded(name, 80), named(c.Limits.Packages))
}

func named(list []string) string {
	if len(list) == 0 {
		return "nothing of this kind"
	}
	return strings.Join(list, ", ")
}

// entry is the audit entry of a write that the caller asked for.
func (c Caller) entry(at time.Time, what, detail string) AuditEntry {
	return AuditEntry{At: at, Who: c.Name, Door: c.Door, Key: c.Key, What: what, Detail: detail}
}

// limitsLimit bounds the limits of each kind.
const limitsLimit = 64

var packagePattern = regexp.MustCompile(`^[A-Za-z0-9*?+._-]{1,128}$`)

// check finds what is wrong with limits for a role.
func (l Limits) check(role Role) mesh.Problems {
	var ps mesh.Problems
	if !l.None() && role != RolePublisher {
		ps.Add("role", fmt.Sprintf("only a publisher is limited to declarations and packages, not a %s", bounded(string(role), 40)))
	}
	if len(l.Declarations) > limitsLimit || len(l.Packages) > limitsLimit {
		ps.Add("limits", fmt.Sprintf("an operator has at most %d limits of a kind", limitsLimit))
		return ps
	}
	for i, name := range l.Declarations {
		if !mesh.ValidDeclarationName(name) {
			ps.Add(fmt.Sprintf("declarations[%d]", i), fmt.Sprintf("%q cannot be the name of a declaration", bounded(name, 80)))
		}
	}
	for i, pattern := range l.Packages {
		if !packagePattern.MatchString(pattern) {
			ps.Add(fmt.Sprintf("packages[%d]", i), fmt.Sprintf("%q is no pattern of package names: letters, digits, any of +-._ and * for any text, ? for one character", bounded(pattern, 80)))
		}
	}
	return ps
}
