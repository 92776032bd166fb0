package arch

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/mod/modfile"
)

// Shows: M34
func TestTheRepositoryStandsOnTheGivenLibrariesAndRooms(t *testing.T) {
	for _, name := range []string{
		"host", "control", "repo", "packaging", "systemd", "rollback", "cmd", "test", "adr", "docs",
		"go.mod", "go.sum", "Makefile", ".goreleaser.yaml",
	} {
		if _, err := os.Stat("../../" + name); err != nil {
			t.Errorf("the top level lacks %s: %v", name, err)
		}
	}
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse("go.mod", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]string{}
	for _, r := range mod.Require {
		if !r.Indirect {
			direct[r.Mod.Path] = r.Mod.Version
		}
	}
	for path, version := range map[string]string{
		"github.com/coreos/go-systemd/v22": "",
		"github.com/godbus/dbus/v5":        "",
		"github.com/goreleaser/nfpm/v2":    "v2.45.2",
		"github.com/mattn/go-sqlite3":      "",
		"golang.org/x/crypto":              "",
		"github.com/spf13/cobra":           "",
	} {
		if got, there := direct[path]; !there || version != "" && got != version {
			t.Errorf("go.mod has %s at %q, want it directly, at %q (empty: any)", path, got, version)
		}
	}
}

func TestTheSourceOfThisRepositoryKeepsToItsLayering(t *testing.T) {
	tree, err := Read(os.DirFS("../.."))
	if err != nil {
		t.Fatalf("reading this repository: %v", err)
	}
	if !slices.ContainsFunc(tree.Files, func(f File) bool { return f.Path == "test/arch/arch_test.go" }) {
		t.Fatalf("read %d Go files and not this one: the test looked in the wrong place", len(tree.Files))
	}
	for _, violation := range Check(tree, Planned) {
		t.Error(violation)
	}
}

// source writes a Go file of the package that belongs in the room of name.
func source(name string, imports ...string) string {
	pkg := path.Base(path.Dir(name))
	if pkg == "." {
		pkg = "mesh"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "package %s\n", pkg)
	for _, imported := range imports {
		fmt.Fprintf(&text, "import _ %q\n", imported)
	}
	return text.String()
}

// ours is the import path of a room.
func ours(room string) string { return Module + "/" + room }

// sound returns a tree in which every room of the rules exists and nothing
// breaks a rule.
func sound() fstest.MapFS {
	tree := fstest.MapFS{}
	for _, rule := range Rules {
		name := path.Join(strings.TrimSuffix(rule.Room, "/**"), "doc.go")
		text := source(name)
		pkg := strings.TrimSpace(strings.TrimPrefix(text, "package "))
		tree[name] = &fstest.MapFile{Data: []byte("// Package " + pkg + " is here.\n" + text)}
	}
	return tree
}

func check(t *testing.T, tree fstest.MapFS) []string {
	t.Helper()
	read, err := Read(tree)
	if err != nil {
		t.Fatalf("reading the tree: %v", err)
	}
	var got []string
	for _, violation := range Check(read, nil) {
		got = append(got, violation.String())
	}
	return got
}

func TestArrowsThatTheArchitectureAllowsPass(t *testing.T) {
	tree := sound()
	for name, imports := range map[string][]string{
		"host/apt/a.go":                   {Module, ours("host/resource/pkg"), ours("internal"), "os"},
		"host/store/a.go":                 {Module, ours("host/reconcile"), ours("internal/sqlite")},
		"host/reconcile/a_test.go":        {"testing", "os", ours("host/store")},
		"host/resource/a_test.go":         {"testing", ours("host/resource/resourcetest")},
		"control/link/a.go":               {Module, ours("control")},
		"repo/apt/a.go":                   {ours("repo"), ours("repo/openpgp")},
		"cmd/mesh-host/main.go":           {ours("host/apt"), ours("host/link"), ours("systemd"), ours("cmd/mesh-host/flags")},
		"test/protocol/a_test.go":         {"testing", ours("host/link"), ours("control/link"), ours("test")},
		"testdata/ignored.go":             {ours("cmd")},
		"host/resource/testdata/other.go": {ours("cmd")},
	} {
		tree[name] = &fstest.MapFile{Data: []byte(source(name, imports...))}
	}
	for _, name := range []string{"repo/apt", "internal/sqlite", "host/resource/resourcetest", "cmd/mesh-host/flags", "test/protocol"} {
		pkg := path.Base(name)
		text := "// Package " + pkg + " is here.\npackage " + pkg + "\nimport _ \"testing\"\n"
		if !supportsTests(name) {
			text = strings.ReplaceAll(text, "import _ \"testing\"\n", "")
		}
		tree[name+"/doc.go"] = &fstest.MapFile{Data: []byte(text)}
	}
	tree["cmd/mesh-host/main.go"] = &fstest.MapFile{Data: []byte("// Mesh-host is the daemon.\n" +
		strings.Replace(string(tree["cmd/mesh-host/main.go"].Data), "package mesh-host", "package main", 1))}

	if got := check(t, tree); len(got) != 0 {
		t.Errorf("violations in a tree that keeps to the rules:\n%s", strings.Join(got, "\n"))
	}
}

