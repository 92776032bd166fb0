package rpm

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Fragments are one package's elements in the three documents of a repository.
// They depend on nothing but the package and its place, so that an index of
// many packages is made by putting fragments together.
type Fragments struct {
	Primary, Filelists, Other []byte
}

// Place is where and how a package's file is served.
type Place struct {
	Href   string // relative to the repository's base, with slashes
	Size   int64  // bytes
	SHA256 string // lower-case hexadecimal; also the package's id in the metadata
	Time   int64  // seconds since 1970 of the file's publication
}

// maxChangelogs is the number of newest changelog entries that are published,
// as createrepo_c does by default.
const maxChangelogs = 10

// Fragments returns the package's elements for the metadata.
func (p *Package) Fragments(at Place) Fragments {
	return Fragments{Primary: p.primary(at), Filelists: p.filelists(at), Other: p.other(at)}
}

type writer struct{ bytes.Buffer }

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(w, format, args...) }

func (w *writer) element(indent, name, text string) {
	if text == "" {
		w.printf("%s<%s/>\n", indent, name)
		return
	}
	w.printf("%s<%s>%s</%s>\n", indent, name, escape(text), name)
}

func (p *Package) version() string {
	return fmt.Sprintf(`<version epoch="%d" ver="%s" rel="%s"/>`, p.Epoch, escape(p.Version), escape(p.Release))
}

func (p *Package) primary(at Place) []byte {
	h, w := p.main, &writer{}
	w.printf("<package type=\"rpm\">\n")
	w.element("  ", "name", p.Name)
	w.element("  ", "arch", p.Arch)
	w.printf("  %s\n", p.version())
	w.printf("  <checksum type=\"sha256\" pkgid=\"YES\">%s</checksum>\n", at.SHA256)
	w.element("  ", "summary", h.text(tagSummary))
	w.element("  ", "description", h.text(tagDescription))
	w.element("  ", "packager", h.text(tagPackager))
	w.element("  ", "url", h.text(tagURL))
	build, _ := h.number(tagBuildTime)
	w.printf("  <time file=\"%d\" build=\"%d\"/>\n", at.Time, build)
	w.printf("  <size package=\"%d\" installed=\"%d\" archive=\"%d\"/>\n", at.Size, p.installed(), p.archive())
	w.printf("  <location href=\"%s\"/>\n", escape(at.Href))
	w.printf("  <format>\n")
	w.element("    ", "rpm:license", h.text(tagLicense))
	w.element("    ", "rpm:vendor", h.text(tagVendor))
	w.element("    ", "rpm:group", h.text(tagGroup))
	w.element("    ", "rpm:buildhost", h.text(tagBuildHost))
	w.element("    ", "rpm:sourcerpm", h.text(tagSourceRPM))
	w.printf("    <rpm:header-range start=\"%d\" end=\"%d\"/>\n", p.HeaderStart, p.HeaderEnd)
	files := p.files()
	provides := p.dependencies(tagProvideName, tagProvideFlags, tagProvideVersion)
	w.dependencies("provides", provides, false)
	w.dependencies("requires", p.requires(provides, files), true)
	for _, d := range []struct {
		element              string
		name, flags, version uint32
	}{
		{"conflicts", tagConflictName, tagConflictFlags, tagConflictVersion},
		{"obsoletes", tagObsoleteName, tagObsoleteFlags, tagObsoleteVersion},
		{"suggests", tagSuggestName, tagSuggestFlags, tagSuggestVer},
		{"enhances", tagEnhanceName, tagEnhanceFlags, tagEnhanceVer},
		{"recommends", tagRecommendName, tagRecommendFlags, tagRecommendVer},
		{"supplements", tagSupplementName, tagSupplementFlags, tagSupplementVer},
	} {
		w.dependencies(d.element, p.dependencies(d.name, d.flags, d.version), false)
	}
	for _, f := range files {
		if f.primary() {
			w.printf("    %s\n", f.element())
		}
	}
	w.printf("  </format>\n</package>\n")
	return w.Bytes()
}

func (p *Package) filelists(at Place) []byte {
	w := &writer{}
	w.printf("<package pkgid=\"%s\" name=\"%s\" arch=\"%s\">\n  %s\n", at.SHA256, escape(p.Name), escape(p.Arch), p.version())
	for _, f := range p.files() {
		w.printf("  %s\n", f.element())
	}
	w.printf("</package>\n")
	return w.Bytes()
}

func (p *Package) other(at Place) []byte {
	w := &writer{}
	w.printf("<package pkgid=\"%s\" name=\"%s\" arch=\"%s\">\n  %s\n", at.SHA256, escape(p.Name), escape(p.Arch), p.version())
	times, names, texts := p.main.numbers(tagChangelogTime), p.main.texts(tagChangelogName), p.main.texts(tagChangelogText)
	n := min(len(times), len(names), len(texts), maxChangelogs)
	for i := n - 1; i >= 0; i-- {
		w.printf("  <changelog author=\"%s\" date=\"%d\">%s</changelog>\n", escape(names[i]), times[i], escape(texts[i]))
	}
	w.printf("</package>\n")
	return w.Bytes()
}

