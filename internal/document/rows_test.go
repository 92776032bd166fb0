package document_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/document"
)

// refused judges that a document with one file is refused, at the key and with
// the words.
func refused(t *testing.T, entry, key, words string) {
	t.Helper()
	text := "declaration: web\nresources:\n  - " + strings.ReplaceAll(strings.TrimSpace(entry), "\n", "\n    ") + "\n"
	_, err := document.Parse("web.yaml", []byte(text), func(string) ([]byte, error) { return nil, errors.New("there is no such file") })
	var found mesh.Problems
	if !errors.As(err, &found) {
		t.Errorf("taken, with %v:\n%s", err, text)
		return
	}
	if found[0].Line == 0 || !strings.HasPrefix(found[0].Path, "resources[0]"+key) || !strings.Contains(found[0].Message, words) {
		t.Errorf("refused with %v; want it at %q with %q:\n%s", found, key, words, text)
	}
}

func taken(t *testing.T, entry string) mesh.Resource {
	t.Helper()
	text := "declaration: web\nresources:\n  - " + strings.ReplaceAll(strings.TrimSpace(entry), "\n", "\n    ") + "\n"
	f, err := document.Parse("web.yaml", []byte(text), nil)
	if err != nil {
		t.Fatalf("refused: %v\n%s", err, text)
	}
	return f.Document.Resources[0].Resource
}

// Shows: M8
func TestWhatCannotBeMeantIsRefusedBeforeAnyMachineIsTouched(t *testing.T) {
	t.Run("O-017", func(t *testing.T) {
		for _, mode := range []string{"4755", "0644", "644", "7777", "0000"} {
			if got := taken(t, fmt.Sprintf("file: /t\ncontent: A\nmode: %q", mode)).File.Mode; got != mode {
				t.Errorf("mode %q is read as %q", mode, got)
			}
		}
		for mode, words := range map[string]string{
			"4755": "quotes", "0644": "quotes", "0o644": "quotes", "6.44": "quotes", `"0888"`: "octal", `"u+x"`: "octal", `""`: "empty",
			`"07777"`: "octal", `"10000"`: "octal", `"-644"`: "octal", `" 644"`: "octal", `"64"`: "octal", `"0x1a4"`: "octal", "null": "no value", "true": "quotes", "[4, 7]": "text",
		} {
			refused(t, "file: /t\ncontent: A\nmode: "+mode, ".mode", words)
		}
	})
	t.Run("O-031", func(t *testing.T) {
		refused(t, "file: /t", "", "content or source")
		refused(t, "file: /t\ncontent: null", ".content", "no value")
		refused(t, "file: /t\ncontent:", ".content", "no value")
		refused(t, "file: /t\ncontent: ~", ".content", "no value")
		refused(t, "file: /t\nsource: lost.conf", ".source", "no such file")
		refused(t, "file: /t\nsource: \"\"", ".source", "empty")
		if f := taken(t, "file: /t\ncontent: \"\"").File; f.Content == nil || f.Size != 0 || len(f.SHA256) != 64 {
			t.Errorf("a content that is empty on purpose is read as %+v", f)
		}
	})
	t.Run("O-039", func(t *testing.T) {
		for _, path := range []string{"/etc/fx/t/", "/etc/fx//t", "/etc/fx/./t", "/etc/fx/a/../t", "etc/fx/t", "./t", "~/t", "", "/", "//", "/..", `/etc/fx/t\0`, `/etc/fx\nt`, "/proc/self/x", "/sys/x", "/dev/null"} {
			refused(t, "file: \""+path+"\"\ncontent: A", ".file", "")
		}
		refused(t, "file: /etc/"+strings.Repeat("n", 256)+"\ncontent: A", ".file", "255")
		text := "declaration: web\nresources:\n  - file: /etc/fx/t\n    content: A\n  - file: /etc/fx/t\n    content: B\n"
		if _, err := document.Parse("web.yaml", []byte(text), nil); err == nil {
			t.Error("one path stands in a document twice")
		}
	})
	t.Run("O-040", func(t *testing.T) {
		stored := mesh.Declaration{Node: "n", Generation: 1, Resources: []mesh.Resource{taken(t, "file: /etc/fx/t\ncontent: A")}}
		if ps := stored.Validate(); len(ps) > 0 {
			t.Fatal(ps)
		}
		refused(t, "file: /etc/fx/t/\ncontent: A", ".file", `"/etc/fx/t"`)
		other := stored
		other.Resources = []mesh.Resource{stored.Resources[0]}
		other.Resources[0].Name += "/"
		if ps := other.Validate(); len(ps) == 0 {
			t.Error("a host would take the other spelling for another file")
		}
	})
	t.Run("empty and impossible values", func(t *testing.T) {
		for _, key := range []string{"owner", "group"} {
			for value, words := range map[string]string{`""`: "empty", "0": "quotes", `"4294967295"`: "cannot be", `"-1"`: "cannot be", `"a b"`: "cannot be", `"root:root"`: "cannot be"} {
				refused(t, "file: /t\ncontent: A\n"+key+": "+value, "."+key, words)
			}
		}
		refused(t, "package: fx\nversion: \"\"", ".version", "empty")
		refused(t, "file: /t\ntype: symlink\ntarget: \"\"", ".target", "empty")
		if _, err := document.Parse("web.yaml", []byte("declaration: web\nselect: \"\"\nresources: []\n"), nil); err == nil {
			t.Error("a condition that is empty selects every node")
		}
	})
}
