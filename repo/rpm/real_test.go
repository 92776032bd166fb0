package rpm_test

import (
	"bytes"
	"compress/gzip"
	"encoding/xml"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/repo/repotest"
	"github.com/meshctl/mesh/repo/rpm"
)

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this test runs the real %s, which is not on this machine; install it", tool)
		}
	}
}

func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

const spec = `Name: rich
Epoch: 3
Version: 1.2~rc1
Release: 4^git5
Summary: A <rich> & "quoted" package
License: Apache-2.0
URL: https://example.org/?a=1&b=2
Requires: bash >= 5:2.0-1, other < 3
Requires(pre): shadow-utils
Requires: /usr/bin/rich
Recommends: nice = 1
Suggests: idea
Supplements: main
Enhances: base > 1
Conflicts: enemy <= 9
Obsoletes: poor < 1
Provides: wealth = 2-1, money
BuildArch: noarch
%description
First line with ünïcödé.
Second <line>.
%install
mkdir -p %{buildroot}/etc/rich.d %{buildroot}/usr/bin %{buildroot}/usr/share/rich
echo x > %{buildroot}/etc/rich.d/a.conf
echo x > %{buildroot}/usr/bin/rich
echo x > "%{buildroot}/usr/share/rich/a & b"
mkdir -p %{buildroot}/var/log
%files
%dir /etc/rich.d
%config /etc/rich.d/a.conf
%attr(0755,root,root) /usr/bin/rich
/usr/share/rich
%ghost /var/log/rich.log
%pre
exit 0
%changelog
* Fri Jan 02 2026 Some One <one@example.org> - 2
- newer & better
* Thu Jan 01 2026 Some One <one@example.org> - 1
- older
`