func (p *Package) installed() uint64 {
	if n, ok := p.main.number(tagLongSize); ok {
		return n
	}
	n, _ := p.main.number(tagSize)
	return n
}

func (p *Package) archive() uint64 {
	if n, ok := p.sig.number(sigLongArchive); ok {
		return n
	}
	if n, ok := p.sig.number(sigPayloadSize); ok {
		return n
	}
	n, _ := p.main.number(tagArchiveSize)
	return n
}

// dependency is one line of provides, requires and their kin.
type dependency struct {
	name, version string
	flags         uint64
}

func (p *Package) dependencies(name, flags, version uint32) []dependency {
	names, fl, vs := p.main.texts(name), p.main.numbers(flags), p.main.texts(version)
	out := make([]dependency, 0, len(names))
	for i, n := range names {
		d := dependency{name: n}
		if i < len(fl) {
			d.flags = fl[i]
		}
		if i < len(vs) {
			d.version = vs[i]
		}
		out = append(out, d)
	}
	return out
}

// requires leaves out what no resolver needs to ask for: what rpm itself must
// be able to do, what the package brings along, and repetitions.
func (p *Package) requires(provides []dependency, files []file) []dependency {
	type key struct {
		name, version string
		flags         uint64
	}
	compared := uint64(senseLess | senseGreater | senseEqual)
	own := map[key]bool{}
	for _, d := range provides {
		own[key{d.name, d.version, d.flags & compared}] = true
	}
	ownFile := map[string]bool{}
	for _, f := range files {
		if f.primary() {
			ownFile[f.path] = true
		}
	}
	seen := map[key]bool{}
	var out []dependency
	for _, d := range p.dependencies(tagRequireName, tagRequireFlags, tagRequireVersion) {
		k := key{d.name, d.version, d.flags & compared}
		if d.flags&senseRPMLib != 0 || strings.HasPrefix(d.name, "rpmlib(") || own[k] || ownFile[d.name] || seen[k] {
			continue
		}
		seen[k] = true
		out = append(out, d)
	}
	return out
}

func (w *writer) dependencies(element string, list []dependency, pre bool) {
	if len(list) == 0 {
		return
	}
	w.printf("    <rpm:%s>\n", element)
	for _, d := range list {
		w.printf("      <rpm:entry name=\"%s\"", escape(d.name))
		if f := sense(d.flags); f != "" && d.version != "" {
			epoch, ver, rel := splitVersion(d.version)
			w.printf(" flags=\"%s\" epoch=\"%s\" ver=\"%s\"", f, escape(epoch), escape(ver))
			if rel != "" {
				w.printf(" rel=\"%s\"", escape(rel))
			}
		}
		if pre && d.flags&(sensePrereq|senseScriptPre|senseScriptPos) != 0 {
			w.printf(" pre=\"1\"")
		}
		w.printf("/>\n")
	}
	w.printf("    </rpm:%s>\n", element)
}

func sense(flags uint64) string {
	switch flags & (senseLess | senseGreater | senseEqual) {
	case senseLess:
		return "LT"
	case senseGreater:
		return "GT"
	case senseEqual:
		return "EQ"
	case senseLess | senseEqual:
		return "LE"
	case senseGreater | senseEqual:
		return "GE"
	}
	return ""
}

func splitVersion(s string) (epoch, version, release string) {
	epoch = "0"
	if e, rest, ok := strings.Cut(s, ":"); ok {
		if _, err := strconv.ParseUint(e, 10, 32); err == nil {
			epoch = e
		}
		s = rest
	}
	if i := strings.LastIndexByte(s, '-'); i >= 0 {
		return epoch, s[:i], s[i+1:]
	}
	return epoch, s, ""
}

type file struct {
	path       string
	dir, ghost bool
}

func (p *Package) files() []file {
	h := p.main
	names, dirs, idx := h.texts(tagBaseNames), h.texts(tagDirNames), h.numbers(tagDirIndexes)
	modes, flags := h.numbers(tagFileModes), h.numbers(tagFileFlags)
	out := make([]file, 0, len(names))
	for i, n := range names {
		if i >= len(idx) || idx[i] >= uint64(len(dirs)) {
			break
		}
		f := file{path: dirs[idx[i]] + n}
		f.dir = i < len(modes) && modes[i]&modeTypeMask == modeTypeDirectory
		f.ghost = i < len(flags) && flags[i]&fileFlagGhost != 0
		out = append(out, f)
	}
	return out
}

// primary tells whether the file is listed in the primary document too: the
// ones that packages are wont to require by path.
func (f file) primary() bool {
	return strings.HasPrefix(f.path, "/etc/") || strings.Contains(f.path, "bin/") || f.path == "/usr/lib/sendmail"
}

