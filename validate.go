package mesh

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	declarationName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	nodeName        = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	packageName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._-]{0,127}(:[a-z][a-z0-9_-]{0,31})?$`)
	packageVersion  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+~^:_-]{0,127}$`)
	account         = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,254}\$?$`)
	fileMode        = regexp.MustCompile(`^[0-7]{3,4}$`)
	hexDigest       = regexp.MustCompile(`^[0-9a-f]{64}$`)
	unitName        = regexp.MustCompile(`^[A-Za-z0-9:_.@\\-]{1,240}\.(service|socket|timer|path|target|mount|automount|swap|slice)$`)
)

// ValidNodeName reports whether name can name a node: lower-case letters,
// digits, dots and dashes, at most 63, beginning and ending with a letter or
// digit.
func ValidNodeName(name string) bool { return nodeName.MatchString(name) }

// ValidDeclarationName reports whether name can name a declaration: lower-case
// letters, digits and dashes, at most 63, beginning with a letter or digit.
func ValidDeclarationName(name string) bool { return declarationName.MatchString(name) }

// ValidDigest reports whether sum is a SHA-256 in lower-case hexadecimal.
func ValidDigest(sum string) bool { return hexDigest.MatchString(sum) }

func validateResources(resources []Resource) Problems {
	var ps Problems
	seen := make(map[ResourceID]int, len(resources))
	for i, r := range resources {
		at := fmt.Sprintf("resources[%d]", i)
		validateResource(&ps, at, r)
		if first, dup := seen[r.ID()]; dup {
			ps.Add(at, fmt.Sprintf("%s is declared already, as resources[%d]", r.ID(), first))
			continue
		}
		seen[r.ID()] = i
	}
	return ps
}

func validateResource(ps *Problems, at string, r Resource) {
	switch r.Kind {
	case KindFile:
		if r.File == nil || r.Package != nil {
			ps.Add(at, "a file resource has a file specification and no other")
			return
		}
		validatePath(ps, at+".file", r.Name)
		validateFile(ps, at, *r.File)
	case KindPackage:
		if r.Package == nil || r.File != nil {
			ps.Add(at, "a package resource has a package specification and no other")
			return
		}
		validatePackage(ps, at, r.Name, *r.Package)
	default:
		ps.Add(at, fmt.Sprintf("%q is no kind of resource; there are file and package", r.Kind))
	}
	for i, id := range r.Requires {
		where := fmt.Sprintf("%s.requires[%d]", at, i)
		if k := id.Kind(); (k != KindFile && k != KindPackage) || id.Name() == "" {
			ps.Add(where, fmt.Sprintf("%q names no resource; write file:/path or package:name", id))
		} else if id == r.ID() {
			ps.Add(where, fmt.Sprintf("%s requires itself", id))
		}
	}
	if r.OnChange != nil {
		validateUnits(ps, at+".on_change.reload", r.OnChange.Reload)
		validateUnits(ps, at+".on_change.restart", r.OnChange.Restart)
	}
}

func validateUnits(ps *Problems, at string, units []string) {
	for i, u := range units {
		where := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case !unitName.MatchString(u):
			ps.Add(where, fmt.Sprintf("%q is not the full name of a unit, as in nginx.service", u))
		case strings.Contains(u, "@."):
			ps.Add(where, fmt.Sprintf("%q is the template of units; name one that is made of it, as in getty@tty1.service", u))
		case u == hostUnit:
			ps.Add(where, fmt.Sprintf("%s is the host itself, which does not restart in the middle of its work; it restarts when its package is upgraded", u))
		}
	}
}

// hostUnit is the unit of the host.
const hostUnit = "mesh-host.service"

func validatePath(ps *Problems, at, p string) {
	switch {
	case !strings.HasPrefix(p, "/"):
		ps.Add(at, fmt.Sprintf("%q is not an absolute path", p))
	case p == "/":
		ps.Add(at, "the root directory itself cannot be a resource")
	case path.Clean(p) != p:
		ps.Add(at, fmt.Sprintf("%q is not a clean path; write %q", p, path.Clean(p)))
	case strings.ContainsRune(p, 0) || strings.ContainsRune(p, '\n'):
		ps.Add(at, "a path holds neither a NUL nor a line break")
	case !utf8.ValidString(p):
		ps.Add(at, "a path must be valid UTF-8")
	case len(p) > 4095:
		ps.Add(at, "a path has at most 4095 bytes")
	case slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return len(s) > 255 }):
		ps.Add(at, "one part of the path has more than 255 bytes")
	case underKernelTree(p):
		ps.Add(at, fmt.Sprintf("%q lies in a file system that the kernel makes up (/proc, /sys, /dev); it cannot be a resource", p))
	}
}

func underKernelTree(p string) bool {
	for _, tree := range []string{"/proc", "/sys", "/dev"} {
		if p == tree || strings.HasPrefix(p, tree+"/") {
			return true
		}
	}
	return false
}

func validateFile(ps *Problems, at string, f FileSpec) {
	if f.Absent {
		if f.Type != "" || f.Content != nil || f.SHA256 != "" || f.Target != "" || f.Owner != "" || f.Group != "" || f.Mode != "" {
			ps.Add(at+".absent", "a file that is to be absent has no other properties")
		}
		return
	}
	hasContent := f.Content != nil || f.SHA256 != ""
	switch f.Type {
	case FileRegular, "":
		if !hasContent {
			ps.Add(at, "a regular file needs content or source")
		}
		if f.Target != "" {
			ps.Add(at+".target", "only a symlink has a target")
		}
	case FileDirectory:
		if hasContent {
			ps.Add(at+".content", "a directory has no content")
		}
		if f.Target != "" {
			ps.Add(at+".target", "only a symlink has a target")
		}
	case FileSymlink:
		if hasContent {
			ps.Add(at+".content", "a symlink has no content")
		}
		if f.Target == "" || strings.ContainsRune(f.Target, 0) || len(f.Target) > 4095 {
			ps.Add(at+".target", "a symlink needs a target of 1 to 4095 bytes")
		}
		if f.Mode != "" {
			ps.Add(at+".mode", "a symlink has no mode of its own")
		}
	default:
		ps.Add(at+".type", fmt.Sprintf("%q is no type of file; there are regular, directory and symlink", f.Type))
	}
	if f.SHA256 != "" && !ValidDigest(f.SHA256) {
		ps.Add(at+".sha256", "not a SHA-256 in lower-case hexadecimal")
	}
	if f.Size < 0 {
		ps.Add(at+".size", "a size is not negative")
	}
	if f.Mode != "" && !fileMode.MatchString(f.Mode) {
		ps.Add(at+".mode", fmt.Sprintf("%q is not a mode; write three or four octal digits in quotes, as in \"0644\"", f.Mode))
	}
	if f.Owner != "" && !validAccount(f.Owner) {
		ps.Add(at+".owner", fmt.Sprintf("%q cannot be the name or number of a user", f.Owner))
	}
	if f.Group != "" && !validAccount(f.Group) {
		ps.Add(at+".group", fmt.Sprintf("%q cannot be the name or number of a group", f.Group))
	}
}

// validAccount reports whether text can be the name or number of an account. Only
// digits are a number; the greatest one means "nobody in particular" to the
// kernel. Names of directories have backslashes and @ in them.
func validAccount(text string) bool {
	if !account.MatchString(text) {
		return false
	}
	if strings.Trim(text, "0123456789") != "" {
		return true
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && n < 1<<32-1
}

func validatePackage(ps *Problems, at, name string, p PackageSpec) {
	if !packageName.MatchString(name) {
		ps.Add(at+".package", fmt.Sprintf("%q cannot be the name of a package", name))
	}
	if _, arch, named := strings.Cut(name, ":"); named && (arch == "any" || arch == "native") {
		ps.Add(at+".package", fmt.Sprintf("no package has the architecture %q; leave it out for that of the machine", arch))
	}
	if p.Absent && p.Version != "" {
		ps.Add(at+".version", "a package that is to be absent has no version")
	}
	if p.Version != "" && !validVersion(p.Version) {
		ps.Add(at+".version", fmt.Sprintf("%q cannot be the exact version of a package; ranges, patterns and words are not taken, and no version means any", p.Version))
	}
}

// validVersion reports whether text can be an exact version. What stands before
// a colon is a number, and "latest" is none.
func validVersion(text string) bool {
	epoch, rest, named := strings.Cut(text, ":")
	if named && (strings.Trim(epoch, "0123456789") != "" || rest == "") {
		return false
	}
	return packageVersion.MatchString(text) && strings.ContainsAny(text, "0123456789")
}