// built returns an rpm that the real rpmbuild made.
func built(t *testing.T) []byte {
	t.Helper()
	need(t, "rpmbuild")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rich.spec"), []byte(spec))
	mustRun(t, "rpmbuild", "-bb", "--define", "_topdir "+dir, "--define", "_tmppath "+dir, filepath.Join(dir, "rich.spec"))
	files, err := filepath.Glob(filepath.Join(dir, "RPMS/noarch/*.rpm"))
	if err != nil || len(files) != 1 {
		t.Fatalf("rpmbuild made %v (error %v), want one file", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheRealRpmVerifiesASignedPackageOfRpmbuildAndFindsItsPayloadUntouched(t *testing.T) {
	need(t, "rpm", "rpmkeys")
	original := built(t)
	keys := repotest.Signer(t)
	var signed bytes.Buffer
	p, err := rpm.Rewrite(&signed, bytes.NewReader(original), keys.SignBinary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	public, err := keys.PublicArmored()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "key.asc"), public)
	write(t, filepath.Join(dir, "signed.rpm"), signed.Bytes())
	db := filepath.Join(dir, "db")
	mustRun(t, "rpm", "--dbpath", db, "--import", filepath.Join(dir, "key.asc"))

	out := mustRun(t, "rpmkeys", "--dbpath", db, "-Kv", filepath.Join(dir, "signed.rpm"))

	if !strings.Contains(out, "Header V4 RSA/SHA256 Signature") || strings.Contains(out, "NOKEY") || strings.Contains(out, "BAD") || strings.Contains(out, "NOTFOUND") {
		t.Errorf("rpmkeys -Kv does not verify the header signature:\n%s", out)
	}
	_, mainHeader, err := rpm.ReadSignature(bytes.NewReader(signed.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(original, mainHeader)
	if at < 0 || !bytes.Equal(original[at:], signed.Bytes()[p.HeaderStart:]) {
		t.Errorf("main header and payload are not the bytes of the original")
	}
}

func TestSigningAgainReplacesTheSignature(t *testing.T) {
	keys := repotest.Signer(t)
	var once, twice bytes.Buffer
	p, err := rpm.Rewrite(&once, bytes.NewReader(repotest.RPM(repotest.Spec{})), keys.SignBinary)
	if err != nil {
		t.Fatal(err)
	}

	q, err := rpm.Rewrite(&twice, bytes.NewReader(once.Bytes()), keys.SignBinary)
	if err != nil {
		t.Fatal(err)
	}

	if p.Content != q.Content || once.Len() != twice.Len() {
		t.Errorf("signed twice the content is %s of %d bytes, want %s of %d", q.Content, twice.Len(), p.Content, once.Len())
	}
}

// normal reduces a metadata document to a sorted list of what it says, without
// layout and without what depends on the clock.
func normal(t *testing.T, doc []byte) string {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(doc))
	var lines []string
	var path []string
	text := ""
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, doc)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			var attrs []string
			for _, a := range e.Attr {
				if a.Name.Space == "xmlns" || a.Name.Local == "xmlns" || e.Name.Local == "time" && a.Name.Local == "file" {
					continue
				}
				attrs = append(attrs, a.Name.Local+"="+a.Value)
			}
			slices.Sort(attrs)
			path = append(path, e.Name.Local+"["+strings.Join(attrs, ",")+"]")
			text = ""
		case xml.CharData:
			text += string(e)
		case xml.EndElement:
			lines = append(lines, strings.Join(path, "/")+" "+strings.TrimSpace(text))
			path, text = path[:len(path)-1], ""
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestTheMetadataSaysWhatCreaterepoSaysOfTheSamePackage(t *testing.T) {
	need(t, "createrepo_c")
	keys := repotest.Signer(t)
	for name, original := range map[string][]byte{"rpmbuild": built(t), "repotest": repotest.RPM(repotest.Spec{Depends: []string{"bash"}})} {
		t.Run(name, func(t *testing.T) {
			var signed bytes.Buffer
			p, err := rpm.Rewrite(&signed, bytes.NewReader(original), keys.SignBinary)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, p.FileName()), signed.Bytes())
			st, err := os.Stat(filepath.Join(dir, p.FileName()))
			if err != nil {
				t.Fatal(err)
			}
			mustRun(t, "createrepo_c", "--quiet", "--no-database", "--general-compress-type=gz", dir)
			sum := strings.Fields(mustRun(t, "sha256sum", filepath.Join(dir, p.FileName())))[0]
			ours := p.Fragments(rpm.Place{Href: p.FileName(), Size: st.Size(), SHA256: sum, Time: st.ModTime().Unix()})

			for kind, fragment := range map[rpm.Kind][]byte{rpm.Primary: ours.Primary, rpm.Filelists: ours.Filelists, rpm.Other: ours.Other} {
				files, _ := filepath.Glob(filepath.Join(dir, "repodata/*-"+string(kind)+".xml.gz"))
				f, err := os.Open(files[0])
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				z, err := gzip.NewReader(f)
				if err != nil {
					t.Fatal(err)
				}
				theirs, err := io.ReadAll(z)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := normal(t, document(kind, fragment)), normal(t, theirs); got != want {
					t.Errorf("%s differs (- createrepo_c, + ours):\n%s", kind, difference(want, got))
				}
			}
		})
	}
}

// document puts the fragments of packages together as the repository does.
func document(kind rpm.Kind, fragments ...[]byte) []byte {
	head, tail := rpm.Frame(kind, len(fragments))
	return slices.Concat([]byte(head), slices.Concat(fragments...), []byte(tail))
}

func difference(a, b string) string {
	in := func(l []string) map[string]bool {
		m := map[string]bool{}
		for _, s := range l {
			m[s] = true
		}
		return m
	}
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	ma, mb := in(la), in(lb)
	var out []string
	for _, s := range la {
		if !mb[s] {
			out = append(out, "- "+s)
		}
	}
	for _, s := range lb {
		if !ma[s] {
			out = append(out, "+ "+s)
		}
	}
	return strings.Join(out, "\n")
}

func TestAPrimaryDocumentThatLostItsEndIsNotReadAsWhole(t *testing.T) {
	var p *rpm.Package
	var err error
	if p, err = rpm.Rewrite(io.Discard, bytes.NewReader(repotest.RPM(repotest.Spec{})), repotest.Signer(t).SignBinary); err != nil {
		t.Fatal(err)
	}
	one := p.Fragments(rpm.Place{Href: "x.rpm", Size: 1, SHA256: strings.Repeat("a", 64)}).Primary
	doc := document(rpm.Primary, one, one)
	count := func(b []byte) (n int, err error) {
		err = rpm.ReadPrimary(bytes.NewReader(b), func(rpm.Entry) error { n++; return nil })
		return n, err
	}

	n, whole := count(doc)
	_, cut := count(doc[:len(doc)-20])
	_, lost := count(regexp.MustCompile(`(?s)<package .*?</package>\n`).ReplaceAll(doc, nil))

	if whole != nil || n != 2 || cut == nil || lost == nil {
		t.Errorf("the whole document has %d packages (%v); cut short it gives %v, without packages %v; want 2 and two errors", n, whole, cut, lost)
	}
}

func FuzzReadingAnRpmNeverPanicsAndSigningWhatIsReadGivesWhatCanBeReadAgain(f *testing.F) {
	whole := repotest.RPM(repotest.Spec{})
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(repotest.RPM(repotest.Spec{Version: "9:1~2^3-4", Depends: []string{"a", "b"}}))
	sign := func([]byte) ([]byte, error) { return []byte("signature"), nil }
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		p, err := rpm.Rewrite(&out, bytes.NewReader(b), sign)
		if err != nil {
			return
		}
		frag := p.Fragments(rpm.Place{Href: p.FileName(), SHA256: strings.Repeat("0", 64)})
		if err := xml.Unmarshal(document(rpm.Primary, frag.Primary), new(struct{})); err != nil {
			t.Fatalf("the metadata is not well-formed: %v", err)
		}
		signature, _, err := rpm.ReadSignature(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatalf("signed, its headers cannot be read: %v", err)
		}
		q, err := rpm.Rewrite(io.Discard, bytes.NewReader(out.Bytes()), sign)
		if err != nil || q.Content != p.Content || string(signature) != "signature" {
			t.Fatalf("signed, it reads as %v with signature %q (error %v)", q, signature, err)
		}
	})
}
