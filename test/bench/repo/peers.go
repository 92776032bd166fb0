package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/mesh/packaging"
)

const gpgUser = "bench@example.org"

// makeKey makes the RSA-4096 key that all other tools sign with.
func (b *bench) makeKey(ctx context.Context) error {
	if err := os.MkdirAll(b.gnupg, 0o700); err != nil {
		return err
	}
	_, err := b.sh(ctx, b.dir, "gpg --batch --quiet --passphrase '' --quick-generate-key "+gpgUser+" rsa4096 sign never")
	return err
}

// sh runs a script and measures it. Memory is that of its largest process.
func (b *bench) sh(ctx context.Context, dir, script string, args ...string) (took, error) {
	// A process counts the memory of the one that started it as its own until it
	// executes its program, so a small one stands between.
	peak := filepath.Join(b.dir, "peak")
	cmd := exec.CommandContext(ctx, "time", append([]string{"-o", peak, "-f", "%M", "sh", "-euc", script, "sh"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GNUPGHOME="+b.gnupg, "LC_ALL=C", "HOME="+b.dir)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t := took{wall: time.Since(began)}
	if err != nil {
		return t, fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	text, err := os.ReadFile(peak)
	if err != nil {
		return t, err
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	t.rss = kib << 10
	return t, err
}

// scripted is a contender that consists of scripts. prepare is not measured;
// build and add are; build finds all packages in ./pool, add gets the new one
// as $1 and has it in ./pool too.
func (b *bench) scripted(name, format, prepare, build, add string) contender {
	link := func(dir string, files []string) error {
		pool := filepath.Join(dir, "pool")
		if err := os.MkdirAll(pool, 0o755); err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Link(f, filepath.Join(pool, filepath.Base(f))); err != nil {
				return err
			}
		}
		return nil
	}
	return contender{name: name, format: format,
		build: func(ctx context.Context, dir string, pool []string) (took, error) {
			if err := link(dir, pool); err != nil {
				return took{}, err
			}
			if _, err := b.sh(ctx, dir, prepare); err != nil {
				return took{}, err
			}
			return b.sh(ctx, dir, build)
		},
		add: func(ctx context.Context, dir string, files []string) ([]took, error) {
			var all []took
			for _, f := range files {
				if err := link(dir, []string{f}); err != nil {
					return nil, err
				}
				t, err := b.sh(ctx, dir, add, "pool/"+filepath.Base(f))
				if err != nil {
					return nil, err
				}
				all = append(all, t)
			}
			return all, nil
		},
	}
}

func (b *bench) contenders() []contender {
	const sign = ` && rm -f repodata/repomd.xml.asc && gpg --batch -abs repodata/repomd.xml`
	release := `cd dists/stable && rm -f InRelease Release Release.gpg && gzip -9kf main/binary-amd64/Packages &&
apt-ftparchive -o APT::FTPArchive::Release::Suite=stable release . > ../Release && mv ../Release Release &&
gpg --batch --clearsign -o InRelease Release && gpg --batch -abs -o Release.gpg Release`
	ftp := func(db string) string {
		return `mkdir -p dists/stable/main/binary-amd64 && apt-ftparchive ` + db + ` packages pool > dists/stable/main/binary-amd64/Packages && ` + release
	}
	return []contender{
		b.ours("mesh, deb", packaging.Deb),
		b.scripted("reprepro", packaging.Deb,
			"mkdir conf && printf 'Codename: stable\nSuite: stable\nArchitectures: amd64\nComponents: main\nSignWith: yes\n' > conf/distributions",
			"reprepro -s -b . includedeb stable pool/*.deb", `reprepro -s -b . includedeb stable "$1"`),
		b.scripted("aptly, skip-contents", packaging.Deb,
			`printf '{"rootDir":"%s","gpgProvider":"gpg","architectures":["amd64"]}' "$PWD/aptly" > aptly.conf && aptly -config=aptly.conf repo create bench`,
			"aptly -config=aptly.conf repo add bench pool && aptly -config=aptly.conf publish repo -batch -skip-contents -distribution=stable bench",
			`aptly -config=aptly.conf repo add bench "$1" && aptly -config=aptly.conf publish update -batch -skip-contents stable`),
		b.scripted("apt-ftparchive, no cache", packaging.Deb, "true", ftp(""), ftp("")),
		b.scripted("apt-ftparchive --db", packaging.Deb, "true", ftp("--db cache.db"), ftp("--db cache.db")),
		b.ours("mesh, rpm", packaging.RPM),
		b.scripted("createrepo_c", packaging.RPM, "true", "createrepo_c -q ."+sign, "createrepo_c -q --update ."+sign),
		b.scripted("createrepo_c, no-database, skip-stat", packaging.RPM, "true", "createrepo_c -q --no-database ."+sign, "createrepo_c -q --no-database --update --skip-stat ."+sign),
		b.ours("mesh, deb and rpm together", both),
	}
}
