// Package repotest makes small deb and rpm files for tests of the repository,
// and keys to sign with. The files are real: dpkg, apt, rpm and dnf read and
// install them. They are written by code that shares nothing with the readers
// under test.
//
// It is no packager: one file, one dependency list, no scripts.
package repotest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/repo/openpgp"
)

// Spec is what a made package says about itself. Zero fields get defaults.
type Spec struct {
	Name    string // "hello"
	Version string // as the format writes it: "1.0-1", for rpm version-release with an optional epoch
	Arch    string // "all" or "noarch"
	Content string // of the one file, /usr/share/doc/NAME/about
	Depends []string
	// Extra are further control lines of a deb, each ended by a newline.
	Extra string
}

func (s Spec) orDefaults(arch string) Spec {
	if s.Name == "" {
		s.Name = "hello"
	}
	if s.Version == "" {
		s.Version = "1.0-1"
	}
	if s.Arch == "" {
		s.Arch = arch
	}
	if s.Content == "" {
		s.Content = "about " + s.Name + "\n"
	}
	return s
}

// stamp is the time of everything in a made package.
var stamp = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Deb returns a Debian binary package.
func Deb(s Spec) []byte {
	s = s.orDefaults("all")
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: Test <test@example.org>\n", s.Name, s.Version, s.Arch)
	if len(s.Depends) > 0 {
		control += "Depends: " + strings.Join(s.Depends, ", ") + "\n"
	}
	control += s.Extra + "Description: made for a test\n It has a second line.\n"
	return Ar(
		Member{"debian-binary", []byte("2.0\n")},
		Member{"control.tar.gz", Gzip(Tar(Entry{"./control", control}))},
		Member{"data.tar.gz", Gzip(Tar(Entry{"./usr/share/doc/" + s.Name + "/about", s.Content}))},
	)
}

// Member is one member of an ar archive.
type Member struct {
	Name string
	Body []byte
}

// Ar returns an ar archive.
func Ar(members ...Member) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range members {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.Name, stamp.Unix(), 0, 0, "100644", len(m.Body))
		b.Write(m.Body)
		if len(m.Body)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// Entry is one file of a tar archive.
type Entry struct {
	Name, Body string
}

// Tar returns a tar archive with the directories that its files need.
func Tar(entries ...Entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	for _, e := range entries {
		for i, c := range e.Name {
			if dir := e.Name[:i+1]; c == '/' && !made[dir] {
				made[dir] = true
				must(w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: stamp}))
			}
		}
		must(w.WriteHeader(&tar.Header{Name: e.Name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(e.Body)), ModTime: stamp}))
		_, err := w.Write([]byte(e.Body))
		must(err)
	}
	must(w.Close())
	return b.Bytes()
}

// Gzip compresses.
func Gzip(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(err)
	must(w.Close())
	return out.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var testKey = sync.OnceValues(func() ([]byte, error) {
	return openpgp.Generate("mesh test repository", openpgp.MinBits, stamp)
})

// Signer returns a keyring with one key, the same for all tests of a process.
func Signer(t testing.TB) *openpgp.Keyring {
	t.Helper()
	key, err := testKey()
	if err != nil {
		t.Fatalf("make test key: %v", err)
	}
	k, err := openpgp.NewKeyring(nil, key)
	if err != nil {
		t.Fatalf("use test key: %v", err)
	}
	return k
}
