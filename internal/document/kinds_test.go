package document_test

import (
	"strings"
	"testing"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/document"
)

// Shows: M8
func TestWhatContradictsItselfOrNamesNothingIsRefusedBeforeAnyMachineIsTouched(t *testing.T) {
	t.Run("units", func(t *testing.T) {
		for _, unit := range []string{"nginx.service", "getty@tty1.service", `dev-disk-by\x2dlabel-x.swap`, "srv-data.mount", "srv-data.automount", "fx.timer", "fx.socket", "fx.path", "fx.target", "fx.slice"} {
			if got := taken(t, "file: /t\ncontent: A\non_change: {restart: ['"+unit+"']}").OnChange.Restart[0]; got != unit {
				t.Errorf("%s is read as %s", unit, got)
			}
		}
		for unit, words := range map[string]string{
			"nginx": "full name", "nginx.servce": "full name", "''": "full name", "'*.service'": "full name", "a b.service": "full name", "/etc/x.service": "full name",
			"fx@.service": "template", "mesh-host.service": "host itself",
		} {
			for _, verb := range []string{"reload", "restart"} {
				refused(t, "file: /t\ncontent: A\non_change: {"+verb+": ["+unit+"]}", ".on_change."+verb, words)
			}
		}
		refused(t, "file: /t\ncontent: A\non_change: {}", ".on_change", "no unit")
		refused(t, "file: /t\ncontent: A\non_change: {reload: []}", ".on_change", "no unit")
		refused(t, "file: /t\ncontent: A\non_change: {reload: nginx.service}", ".on_change.reload", "list")
		refused(t, "file: /t\ncontent: A\non_change: [nginx.service]", ".on_change", "keys and values")
		refused(t, "file: /t\ncontent: A\non_change: {start: [nginx.service]}", ".on_change.start", "no key")
		refused(t, "file: /t\ncontent: A\nnotify: nginx.service", ".notify", "no key")
	})
	t.Run("accounts", func(t *testing.T) {
		for _, name := range []string{"www-data", `CORP\alice`, "bob@corp.example", "3com", "host$", "_apt", "0", "4294967294"} {
			if got := taken(t, "file: /t\ncontent: A\nowner: '"+name+"'").File.Owner; got != name {
				t.Errorf("%s is read as %s", name, got)
			}
		}
		for _, name := range []string{"4294967295", "4294967296", "99999999999", "a:b", "-x", "a/b", `a\nb`, "@x"} {
			refused(t, "file: /t\ncontent: A\nowner: \""+name+"\"", ".owner", "cannot be")
		}
	})
	t.Run("values of another type", func(t *testing.T) {
		for _, content := range []string{"12", "true", "2026-11-30", "1.5", "[a]", "{a: b}"} {
			refused(t, "file: /t\ncontent: "+content, ".content", "")
		}
		refused(t, "file: /t\nabsent: \"true\"", ".absent", "true or false")
		refused(t, "file: /t\nabsent: yes", ".absent", "true or false")
		refused(t, "file: /t\nabsent: true\nmode: \"0644\"", ".absent", "no other")
		refused(t, "file: /t\ntype: directory\ncontent: A", ".content", "no content")
		refused(t, "file: /t\ntype: link\ntarget: A", ".type", "symlink")
		refused(t, "file: /t\ntype: symlink\ntarget: A\nmode: \"0777\"", ".mode", "no mode")
		refused(t, "file: /t\ncontent: A\ntarget: B", ".target", "symlink")
	})
	t.Run("a place that cannot hold what is to lie in it", func(t *testing.T) {
		for parent, well := range map[string]bool{
			"absent: true": false, "content: A": false, "type: directory": true, "{type: symlink, target: x}": true,
		} {
			fields := strings.Trim(strings.ReplaceAll(parent, ", ", "\n    "), "{}")
			for _, text := range []string{
				"  - file: /srv/a\n    " + fields + "\n  - file: /srv/a/b/t\n    content: A\n",
				"  - file: /srv/a/b/t\n    content: A\n  - file: /srv/a\n    " + fields + "\n",
			} {
				_, err := document.Parse("web.yaml", []byte("declaration: web\nresources:\n"+text), nil)
				if (err == nil) != well || (!well && !strings.Contains(err.Error(), "/srv/a/b/t cannot be there")) {
					t.Errorf("the answer is %v:\n%s", err, text)
				}
			}
		}
		for _, text := range []string{
			"  - file: /srv/a\n    absent: true\n  - file: /srv/a/t\n    absent: true\n",
			"  - file: /srv/a\n    absent: true\n    when: 'arch == \"arm64\"'\n  - file: /srv/a/t\n    content: A\n",
			"  - file: /srv/a\n    absent: true\n  - file: /srv/ab\n    content: A\n",
		} {
			if _, err := document.Parse("web.yaml", []byte("declaration: web\nresources:\n"+text), nil); err != nil {
				t.Errorf("refused with %v:\n%s", err, text)
			}
		}
	})
	t.Run("what an editor of another system leaves in a document", func(t *testing.T) {
		r := taken(t, "file: /t\ncontent: \"a\\r\\nb\\uFEFF\\0\"")
		if string(r.File.Content) != "a\r\nb\uFEFF\x00" {
			t.Errorf("the content is read as %q", r.File.Content)
		}
		f, err := document.Parse("web.yaml", []byte("\uFEFFdeclaration: web\r\nresources:\r\n  - file: /t\r\n    content: A\r\n"), nil)
		if err != nil || f.Document.Resources[0].Kind != mesh.KindFile || string(f.Document.Resources[0].File.Content) != "A" {
			t.Errorf("a document with a mark at its beginning and other line ends is read as %+v, %v", f, err)
		}
	})
}
