package repo_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo"
	"github.com/meshctl/mesh/repo/repotest"
)

func names(l []repo.Package) string {
	var out []string
	for _, p := range l {
		out = append(out, string(p.Format)+":"+p.Name+"="+p.Version)
	}
	return strings.Join(out, " ")
}

func list(t *testing.T, r *repo.Repo, suite string) []repo.Package {
	t.Helper()
	l, err := r.List(t.Context(), suite)
	if err != nil {
		t.Fatalf("list %s: %v", suite, err)
	}
	return l
}

func wantCode(t *testing.T, err error, code repo.Code) *repo.Refusal {
	t.Helper()
	ref, ok := errors.AsType[*repo.Refusal](err)
	if !ok {
		t.Fatalf("got error %v, want a refusal with the code %s", err, code)
	}
	if ref.Code != code {
		t.Fatalf("refused with %s (%s), want %s", ref.Code, ref.Sentence, code)
	}
	return ref
}

func TestAPublishSaysWhatWasInsideTheFilesWhateverTheyAreCalled(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())

	p := publish(t, r, "", repotest.Deb(repotest.Spec{Name: "alpha", Version: "1:2.0-3", Arch: "arm64"}), repotest.RPM(repotest.Spec{Name: "beta", Version: "4.0-5"}))

	got := fmt.Sprintf("%s %s %s %s %s | %s %s %s %s %s", p.Files[0].Outcome, p.Files[0].Package.Format, p.Files[0].Package.Name, p.Files[0].Package.Version, p.Files[0].Package.Arch,
		p.Files[1].Outcome, p.Files[1].Package.Format, p.Files[1].Package.Name, p.Files[1].Package.Version, p.Files[1].Package.Arch)
	if want := "added deb alpha 1:2.0-3 arm64 | added rpm beta 4.0-5 noarch"; got != want {
		t.Errorf("published %q, want %q", got, want)
	}
}

func TestTheSameContentAgainIsASuccessThatChangesNothing(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	deb, rpm := repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{})
	first := publish(t, r, "stable", deb, rpm)

	again := publish(t, r, "stable", deb, rpm)

	if again.Generation != first.Generation || again.Files[0].Outcome != repo.AlreadyThere || again.Files[1].Outcome != repo.AlreadyThere {
		t.Errorf("publishing again made generation %d after %d with outcomes %s and %s, want the same generation and already-there",
			again.Generation, first.Generation, again.Files[0].Outcome, again.Files[1].Outcome)
	}
}

func TestAnRpmFetchedFromTheRepositoryIsTheSameContentThoughItCarriesOurSignature(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	p := publish(t, r, "stable", repotest.RPM(repotest.Spec{}))
	signed, err := os.ReadFile(filepath.Join(dir, p.Files[0].Package.File))
	if err != nil {
		t.Fatal(err)
	}

	again := publish(t, r, "stable", signed)

	if again.Files[0].Outcome != repo.AlreadyThere {
		t.Errorf("the outcome is %s, want already-there", again.Files[0].Outcome)
	}
}

func TestOtherContentForAPublishedVersionIsRefusedWithBothDigests(t *testing.T) {
	for _, make := range []func(repotest.Spec) []byte{repotest.Deb, repotest.RPM} {
		r, _ := openRepo(t, t.TempDir())
		old, other := make(repotest.Spec{Content: "old"}), make(repotest.Spec{Content: "other"})
		publish(t, r, "stable", old)

		_, err := tryPublish(t, r, "testing", other)

		ref := wantCode(t, err, repo.CodeConflict)
		for _, b := range [][]byte{old, other} {
			if digest := fmt.Sprintf("%x", sha256.Sum256(b)); !strings.Contains(ref.Sentence, digest) {
				t.Errorf("the refusal does not name the SHA-256 %s: %s", digest, ref.Sentence)
			}
		}
	}
}