func (f file) element() string {
	switch {
	case f.dir:
		return `<file type="dir">` + escape(f.path) + `</file>`
	case f.ghost:
		return `<file type="ghost">` + escape(f.path) + `</file>`
	}
	return `<file>` + escape(f.path) + `</file>`
}

// escape makes any bytes fit for XML text and attributes: what XML cannot hold
// is dropped, bytes that are not UTF-8 are read as Latin-1.
func escape(s string) string {
	clean := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '<' || c == '>' || c == '&' || c == '"' || c == '\'' {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			r = rune(s[i])
		}
		i += n
		switch {
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '"':
			b.WriteString("&quot;")
		case r == '\n', r == '\t', r == '\r':
			b.WriteRune(r)
		case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0xd800 && r < 0xe000, r == 0xfffe, r == 0xffff:
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Kind names one of the three documents that a repomd.xml points at.
type Kind string

// The documents of a repository.
const (
	Primary   Kind = "primary"
	Filelists Kind = "filelists"
	Other     Kind = "other"
)

// Frame returns what stands around the fragments in a document of n packages.
func Frame(k Kind, n int) (head, tail string) {
	const decl = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	switch k {
	case Primary:
		return fmt.Sprintf("%s<metadata xmlns=\"http://linux.duke.edu/metadata/common\" xmlns:rpm=\"http://linux.duke.edu/metadata/rpm\" packages=\"%d\">\n", decl, n), "</metadata>\n"
	case Filelists:
		return fmt.Sprintf("%s<filelists xmlns=\"http://linux.duke.edu/metadata/filelists\" packages=\"%d\">\n", decl, n), "</filelists>\n"
	default:
		return fmt.Sprintf("%s<otherdata xmlns=\"http://linux.duke.edu/metadata/other\" packages=\"%d\">\n", decl, n), "</otherdata>\n"
	}
}

// Document is what repomd.xml promises about one document.
type Document struct {
	Kind       Kind
	Href       string // relative to the repository's base
	SHA256     string // of the file as served
	OpenSHA256 string // of the file unpacked
	Size       int64  // bytes as served
	OpenSize   int64  // bytes unpacked
	Time       int64  // seconds since 1970
}

// Repomd returns repomd.xml, with the documents in the order given. revision is
// text that changes with every publish.
func Repomd(revision string, docs []Document) []byte {
	w := &writer{}
	w.printf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
	w.printf("<repomd xmlns=\"http://linux.duke.edu/metadata/repo\" xmlns:rpm=\"http://linux.duke.edu/metadata/rpm\">\n")
	w.printf("  <revision>%s</revision>\n", escape(revision))
	for _, d := range docs {
		w.printf("  <data type=\"%s\">\n", escape(string(d.Kind)))
		w.printf("    <checksum type=\"sha256\">%s</checksum>\n", d.SHA256)
		w.printf("    <open-checksum type=\"sha256\">%s</open-checksum>\n", d.OpenSHA256)
		w.printf("    <location href=\"%s\"/>\n", escape(d.Href))
		w.printf("    <timestamp>%d</timestamp>\n", d.Time)
		w.printf("    <size>%d</size>\n    <open-size>%d</open-size>\n", d.Size, d.OpenSize)
		w.printf("  </data>\n")
	}
	w.printf("</repomd>\n")
	return w.Bytes()
}

// ParseRepomd reads a repomd.xml and returns its revision and documents.
func ParseRepomd(text []byte) (revision string, docs []Document, err error) {
	var doc struct {
		XMLName  xml.Name `xml:"http://linux.duke.edu/metadata/repo repomd"`
		Revision string   `xml:"revision"`
		Data     []struct {
			Type     string `xml:"type,attr"`
			Checksum struct {
				Type  string `xml:"type,attr"`
				Value string `xml:",chardata"`
			} `xml:"checksum"`
			Open     string `xml:"open-checksum"`
			Location struct {
				Href string `xml:"href,attr"`
			} `xml:"location"`
			Timestamp int64 `xml:"timestamp"`
			Size      int64 `xml:"size"`
			OpenSize  int64 `xml:"open-size"`
		} `xml:"data"`
	}
	if err := xml.Unmarshal(text, &doc); err != nil {
		return "", nil, fmt.Errorf("repomd.xml: %w", err)
	}
	for _, d := range doc.Data {
		if d.Checksum.Type != "sha256" || len(d.Checksum.Value) != 64 || d.Location.Href == "" {
			return "", nil, fmt.Errorf("repomd.xml: the entry %q is not complete", clip(d.Type))
		}
		docs = append(docs, Document{
			Kind: Kind(d.Type), Href: d.Location.Href, SHA256: d.Checksum.Value, OpenSHA256: d.Open,
			Size: d.Size, OpenSize: d.OpenSize, Time: d.Timestamp,
		})
	}
	return doc.Revision, docs, nil
}
