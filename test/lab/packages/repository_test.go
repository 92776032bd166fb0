package packages_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/meshctl/mesh/test/lab"
)

// fault is what the server does instead of serving a file whose path ends so.
type fault string

const (
	faultNotFound    fault = "404"
	faultUnavailable fault = "503"
	faultCut         fault = "cut"    // half the body, then the connection ends
	faultFlip        fault = "flip"   // one byte is another
	faultRefuse      fault = "refuse" // the connection ends at once
)

// server serves directories to the hosts of the lab, badly when told to.
type server struct {
	url string
	dir string
	mu  sync.Mutex
	// faults by the end of the path.
	faults map[string]fault
}

func newServer(t *testing.T, l *lab.Lab) *server {
	t.Helper()
	s := &server{dir: t.TempDir(), faults: map[string]fault{}}
	listener, err := l.Listen(t.Context(), "tcp", lab.Gateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	h := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.Serve(listener) }()
	t.Cleanup(func() { _ = h.Close() })
	return s
}

// fail sets what happens to paths that end so; empty heals.
func (s *server) fail(suffix string, f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == "" {
		delete(s.faults, suffix)
		return
	}
	s.faults[suffix] = f
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var f fault
	asked := path.Clean(r.URL.Path)
	for suffix, is := range s.faults {
		if strings.HasSuffix(asked, suffix) || strings.HasSuffix(suffix, "/") && strings.Contains(asked, suffix) {
			f = is
		}
	}
	s.mu.Unlock()
	data, err := os.ReadFile(filepath.Join(s.dir, filepath.Clean("/"+r.URL.Path)))
	switch {
	case f == faultRefuse:
		panic(http.ErrAbortHandler)
	case f == faultUnavailable:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case f == faultNotFound || err != nil:
		http.NotFound(w, r)
	case f == faultCut:
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	case f == faultFlip:
		data[len(data)/2] ^= 0x20
		fallthrough
	default:
		_, _ = w.Write(data)
	}
}

// key signs what apt and rpm verify.
type key struct{ entity *openpgp.Entity }

func newKey(t *testing.T, name string) key {
	t.Helper()
	e, err := openpgp.NewEntity(name, "", name+"@example.com", &packet.Config{Algorithm: packet.PubKeyAlgoRSA, RSABits: 2048})
	if err != nil {
		t.Fatal(err)
	}
	return key{e}
}

func (k key) public(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.entity.Serialize(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

// detached is a binary signature, as rpm carries it.
func (k key) detached(data []byte) ([]byte, error) {
	var b bytes.Buffer
	err := openpgp.DetachSign(&b, k.entity, bytes.NewReader(data), nil)
	return b.Bytes(), err
}

func (k key) id() string { return fmt.Sprintf("%016X", k.entity.PrimaryKey.KeyId) }

// repository is a directory of packages below the server.
type repository struct {
	s    *server
	name string
	rpm  bool
	key  key
	// release holds fields of apt's Release file that differ from the usual.
	release map[string]string
	// signedAt is when the index claims to be signed. Zero: now.
	signedAt time.Time
	// modules is rpm's module metadata. Empty: none.
	modules string
}

func (r *repository) url() string   { return r.s.url + "/" + r.name + "/" }
func (r *repository) dir() string   { return filepath.Join(r.s.dir, r.name) }
func (r *repository) paths() string { return "/" + r.name + "/" }

func (r *repository) now() time.Time {
	if r.signedAt.IsZero() {
		return time.Now()
	}
	return r.signedAt
}

// publish builds packages into the repository, beside what is there, and writes
// its index.
func (r *repository) publish(t *testing.T, packs ...pack) {
	t.Helper()
	if err := os.MkdirAll(r.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range packs {
		p.build(t, r.dir(), r.rpm)
	}
	r.index(t)
}

func (r *repository) index(t *testing.T) {
	t.Helper()
	if r.rpm {
		runLocal(t, r.dir(), "createrepo_c", "--quiet", "--general-compress-type=gz", ".")
		if r.modules != "" {
			path := filepath.Join(t.TempDir(), "modules.yaml")
			if err := os.WriteFile(path, []byte(r.modules), 0o644); err != nil {
				t.Fatal(err)
			}
			runLocal(t, r.dir(), "modifyrepo_c", "--mdtype=modules", path, "repodata")
		}
		return
	}
	packages := runLocal(t, r.dir(), "apt-ftparchive", "packages", ".")
	sum := sha256.Sum256(packages)
	fields := map[string]string{"Origin": "rows", "Label": "rows", "Suite": "stable", "Codename": "rows", "Date": time.Now().UTC().Add(-time.Minute).Format(time.RFC1123), "Architectures": "all amd64 arm64 i386"}
	for name, value := range r.release {
		fields[name] = value
	}
	var b strings.Builder
	for _, name := range []string{"Origin", "Label", "Suite", "Codename", "Date", "Valid-Until", "Architectures"} {
		if fields[name] != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.Replace(fields[name], "GMT", "UTC", 1))
		}
	}
	fmt.Fprintf(&b, "SHA256:\n %s %d Packages\n", hex.EncodeToString(sum[:]), len(packages))
	var signed bytes.Buffer
	w, err := clearsign.Encode(&signed, r.key.entity.PrivateKey, &packet.Config{Time: r.now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(b.String())); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"Packages": packages, "InRelease": signed.Bytes()} {
		if err := os.WriteFile(filepath.Join(r.dir(), name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runLocal(t *testing.T, dir string, argv ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, stderr.String())
	}
	return out
}