func TestEachRuleFailsOnTheFileThatBreaksIt(t *testing.T) {
	const adapters = "an adapter imports its parent's interfaces and mesh, never another adapter"
	cases := map[string]struct {
		file, text string
		want       string
	}{
		"the host imports the control plane": {
			"host/a.go", source("host/a.go", ours("control")),
			"host/a.go:2: host imports control: the host is put together by constructor: it knows interfaces, cmd knows the adapters",
		},
		"the control plane's link imports the host's": {
			"control/link/a.go", source("control/link/a.go", ours("host/link")),
			"control/link/a.go:2: control/link imports host/link: " + adapters,
		},
		"a test of the host imports the control plane": {
			"host/link/a_test.go", source("host/link/a_test.go", ours("control/link")),
			"host/link/a_test.go:2: host/link imports control/link: " + adapters,
		},
		"a file behind a build tag imports what it may not": {
			"host/a.go", "//go:build plan9 && never\n\n" + source("host/a.go", ours("host/store")),
			"host/a.go:4: host imports host/store: the host is put together by constructor: it knows interfaces, cmd knows the adapters",
		},
		"one adapter imports another": {
			"host/apt/a.go", source("host/apt/a.go", ours("host/store")),
			"host/apt/a.go:2: host/apt imports host/store: " + adapters,
		},
		"an adapter imports systemd": {
			"host/apt/a.go", source("host/apt/a.go", ours("systemd")),
			"host/apt/a.go:2: host/apt imports systemd: " + adapters,
		},
		"one kind of resource imports another": {
			"host/resource/file/a.go", source("host/resource/file/a.go", ours("host/resource/pkg")),
			"host/resource/file/a.go:2: host/resource/file imports host/resource/pkg: a kind of resource knows the contract and no other kind",
		},
		"the reconciler imports a store": {
			"host/reconcile/a.go", source("host/reconcile/a.go", ours("host/store")),
			"host/reconcile/a.go:2: host/reconcile imports host/store: the reconciler is logic over Store and Provider and knows no implementation of either",
		},
		"the policy imports an adapter": {
			"control/a.go", source("control/a.go", ours("control/store")),
			"control/a.go:2: control imports control/store: the control plane's policy knows interfaces, cmd knows the adapters",
		},
		"the repository imports the nouns": {
			"repo/a.go", source("repo/a.go", Module),
			"repo/a.go:2: repo imports .: the repository is usable without a mesh and imports nothing of ours but the leaves",
		},
		"the rollback imports a leaf": {
			"rollback/a.go", source("rollback/a.go", ours("internal")),
			"rollback/a.go:2: rollback imports internal: what puts the host back stands on nothing of the host",
		},
		"a leaf imports a side": {
			"internal/a.go", source("internal/a.go", ours("host")),
			"internal/a.go:2: internal imports host: a leaf that both sides need depends on neither",
		},
		"the root imports a leaf": {
			"a.go", source("a.go", ours("internal")),
			"a.go:2: . imports internal: the nouns that both sides share import nothing of ours",
		},
		"something imports a program": {
			"packaging/a.go", source("packaging/a.go", ours("cmd")),
			"packaging/a.go:2: packaging imports cmd: nothing imports cmd from outside",
		},
		"one program imports another's package": {
			"cmd/one/a.go", "// Package one is here.\n" + source("cmd/one/a.go", ours("cmd/two/flags")),
			"cmd/one/a.go:3: cmd/one imports cmd/two/flags: nothing imports cmd from outside",
		},
		"a test outside imports a test": {
			"systemd/a_test.go", source("systemd/a_test.go", ours("test")),
			"systemd/a_test.go:2: systemd imports test: nothing imports test from outside",
		},
		"a program imports a tool of the build": {
			"cmd/a.go", source("cmd/a.go", ours("internal/tool")),
			"cmd/a.go:2: cmd imports internal/tool: nothing imports internal/tool from outside",
		},
		"a program imports a contract suite": {
			"cmd/a.go", source("cmd/a.go", ours("host/resource/resourcetest")),
			"cmd/a.go:2: cmd imports host/resource/resourcetest outside its tests: what helps tests is no part of the product",
		},
		"the root reads files": {
			"a.go", source("a.go", "os"),
			"a.go:2: . imports os: this room does no input or output",
		},
		"the root opens connections": {
			"a.go", source("a.go", "net/http"),
			"a.go:2: . imports net/http: this room does no input or output",
		},
		"the reconciler starts commands": {
			"host/reconcile/a.go", source("host/reconcile/a.go", "os/exec"),
			"host/reconcile/a.go:2: host/reconcile imports os/exec: this room does no input or output",
		},
		"the root uses another module": {
			"a.go", source("a.go", "golang.org/x/sync/errgroup"),
			"a.go:2: the root package imports golang.org/x/sync/errgroup: it uses the standard library only",
		},
		"the product imports testing": {
			"repo/a.go", source("repo/a.go", "testing"),
			"repo/a.go:2: imports testing outside a test",
		},
		"the product sleeps": {
			"repo/a.go", "package repo\n\nimport clock \"time\"\n\nfunc wait() { clock.Sleep(1) }\n",
			"repo/a.go:5: calls time.Sleep: waiting takes a context",
		},
		"the product sleeps without naming time": {
			"repo/a.go", "package repo\n\nimport . \"time\"\n\nfunc wait() { Sleep(1) }\n",
			"repo/a.go:5: calls time.Sleep: waiting takes a context",
		},
		"an exported function has no comment": {
			"repo/a.go", "package repo\n\nfunc Publish() {}\n",
			"repo/a.go:3: Publish is exported and has no comment",
		},
		"an exported method of an exported type has no comment": {
			"repo/a.go", "package repo\n\n// Repo is one.\ntype Repo struct{}\n\nfunc (r *Repo) Publish() {}\n\nfunc (r *Repo) String() string { return \"\" }\n",
			"repo/a.go:6: Publish is exported and has no comment",
		},
		"an exported constant has no comment": {
			"repo/a.go", "package repo\n\nconst (\n\tFirst = 1 // explained\n\tSecond = 2\n)\n",
			"repo/a.go:5: Second is exported and has no comment",
		},
		"a file is too long": {
			"repo/a.go", source("repo/a.go") + strings.Repeat("\n", 800),
			"repo/a.go: has 801 lines; past 800 a file is split",
		},
		"a script is too long": {
			"rollback/a.sh", strings.Repeat(":\n", 801),
			"rollback/a.sh: has 801 lines; past 800 a file is split",
		},
		"a package has no comment": {
			"repo/apt/a.go", source("repo/apt/a.go"),
			"repo/apt: package apt has no package comment",
		},
		"a package has only a directive": {
			"repo/apt/a.go", "//go:generate true\n" + source("repo/apt/a.go"),
			"repo/apt: package apt has no package comment",
		},
		"a package of tests has no comment": {
			"test/script/a_test.go", source("test/script/a_test.go"),
			"test/script: package script has no package comment",
		},
		"a package has two comments": {
			"repo/a.go", "// Package repo is here again.\n" + source("repo/a.go"),
			"repo: package repo has 2 package comments: repo/a.go, repo/doc.go",
		},
		"a package comment names another package": {
			"repo/apt/a.go", "// Package deb is here.\n" + source("repo/apt/a.go"),
			`repo/apt/a.go: package comment does not begin with "Package apt "`,
		},
		"a test file holds the package comment": {
			"repo/a_test.go", "// Package repo is here again.\n" + source("repo/a_test.go"),
			"repo/a_test.go: has a package comment in a test file: it belongs to the package's own files",
		},
		"a room is in no rule": {
			"helpers/a.go", "// Package helpers is here.\n" + source("helpers/a.go"),
			"helpers: is in no rule of test/arch: say there what it may import",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tree := sound()
			tree[c.file] = &fstest.MapFile{Data: []byte(c.text)}
			if got := check(t, tree); len(got) != 1 || got[0] != c.want {
				t.Errorf("violations:\n%s\nwant exactly:\n%s", strings.Join(got, "\n"), c.want)
			}
		})
	}
}

