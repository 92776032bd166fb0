package packaging_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/mesh/packaging"
)

// stand holds packages of stand-in programs, built once for all tests.
type stand struct {
	dir     string
	options packaging.Options
	paths   []string
}

var (
	standOnce  sync.Once
	standBuilt stand
	standErr   error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if standBuilt.dir != "" {
		os.RemoveAll(standBuilt.dir)
	}
	os.Exit(code)
}

// packages returns the shared packages.
func packages(t *testing.T) stand {
	t.Helper()
	standOnce.Do(func() { standBuilt, standErr = buildStand() })
	if standErr != nil {
		t.Fatalf("build packages of stand-in programs: %v", standErr)
	}
	return standBuilt
}

func buildStand() (stand, error) {
	dir, err := os.MkdirTemp("", "mesh-packaging-test-")
	if err != nil {
		return stand{}, err
	}
	s := stand{dir: dir, options: packaging.Options{
		Version: "1.2.0", Arch: "amd64", BinDir: filepath.Join(dir, "bin"), OutDir: filepath.Join(dir, "out"),
		LicenseFile: "../LICENSE", Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
	}}
	for _, name := range packaging.Names() {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.name="+name, "-o", filepath.Join(dir, "bin", name), "./testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return s, fmt.Errorf("compile stand-in: %w: %s", err, out)
		}
	}
	s.paths, err = packaging.Build(context.Background(), s.options)
	return s, err
}

// file is the path of one built package.
func (s stand) file(name, format string) string {
	return filepath.Join(s.options.OutDir, packaging.FileName(name, s.options.Version, s.options.Arch, format))
}

