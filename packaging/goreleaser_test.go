package packaging

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// release is the part of the release's configuration that must agree with ours.
type release struct {
	Before struct {
		Hooks []string `yaml:"hooks"`
	} `yaml:"before"`
	Builds []struct {
		ID      string   `yaml:"id"`
		Main    string   `yaml:"main"`
		Tags    []string `yaml:"tags"`
		Ldflags []string `yaml:"ldflags"`
		Env     []string `yaml:"env"`
		Goarch  []string `yaml:"goarch"`
	} `yaml:"builds"`
	Nfpms []struct {
		ID          string   `yaml:"id"`
		PackageName string   `yaml:"package_name"`
		IDs         []string `yaml:"ids"`
		Formats     []string `yaml:"formats"`
		Maintainer  string   `yaml:"maintainer"`
		Homepage    string   `yaml:"homepage"`
		License     string   `yaml:"license"`
		Section     string   `yaml:"section"`
		Release     string   `yaml:"release"`
		Bindir      string   `yaml:"bindir"`
		Changelog   string   `yaml:"changelog"`
		Description string   `yaml:"description"`
		RPM         struct {
			Summary   string `yaml:"summary"`
			Buildhost string `yaml:"buildhost"`
		} `yaml:"rpm"`
		Overrides map[string]struct {
			Dependencies []string          `yaml:"dependencies"`
			Scripts      map[string]string `yaml:"scripts"`
		} `yaml:"overrides"`
		Contents []struct {
			Src      string `yaml:"src"`
			Dst      string `yaml:"dst"`
			Packager string `yaml:"packager"`
			Type     string `yaml:"type"`
			FileInfo struct {
				Mode os.FileMode `yaml:"mode"`
			} `yaml:"file_info"`
		} `yaml:"contents"`
	} `yaml:"nfpms"`
}

func readRelease(t *testing.T) release {
	t.Helper()
	b, err := os.ReadFile("../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r release
	if err := yaml.Unmarshal(b, &r); err != nil {
		t.Fatalf("read .goreleaser.yaml: %v", err)
	}
	return r
}

func TestAReleaseHoldsTheSamePackagesWithTheSameFilesAndScripts(t *testing.T) {
	r := readRelease(t)
	if len(r.Nfpms) != len(programs) {
		t.Fatalf("the release builds %d packages, want %d", len(r.Nfpms), len(programs))
	}
	for i, p := range programs {
		got := r.Nfpms[i]
		stage := "out/stage/" + p.name + "/"
		var have, want []string
		for _, c := range got.Contents {
			have = append(have, fmt.Sprintln(c.Src, c.Dst, c.Packager, c.Type, c.FileInfo.Mode))
		}
		for _, e := range p.entries() {
			if !strings.HasPrefix(e.src, "bin:") { // the release puts the binary into bindir by itself
				want = append(want, fmt.Sprintln(stage+e.src, e.dst, e.format, e.kind, e.mode))
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if strings.Join(have, "") != strings.Join(want, "") {
			t.Errorf("files of %s in the release:\n%swant:\n%s", p.name, strings.Join(have, ""), strings.Join(want, ""))
		}
		for _, format := range []string{Deb, RPM} {
			o := got.Overrides[format]
			if fmt.Sprint(o.Dependencies) != fmt.Sprint(p.depends[format]) {
				t.Errorf("%s of %s in the release depends on %v, want %v", format, p.name, o.Dependencies, p.depends[format])
			}
			wantScripts := map[string]string{}
			if len(p.scripts(format)) > 0 {
				for name, script := range map[string]string{"postinstall": "postinst", "preremove": "prerm", "postremove": "postrm"} {
					wantScripts[name] = stage + format + "/" + script
				}
			}
			if len(o.Scripts) != len(wantScripts) || (len(wantScripts) > 0 && fmt.Sprint(o.Scripts) != fmt.Sprint(wantScripts)) {
				t.Errorf("%s of %s in the release has scripts %v, want %v", format, p.name, o.Scripts, wantScripts)
			}
		}
		info := p.info("out/stage", Options{Version: "1.0", Arch: "amd64"}, RPM)
		haveText := fmt.Sprintln(got.PackageName, got.IDs, got.Formats, got.Maintainer, got.Homepage, got.License, got.Section, got.Release, got.Bindir, got.Changelog, got.RPM.Summary, got.RPM.Buildhost) + got.Description
		wantText := fmt.Sprintln(p.name, []string{p.name}, []string{Deb, RPM}, info.Maintainer, info.Homepage, info.License, info.Section, info.Release, "/usr/bin", info.Changelog, info.RPM.Summary, buildHost) + info.Description
		if haveText != wantText {
			t.Errorf("the release describes %s as\n%s\nwant\n%s", p.name, haveText, wantText)
		}
	}
}

func TestAReleaseCompilesTheSameStaticBinaries(t *testing.T) {
	r := readRelease(t)
	for i, p := range programs {
		b := r.Builds[i]
		if b.ID != p.name || b.Main != "./cmd/"+p.name || strings.Join(b.Tags, " ") != "netgo osusergo sqlite_omit_load_extension" ||
			!strings.Contains(strings.Join(b.Ldflags, " "), "-linkmode external -extldflags -static -X github.com/meshctl/mesh/internal/version.Version=") ||
			strings.Join(b.Env, " ") != "CGO_ENABLED=1" || strings.Join(b.Goarch, " ") != "amd64 arm64" {
			t.Errorf("the release compiles %s with %+v", p.name, b)
		}
	}
	if len(r.Before.Hooks) != 1 || !strings.HasPrefix(r.Before.Hooks[0], "go run ./packaging/cmd/packages stage out/stage ") {
		t.Errorf("the release does not write the stage first: %v", r.Before.Hooks)
	}
}