func TestARemovedVersionIsNeverGivenToOtherContent(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir)
	old := repotest.Deb(repotest.Spec{Content: "old"})
	publish(t, r, "stable", old)
	if _, err := r.Remove(t.Context(), "stable", repo.Ref{Format: repo.Deb, Name: "hello", Version: "1.0-1"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = openRepo(t, dir)

	_, err := tryPublish(t, r, "stable", repotest.Deb(repotest.Spec{Content: "other"}))

	wantCode(t, err, repo.CodeConflict)
	if p := publish(t, r, "stable", old); p.Files[0].Outcome != repo.Added {
		t.Errorf("publishing the removed content again is %s, want added", p.Files[0].Outcome)
	}
}

func TestOneBadFileKeepsAllFilesOfAPublishOut(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	before := r.Generation()

	_, err := tryPublish(t, r, "stable", repotest.Deb(repotest.Spec{}), []byte("this is no package at all"))

	ref := wantCode(t, err, repo.CodeNotAPackage)
	if ref.File != "file-1" || len(list(t, r, "stable")) != 0 || r.Generation() != before {
		t.Errorf("the refusal names %q and the suite holds %q in generation %d; want file-1, nothing, %d", ref.File, names(list(t, r, "stable")), r.Generation(), before)
	}
}

func TestFilesThatAreNoPackagesAreRefusedInASentence(t *testing.T) {
	deb, rpm := repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{})
	damaged := bytes.Clone(rpm)
	damaged[len(damaged)-3] ^= 1
	control := func(text string) []byte {
		return repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
			repotest.Member{Name: "control.tar.gz", Body: repotest.Gzip(repotest.Tar(repotest.Entry{Name: "./control", Body: text}))},
			repotest.Member{Name: "data.tar.gz", Body: repotest.Gzip(repotest.Tar())})
	}
	const rest = "Maintainer: x\nDescription: x\n"
	bomb := repotest.Gzip(make([]byte, 64<<20))
	for _, c := range []struct {
		name string
		body []byte
		code repo.Code
		says string
	}{
		{"an empty file", nil, repo.CodeNotAPackage, "neither a deb nor an rpm"},
		{"a text", []byte("hello world, this is text"), repo.CodeNotAPackage, "neither a deb nor an rpm"},
		{"a deb that is cut short", deb[:len(deb)-20], repo.CodeNotAPackage, "cut short"},
		{"an rpm that is cut short", rpm[:len(rpm)-20], repo.CodeNotAPackage, "cut short or damaged"},
		{"an rpm that ends in its header", rpm[:200], repo.CodeNotAPackage, "cut short"},
		{"an rpm with a damaged payload", damaged, repo.CodeNotAPackage, "damaged"},
		{"a deb of another tool's architecture", repotest.Deb(repotest.Spec{Arch: "x86_64"}), repo.CodeNotAPackage, "no architecture"},
		{"an rpm of another tool's architecture", repotest.RPM(repotest.Spec{Arch: "amd64"}), repo.CodeNotAPackage, "no architecture"},
		{"a deb whose name is a path", repotest.Deb(repotest.Spec{Name: "../../etc/x"}), repo.CodeNotAPackage, ".."},
		{"an rpm whose name is a path", repotest.RPM(repotest.Spec{Name: "../../etc/x"}), repo.CodeNotAPackage, "not allowed"},
		{"a deb whose version is a path", repotest.Deb(repotest.Spec{Version: "1/../../x"}), repo.CodeNotAPackage, "version"},
		{"a deb with a capital name", repotest.Deb(repotest.Spec{Name: "Hello"}), repo.CodeNotAPackage, "name"},
		{"a deb with two paragraphs", control("Package: aa\nVersion: 1\nArchitecture: all\n" + rest + "\nPackage: bb\n"), repo.CodeNotAPackage, "empty line"},
		{"a deb with a blank continuation", control("Package: aa\nVersion: 1\nArchitecture: all\n" + rest + " \nPackage: bb\n"), repo.CodeNotAPackage, "empty line"},
		{"a deb with a field twice", control("Package: aa\nVersion: 1\nVersion: 2\nArchitecture: all\n" + rest), repo.CodeNotAPackage, "twice"},
		{"a deb with a carriage return", control("Package: aa\r\nVersion: 1\nArchitecture: all\n" + rest), repo.CodeNotAPackage, "control character"},
		{"a deb whose control archive is a bomb", repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")}, repotest.Member{Name: "control.tar.gz", Body: bomb}, repotest.Member{Name: "data.tar.gz", Body: bomb}), repo.CodeTooLarge, "limit"},
		{"a deb with a huge control file", control("Package: aa\nVersion: 1\nArchitecture: all\nX: " + strings.Repeat("x", 2<<20) + "\n" + rest), repo.CodeTooLarge, "limit"},
		{"a deb with data that climbs out", repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
			repotest.Member{Name: "control.tar.gz", Body: repotest.Gzip(repotest.Tar(repotest.Entry{Name: "./control", Body: "Package: aa\nVersion: 1\nArchitecture: all\n" + rest}))},
			repotest.Member{Name: "data.tar.gz", Body: repotest.Gzip(repotest.Tar(repotest.Entry{Name: "./../../etc/passwd", Body: "x"}))}), repo.CodeNotAPackage, "holds the path"},
		{"a deb whose zstd asks for a window of terabytes", withData("data.tar.zst", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0, 0, 0, 0, 0, 0}), repo.CodeNotAPackage, "window"},
		{"a deb whose xz asks for a dictionary of gigabytes", withData("data.tar.xz", hugeXZ()), repo.CodeNotAPackage, "dictionary"},
		{"a deb with a member of negative size", bytes.Replace(deb, []byte("4         `"), []byte("-4        `"), 1), repo.CodeNotAPackage, "impossible size"},
		{"a deb with forty members", repotest.Ar(slices.Repeat([]repotest.Member{{Name: "x", Body: nil}}, 40)...), repo.CodeNotAPackage, "members"},
		{"a deb whose control file is a link", repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
			repotest.Member{Name: "control.tar", Body: linkTar(t, "./control", "/etc/shadow")}, repotest.Member{Name: "data.tar", Body: repotest.Tar()}), repo.CodeNotAPackage, "no regular file"},
		{"an rpm whose tag lies outside its store", rpmWithOffset(rpm, 0x7fffffff), repo.CodeNotAPackage, "outside its store"},
		{"an rpm whose text has no end", repotest.RPMWith(repotest.Spec{}, func(v map[int]any) { v[1000] = strings.Repeat("x", 300) }), repo.CodeNotAPackage, "name"},
		{"a source rpm", repotest.RPMWith(repotest.Spec{}, func(v map[int]any) { delete(v, 1044) }), repo.CodeNotAPackage, "source package"},
		{"an rpm without payload digest", repotest.RPMWith(repotest.Spec{}, func(v map[int]any) { delete(v, 5092) }), repo.CodeNotAPackage, "digest of its payload"},
		{"an rpm with MD5 file digests", repotest.RPMWith(repotest.Spec{}, func(v map[int]any) { v[5011] = []int{1} }), repo.CodeNotAPackage, "FIPS"},
		{"an rpm with a file in no directory", repotest.RPMWith(repotest.Spec{}, func(v map[int]any) { v[1116] = []int{7} }), repo.CodeNotAPackage, "directory"},
		{"an rpm whose header claims a million entries", append(append(bytes.Clone(rpm[:96]), 0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 0), rpm...), repo.CodeNotAPackage, "entries"},
		{"an rpm whose header claims a gigabyte", append(append(bytes.Clone(rpm[:96]), 0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0x40, 0, 0, 0), rpm...), repo.CodeTooLarge, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := openRepo(t, t.TempDir())

			_, err := tryPublish(t, r, "stable", c.body)

			if ref := wantCode(t, err, c.code); !strings.Contains(ref.Sentence, c.says) {
				t.Errorf("refused with %q, which does not say %q", ref.Sentence, c.says)
			}
		})
	}
}

