package repo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/mesh/internal/pkgversion"
)

// partKey names one independently built part of the tree: the packages of one
// format in one suite.
type partKey struct {
	suite  string
	format Format
}

// record is a package with what is needed to write it into an index. It is
// stored beside the package's file in the pool and never changes.
type record struct {
	Package
	// Content is what two uploads of the same package share: for deb the
	// file's SHA-256, for rpm the SHA-256 of main header and payload.
	Content string `json:"content"`
	// SignedBy is the fingerprint of the key in the rpm's signature header; rpm
	// only. Empty: not known.
	SignedBy string `json:"signed_by,omitempty"`
	// Stanza is the paragraph for a Packages index; deb only.
	Stanza string `json:"stanza,omitempty"`
	// Primary, Filelists and Other are the elements for the rpm metadata; rpm only.
	Primary   string `json:"primary,omitempty"`
	Filelists string `json:"filelists,omitempty"`
	Other     string `json:"other,omitempty"`
}

// part is one built part. It does not change after it was made, but for what
// only the holder of the turn uses.
type part struct {
	key      partKey
	dir      string    // name under public/parts
	records  []*record // in the order of compareRecords
	own      []string  // immutable index files that this part brought, relative to its tree
	date     time.Time // written into its indexes
	modified time.Time // Last-Modified of its mutable files: whole seconds, grows with every build
	// validUntil is written into its Release; zero: it never expires.
	validUntil time.Time
	// indexes are the compressed indexes in pieces, by their name. Nil for a
	// part that was not built by this process, or is not the current one.
	indexes map[string]*index
}

// withdrawn remembers a package that no suite holds any more, so that its name
// and version are never given to other content.
type withdrawn struct {
	Content  string `json:"content"`
	Uploaded string `json:"uploaded"`
}

// state is one generation. It does not change after it was published.
type state struct {
	generation uint64
	time       time.Time
	parts      map[partKey]*part
	withdrawn  map[string]withdrawn // by Package.ID
}

func (s *state) suites() []string {
	var out []string
	for k := range s.parts {
		out = append(out, k.suite)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// named returns the records of a name, oldest version first.
func (p *part) named(name string) []*record {
	at, _ := slices.BinarySearchFunc(p.records, name, func(rec *record, name string) int { return strings.Compare(rec.Name, name) })
	end := at
	for end < len(p.records) && p.records[end].Name == name {
		end++
	}
	return p.records[at:end]
}

// find returns the part's record of the same name, version and architecture.
func (p *part) find(want Package) *record {
	for _, rec := range p.named(want.Name) {
		if rec.Version == want.Version && rec.Arch == want.Arch {
			return rec
		}
	}
	return nil
}

// with returns an unbuilt copy of p without the records of gone and with those
// of added, which must not be in p and need no order.
func (p *part) with(added []*record, gone map[*record]bool) *part {
	added = slices.Clone(added)
	slices.SortFunc(added, compareRecords)
	q := &part{key: p.key, records: make([]*record, 0, len(p.records)+len(added))}
	for _, rec := range p.records {
		for len(added) > 0 && compareRecords(added[0], rec) < 0 {
			q.records = append(q.records, added[0])
			added = added[1:]
		}
		if !gone[rec] {
			q.records = append(q.records, rec)
		}
	}
	q.records = append(q.records, added...)
	return q
}

func compareRecords(a, b *record) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	if a.Version != b.Version {
		return cmp.Or(CompareVersions(a.Format, a.Version, b.Version), strings.Compare(a.Version, b.Version))
	}
	return strings.Compare(a.Arch, b.Arch)
}

// CompareVersions orders two versions as dpkg or rpm does: negative when a is
// older than b, zero when neither is.
func CompareVersions(f Format, a, b string) int {
	if f == RPM {
		return pkgversion.CompareRPM(a, b)
	}
	return pkgversion.CompareDeb(a, b)
}

// Stored forms. A field that a newer version adds must be optional.

type storedGeneration struct {
	Format     int                  `json:"format"` // of this file; 1
	Generation uint64               `json:"generation"`
	Time       time.Time            `json:"time"`
	Parts      []storedPartRef      `json:"parts"`
	Withdrawn  map[string]withdrawn `json:"withdrawn,omitempty"`
}

type storedPartRef struct {
	Suite  string `json:"suite"`
	Format Format `json:"format"`
	Dir    string `json:"dir"`
}

type storedPart struct {
	Format   int       `json:"format"` // of this file; 1
	Date     time.Time `json:"date"`
	Modified time.Time `json:"modified"`
	// ValidUntil is zero when the part's Release never expires.
	ValidUntil time.Time `json:"valid_until,omitzero"`
	Own        []string  `json:"own"`
	Packages   []string  `json:"packages"` // pool digests in the index's order
}

const storedFormat = 1

func (s *state) stored() ([]byte, error) {
	g := storedGeneration{Format: storedFormat, Generation: s.generation, Time: s.time, Withdrawn: s.withdrawn}
	for k, p := range s.parts {
		g.Parts = append(g.Parts, storedPartRef{Suite: k.suite, Format: k.format, Dir: p.dir})
	}
	slices.SortFunc(g.Parts, func(a, b storedPartRef) int { return strings.Compare(a.Dir, b.Dir) })
	return json.Marshal(g)
}

func (p *part) stored() ([]byte, error) {
	s := storedPart{Format: storedFormat, Date: p.date, Modified: p.modified, ValidUntil: p.validUntil, Own: p.own, Packages: []string{}}
	for _, rec := range p.records {
		s.Packages = append(s.Packages, rec.SHA256)
	}
	return json.Marshal(s)
}

// genName is the directory of a generation: decimal of fixed width, so that
// names sort as numbers.
func genName(n uint64) string { return fmt.Sprintf("%012d", n) }

func parseGenName(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && genName(n) == s
}

func partName(k partKey, generation uint64) string {
	return string(k.format) + "-" + k.suite + "-" + genName(generation)
}
