package apt_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo/apt"
	"github.com/meshctl/mesh/repo/repotest"
)

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this test runs the real %s, which is not on this machine; install it", tool)
		}
	}
}

func mustRun(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(b []byte, l apt.Limits) (*apt.Deb, error) {
	return apt.ReadDeb(bytes.NewReader(b), int64(len(b)), l)
}

const control = `Package: rich
Version: 1:2.0~rc1+x-3
Architecture: amd64
Maintainer: Some One <one@example.org>
Installed-Size: 12
Depends: libc6 (>= 2.31), bash | dash
Conffiles-Note: none
Section: misc
Priority: optional
Homepage: https://example.org/?a=1
Description: a rich package with ünïcödé
 First line.
 .
 Second paragraph.
`

// built returns a deb that the real dpkg-deb made.
func built(t *testing.T, compression string) []byte {
	t.Helper()
	need(t, "dpkg-deb")
	dir := t.TempDir()
	for path, body := range map[string]string{"root/DEBIAN/control": control, "root/usr/share/doc/rich/about": strings.Repeat("about\n", 1000)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, dir, "dpkg-deb", "--root-owner-group", "--uniform-compression", "-Z"+compression, "--build", "root", "out.deb")
	b, err := os.ReadFile(filepath.Join(dir, "out.deb"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPackagesOfTheRealDpkgDebAreReadInEveryCompressionThatItWrites(t *testing.T) {
	for _, c := range []struct{ flag, name string }{{"gzip", "gz"}, {"xz", "xz"}, {"zstd", "zst"}, {"none", ""}} {
		t.Run(c.flag, func(t *testing.T) {
			d, err := read(built(t, c.flag), apt.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %s %s %s/%s", d.Name, d.Version, d.Architecture, d.ControlCompression, d.DataCompression)
			if want := fmt.Sprintf("rich 1:2.0~rc1+x-3 amd64 %s/%s", c.name, c.name); got != want {
				t.Errorf("read %q, want %q", got, want)
			}
		})
	}
}

func TestTheStanzaSaysWhatAptFtparchiveSaysOfTheSamePackage(t *testing.T) {
	need(t, "apt-ftparchive")
	deb := built(t, "xz")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rich.deb"), deb, 0o644); err != nil {
		t.Fatal(err)
	}
	theirs := mustRun(t, dir, "apt-ftparchive", "-o", "APT::FTPArchive::MD5=false", "-o", "APT::FTPArchive::SHA1=false", "-o", "APT::FTPArchive::SHA512=false", "packages", ".")
	sum, _, _ := strings.Cut(mustRun(t, dir, "sha256sum", "rich.deb"), " ")
	d, err := read(deb, apt.Limits{})
	if err != nil {
		t.Fatal(err)
	}

	ours := string(d.Stanza("./rich.deb", int64(len(deb)), sum))

	for line := range strings.SplitSeq(strings.TrimSpace(theirs), "\n") {
		// apt-ftparchive writes a relative name without the dot, and may add
		// fields about the description that apt works out by itself.
		line = strings.Replace(line, "Filename: rich.deb", "Filename: ./rich.deb", 1)
		if !strings.Contains(ours, line+"\n") && !strings.HasPrefix(line, "Description-md5:") {
			t.Errorf("our stanza lacks %q:\n%s", line, ours)
		}
	}
}

func TestAPackageCannotWriteTheFieldsOfTheIndex(t *testing.T) {
	d, err := read(repotest.Deb(repotest.Spec{Extra: "Filename: /etc/shadow\nSHA256: 00\nSize: 1\nStatus: install ok installed\n"}), apt.Limits{})
	if err != nil {
		t.Fatal(err)
	}

	stanza := string(d.Stanza("pool/x.deb", 7, strings.Repeat("a", 64)))

	if strings.Contains(stanza, "shadow") || strings.Contains(stanza, "Status:") || strings.Count(stanza, "\nSize:") != 1 || strings.Count(stanza, "\nSHA256:") != 1 {
		t.Errorf("the package's own index fields are in the stanza:\n%s", stanza)
	}
}

func TestAnArchiveThatUnpacksBeyondALimitIsRefused(t *testing.T) {
	deb := repotest.Deb(repotest.Spec{Content: strings.Repeat("x", 1<<20)})
	for name, l := range map[string]apt.Limits{"data": {Unpacked: 1 << 19}, "control": {Scripts: 100}, "control file": {Control: 10}, "entries": {Entries: 2}} {
		if _, err := read(deb, l); err == nil || !strings.Contains(err.Error(), apt.ErrTooLarge.Error()) {
			t.Errorf("%s: got %v, want ErrTooLarge", name, err)
		}
	}
}

func TestAFieldOfVeryManyLinesCostsWhatItsSizeCosts(t *testing.T) {
	text := []byte(control + strings.Repeat(" a\n", 300_000))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	p, err := apt.ParseControl(text)

	runtime.ReadMemStats(&after)
	if err != nil || strings.Count(p.Get("Description"), "\n") != 300_003 {
		t.Fatalf("the description has %d lines more (error %v), want 300003", strings.Count(p.Get("Description"), "\n"), err)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("reading %d bytes took %d MiB of memory", len(text), took)
	}
}

func TestAReleaseReadsBackAsItWasWritten(t *testing.T) {
	r := &apt.Release{
		Origin: "mesh", Label: "mesh", Suite: "stable", Codename: "stable", ByHash: true,
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("JST", 9*3600)), Architectures: []string{"amd64", "arm64"}, Components: []string{"main"},
		Files: []apt.IndexFile{{Path: "main/binary-amd64/Packages", Size: 7, SHA256: strings.Repeat("a", 64)}},
	}
	text := r.Bytes()

	got, err := apt.ParseRelease(text)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(got.Bytes(), text) || !strings.Contains(string(text), "Date: Thu, 01 Jan 2026 18:04:05 UTC\n") {
		t.Errorf("written:\n%s\nread back:\n%s", text, got.Bytes())
	}
}

func FuzzReadingADebNeverPanicsAndItsStanzaIsOneParagraph(f *testing.F) {
	whole := repotest.Deb(repotest.Spec{})
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
		repotest.Member{Name: "control.tar", Body: repotest.Tar(repotest.Entry{Name: "./control", Body: control})}, repotest.Member{Name: "data.tar", Body: repotest.Tar()}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := read(b, apt.Limits{Unpacked: 1 << 20, Scripts: 1 << 20})
		if err != nil {
			return
		}
		oneEntry(t, d)
	})
}

func FuzzAControlFileThatIsAcceptedMakesOneParagraph(f *testing.F) {
	f.Add([]byte(control))
	f.Add([]byte("Package: aa\nVersion: 1\nX:\n y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := apt.ParseControl(b)
		if err != nil {
			return
		}
		// What ReadDeb would refuse the package for is put right.
		fields := apt.Paragraph{{Name: "Version", Value: "1"}, {Name: "Architecture", Value: "all"}}
		for _, field := range p {
			if !strings.EqualFold(field.Name, "Version") && !strings.EqualFold(field.Name, "Architecture") {
				fields = append(fields, field)
			}
		}
		oneEntry(t, &apt.Deb{Name: "aa", Version: "1", Architecture: "all", Control: fields})
	})
}

func oneEntry(t *testing.T, d *apt.Deb) {
	t.Helper()
	index := append(d.Stanza("pool/x.deb", 1, strings.Repeat("0", 64)), '\n')
	n := 0
	err := apt.ReadPackages(bytes.NewReader(index), func(e apt.Entry) error {
		n++
		if e.Filename != "pool/x.deb" || e.Name != d.Name {
			t.Errorf("the stanza reads as %+v", e)
		}
		return nil
	})
	if err != nil || n != 1 {
		t.Errorf("the stanza reads as %d paragraphs (error %v):\n%s", n, err, index)
	}
}
