package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Kind names a kind of resource.
type Kind string

// The kinds of resource that a host can hold.
const (
	KindFile    Kind = "file"
	KindPackage Kind = "package"
)

// ResourceID identifies a resource on one node: its kind and its name, as in
// "file:/etc/motd", "package:nginx" or "package:libc6:i386".
type ResourceID string

// NewResourceID joins a kind and a name.
func NewResourceID(kind Kind, name string) ResourceID {
	return ResourceID(string(kind) + ":" + name)
}

// Kind returns what stands before the first colon; empty when there is none.
func (id ResourceID) Kind() Kind {
	kind, _, found := strings.Cut(string(id), ":")
	if !found {
		return ""
	}
	return Kind(kind)
}

// Name returns what stands after the first colon; empty when there is none.
func (id ResourceID) Name() string {
	_, name, _ := strings.Cut(string(id), ":")
	return name
}

// Resource is one thing that a node should have. Exactly one of File and
// Package is set, the one that Kind names.
type Resource struct {
	Kind Kind `json:"kind"`
	// Name is the absolute path of a file, or the name of a package.
	Name string `json:"name"`
	// From is the named declaration that this resource was compiled from.
	// Empty in a document.
	From string `json:"from,omitempty"`
	// Revision of From at the time of compiling. It is not part of what is
	// wanted: it tells a write that names a thing anew from one that does not.
	// Zero in a document.
	Revision int64        `json:"revision,omitempty"`
	File     *FileSpec    `json:"file,omitempty"`
	Package  *PackageSpec `json:"package,omitempty"`
	// Requires lists resources of the same node that must be as wanted first.
	Requires []ResourceID `json:"requires,omitempty"`
	// OnChange names what is done after this resource was changed. Nil: nothing.
	OnChange *OnChange `json:"on_change,omitempty"`
}

// ID is the identity of the resource.
func (r Resource) ID() ResourceID { return NewResourceID(r.Kind, r.Name) }

// Absent reports whether the resource is declared not to be there.
func (r Resource) Absent() bool {
	return (r.File != nil && r.File.Absent) || (r.Package != nil && r.Package.Absent)
}

// Digest identifies what is wanted: two resources with equal digests want the
// same thing. It is 64 hexadecimal digits of SHA-256. Inline content counts
// through FileSpec.SHA256 only, so the same bytes inline or as a blob are equal.
func (r Resource) Digest() string {
	r.From, r.Revision = "", 0
	if r.File != nil {
		file := *r.File
		file.Content = nil
		r.File = &file
	}
	return digestJSON(r)
}

// FileType says what stands at the path.
type FileType string

// The types of file. The empty type means regular.
const (
	FileRegular   FileType = "regular"
	FileDirectory FileType = "directory"
	FileSymlink   FileType = "symlink"
)

// FileSpec is what a file should be.
type FileSpec struct {
	// Type is never empty in a compiled declaration.
	Type FileType `json:"type,omitempty"`
	// Absent: nothing stands at the path. All else is then empty.
	Absent bool `json:"absent,omitempty"`
	// Content holds the bytes of a regular file when they travel inline. Nil
	// with a non-empty SHA256: they travel as a blob of that name.
	Content []byte `json:"content,omitempty"`
	// SHA256 is the hexadecimal digest of the content of a regular file.
	SHA256 string `json:"sha256,omitempty"`
	// Size is the length of the content in bytes.
	Size int64 `json:"size,omitempty"`
	// Target is what a symlink points at.
	Target string `json:"target,omitempty"`
	// Owner and Group are names or decimal ids. Empty: what stands there keeps
	// its own, and something new is root's.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	// Mode is three or four octal digits. Empty: what stands there keeps its own,
	// and something new gets 0644 as a regular file and 0755 as a directory. A
	// symlink has none.
	Mode string `json:"mode,omitempty"`
	// Sensitive keeps the content out of logs, listings and answers.
	Sensitive bool `json:"sensitive,omitempty"`
}

// SetContent makes the file hold data inline, with digest and size.
func (f *FileSpec) SetContent(data []byte) {
	sum := sha256.Sum256(data)
	f.Content = data
	f.SHA256 = hex.EncodeToString(sum[:])
	f.Size = int64(len(data))
}

// InlineLimit is the length in bytes up to which the content of a file travels
// inside the declaration; longer content travels as a blob.
const InlineLimit = 64 << 10

// PackageSpec is what a package should be.
type PackageSpec struct {
	// Version is exact, as the package database writes it. Empty: any.
	Version string `json:"version,omitempty"`
	// Absent: the package is not installed. Version is then empty.
	Absent bool `json:"absent,omitempty"`
}

// OnChange names units that are reloaded or restarted once, after a pass
// changed a resource that asks for it.
type OnChange struct {
	Reload  []string `json:"reload,omitempty"`
	Restart []string `json:"restart,omitempty"`
}

// Made says how a resource came under the mesh, which decides what removing it
// means.
type Made string

// The ways in which a resource came under the mesh.
const (
	// MadeCreated: nothing was there; removing deletes or uninstalls.
	MadeCreated Made = "created"
	// MadeReplaced: something else was there; removing puts it back.
	MadeReplaced Made = "replaced"
	// MadeExisted: it was there, as wanted, before the mesh wrote anything. A
	// package of this kind stays; a file is put back as it was.
	MadeExisted Made = "existed"
)

// Owned is what the host holds about a resource that it manages: how it came
// about and what is needed to undo it. It is the unit of the recovery copy.
type Owned struct {
	Resource ResourceID `json:"resource"`
	Made     Made       `json:"made"`
	// Generation in which the resource came under the mesh.
	Generation Generation `json:"generation"`
	// Wrote is what the provider last verified to be there, and what it has
	// announced to write since, in the provider's own form; removing refuses when
	// something else stands there. Empty until the first successful read-back or
	// later announcement.
	Wrote json.RawMessage `json:"wrote,omitempty"`
	// Undo is what the provider needs to put back what was there, in the
	// provider's own form. Empty when nothing was there.
	Undo json.RawMessage `json:"undo,omitempty"`
	// Partial is set in the recovery copy when Undo was too large to travel.
	Partial bool `json:"partial,omitempty"`
}

func digestJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		// Only types of this package come here, and all of them can be marshalled.
		panic(fmt.Sprintf("mesh: marshal for digest: %v", err))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