// output runs a tool that the tests of packages need.
func output(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

func TestThePackageToolsReadBackTheNameVersionAndArchitectureThatWereAskedFor(t *testing.T) {
	s := packages(t)
	for _, name := range packaging.Names() {
		deb := strings.TrimSpace(output(t, "dpkg-deb", "-W", "--showformat=${Package} ${Version} ${Architecture}", s.file(name, packaging.Deb)))
		if want := name + " 1.2.0-1 amd64"; deb != want {
			t.Errorf("dpkg-deb reads %q, want %q", deb, want)
		}
		rpm := strings.TrimSpace(output(t, "rpm", "-qp", "--qf", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}", s.file(name, packaging.RPM)))
		if want := name + " 1.2.0-1 x86_64"; rpm != want {
			t.Errorf("rpm reads %q, want %q", rpm, want)
		}
	}
}

func TestThePackagesHoldUnitsScriptsManualPagesAndCompletions(t *testing.T) {
	s := packages(t)
	both := map[string][]string{
		"mesh-host": {
			"/usr/bin/mesh-host", "/usr/lib/systemd/system/mesh-host.service", "/usr/lib/systemd/system/mesh-host-rollback.service",
			"/usr/lib/mesh-host/rollback", "/usr/lib/mesh-host/starts", "/usr/lib/mesh-host/version",
			"/etc/needrestart/conf.d/mesh-host.conf", "/usr/share/man/man8/mesh-host.8.gz",
			"/usr/share/bash-completion/completions/mesh-host", "/usr/share/fish/vendor_completions.d/mesh-host.fish",
		},
		"mesh-control": {"/usr/bin/mesh-control", "/usr/lib/systemd/system/mesh-control.service", "/usr/lib/sysusers.d/mesh-control.conf", "/usr/share/man/man8/mesh-control.8.gz"},
		"meshctl":      {"/usr/bin/meshctl", "/usr/share/man/man1/meshctl.1.gz"},
	}
	for name, wanted := range both {
		deb := output(t, "dpkg-deb", "-c", s.file(name, packaging.Deb))
		rpm := output(t, "rpm", "-qlp", s.file(name, packaging.RPM))
		for _, path := range wanted {
			if !strings.Contains(deb, " ."+path+"\n") {
				t.Errorf("the deb of %s lacks %s:\n%s", name, path, deb)
			}
			if !strings.Contains("\n"+rpm, "\n"+path+"\n") {
				t.Errorf("the rpm of %s lacks %s:\n%s", name, path, rpm)
			}
		}
	}
}

func TestTheUnitsNameTheManualPagesThatThePackagesHold(t *testing.T) {
	s := packages(t)
	for _, name := range []string{"mesh-host", "mesh-control"} {
		unit := output(t, "sh", "-c", "dpkg-deb --fsys-tarfile "+s.file(name, packaging.Deb)+" | tar -xO ./usr/lib/systemd/system/"+name+".service")
		if !strings.Contains(unit, "\nDocumentation=man:"+name+"(8)\n") {
			t.Errorf("the unit of %s does not name its manual page %s(8):\n%s", name, name, unit)
		}
	}
}

func TestNoPackageHasAConffileThatCouldMakeAnUpgradeAsk(t *testing.T) {
	s := packages(t)
	for _, name := range packaging.Names() {
		if names := output(t, "sh", "-c", "dpkg-deb --ctrl-tarfile "+s.file(name, packaging.Deb)+" | tar -tf -"); strings.Contains(names, "conffiles\n") {
			t.Errorf("the deb of %s has conffiles: %s", name, output(t, "dpkg-deb", "-I", s.file(name, packaging.Deb), "conffiles"))
		}
		if configs := output(t, "rpm", "-qcp", s.file(name, packaging.RPM)); strings.TrimSpace(configs) != "" {
			t.Errorf("the rpm of %s has configuration files: %s", name, configs)
		}
	}
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	s := packages(t)
	again := s.options
	again.OutDir = t.TempDir()
	paths, err := packaging.Build(context.Background(), again)
	if err != nil {
		t.Fatalf("build again: %v", err)
	}
	if len(paths) != 6 {
		t.Fatalf("built %d files, want 6: %v", len(paths), paths)
	}
	for i, path := range paths {
		first, err := os.ReadFile(s.paths[i])
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%s differs between two builds of the same inputs", filepath.Base(path))
		}
	}
}

func TestAVersionThatDpkgAndRpmReadDifferentlyIsRefused(t *testing.T) {
	for _, v := range []string{"", "v1.0", "1.0-1", "1:1.0", "1.0_1", "1.0^git", "1.0\n", "dev"} {
		if packaging.CheckVersion(v) == nil {
			t.Errorf("version %q is accepted", v)
		}
	}
	for _, v := range []string{"1", "1.0.0", "1.0.0~rc1", "1.0.0+3.gabc", "0.0.0~dev+gabc.dirty"} {
		if err := packaging.CheckVersion(v); err != nil {
			t.Errorf("version %q is refused: %v", v, err)
		}
	}
}

func TestASimplePackageIsReadableByBothPackageManagers(t *testing.T) {
	p := packaging.SimplePackage{
		Name: "hello", Version: "2.0", Depends: nil,
		Files:   []packaging.SimpleFile{{Path: "/etc/hello.conf", Content: []byte("greeting = hi\n"), Config: true}, {Path: "/usr/bin/hello", Content: []byte("#!/bin/sh\necho hi\n"), Mode: 0o755}},
		Scripts: packaging.SimpleScripts{PostInstall: "#!/bin/sh\nexit 0\n"},
	}
	for format, read := range map[string]string{
		packaging.Deb: "dpkg-deb -W --showformat='${Package} ${Version} ${Architecture}' %[1]s; dpkg-deb -I %[1]s conffiles postinst",
		packaging.RPM: "rpm -qp --qf '%%{NAME} %%{VERSION}-%%{RELEASE} %%{ARCH}' %[1]s; rpm -qcp --scripts %[1]s",
	} {
		b, err := packaging.BuildSimple(p, format)
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		path := filepath.Join(t.TempDir(), "hello."+format)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		out := output(t, "sh", "-c", fmt.Sprintf(read, path))
		for _, want := range []string{"hello 2.0-1 ", "/etc/hello.conf", "exit 0"} {
			if !strings.Contains(out, want) {
				t.Errorf("the %s lacks %q: %s", format, want, out)
			}
		}
	}
}