func TestARoomThatWasRenamedDoesNotLeaveItsRuleBehind(t *testing.T) {
	for name := range maps.Keys(sound()) {
		room := path.Dir(name)
		if room == "internal" || room == "internal/tool" {
			continue // "internal/**" still matches the tools
		}
		t.Run(room, func(t *testing.T) {
			tree := sound()
			for file := range tree {
				if room == "." && file == name || room != "." && strings.HasPrefix(file, room+"/") {
					delete(tree, file)
				}
			}
			got := strings.Join(check(t, tree), "\n")
			if want := "test/arch: rules name " + room; !strings.Contains(got, want) {
				t.Errorf("violations after the room %s is gone:\n%s\nwant one that begins with %q", room, got, want)
			}
		})
	}
}

func TestAPlannedRoomIsExcusedOnlyUntilItExists(t *testing.T) {
	tree := sound()
	missing := tree["host/upgrade/doc.go"]
	delete(tree, "host/upgrade/doc.go")
	before, err := Read(tree)
	if err != nil {
		t.Fatalf("reading the tree without the room: %v", err)
	}
	if got := Check(before, []string{"host/upgrade"}); len(got) != 0 {
		t.Errorf("a planned room that does not exist gives %v, want nothing", got)
	}

	tree["host/upgrade/doc.go"] = missing
	after, err := Read(tree)
	if err != nil {
		t.Fatalf("reading the tree with the room: %v", err)
	}
	got := Check(after, []string{"host/upgrade"})
	if want := "test/arch: host/upgrade is listed as planned and exists: take it off that list"; len(got) != 1 || got[0].String() != want {
		t.Errorf("a planned room that exists gives %v, want %q", got, want)
	}
}
