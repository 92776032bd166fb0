package repo_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/repotest"
)

// many is a repository whose indexes consist of several pieces, of which some
// were taken over from earlier generations.
func many(t *testing.T) *site {
	t.Helper()
	s := serve(t)
	for _, run := range []struct{ from, to int }{{0, 150}, {150, 299}, {299, 300}} {
		var files [][]byte
		for i := run.from; i < run.to; i++ {
			name := fmt.Sprintf("package-%03d", i*7%300)
			files = append(files, repotest.Deb(repotest.Spec{Name: name, Arch: "amd64"}), repotest.RPM(repotest.Spec{Name: name}))
		}
		publish(t, s.repo, "stable", files...)
	}
	for _, f := range []repo.Format{repo.Deb, repo.RPM} {
		if _, err := s.repo.Remove(t.Context(), "stable", repo.Ref{Format: f, Name: "package-017", Version: "1.0-1"}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Shows: M11
func TestIndexesOfManyPiecesAreReadWholeByEveryReader(t *testing.T) {
	need(t, "sqliterepo_c", "mergerepo_c", "sqlite3")
	s := many(t)
	a, d := newApt(t, s, "stable"), newDnf(t, s, "stable")
	a.must("apt-get", "update")
	copied := mirror(t, s, "rpm/stable")

	apt := strings.Count(a.must("apt-cache", "pkgnames"), "package-")
	dnf := strings.Count(d.must("repoquery", "--refresh", "--qf", "%{name}\n", "package-*"), "package-")
	mustRun(t, copied, "mergerepo_c", "--omit-baseurl", "--all", "-o", filepath.Join(copied, "merged"), "-r", copied)
	merged := strings.Count(unpack(t, filepath.Join(copied, "merged/repodata"), "primary.xml"), "<package type=")
	mustRun(t, copied, "sqliterepo_c", "--force", "--compress-type", "gz", copied)
	var rows []string
	for _, kind := range []string{"primary", "filelists", "other"} {
		db := filepath.Join(copied, kind+".sqlite")
		write(t, db, unpack(t, filepath.Join(copied, "repodata"), kind+".sqlite"))
		rows = append(rows, strings.TrimSpace(mustRun(t, copied, "sqlite3", db, "select count(*) from packages")))
	}

	got := fmt.Sprintf("apt %d, dnf %d, mergerepo_c %d, sqliterepo_c %v", apt, dnf, merged, rows)
	if want := "apt 299, dnf 299, mergerepo_c 299, sqliterepo_c [299 299 299]"; got != want {
		t.Errorf("the readers find %s packages, want %s", got, want)
	}
	if err := s.repo.Check(t.Context()); err != nil {
		t.Errorf("unpacked whole, the indexes do not verify: %v", err)
	}
}

// Shows: M11
func TestAMirrorMadeByReposyncServesTheSamePackages(t *testing.T) {
	s := serve(t)
	publish(t, s.repo, "stable", repotest.RPM(repotest.Spec{}), repotest.RPM(repotest.Spec{Version: "1.1-1"}))
	d := newDnf(t, s, "stable")
	conf := filepath.Join(d.root, "dnf.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	write(t, conf, regexp.MustCompile(`(?m)^pluginpath=.*\n`).ReplaceAllString(string(text), ""))
	if out, err := run(t, d.root, "dnf", "-c", conf, "--releasever=9", "reposync", "--help"); err != nil {
		t.Skipf("this test runs the real dnf reposync, which is not on this machine; install dnf-plugins-core: %s", out)
	}
	mirrored := filepath.Join(d.root, "mirror")

	// Its check knows the keys of the rpm database and no others.
	mustRun(t, d.root, "rpm", "--root", filepath.Join(d.root, "root"), "--import", filepath.Join(d.root, "RPM-GPG-KEY-mesh"))
	out := d.must("--disableplugin=local", "reposync", "--download-metadata", "--gpgcheck", "-p", mirrored)
	hand := &http.Server{Handler: http.FileServer(http.Dir(filepath.Join(mirrored, "mesh")))}
	base := listen(t, hand)
	write(t, filepath.Join(d.root, "repos/mesh.repo"), strings.ReplaceAll(read(t, filepath.Join(d.root, "repos/mesh.repo")), s.url+"/rpm/stable/", base+"/"))
	install, err := run(t, d.root, d.args("--disableplugin=local", "--refresh", "install", "hello-1.0-1")...)

	if err != nil {
		t.Errorf("the mirror cannot be installed from: %v\n%s\nreposync said:\n%s", err, install, out)
	}
}

// paragraphs splits an index of apt into its paragraphs, without the fields
// that only one of two writers has, and sorts them and their lines.
func paragraphs(index string) []string {
	var out []string
	for p := range strings.SplitSeq(strings.TrimSpace(index), "\n\n") {
		var lines []string
		for line := range strings.Lines(p + "\n") {
			if name, _, _ := strings.Cut(line, ":"); name != "MD5sum" && name != "SHA1" && name != "SHA512" {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		out = append(out, strings.Join(lines, ""))
	}
	slices.Sort(out)
	return out
}

// Shows: M11
func TestAptFtparchiveSaysTheSameOfTheSamePackages(t *testing.T) {
	need(t, "apt-ftparchive")
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	s := serveRepo(t, r)
	publish(t, r, "stable",
		repotest.Deb(repotest.Spec{Name: "hello", Version: "2:1.0~rc1+x-1", Arch: "amd64", Depends: []string{"libc6 (>= 2.31)", "bash | dash"}}),
		repotest.Deb(repotest.Spec{Name: "hello", Version: "1.0-1", Arch: "all", Extra: "Section: misc\nHomepage: https://example.org/?a=1&b\n"}))
	answer, err := http.Get(s.url + "/dists/stable/main/binary-amd64/Packages.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	packed, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "Packages.gz"), string(packed))

	ours := paragraphs(mustRun(t, dir, "gzip", "-dc", filepath.Join(dir, "Packages.gz")))
	theirs := paragraphs(mustRun(t, filepath.Join(dir, "public/current"), "apt-ftparchive", "packages", "pool/"))

	if len(ours) != 2 || !slices.Equal(ours, theirs) {
		t.Errorf("ours:\n%s\napt-ftparchive's:\n%s", strings.Join(ours, "\n"), strings.Join(theirs, "\n"))
	}
}

// Shows: M11
func TestDnfDownloadFetchesAPackageThatRpmFindsSigned(t *testing.T) {
	need(t, "rpmkeys")
	s := serve(t)
	publish(t, s.repo, "stable", repotest.RPM(repotest.Spec{}))
	d := newDnf(t, s, "stable")
	conf := filepath.Join(d.root, "dnf.conf")
	write(t, conf, regexp.MustCompile(`(?m)^pluginpath=.*\n`).ReplaceAllString(read(t, conf), ""))
	if out, err := run(t, d.root, "dnf", "-c", conf, "--releasever=9", "download", "--help"); err != nil {
		t.Skipf("this test runs the real dnf download, which is not on this machine; install dnf-plugins-core: %s", out)
	}

	d.must("--disableplugin=local", "download", "--destdir", d.root, "hello")

	db := filepath.Join(d.root, "db")
	mustRun(t, d.root, "rpm", "--dbpath", db, "--import", filepath.Join(d.root, "RPM-GPG-KEY-mesh"))
	if out := mustRun(t, d.root, "rpm", "--dbpath", db, "-K", filepath.Join(d.root, "hello-1.0-1.noarch.rpm")); !strings.Contains(out, "digests signatures OK") {
		t.Errorf("rpm -K says %s", out)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// mirror copies the metadata of an rpm repository, as a plain web client sees it.
func mirror(t *testing.T, s *site, base string) string {
	t.Helper()
	dir := t.TempDir()
	get := func(rel string) string {
		answer, err := http.Get(s.url + "/" + base + "/" + rel)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var b bytes.Buffer
		if _, err := io.Copy(&b, answer.Body); err != nil || answer.StatusCode != 200 {
			t.Fatalf("get %s: status %d, error %v", rel, answer.StatusCode, err)
		}
		write(t, filepath.Join(dir, rel), b.String())
		return b.String()
	}
	for _, m := range regexp.MustCompile(`location href="([^"]+)"`).FindAllStringSubmatch(get("repodata/repomd.xml"), -1) {
		get(m[1])
	}
	return dir
}

// unpack returns the one file of dir whose name ends in .kind and a compression.
func unpack(t *testing.T, dir, kind string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+kind+".*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("in %s stand %v for %s (error %v)", dir, found, kind, err)
	}
	return mustRun(t, dir, "gzip", "-dc", found[0])
}
