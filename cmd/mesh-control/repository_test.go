package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pgp "github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/klauspost/compress/zstd"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/repo"
	repohttp "github.com/meshctl/mesh/repo/http"
	"github.com/meshctl/mesh/repo/openpgp"
	"github.com/meshctl/mesh/repo/repotest"
)

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func openTestRepo(t *testing.T) *repo.Repo {
	t.Helper()
	r, err := repo.Open(t.Context(), repo.Config{Dir: t.TempDir()}, repotest.Signer(t), testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// fleetOf stands for the policy: what it says is in use, the tools that it says
// the nodes have, and what it was told to record.
type fleetOf struct {
	uses     []control.PackageUse
	tools    []control.PackageTool
	recorded []string
	// refuses is how many records cannot be made.
	refuses int
}

func (f *fleetOf) PackageUses(context.Context) ([]control.PackageUse, error)   { return f.uses, nil }
func (f *fleetOf) PackageTools(context.Context) ([]control.PackageTool, error) { return f.tools, nil }
func (f *fleetOf) RecordRepository(_ context.Context, by control.Caller, what, detail string) error {
	if f.refuses > 0 {
		f.refuses--
		return errors.New("the disk is full")
	}
	f.recorded = append(f.recorded, by.Door+": "+what+": "+detail)
	return nil
}

// Shows: M12
func TestRetentionKeepsTheNewestAndWhatANodeWouldGoBackTo(t *testing.T) {
	r := openTestRepo(t)
	for _, v := range []string{"1.0", "1.1", "1.2", "1.10"} {
		var in []repo.Incoming
		for _, b := range [][]byte{repotest.Deb(repotest.Spec{Name: "mesh-host", Version: v + "-1"}), repotest.RPM(repotest.Spec{Name: "mesh-host", Version: v + "-1"})} {
			in = append(in, repo.Incoming{Name: v, Body: bytes.NewReader(b)})
		}
		if _, err := r.Publish(t.Context(), "stable", in); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := openpgp.OpenKeys(t.TempDir(), openpgp.Options{Bits: openpgp.MinBits})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleetOf{uses: []control.PackageUse{{Name: "mesh-host", Version: "1.1-1", By: "node web-1, to go back to"}}}
	u := &upkeep{repo: r, keys: keys, users: f, keep: 1, now: time.Now, log: testLog(t)}

	u.once(t.Context())

	var left []string
	for _, p := range r.Versions("mesh-host") {
		left = append(left, string(p.Format)+" "+p.Version)
	}
	if want := []string{"deb 1.1-1", "deb 1.10-1", "rpm 1.1-1", "rpm 1.10-1"}; !slices.Equal(left, want) {
		t.Errorf("after retention there are %q, want %q", left, want)
	}
	if len(f.recorded) != 1 || !strings.Contains(f.recorded[0], "deb mesh-host 1.0-1 all") {
		t.Errorf("the audit log holds %q, want one line that names what was removed", f.recorded)
	}
}

// endingKey is an armored private key that ends after a time.
func endingKey(t *testing.T, made time.Time, lifetime time.Duration) []byte {
	t.Helper()
	cfg := &packet.Config{
		Algorithm: packet.PubKeyAlgoRSA, RSABits: openpgp.MinBits, DefaultHash: crypto.SHA256,
		KeyLifetimeSecs: uint32(lifetime.Seconds()), Time: func() time.Time { return made },
	}
	e, err := pgp.NewEntity("ending", "", "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Subkeys = nil
	var b bytes.Buffer
	w, err := armor.EncodeWithChecksumOption(&b, pgp.PrivateKeyType, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SerializePrivateWithoutSigning(w, cfg); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Shows: M11
func TestAKeyThatEndsIsComplainedAboutOnceAndLongBefore(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "repository.key"), endingKey(t, made, 365*24*time.Hour), 0o600); err != nil {
		t.Fatal(err)
	}
	now := made
	clock := func() time.Time { return now }
	keys, err := openpgp.OpenKeys(dir, openpgp.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleetOf{}
	u := &upkeep{repo: openTestRepo(t), keys: keys, users: f, now: clock, log: testLog(t)}
	at := func(days int) int {
		now = made.AddDate(0, 0, days)
		u.once(t.Context())
		return len(f.recorded)
	}

	early, first, again := at(200), at(276), at(300)

	if early != 0 || first != 1 || again != 1 {
		t.Errorf("165 days before its end there were %d complaints, 89 days before %d, 65 days before %d; want 0, 1, 1", early, first, again)
	}
	if want := "repository key expires: " + keys.Fingerprints()[0] + " on 2027-01-01"; len(f.recorded) > 0 && !strings.Contains(f.recorded[0], want) {
		t.Errorf("the event is %q, want it to say %q", f.recorded[0], want)
	}
}

func TestEachKeyThatEndsIsComplainedAboutOnceAlsoWhereThatCouldNotBeRecordedAtFirst(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	for _, name := range []string{"repository.key", "repository-next.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), endingKey(t, made, 365*24*time.Hour), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clock := func() time.Time { return made.AddDate(0, 0, 300) }
	keys, err := openpgp.OpenKeys(dir, openpgp.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleetOf{refuses: 1}
	u := &upkeep{repo: openTestRepo(t), keys: keys, users: f, now: clock, log: testLog(t)}
	for range 4 {
		u.once(t.Context())
	}
	if len(f.recorded) != 2 || f.recorded[0] == f.recorded[1] {
		t.Errorf("of two keys that end there are the complaints %q, want one of each", f.recorded)
	}
}

// zstDeb is a deb whose control archive, and nothing else, is compressed with zstd.
func zstDeb(t *testing.T) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := "Package: modern\nVersion: 1.0-1\nArchitecture: all\nMaintainer: Test <test@example.org>\nDescription: modern\n"
	return repotest.Ar(
		repotest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
		repotest.Member{Name: "control.tar.zst", Body: z.EncodeAll(repotest.Tar(repotest.Entry{Name: "./control", Body: text}), nil)},
		repotest.Member{Name: "data.tar.gz", Body: repotest.Gzip(repotest.Tar(repotest.Entry{Name: "./usr/share/doc/modern/about", Body: "x"}))},
	)
}

// Shows: M12
func TestAPublishWarnsOfEachNodeThatCannotOpenThePackage(t *testing.T) {
	f := &fleetOf{tools: []control.PackageTool{
		{Node: "old-1", OS: "debian", Tool: "dpkg", Version: "1.20.13"},
		{Node: "old-2", OS: "debian", Tool: "dpkg", Version: "1.19.8"},
		{Node: "new-1", OS: "debian", Tool: "dpkg", Version: "1.21.22"},
		{Node: "bionic-1", OS: "ubuntu", Tool: "dpkg", Version: "1.19.0.5ubuntu2"},
		{Node: "rpm-1", OS: "centos", Tool: "rpm", Version: "4.11.3-48.el7"},
	}}
	p := publisher{repo: openTestRepo(t), note: func() {}, gate: gate{readers: f, log: testLog(t)}}
	publish := func(b []byte) string {
		t.Helper()
		done, err := p.Publish(t.Context(), "stable", []api.Upload{{Name: "x", Body: bytes.NewReader(b)}})
		if err != nil {
			t.Fatal(err)
		}
		return done[0].Warning
	}

	modern, plain := publish(zstDeb(t)), publish(repotest.Deb(repotest.Spec{}))

	const want = "modern 1.0-1 is compressed with zstd, which 2 nodes cannot read: old-1 has dpkg 1.20.13, old-2 has dpkg 1.19.8; build it with xz or gzip if it is meant for there"
	if modern != want {
		t.Errorf("the warning is %q, want %q", modern, want)
	}
	if plain != "" {
		t.Errorf("a package that every node reads is warned of: %q", plain)
	}
}

func TestAnRpmWithZstdIsWarnedOfForOldRpm(t *testing.T) {
	zstdRPM := repo.Package{Format: repo.RPM, Name: "x", Version: "1-1", Compression: "zstd"}
	for version, want := range map[string]bool{"4.11.3-48.el7": true, "4.13.0.1-1": true, "4.14.0-1": false, "4.18.0-1": false, "6.0.1-1": false} {
		if got := cannotRead(control.PackageTool{Tool: "rpm", Version: version}, zstdRPM); got != want {
			t.Errorf("rpm %s cannot read it: %t, want %t", version, got, want)
		}
	}
}

// certificate writes a certificate for 127.0.0.1 that signs itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mesh"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Shows: M11
func TestTheRepositoryIsServedWithTheAdminsOwnCertificate(t *testing.T) {
	cert, key := certificate(t)
	pair, err := loadCertificate(config{certificate: cert, certificateKey: key})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: repohttp.New(openTestRepo(t), repohttp.Options{}, testLog(t)), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(testLog(t).Handler(), slog.LevelDebug)}
	go server.Serve(secure(plain, pair))
	t.Cleanup(func() { server.Close() })
	get := func(client *http.Client, scheme string) (string, error) {
		answer, err := client.Get(fmt.Sprintf("%s://%s/mesh.sources", scheme, plain.Addr()))
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}

	trusting, err := trustingClient(cert)
	if err != nil {
		t.Fatal(err)
	}
	page, err := get(trusting, "https")
	_, stranger := get(&http.Client{}, "https")
	unencrypted, _ := get(trusting, "http")

	if err != nil || !strings.Contains(page, "URIs: https://"+plain.Addr().String()+"\n") {
		t.Errorf("over TLS the configuration is %q (%v), want it to name the https address", page, err)
	}
	if stranger == nil {
		t.Error("a client that does not know the certificate reads the repository")
	}
	if strings.Contains(unencrypted, "URIs:") {
		t.Errorf("without TLS it answers %q", unencrypted)
	}
}

func TestACertificateThatCannotBeUsedIsNamedWithItsSettings(t *testing.T) {
	cert, _ := certificate(t)
	_, otherKey := certificate(t)
	for what, c := range map[string]config{
		"the key of another": {certificate: cert, certificateKey: otherKey},
		"no key":             {certificate: cert},
		"no such file":       {certificate: cert + ".none", certificateKey: otherKey},
	} {
		if _, err := loadCertificate(c); err == nil || !strings.Contains(err.Error(), "repository_tls_certificate and repository_tls_key") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// trustingClient is a client that knows one certificate.
func trustingClient(cert string) (*http.Client, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}, nil
}