// withData is a deb with the given member as its data archive.
func withData(name string, body []byte) []byte {
	const control = "Package: aa\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
	return repotest.Ar(repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
		repotest.Member{Name: "control.tar", Body: repotest.Tar(repotest.Entry{Name: "./control", Body: control})}, repotest.Member{Name: name, Body: body})
}

// hugeXZ is the beginning of an xz stream whose one filter asks for the largest
// dictionary that the format has.
func hugeXZ() []byte {
	flags := []byte{0, 0}
	block := []byte{2, 0, 0x21, 1, 40, 0, 0, 0}
	b := append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, flags...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(flags))
	b = append(b, block...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(block))
	return append(b, make([]byte, 64)...)
}

func linkTar(t *testing.T, name, target string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rpmWithOffset is the rpm with another offset in the first entry of its
// signature header, which is of the fixed place after lead and header intro.
func rpmWithOffset(rpm []byte, offset uint32) []byte {
	b := bytes.Clone(rpm)
	binary.BigEndian.PutUint32(b[96+16+8:], offset)
	return b
}

func TestAFileBeyondTheLimitIsRefusedWithoutBeingReadToItsEnd(t *testing.T) {
	dir := t.TempDir()
	r, _ := openRepo(t, dir, func(c *repo.Config) { c.MaxPackage = 1 << 20 })
	endless := io.MultiReader(strings.NewReader("!<arch>\n"), zeros{})

	_, err := r.Publish(t.Context(), "stable", []repo.Incoming{{Name: "endless.deb", Body: endless}})

	wantCode(t, err, repo.CodeTooLarge)
	if left, err := os.ReadDir(filepath.Join(dir, "pool", ".incoming")); err != nil || len(left) != 0 {
		t.Errorf("the refused upload left %v behind (error %v)", left, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnUploadThatEndsEarlyIsAnErrorAndNotARefusal(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	gone := errors.New("connection is gone")
	deb := repotest.Deb(repotest.Spec{})

	_, err := r.Publish(t.Context(), "stable", []repo.Incoming{{Name: "x.deb", Body: io.MultiReader(bytes.NewReader(deb[:100]), broken{gone})}})

	if _, refused := errors.AsType[*repo.Refusal](err); refused || !errors.Is(err, gone) {
		t.Errorf("got %v, want an error that holds the connection's and is no refusal", err)
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestACallerThatGoesAwayStopsItsUpload(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := r.Publish(ctx, "stable", []repo.Incoming{{Name: "x.deb", Body: bytes.NewReader(repotest.Deb(repotest.Spec{}))}})

	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestSixteenUploadsOfTheSameFileAtOnceAddItOnce(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	rpm := repotest.RPM(repotest.Spec{})
	outcomes := map[repo.Outcome]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup

	for range 16 {
		wg.Go(func() {
			p, err := tryPublish(t, r, "stable", rpm)
			if err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[p.Files[0].Outcome]++
		})
	}
	wg.Wait()

	if outcomes[repo.Added] != 1 || outcomes[repo.AlreadyThere] != 15 || len(list(t, r, "stable")) != 1 {
		t.Errorf("outcomes %v and %d packages, want 1 added, 15 already-there, 1 package", outcomes, len(list(t, r, "stable")))
	}
}

func TestPromotingMakesBothSuitesNameTheSameFile(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	publish(t, r, "testing", repotest.Deb(repotest.Spec{}), repotest.RPM(repotest.Spec{}))

	_, err := r.Promote(t.Context(), "testing", "stable", []repo.Ref{{Format: repo.Deb, Name: "hello", Version: "1.0-1"}, {Format: repo.RPM, Name: "hello", Version: "1.0-1"}})
	if err != nil {
		t.Fatal(err)
	}

	from, to := list(t, r, "testing"), list(t, r, "stable")
	if len(to) != 2 || to[0].File != from[0].File || to[1].File != from[1].File {
		t.Errorf("stable holds %v, want the two files of testing %v", to, from)
	}
}

func TestSuitesAndPackagesThatAreNotThereAreNamed(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())

	_, errList := r.List(t.Context(), "nowhere")
	_, errRemove := r.Remove(t.Context(), "stable", repo.Ref{Format: repo.Deb, Name: "ghost", Version: "1"})
	_, errSuite := tryPublish(t, r, "../etc", repotest.Deb(repotest.Spec{}))
	_, errNone := r.Publish(t.Context(), "stable", nil)

	wantCode(t, errList, repo.CodeNoSuite)
	wantCode(t, errRemove, repo.CodeNoPackage)
	wantCode(t, errSuite, repo.CodeBadSuite)
	wantCode(t, errNone, repo.CodeNoFiles)
}

func TestRetentionKeepsTheNewestVersionsAndThoseInUse(t *testing.T) {
	r, _ := openRepo(t, t.TempDir())
	var debs [][]byte
	for _, v := range []string{"1.0", "1.9", "1.10", "2.0~rc1", "2.0", "1:0.1"} {
		debs = append(debs, repotest.Deb(repotest.Spec{Version: v, Content: v}))
	}
	publish(t, r, "stable", debs...)

	gone, err := r.Retain(t.Context(), "stable", 2, func(p repo.Package) bool { return p.Version == "1.9" })
	if err != nil {
		t.Fatal(err)
	}

	if got, want := names(list(t, r, "stable")), "deb:hello=1.9 deb:hello=2.0 deb:hello=1:0.1"; got != want || len(gone) != 3 {
		t.Errorf("retention left %q and removed %d, want %q and 3", got, len(gone), want)
	}
}

func TestIndexesAndPackagesOfEarlierGenerationsStayReadableForAsLongAsTheyAreKept(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	r, _ := openRepo(t, dir, func(c *repo.Config) {
		c.Keep = repo.Keep{Min: 3, Max: 20, For: time.Hour}
		c.Now = func() time.Time { return now }
	})
	p := publish(t, r, "stable", repotest.Deb(repotest.Spec{Name: "old"}), repotest.RPM(repotest.Spec{Name: "old"}))
	old := append(indexPaths(t, r), p.Files[0].Package.File, p.Files[1].Package.File)
	for _, f := range []repo.Format{repo.Deb, repo.RPM} {
		if _, err := r.Remove(t.Context(), "stable", repo.Ref{Format: f, Name: "old", Version: "1.0-1"}); err != nil {
			t.Fatal(err)
		}
	}
	more := func(prefix string, n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", prefix, i)
			publish(t, r, "stable", repotest.Deb(repotest.Spec{Name: name}), repotest.RPM(repotest.Spec{Name: name}))
		}
	}

	more("soon", 10)
	for _, path := range old {
		f, err := r.Snapshot().Open(path)
		if err != nil {
			t.Fatalf("10 publishes later %s is gone: %v", path, err)
		}
		f.Close()
	}

	now = now.Add(2 * time.Hour)
	more("later", 5)
	for _, path := range old {
		if f, err := r.Snapshot().Open(path); err == nil {
			f.Close()
			t.Errorf("%s is still there although nobody can be in the middle of reading it", path)
		}
	}
	gens, err := os.ReadDir(filepath.Join(dir, "public", "gen"))
	if err != nil || len(gens) > 6 {
		t.Errorf("%d generations are left on the disk (error %v), want the five of the last hour and the one before", len(gens), err)
	}
}

// indexPaths returns the immutable names of the current indexes.
func indexPaths(t *testing.T, r *repo.Repo) []string {
	t.Helper()
	var out []string
	read := func(path string) string {
		f, err := r.Snapshot().Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for line := range strings.SplitSeq(read("dists/stable/Release"), "\n") {
		if f := strings.Fields(line); len(f) == 3 && len(f[0]) == 64 && strings.HasSuffix(f[2], "amd64/Packages.gz") {
			out = append(out, "dists/stable/"+filepath.Dir(f[2])+"/by-hash/SHA256/"+f[0])
		}
	}
	for _, part := range strings.Split(read("rpm/stable/repodata/repomd.xml"), `<location href="`)[1:] {
		path, _, _ := strings.Cut(part, `"`)
		out = append(out, "rpm/stable/"+path)
	}
	if len(out) != 4 {
		t.Fatalf("the current indexes are %v, want 1 for apt and 3 for rpm", out)
	}
	return out
}
