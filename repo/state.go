package repo

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	debversion "github.com/knqyf263/go-deb-version"
	rpmversion "github.com/knqyf263/go-rpm-version"
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
	// Stanza is the paragraph for a Packages index; deb only.
	Stanza string `json:"stanza,omitempty"`
	// Primary, Filelists and Other are the elements for the rpm metadata; rpm only.
	Primary   string `json:"primary,omitempty"`
	Filelists string `json:"filelists,omitempty"`
	Other     string `json:"other,omitempty"`
}

// part is one built part. It does not change after it was made.
type part struct {
	key      partKey
	dir      string // name under public/parts
	records  []*record
	byID     map[string]*record
	own      []string  // immutable index files that this part brought, relative to its tree
	date     time.Time // written into its indexes
	modified time.Time // Last-Modified of its mutable files: whole seconds, grows with every build
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
	seen := map[string]bool{}
	var out []string
	for k := range s.parts {
		if !seen[k.suite] {
			seen[k.suite] = true
			out = append(out, k.suite)
		}
	}
	sort.Strings(out)
	return out
}

// find returns the record of an id in whichever suite holds it.
func find(parts map[partKey]*part, id string) *record {
	for _, p := range parts {
		if rec, ok := p.byID[id]; ok {
			return rec
		}
	}
	return nil
}

// newPart returns a part that holds the given records and is not built yet.
func newPart(key partKey, byID map[string]*record) *part {
	p := &part{key: key, byID: byID, records: make([]*record, 0, len(byID))}
	for _, rec := range byID {
		p.records = append(p.records, rec)
	}
	sortRecords(p.records)
	return p
}

// with returns an unbuilt copy of p that holds rec as well. The order is kept
// by insertion: sorting thousands of versions for one more would be the
// dearest step of a publish.
func (p *part) with(rec *record) *part {
	q := &part{key: p.key, byID: cloneMap(p.byID)}
	q.byID[rec.ID()] = rec
	at := sort.Search(len(p.records), func(i int) bool { return recordLess(rec, p.records[i]) })
	q.records = make([]*record, 0, len(p.records)+1)
	q.records = append(append(append(q.records, p.records[:at]...), rec), p.records[at:]...)
	return q
}

// without returns an unbuilt copy of p that does not hold the id.
func (p *part) without(id string) *part {
	q := &part{key: p.key, byID: cloneMap(p.byID), records: make([]*record, 0, len(p.records))}
	delete(q.byID, id)
	for _, rec := range p.records {
		if rec.ID() != id {
			q.records = append(q.records, rec)
		}
	}
	return q
}

func cloneMap(m map[string]*record) map[string]*record {
	out := make(map[string]*record, len(m)+1)
	for k, v := range m {
		out[k] = v
	}
	return out
}

func sortRecords(l []*record) {
	sort.Slice(l, func(i, j int) bool { return recordLess(l[i], l[j]) })
}

func recordLess(a, b *record) bool {
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	if a.Version != b.Version {
		if c := CompareVersions(a.Format, a.Version, b.Version); c != 0 {
			return c < 0
		}
		return a.Version < b.Version
	}
	return a.Arch < b.Arch
}

// CompareVersions orders two versions as dpkg or rpm does: negative when a is
// older than b, zero when neither is.
func CompareVersions(f Format, a, b string) int {
	if f == RPM {
		return rpmversion.NewVersion(a).Compare(rpmversion.NewVersion(b))
	}
	va, errA := debversion.NewVersion(a)
	vb, errB := debversion.NewVersion(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return va.Compare(vb)
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
	Own      []string  `json:"own"`
	Packages []string  `json:"packages"` // pool digests in the index's order
}

const storedFormat = 1

func (s *state) stored() ([]byte, error) {
	g := storedGeneration{Format: storedFormat, Generation: s.generation, Time: s.time, Withdrawn: s.withdrawn}
	for k, p := range s.parts {
		g.Parts = append(g.Parts, storedPartRef{Suite: k.suite, Format: k.format, Dir: p.dir})
	}
	sort.Slice(g.Parts, func(i, j int) bool { return g.Parts[i].Dir < g.Parts[j].Dir })
	return json.Marshal(g)
}

func (p *part) stored() ([]byte, error) {
	s := storedPart{Format: storedFormat, Date: p.date, Modified: p.modified, Own: p.own, Packages: []string{}}
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
